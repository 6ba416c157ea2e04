"""Estensione Sphinx: di ogni quaderno un'edizione per chi lo apre in Jupyter, in VS Code o in Colab.

I nodi che Sphinx ha risolto (rimandi, numeri, citazioni) diventano Markdown comune; le soluzioni vanno in fondo.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import singledispatchmethod
from html import escape
from pathlib import Path
from textwrap import indent
from typing import Any
from urllib.parse import urljoin

import nbformat
from docutils import nodes
from jupyter_cache import get_cache
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sphinx.application import Sphinx
from sphinx_design.dropdown import dropdown_main
from sphinx_exercise.nodes import exercise_enumerable_node, solution_node

FOLDER = "quaderni"  # nel sito, ed è anche il ramo che Colab apre
SPECIAL = re.compile(r"[\\`*$<]|(?<!\w)_|_(?!\w)")  # ciò che in un testo Markdown leggerebbe come un segno
LICENCE = """---

Dal libro *{book}*: [{title}]({address}). {author}; testo e figure con licenza [CC BY 4.0]({licences}/LICENSE-testo),
codice con licenza [MIT]({licences}/LICENSE)."""


def quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


class Markdown:
    "Da un nodo della pagina al suo Markdown comune. Un nodo che non conosce ferma la costruzione."

    def __init__(self, app: Sphinx, page: str):
        self.address = f"{app.config.html_baseurl}{page}.html"
        self.figure_format = app.config.numfig_format["figure"]
        self.sections = app.env.toc_secnumbers.get(page, {})
        self.numbers = app.env.toc_fignumbers.get(page, {})

    @singledispatchmethod
    def text(self, node: nodes.Node) -> str:
        raise NotImplementedError(f"{self.address}: non c'è una forma in Markdown per {node.pformat()}")

    def inline(self, children: Iterable[nodes.Node]) -> str:
        return "".join(map(self.text, children))

    def blocks(self, children: Iterable[nodes.Node]) -> str:
        return "\n\n".join(filter(None, map(self.text, children)))

    def number(self, kind: str, node: nodes.Element) -> str:
        return ".".join(map(str, self.numbers[kind][node["ids"][0]]))

    @text.register
    def _(self, node: nodes.Text) -> str:
        return SPECIAL.sub(r"\\\g<0>", node.astext())

    @text.register(nodes.paragraph | nodes.inline | nodes.caption | nodes.term)
    def _(self, node: nodes.Element) -> str:
        return self.inline(node.children)

    @text.register(nodes.container | nodes.section | nodes.definition)
    def _(self, node: nodes.Element) -> str:
        return self.blocks(node.children)

    @text.register
    def _(self, node: nodes.raw) -> str:
        return node.astext().rstrip("\n")  # HTML

    @text.register(nodes.target | nodes.comment)
    def _(self, node: nodes.Element) -> str:
        return ""

    @text.register
    def _(self, node: nodes.title) -> str:
        level, section = 1, node.parent
        while isinstance(section.parent, nodes.section):
            level, section = level + 1, section.parent
        anchor = "" if level == 1 else "#" + node.parent["ids"][0]  # il numero del capitolo non ha àncora
        number = "".join(f"{part}." for part in self.sections.get(anchor, ()))
        return f"{'#' * level} {number} {self.inline(node.children)}".replace("  ", " ")

    @text.register
    def _(self, node: nodes.emphasis) -> str:
        return f"*{self.inline(node.children)}*"

    @text.register
    def _(self, node: nodes.strong) -> str:
        return f"**{self.inline(node.children)}**"

    @text.register
    def _(self, node: nodes.literal) -> str:
        if "xref" in node["classes"]:  # il testo di un rimando
            return self.inline(node.children)
        code = node.astext()
        return f"`` {code} ``" if "`" in code else f"`{code}`"

    @text.register
    def _(self, node: nodes.reference) -> str:
        target = node.get("refuri") or "#" + node["refid"]
        return f"[{self.inline(node.children)}]({urljoin(self.address, target)})"

    @text.register
    def _(self, node: nodes.math) -> str:
        return f"${' '.join(node.astext().split())}$"

    @text.register
    def _(self, node: nodes.math_block) -> str:
        "Su una riga sola: in una citazione ogni riga comincerebbe con `>`, anche per MathJax."
        tag = rf" \tag{{{self.number('displaymath', node)}}}" if node.get("label") else ""
        return f"$$ {' '.join(node.astext().split())}{tag} $$"

    @text.register
    def _(self, node: nodes.literal_block) -> str:
        return f"```{node.get('language', '')}\n{node.astext().rstrip()}\n```"

    @text.register
    def _(self, node: nodes.figure) -> str:
        "Di una figura disegnata da una cella resta la didascalia."
        [caption] = node.findall(nodes.caption)
        return f"*{self.figure_format.capitalize() % self.number('figure', node)}: {self.text(caption)}*"

    @text.register
    def _(self, node: nodes.block_quote) -> str:
        return quote(self.blocks(node.children))

    @text.register(nodes.admonition | nodes.sidebar)
    def _(self, node: nodes.Element) -> str:
        "Un riquadro, o una nota a margine, che non ha titolo."
        title, *body = node.children
        bold = f"**{self.inline(title.children)}**\n\n" if title.children else ""
        return quote(bold + self.blocks(body))

    @text.register(nodes.bullet_list | nodes.enumerated_list)
    def _(self, node: nodes.Element) -> str:
        ordered = isinstance(node, nodes.enumerated_list)
        items = []
        for position, item in enumerate(node.children, node.get("start", 1)):
            mark = f"{position}. " if ordered else "- "
            items.append(mark + indent(self.blocks(item.children), " " * len(mark)).lstrip())
        return "\n".join(items)

    @text.register
    def _(self, node: nodes.definition_list) -> str:
        return "\n\n".join(f"**{self.text(item[0])}**: {self.blocks(item.children[1:])}" for item in node.children)

    @text.register
    def _(self, node: nodes.table) -> str:
        rows = [
            "| " + " | ".join(self.inline(entry.children).replace("\n", " ") for entry in row.children) + " |"
            for row in node.findall(nodes.row)
        ]
        marks = {"text-right": "--:", "text-center": ":-:"}
        header = next(node.findall(nodes.row)).children
        align = [next((marks[name] for name in entry["classes"] if name in marks), "---") for entry in header]
        return "\n".join([rows[0], "| " + " | ".join(align) + " |", *rows[1:]])

    @text.register
    def _(self, node: dropdown_main) -> str:
        "La domanda si apre; se non è testo puro, che in HTML resterebbe grezzo, sta sopra la risposta."
        question = next(part for part in node.findall(nodes.inline) if "sd-summary-text" in part["classes"])
        plain = all(isinstance(child, nodes.Text) for child in question.children)
        summary = escape(question.astext(), quote=False) if plain else "Risposta"
        details = f"<details>\n<summary>{summary}</summary>\n\n{self.blocks(node.children[1:])}\n\n</details>"
        return details if plain else f"**{self.text(question)}**\n\n{details}"

    def heading(self, exercise: nodes.Element) -> str:
        subtitle = self.inline(exercise[0].children[1:-1])  # fra le parentesi che ci mette sphinx-exercise
        return f"Esercizio {self.number('exercise', exercise)} {subtitle}"

    @text.register
    def _(self, node: exercise_enumerable_node) -> str:
        return f"**{self.heading(node)}**\n\n{self.blocks(node.children[1:])}\n\n*Soluzione in fondo al quaderno.*"


class Edition:
    "Le celle dell'edizione, raccolte percorrendo la pagina: la prosa dai nodi, il codice dal quaderno, nel suo ordine."

    def __init__(self, markdown: Markdown, page: nodes.document, source: list[NotebookNode]):
        self.markdown, self.source = markdown, source
        self.exercises = {node["label"]: node for node in page.findall(exercise_enumerable_node)}
        self.cells: list[NotebookNode] = []
        self.solutions: list[NotebookNode] = []
        self.taken = 0  # celle del quaderno già percorse
        self.walk(next(page.findall(nodes.section)))  # alla radice altre estensioni appendono programmi
        self.take_code(len(source))
        if self.solutions:
            self.cells += [new_markdown_cell("## Soluzioni"), *self.solutions]

    def walk(self, parent: nodes.Element) -> None:
        for node in parent.children:
            if node.get("nb_element") == "cell_code":
                self.take_code(node["cell_index"] + 1)
                self.finish_cell(node)
            elif isinstance(node, nodes.section):
                self.walk(node)
            elif isinstance(node, solution_node):
                self.set_aside(node)
            else:
                if node.line:  # myst-nb ci scrive la cella da cui il nodo viene
                    self.take_code(node.line // 10_000 - 1)
                self.add(self.markdown.text(node))

    def finish_cell(self, node: nodes.Element) -> None:
        "Sotto la cella vanno le didascalie delle sue figure; se ha scritto rimandi del libro, qui sono risolti."
        for figure in node.findall(nodes.figure):
            self.add(self.markdown.text(figure))
        if "markdown_format" in node["cell_metadata"].get("mystnb", {}):
            text = self.markdown.blocks(part for part in node.children if part.get("nb_element") == "cell_code_output")
            self.cells[-1].outputs = [new_output("display_data", {"text/markdown": text})]

    def set_aside(self, solution: nodes.Element) -> None:
        "Le celle di una soluzione, col nome del suo esercizio, vanno in fondo."
        body, self.cells = self.cells, self.solutions
        self.add("### " + self.markdown.heading(self.exercises[solution["target_label"]]))
        self.walk(solution[-1])  # dopo il titolo
        self.cells = body

    def add(self, text: str) -> None:
        "Un titolo apre una cella; il resto continua quella che c'è."
        if not text:
            return
        if self.cells and self.cells[-1].cell_type == "markdown" and not text.startswith("#"):
            self.cells[-1].source += "\n\n" + text
        else:
            self.cells.append(new_markdown_cell(text))

    def take_code(self, end: int) -> None:
        """Le celle di codice fino a `end`, anche quelle che la pagina non mostra; non le direttive per il pacchetto.

        Dopo la prima soluzione vanno tutte in fondo: il codice si esegue nello stesso ordine che nel libro. Restano
        al loro posto quelle etichettate «consegna», che chi legge deve riempire.
        """
        for cell in self.source[self.taken : end]:
            code = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.MULTILINE)
            if cell.cell_type == "code" and code:
                tags = cell.metadata.get("tags", [])
                metadata = {"tags": tags}
                if {"hide-cell", "hide-input", "remove-cell"} & {*tags}:
                    metadata |= {"cellView": "form", "jupyter": {"source_hidden": True}}
                count = cell.get("execution_count")
                cells = self.cells if "consegna" in tags else self.solutions or self.cells
                cells.append(new_code_cell(code, metadata=metadata, outputs=cell.outputs, execution_count=count))
        self.taken = max(self.taken, end)


def executed(app: Sphinx, page: str) -> NotebookNode:
    "Il quaderno con le uscite. In `jupyter_execute` myst-nb non le mette, se le prende dalla cache."
    notebook = nbformat.read(app.env.doc2path(page), as_version=4)
    config = app.env.mystnb_config  # type: ignore[attr-defined]  # lo aggiunge myst-nb
    if config.execution_mode == "cache":
        with suppress(KeyError):
            _, notebook = get_cache(config.execution_cache_path).merge_match_into_notebook(notebook, cell_meta=())
    return notebook


def edition(app: Sphinx, page: str, doctree: nodes.document) -> NotebookNode:
    "L'edizione di una pagina: le celle, e in fondo da dove viene e con quale licenza."
    markdown = Markdown(app, page)
    cells = Edition(markdown, doctree, executed(app, page).cells).cells
    licence = LICENCE.format(
        address=markdown.address,
        author=app.config.author,
        book=app.config.html_title,
        licences=f"{app.config.html_theme_options['repository_url']}/blob/main",
        title=cells[0].source.partition("\n")[0].removeprefix("# "),
    )
    cells.append(new_markdown_cell(licence))
    for position, cell in enumerate(cells):
        cell.id = f"cella-{position}"  # altrimenti nbformat li sorteggia
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    colab = {"name": f"{page}.ipynb", "toc_visible": True}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "colab": colab})


def publish(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    "Scrive l'edizione di un quaderno accanto alla sua pagina, e vi porta i pulsanti in alto."
    if doctree is None or Path(app.env.doc2path(page)).suffix != ".ipynb":
        return
    path = Path(app.outdir, FOLDER, f"{page}.ipynb")
    path.parent.mkdir(exist_ok=True)
    nbformat.write(edition(app, page, doctree), path)
    for button in (button for group in context["header_buttons"] for button in group.get("buttons", ())):
        if button["text"] == "Colab":
            button["url"] = re.sub("/blob/.*", f"/blob/{FOLDER}/{path.name}", button["url"])
        elif button.get("label") == "download-source-button":  # il tema non ha `download`: lo si accoda all'indirizzo
            button["url"] = f'{context["pathto"](FOLDER, 1)}/{path.name}" download="{path.name}'
            button["tooltip"] = "Scarica il quaderno"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", publish, priority=800)  # dopo il tema, prima che `quaderni` traduca i pulsanti
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
