"""Estensione Sphinx: in ogni capitolo un termine in corsivo, la prima volta, porta alla sua voce nel glossario.

Vale per il nome italiano e per quello inglese; passandoci sopra si legge l'inizio della definizione. Nel glossario il
nome inglese è segnato come tale, per chi ascolta.
"""

from typing import Any

from docutils import nodes
from indice import CHAPTER, GLOSSARY
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

LEFT_OUT = (nodes.title, nodes.reference, nodes.caption, nodes.table)
Entry = tuple[str, str]  # l'àncora, la prima frase della definizione


def glossary(app: Sphinx) -> dict[str, Entry]:
    names: dict[str, Entry] = {}
    for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        paragraph = next(item[1].findall(nodes.paragraph))
        english = paragraph[0].astext() if isinstance(paragraph[0], nodes.emphasis) else ""
        definition = paragraph.astext().removeprefix(english).lstrip(". ").partition(". ")[0].partition(" (")[0]
        entry = item[0]["ids"][0], "" if next(paragraph.findall(nodes.math), None) else f"{definition.rstrip('.')}."
        for name in (item[0].astext(), *english.split(", ")):
            names.setdefault(name.lower(), entry)
    return names


def link_terms(app: Sphinx, doctree: nodes.document, page: str) -> None:
    if app.builder.format != "html" or not CHAPTER.match(page):
        return
    if not hasattr(app, "voci"):
        app.voci = glossary(app)  # type: ignore[attr-defined]
    seen: set[str] = set()
    for word in list(doctree.findall(nodes.emphasis)):
        anchor, definition = app.voci.get(word.astext().lower(), ("", ""))  # type: ignore[attr-defined]
        if not anchor or anchor in seen or any(isinstance(node, LEFT_OUT) for node in ancestors(word)):
            continue
        seen.add(anchor)
        uri = app.builder.get_relative_uri(page, GLOSSARY) + f"#{anchor}"
        link = nodes.reference("", "", word.deepcopy(), internal=True, refuri=uri, classes=["voce"])
        if definition:
            link["reftitle"] = definition
        word.replace_self(link)


def mark_english(app: Sphinx, doctree: nodes.document, page: str) -> None:
    "Il corsivo con cui comincia una voce, e la prima colonna della tabella."
    if page != GLOSSARY:
        return
    starts = [next(item[1].findall(nodes.paragraph))[0] for item in doctree.findall(nodes.definition_list_item)]
    for node in starts + [row[0] for body in doctree.findall(nodes.tbody) for row in body]:
        if isinstance(node, nodes.emphasis | nodes.entry):
            node["classes"].append("language-en")  # docutils ne fa lang="en"


def stale(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    "Se cambia il glossario si riscrivono i capitoli che lo citano."
    return [page for page in env.found_docs if CHAPTER.match(page)] if GLOSSARY in added | changed else []


def ancestors(node: nodes.Node) -> list[nodes.Node]:
    return [] if node.parent is None else [node.parent, *ancestors(node.parent)]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", link_terms)
    app.connect("doctree-resolved", mark_english)
    app.connect("env-get-outdated", stale)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
