"""Estensione Sphinx: ciò che serve a pubblicare le pagine, tutto ricavato da `html.baseurl` in `_config.yml`.

Mappa del sito, indirizzi canonici, metadati per le reti sociali, pagina 404, data dell'ultima modifica di ogni pagina.
"""

import re
from hashlib import sha256
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx_sitemap import add_html_link

import annotated

NOT_FOUND = """<h1>Questa pagina non c'è</h1>
<p>L'indirizzo è sbagliato, o la pagina ha cambiato nome. Si può ripartire
dall'<a href="{root}intro.html">inizio del libro</a>, cercare una parola con la casella in alto,
oppure aprire il <a href="{root}92_glossario.html">glossario</a>.</p>"""


def has_history(app: Sphinx) -> bool:
    return (Path(app.srcdir).parent / ".git").exists()


def derive(app: Sphinx, config: Config) -> None:
    "Gli indirizzi che le altre estensioni vogliono; senza il registro nessuna data, nemmeno quella della costruzione."
    root = urlsplit(config.html_baseurl).path
    if not has_history(app):
        config.html_last_updated_fmt = None
    config.ogp_site_url = config.html_baseurl
    config.notfound_urls_prefix = root
    config.notfound_context = {"title": "Questa pagina non c'è", "body": NOT_FOUND.format(root=root), "sourcename": ""}


def no_source(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    "La 404 non ha un sorgente né un quaderno da aprire: dei pulsanti in alto restano quelli di ogni pagina."
    if name == app.config.notfound_pagename:
        context["header_buttons"] = [button for button in context["header_buttons"] if button["type"] == "javascript"]


def describe(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    "Le anteprime mostrano la riga sotto il titolo o, se manca, il primo capoverso; senza i rimandi alla bibliografia."
    paragraph = doctree and next(doctree.findall(nodes.paragraph), None)
    if paragraph is None or "og:description" in (context["meta"] or {}):
        return
    paragraph = paragraph.deepcopy()
    for reference in list(paragraph.findall(nodes.reference)):
        if "bibliografia" in reference.get("refuri", ""):
            reference.parent.remove(reference)
    text = shorten(re.sub(r" ?\[[,; ]*\]", "", paragraph.astext()), 200, placeholder="…")
    context["meta"] = {**(context["meta"] or {}), "og:description": text}
    context["metatags"] += f'<meta name="description" content="{escape(text)}" />\n'


def forget(app: Sphinx, env: BuildEnvironment, name: str) -> None:
    "Un capitolo tolto o rinominato non lascia la sua pagina; uno cambiato la riscrive."
    Path(app.outdir, f"{name}.html").unlink(missing_ok=True)


def lighten(app: Sphinx, error: Exception | None) -> None:
    "Le icone vengono già dai caratteri del foglio di stile: la copia in JavaScript, un megabyte e mezzo, è di troppo."
    Path(app.outdir, "_static", "scripts", "fontawesome.js").unlink(missing_ok=True)


def whole_map(app: Sphinx, error: Exception | None) -> None:
    "Chi ricostruisce il libro riscrive qualche pagina, e la mappa avrebbe solo quelle: ci si mettono tutte."
    if error or app.builder.format != "html":
        return
    while not app.sitemap_links.empty():  # type: ignore[attr-defined]
        app.sitemap_links.get()  # type: ignore[attr-defined]
    for name in sorted(app.env.found_docs):
        add_html_link(app, name, "", {}, None)


def writers() -> str:
    "L'impronta di chi scrive le pagine: se cambia, quelle già scritte sono vecchie, e Sphinx da sé non lo saprebbe."
    here, package = Path(__file__).parent, Path(annotated.__file__).parent
    files = [path for path in here.rglob("*") if path.suffix in {".py", ".js", ".po"}]
    files += [package / "web.py", *package.glob("study/viewer.*"), *package.glob("study/web/*")]
    return sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()


def first_page(app: Sphinx, *_: Any) -> list[str]:
    "Una pagina si rifà sempre: se non ne scrive nessuna, Sphinx non copia nemmeno `_static`, che può essere cambiata."
    return ["intro"]


def setup(app: Sphinx) -> dict[str, Any]:
    for name in ("sphinx_sitemap", "sphinxext.opengraph", "notfound.extension"):
        app.setup_extension(name)
    if has_history(app):
        app.setup_extension("sphinx_last_updated_by_git")
    app.connect("config-inited", derive, priority=100)
    app.connect("env-get-outdated", first_page)
    app.connect("env-purge-doc", forget)
    app.connect("build-finished", lighten)
    app.connect("build-finished", whole_map, priority=400)  # prima che la mappa si scriva
    app.connect("html-page-context", describe, priority=400)  # prima che opengraph scriva i suoi
    app.connect("html-page-context", no_source, priority=950)
    return {"version": "1", "env_version": writers(), "parallel_read_safe": True, "parallel_write_safe": True}
