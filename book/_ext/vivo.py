"""Estensione Sphinx: la direttiva `{vivo} MODELLO` mette nella pagina un modello che traduce (`web.live_model`).

Le opzioni `head` (da 1) e `focus` (da 0) dicono quale testa e quale pezzo guarda all'apertura.
Accanto alle pagine che ne contengono uno, comunque ci sia arrivato, scrive i pesi da caricare.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from annotated.web import export_web, live_model

MODEL = re.compile(r'<div [^>]*data-modello="([\w-]+)"')


class Vivo(Directive):
    required_arguments = 1
    option_spec = {"head": int, "focus": int}

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", live_model(self.arguments[0], **self.options).html, format="html")]


def write_models(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for name in sorted({name for page in out.glob("*.html") for name in MODEL.findall(page.read_text("utf-8"))}):
        export_web(name, out / "_static" / "vivo" / name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("vivo", Vivo)
    app.connect("build-finished", write_models)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
