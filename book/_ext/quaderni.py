"""Estensione Sphinx del libro.

Toglie dalla pagina le direttive `#|`, segna le celle che vanno nel pacchetto, disegna i grafici Vega-Lite
senza rete, traduce ciò che il tema scrive in inglese senza passare da un catalogo (gli altri testi: `italiano`).
"""

import json
import re
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import vl_convert
from docutils import nodes
from jinja2.ext import Extension
from myst_nb.core.render import MimeData, NbElementRenderer, load_mime_renders
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms import SphinxTransform

from annotated.study.viewer import asset, style

DIRECTIVE = re.compile(r"^#\|\s*(\w+)\s*(.*?)\s*$")
COLUMNS = re.compile(r"\S {2,}\S|^ *\[")  # una riga di tabella, o di matrice
BUNDLE = "vega-bundle.js"
# chi ascolta sente la descrizione e le scritte; degli assi Vega direbbe una frase inglese, di ogni segno tutti i numeri
QUIET = {"axis": {"aria": False}, "mark": {"aria": False}, "text": {"aria": True}}
LOCALE = {"decimal": ",", "thousands": ".", "grouping": [3], "currency": ["€", ""]}


def is_cell(node: nodes.Node) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"


def is_source(node: nodes.Node) -> bool:
    return isinstance(node, nodes.literal_block) and node.parent.get("nb_element") == "cell_code_source"


class MarkExported(SphinxTransform):
    """Toglie le direttive di nbdev dal codice mostrato; sopra una cella esportata mette il file in cui finisce."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        module = ""
        for cell in list(self.document.findall(is_cell)):
            block = next(cell.findall(is_source), None)
            if block is None:
                continue
            lines = block.astext().splitlines()
            directives: dict[str, str] = {}
            while lines and (match := DIRECTIVE.match(lines[0])):
                directives[match[1]] = match[2]
                lines.pop(0)
            if not directives:
                continue
            module = directives.get("default_exp", module)
            text = "\n".join(lines).strip("\n")
            if not text:  # solo direttive
                cell.parent.remove(cell)
                continue
            block.rawsource, block.children = text, [nodes.Text(text)]
            if "export" in directives:
                name = directives["export"] or module  # una cella può dire da sé in quale modulo finisce
                path = f"annotated/{name.replace('.', '/')}.py"
                url = f"{self.config.html_theme_options['repository_url']}/blob/main/{path}"
                link = nodes.reference("", path, refuri=url)
                cell["classes"].append("cella-esportata")
                place = block.parent if cell.get("hide_mode") else cell  # ripiegata: myst-nb vuole il codice per primo
                place.insert(0, nodes.paragraph("", "", link, classes=["esportata"]))


class VegaLite:
    """Le uscite Vega-Lite: nella pagina ci sono la specifica e il disegno fermo.

    Quando il grafico sta per vedersi, `grafici.js` carica il programma che lo anima.
    """

    mime_priority_overrides = [("*", f"application/vnd.vegalite.v{v}+json", 1) for v in (5, 6)]

    @staticmethod
    def handle_mime(renderer: NbElementRenderer, data: MimeData, inline: bool) -> list[nodes.Node] | None:
        if inline or not data.mime_type.startswith("application/vnd.vegalite."):
            return None
        spec = data.content if isinstance(data.content, dict) else json.loads(data.content)
        name = f"vega-{data.cell_index}-{data.output_index}"
        spec["config"] = QUIET | spec.get("config", {})
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        still = vl_convert.vegalite_to_svg(spec, format_locale=LOCALE)
        still = still.replace("<svg ", f'<svg role="img" aria-label="{escape(spec["description"])}" ', 1)
        html = (
            f'<div class="vega-lite" id="{name}" role="figure">{still}</div>\n'
            f'<script type="application/json" class="vega-lite-spec" data-target="{name}">{text}</script>'
        )
        return [nodes.raw("", html, format="html", classes=["output", "vega"], vega_lite=True)]


def write_bundles(app: Sphinx) -> None:
    "Scrive in `_static` il pacco di Vega: la pagina non chiede nulla ad altri siti."
    if app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    start = Path(__file__).with_name("vega_avvio.js").read_text("utf-8")
    # il pacco è un modulo ES, che un browser rifiuta di caricare da file://: lo si chiude in una funzione
    (static / BUNDLE).write_text(f"(() => {{\n{vl_convert.javascript_bundle(start)}\n}})();\n", "utf-8")


TEMPLATES = {  # gli script della ricerca di Sphinx, e ciò che i modelli del tema scrivono in inglese
    **{
        f"<script src=\"{{{{ pathto('{name}', 1) | e }}}}\"></script>": ""
        for name in ("_static/searchtools.js", "_static/language_data.js", "searchindex.js")
    },
    "Toggle secondary sidebar": "Mostra o nascondi l'indice della pagina",
    '<dialog id="pst-search-dialog">': '<dialog id="pst-search-dialog" aria-label="Cerca">',
    '<dialog id="pst-primary-sidebar-modal">': '<dialog id="pst-primary-sidebar-modal" aria-label="Indice del libro">',
    '<dialog id="pst-secondary-sidebar-modal">': (
        '<dialog id="pst-secondary-sidebar-modal" aria-label="Indice della pagina">'
    ),
    'aria-label="Main"': 'aria-label="Capitoli"',
    'aria-label="Page"': 'aria-label="Indice della pagina"',
    "{{ translate('By') }} {{ author }}": "{{ author }}",
    'alt="{{ translate(text) }} {{ translate("logo") }}"': 'alt=""',
}
# un'icona è una lettera privata del suo carattere: un lettore di schermo la direbbe, al posto del nome del pulsante
ICON = re.compile(r'<(?:i|span) class="(?:fa-solid [\w -]+|\{\{ icon \}\})"(?=>)')

BODY = {  # nel testo della pagina: accessibilità, e ancora inglese
    ' aria-label="Toggle hidden content"': "",  # il nome del pulsante è il testo che vi si legge, «Mostra il codice»
    '<table class="table">': '<table class="table" tabindex="0">',  # su uno schermo stretto scorre: anche da tastiera
    # le sue voci non sono «listitem», e i titoli, o quasi, sono inglesi
    ' role="list" class="citation-list"': ' class="citation-list" lang="en"',
    '"> Esercizio ': '">Esercizio ',
}


def replace(text: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        text = text.replace(old, new)
    return text


class Italian(Extension):
    "Traduce i modelli di pagina mentre Jinja li legge."

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return ICON.sub(r'\g<0> aria-hidden="true"', replace(source, TEMPLATES))


def one_search(app: Sphinx, config: Config) -> None:
    "Senza la barra in cima, che conterrebbe soltanto una seconda casella di ricerca."
    config.html_theme_options["navbar_persistent"] = []


def translate_theme(app: Sphinx) -> None:
    if app.builder.format == "html":
        app.builder.templates.environment.add_extension(Italian)


def translate_scripts(app: Sphinx, error: Exception | None) -> None:
    "Il pulsante delle soluzioni lo fa uno script, con un nome inglese: lo si chiama come vi si legge."
    script = Path(app.outdir) / "_static" / "togglebutton.js"
    if error is None and script.exists():
        hint = "button.dataset.toggleHint = "
        script.write_text(script.read_text("utf-8").replace(hint, f"button.ariaLabel = {hint}"), "utf-8")


def share_viewer(app: Sphinx, error: Exception | None) -> None:
    "Ogni vista porta con sé il programma che la disegna, e in un quaderno le serve; una pagina lo carica una volta."
    if error or app.builder.format != "html":
        return
    program, css = asset("viewer.js"), style("viewer.css")
    packed = json.dumps(css, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    alone = re.compile(
        re.escape(f"<script>(() => {{\n{program}\nstart(")
        + r'("\w+"), '
        + re.escape(packed)
        + r", (.*)\);\n\}\)\(\);</script>"
    )
    out = Path(app.outdir)
    begin = "for (const [id, data] of viste) start(id, css, data);"
    text = f"(() => {{\n{program}\nconst css = {packed};\n{begin}\n}})();\n"
    (out / "_static" / "visore.js").write_text(text, "utf-8")
    for page in out.glob("*.html"):
        body, views = alone.subn(r"<script>(window.viste ??= []).push([\1, \2]);</script>", page.read_text("utf-8"))
        if views:
            page.write_text(
                body.replace("</head>", '<script defer src="_static/visore.js"></script>\n</head>', 1), "utf-8"
            )


def report_errors(buttons: Any, page: str) -> None:
    "Il pulsante che apre una segnalazione porta al modulo in italiano, con l'indirizzo della pagina."
    for button in buttons or ():
        if button.get("label") == "source-issues-button":
            repository = button["url"].partition("/issues/")[0]
            button["url"] = f"{repository}/issues/new?template=errore-nel-testo.yml&amp;dove={quote(page, safe='')}"
        report_errors(button.get("buttons"), page)


def attribution(title: str, url: str) -> str:
    "La riga in fondo alla pagina stampata."
    return f'<p class="onlyprint firma">Da <em>annotated</em>, «{title}», CC BY 4.0, {url}</p>\n'


def finish_page(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    url = context.get("pageurl") or name
    report_errors(context.get("header_buttons"), url)
    context["theme_search_bar_text"] = "Cerca nel libro"
    if name in app.env.titles:
        if number := app.env.toc_secnumbers.get(name, {}).get(""):
            context["pagetitle"] = f"{number[0]}. {context['pagetitle']}"  # il titolo della pagina stampata
        context["body"] = replace(context["body"], BODY) + attribution(escape(context["pagetitle"]), url)


class MarkColumns(SphinxTransform):
    "Segna con `colonne` le tabelle e le matrici stampate: sul telefono scorrono, ché a capo non si leggono."

    default_priority = 400

    def apply(self, **_: Any) -> None:
        for block in self.document.findall(nodes.literal_block):
            lines = block.astext().splitlines()
            rows = sum(bool(COLUMNS.search(line)) for line in lines)
            if "output" in block["classes"] and len(lines) > 2 and rows > len(lines) / 2:
                block["classes"].append("colonne")


def setup(app: Sphinx) -> dict[str, Any]:
    plugins = load_mime_renders()  # è sempre la stessa lista: la si allunga sul posto
    if VegaLite not in plugins:
        plugins.append(VegaLite)
    app.add_transform(MarkExported)
    app.add_transform(MarkColumns)
    app.connect("config-inited", one_search)
    app.connect("builder-inited", write_bundles)
    app.connect("builder-inited", translate_theme)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", translate_scripts)
    app.connect("build-finished", share_viewer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
