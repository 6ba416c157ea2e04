"""Estensione Sphinx: mette accanto alle pagine i pesi dei modelli che vi traducono (`annotated.web.live_model`)."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from annotated.web import export_web

MODEL = re.compile(r'<div [^>]*data-modello="([\w-]+)"')


def write_models(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for name in sorted({name for page in out.glob("*.html") for name in MODEL.findall(page.read_text("utf-8"))}):
        export_web(name, out / "_static" / "vivo" / name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write_models)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
