"""Estensione Sphinx: l'indice analitico, cioè di ogni voce del glossario le sezioni che ne parlano."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

GLOSSARY = "92_glossario"
CHAPTER = re.compile(r"(?!00|9)\d\d_")
LAST = {"Errori tipici", "Controlla di aver capito", "Esercizi", "In breve"}  # ripetono le altre sezioni
MOST = 5  # sezioni per voce, oltre a quelle in cui nasce
ENDINGS = [
    ("io", "io?"), ("ca", "c(?:a|he)"), ("ga", "g(?:a|he)"), ("co", "c(?:o|hi|i)"),
    ("a", "[ae]"), ("o", "[oi]"), ("e", "[ei]"),
]  # fmt: skip


class Place(nodes.General, nodes.Element):
    "Il posto in cui l'indice andrà, quando tutte le pagine saranno lette."


class Index(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return [Place()]


def pattern(term: str) -> re.Pattern[str]:
    "La voce, al singolare o al plurale."
    words = []
    for word in term.split():
        ending, forms = next(((e, f) for e, f in ENDINGS if len(word) > 3 and word.endswith(e)), ("", ""))
        words.append(re.escape(word.removesuffix(ending)) + forms)
    return re.compile(r"\b" + r"[\s-]".join(words) + r"\b", re.IGNORECASE)


def text_of(section: nodes.section) -> str:
    "La prosa di una sezione, senza le sotto-sezioni né il codice."
    own = [child for child in section.children if not isinstance(child, nodes.section)]
    blocks = (nodes.title, nodes.paragraph, nodes.term, nodes.caption)
    return "\n".join(node.astext() for child in own for node in child.findall(lambda n: isinstance(n, blocks)))


class Section(NamedTuple):
    page: str
    anchor: str
    number: str
    title: str
    label: str  # quella di autosectionlabel: pagina e titolo
    text: str


def sections(env: BuildEnvironment) -> Iterator[Section]:
    "Le sezioni numerate dei capitoli, nell'ordine del libro."
    for page in sorted(filter(CHAPTER.match, env.found_docs)):
        numbers = env.toc_secnumbers.get(page, {})
        for section in env.get_doctree(page).findall(nodes.section):
            anchors = [""] if isinstance(section.parent, nodes.document) else [f"#{name}" for name in section["ids"]]
            anchor = next(filter(numbers.__contains__, anchors), None)
            if anchor is not None and section[0].astext() not in LAST:
                number = ".".join(map(str, numbers[anchor]))
                label = nodes.fully_normalize_name(f"{page}:{section[0].rawsource or section[0].astext()}")
                yield Section(page, anchor, number, section[0].astext(), label, text_of(section))


def fill(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for place in list(doctree.findall(Place)):
        book, rows = list(sections(app.env)), []
        for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
            voice, definition = item[0].astext(), item[1]
            born = {ref["reftarget"] for ref in definition.findall(addnodes.pending_xref)}
            first = [section for section in book if section.label in born]
            word = pattern(voice)
            counts = {section: len(word.findall(section.text)) for section in book if section not in first}
            most = [s for s in sorted(counts, key=counts.__getitem__, reverse=True)[:MOST] if counts[s] > 1]
            english = next(iter(definition.findall(nodes.emphasis)), None)
            line = nodes.paragraph()
            line += link(app, page, GLOSSARY, "#" + item[0]["ids"][0], voice, "definizione")
            if english is not None and definition.astext().startswith(english.astext()):
                line += [nodes.Text(" ("), nodes.emphasis("", english.astext()), nodes.Text(")")]
            for section in book:
                if section in first or section in most:
                    mark = link(app, page, section.page, section.anchor, section.number, section.title)
                    line += [nodes.Text(" · "), nodes.strong("", "", mark) if section in first else mark]
            rows.append(nodes.list_item("", line))
        place.replace_self(nodes.bullet_list("", *rows, classes=["indice"]))


def link(app: Sphinx, page: str, target: str, anchor: str, text: str, title: str) -> nodes.reference:
    uri = app.builder.get_relative_uri(page, target) + anchor
    return nodes.reference("", text, internal=True, refuri=uri, reftitle=title)


def stale(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    "La pagina dell'indice si riscrive ogni volta che una pagina cambia."
    return [name for name in env.found_docs if name.endswith("_indice")] if added | changed | removed else []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(Place)
    app.add_directive("indice-analitico", Index)
    app.connect("doctree-resolved", fill)
    app.connect("env-get-outdated", stale)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
