"""Estensione Sphinx: la ricerca, al posto di quella di Sphinx.

L'indice si legge dalle pagine scritte: una voce per sezione e una per termine del glossario, che passa il proprio nome,
italiano e inglese, alle sezioni in cui rimanda. Lo carica `ricerca.js`, quando si comincia a cercare.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lxml import html
from sphinx.application import Sphinx

INDEX = "ricerca-indice.js"
LEFT_OUT = {"98_indice", "genindex", "search", "index", "404"}
SKIPPED = {"section", "summary", "pre", "script", "style", "svg", "button", "h1", "h2", "h3", "h4"}
DEFINED = re.compile(r"^\s*(?:def|class) (\w+)", re.MULTILINE)


def squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip(" #")


def is_prose(node: html.HtmlElement) -> bool:
    kinds = node.get("class", "")
    math_block = node.tag == "div" and "math" in kinds
    return (
        node.tag not in SKIPPED
        and not math_block
        and not any(name in kinds for name in ("cell_output", "headerlink", "mappa"))
    )


def texts(node: html.HtmlElement) -> Iterator[str]:
    "I pezzi di testo di una sezione: senza codice, uscite, formule a sé e sottosezioni."
    yield node.text or ""
    for child in node:
        if isinstance(child.tag, str) and is_prose(child):
            yield from texts(child)
        yield child.tail or ""


class Index:
    def __init__(self) -> None:
        self.pages: list[list[str]] = []  # indirizzo, titolo
        self.entries: list[list[Any]] = []  # pagina, àncora, titolo, testo, nomi definiti dal codice
        self.born: dict[str, list[str]] = defaultdict(list)  # sezione → i termini del glossario che vi rimandano

    def add_page(self, path: Path) -> None:
        if not (articles := html.parse(str(path), html.HTMLParser(encoding="utf-8")).xpath("//article")):
            return
        number = len(self.pages)
        titles = articles[0].xpath(".//h1")
        self.pages.append([path.name, squeeze(titles[0].text_content()) if titles else ""])
        for section in articles[0].xpath(".//section[@id]"):
            heading = section.xpath("./*[self::h1 or self::h2 or self::h3 or self::h4]")
            if heading and not section.xpath("./dl[contains(@class, 'glossary')]"):
                code = "\n".join(pre.text_content() for pre in section.xpath("./div//pre"))
                names = " ".join(dict.fromkeys(DEFINED.findall(code)))
                anchor = "" if heading[0].tag == "h1" else section.get("id")
                self.entries.append(
                    [number, anchor, squeeze(heading[0].text_content()), squeeze("".join(texts(section))), names]
                )
        for term in articles[0].xpath(".//dl[contains(@class, 'glossary')]/dt[@id]"):
            self.add_term(number, term)

    def add_term(self, number: int, term: html.HtmlElement) -> None:
        definition = next(term.itersiblings("dd"))
        english = definition.xpath("./p[1]/em[not(preceding-sibling::*)]")
        italian = squeeze("".join(term.xpath("./text()|./*[not(contains(@class, 'headerlink'))]//text()")))
        leads = english and squeeze(definition.text_content()).startswith(english[0].text_content())
        title = f"{italian} ({english[0].text_content()})" if leads else italian
        self.entries.append([number, term.get("id"), title, squeeze(definition.text_content()), ""])
        for link in definition.xpath(".//a[contains(@class, 'internal')]/@href"):
            self.born[link].append(title)

    def script(self) -> str:
        for entry in self.entries:
            page, anchor = self.pages[entry[0]][0], entry[1]
            entry.append(" · ".join(self.born[f"{page}#{anchor}" if anchor else page]))
        data = json.dumps([self.pages, self.entries], ensure_ascii=False, separators=(",", ":"))
        return f"indiceDelLibro({data});\n"


def write_index(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    index = Index()
    for page in sorted(Path(app.outdir).glob("*.html")):
        if page.stem not in LEFT_OUT:
            index.add_page(page)
    (Path(app.outdir) / "_static" / INDEX).write_text(index.script(), "utf-8")


def search_page(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    yield "search", {"title": "Cerca"}, "search.html"


def replace_search(app: Sphinx) -> None:
    if app.builder.format == "html":
        app.builder.search = False  # niente indice di Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", replace_search)
    app.connect("html-collect-pages", search_page)
    app.connect("build-finished", write_index)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
