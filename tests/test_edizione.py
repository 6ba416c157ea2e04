"""L'edizione di ogni quaderno per Jupyter e Colab: costruita col libro, e su un libro minuscolo con ogni costrutto."""

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
HTML = BOOK / "_build" / "html"
CONFIG = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))
SITE = CONFIG["html"]["baseurl"]
NAMES = sorted(path.name for path in BOOK.glob("*.ipynb"))
PARSER = MarkdownIt("commonmark").enable("table")
CODE = {"code_inline", "code_block", "fence"}
RESIDUE = re.compile(r"\{[\w:]+\}`|:::|`{3,}\{|^\([\w-]+\)=|^:\w+:", re.MULTILINE)


@cache
def source(name: str) -> NotebookNode:
    return nbformat.read(BOOK / name, as_version=4)


@cache
def edition(name: str) -> NotebookNode:
    return nbformat.read(HTML / "quaderni" / name, as_version=4)


def prose(notebook: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@cache
def parsed(text: str) -> list[Token]:
    return PARSER.parse(text)


def tokens(text: str) -> Iterator[Token]:
    for token in parsed(text):
        yield from token.children or [token]


def readable(text: str) -> str:
    "Ciò che si legge, senza i segni del Markdown."
    parts = (t.content or (" " if t.block or t.type == "softbreak" else "") for t in tokens(text))
    return " ".join(unescape("".join(parts)).split())


@pytest.mark.parametrize("name", NAMES)
def test_edition_is_valid_light_and_plain(name: str) -> None:
    nbformat.validate(edition(name))
    assert (HTML / "quaderni" / name).stat().st_size < 5e6
    assert not any(token.info.startswith("{") for token in tokens(prose(edition(name))) if token.type == "fence")
    outside = "\n".join(token.content for token in tokens(prose(edition(name))) if token.type not in CODE)
    assert not RESIDUE.findall(outside)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost(name: str) -> None:
    "Domande, titoli degli esercizi, didascalie, soluzioni; e il codice, nell'ordine in cui si esegue."
    text, whole = prose(source(name)), readable(prose(edition(name)))
    for title in re.findall(r"^(?:```|:::)\{(?:dropdown|exercise)\} (.+)", text, re.MULTILINE):
        assert readable(title) in whole
    figures = [cell for cell in source(name).cells if "figure" in cell.metadata.get("mystnb", {})]
    for cell in figures:
        assert readable(cell.metadata.mystnb.figure.caption) in whole
    body, _, solutions = prose(edition(name)).partition("\n## Soluzioni\n")
    asked = text.count("```{solution-start}")
    assert body.count("*Soluzione in fondo al quaderno.*") == solutions.count("### Esercizio ") == asked
    assert not asked or "In breve" in body
    written = [cell for cell in source(name).cells if cell.cell_type == "code"]
    # le funzioni da riempire restano al loro posto
    blanks = [i for i, cell in enumerate(written) if "consegna" in cell.metadata.get("tags", [])]
    order = sorted(range(len(written)), key=lambda i: bool(blanks) and i > blanks[0] and i not in blanks)
    lines = [written[i].source.split("\n") for i in order]
    expected = ["\n".join(line for line in cell if not line.startswith("#|")) for cell in lines]
    code = [cell for cell in edition(name).cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == [text for text in expected if text]
    assert "google.colab" in code[0].source


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn(name: str) -> None:
    "Ogni cella con una didascalia ha la sua uscita, che il sorgente non conserva."
    drawn = {cell.source for cell in edition(name).cells if cell.cell_type == "code" and cell.outputs}
    figures = {cell.source for cell in source(name).cells if "figure" in cell.metadata.get("mystnb", {})}
    assert figures <= drawn


@cache
def anchors(page: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', (HTML / page).read_text("utf-8")))


def test_links_lead_to_pages_and_anchors_that_exist() -> None:
    found = 0
    for name in NAMES:
        for token in tokens(prose(edition(name))):
            address = str(token.attrGet("href") or token.attrGet("src") or "")
            assert not address or address.startswith("https://"), (name, address)
            if address.startswith(SITE):
                page, anchor = urldefrag(address.removeprefix(SITE))
                assert (HTML / page).exists() and (not anchor or unquote(anchor) in anchors(page)), (name, address)
                found += 1
    assert found > 500


@pytest.mark.parametrize("name", NAMES)
def test_last_line_says_whose_it_is(name: str) -> None:
    [author] = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["authors"]
    title = readable(edition(name).cells[0].source.partition("\n")[0])
    line = readable(edition(name).cells[-1].source)
    licence = "testo e figure con licenza CC BY 4.0, codice con licenza MIT."
    assert line == f"Dal libro annotated: {title}. {author['name']}; {licence}"
    assert SITE + name.replace(".ipynb", ".html") in edition(name).cells[-1].source


@pytest.mark.parametrize("name", NAMES)
def test_buttons_lead_to_the_edition(name: str) -> None:
    page = (HTML / name.replace(".ipynb", ".html")).read_text("utf-8")
    assert f'<a href="quaderni/{name}" download="{name}"' in page
    repository = CONFIG["repository"]["url"].removeprefix("https://github.com/")
    assert f'href="https://colab.research.google.com/github/{repository}/blob/quaderni/{name}"' in page


FIRST = r'''
(cap-uno)=
# Primo capitolo

> In una riga.

:::{admonition} In questo capitolo
:class: tip
**Saprai** che $a_i$ conta.
:::
''', r'''
## Formule e rimandi

Vedi {numref}`cap-due`, il {numref}`cap. %s <cap-due>`, «{ref}`cap-due`», la {eq}`eq-somma`, la {numref}`fig-uno`,
{cite}`luce1999` e {cite:t}`luce1999`; ma `{numref}` nel codice e $\{ref\}`x`$ nella formula restano.
Un \*asterisco\*, un \_tratto\_ e un a_b.

$$
a = b
+ c
$$ (eq-somma)

```{margin}
Una nota, con `codice`.
```

```{container} larga
| a | b |
|:--|--:|
| 1 | {ref}`cap-due` |
```

- uno

  ancora
- due

```python
x = "{numref}`y`"
```
''', r'''
## Domande

```{dropdown} Vale 1 < 2?
Sì, perché $1 < 2$.
```

```{dropdown} Quanto vale $x$?
Zero.
```

## Esercizi

```{exercise} ★ Il primo
:label: es-uno
Calcola $x^2$.
```

```{solution-start} es-uno
:class: dropdown
```

Si moltiplica.
''', "```{solution-end}\n```\n\n## In breve\n\n- Fine."  # fmt: skip
SECOND = "(cap-due)=\n# Secondo capitolo\n\nNulla."
BIBLIOGRAPHY = "@book{luce1999, author={Luce, Anna}, title={T}, publisher={P}, year={1999}}"
SVG = new_output("display_data", {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>"})
CAPTION = {
    "tags": ["hide-input"],
    "mystnb": {"figure": {"name": "fig-uno", "caption": "Il disegno."}, "image": {"alt": "x"}},
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[NotebookNode]:
    "Le celle dell'edizione di un capitolo che usa ogni costrutto del libro."
    folder = tmp_path_factory.mktemp("libro")
    opening, references, exercises, end = map(new_markdown_cell, map(str.strip, FIRST))
    setup = new_code_cell("import sys", metadata={"tags": ["remove-cell"]})
    default = new_code_cell("#| default_exp m", metadata={"tags": ["remove-cell"]})
    exported = new_code_cell("#| export\nx = 2")
    figure = new_code_cell("draw(x)", metadata=CAPTION, outputs=[SVG])
    chapter = [opening, setup, default, references, exported, figure]
    chapter += [exercises, new_code_cell("x * x"), end, new_code_cell("del x", metadata={"tags": ["remove-cell"]})]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=chapter, metadata=kernel), folder / "uno.ipynb")
    (folder / "due.md").write_text(SECOND, "utf-8")
    (folder / "libro.bib").write_text(BIBLIOGRAPHY, "utf-8")
    (folder / "index.md").write_text(
        "# L\n\n```{toctree}\n:numbered:\nuno\ndue\n```\n\n```{bibliography}\n```\n", "utf-8"
    )
    theme = {"repository_url": "https://github.com/a/b", "use_download_button": True}
    extensions = ["myst_nb", "sphinx_design", "sphinx_exercise", "sphinxcontrib.bibtex", "edizione"]
    confoverrides = {
        "extensions": extensions, "author": "Noi", "html_title": "libro", "html_baseurl": "https://s/",
        "language": "it", "html_theme": "sphinx_book_theme", "html_theme_options": theme,
        "nb_execution_mode": "off", "numfig": True,
        "bibtex_bibfiles": ["libro.bib"], "bibtex_reference_style": "author_year",
        "myst_enable_extensions": ["colon_fence", "dollarmath"],
        "numfig_format": {"section": "%s", "figure": "figura %s"},
    }  # fmt: skip
    with docutils_namespace():
        Sphinx(folder, None, folder / "html", folder / "tree", "html", confoverrides, status=None).build()
    notebook: NotebookNode = nbformat.read(folder / "html" / "quaderni" / "uno.ipynb", as_version=4)
    return notebook.cells


def find(cells: list[NotebookNode], words: str) -> str:
    "L'unica cella con queste parole."
    [found] = [cell.source for cell in cells if words in cell.source]
    return str(found)


def test_boxes_and_title(cells: list[NotebookNode]) -> None:
    assert cells[0].source == (
        "# 1. Primo capitolo\n\n> In una riga.\n\n> **In questo capitolo**\n>\n> **Saprai** che $a_i$ conta."
    )
    assert "\n> Una nota, con `codice`.\n" in find(cells, "Una nota")


def test_references_say_what_the_page_says(cells: list[NotebookNode]) -> None:
    text = find(cells, "## 1.1. Formule e rimandi")
    book, second = "https://s/index.html#id2", "https://s/due.html#cap-due"
    assert f"Vedi [2]({second}), il [cap. 2]({second}), «[Secondo capitolo]({second})»" in text
    assert "la [(1.1)](https://s/uno.html#equation-eq-somma), la [figura 1.1](https://s/uno.html#fig-uno)" in text
    assert f"[[Luce, 1999]({book})] e Luce [[1999]({book})]" in text
    assert r"`{numref}` nel codice e $\{ref\}`x`$ nella formula" in text and 'x = "{numref}`y`"' in text
    assert readable(text).endswith('x = "{numref}`y`"') and "Un *asterisco*, un _tratto_ e un a_b." in readable(text)


def test_blocks(cells: list[NotebookNode]) -> None:
    text = find(cells, "## 1.1. Formule e rimandi")
    assert "\n$$ a = b + c \\tag{1.1} $$\n" in text
    assert "| a | b |\n| --- | --: |\n| 1 | [Secondo capitolo](" in text
    assert "\n- uno\n\n  ancora\n- due\n" in text


def test_questions(cells: list[NotebookNode]) -> None:
    text = find(cells, "## 1.2. Domande")
    assert "<details>\n<summary>Vale 1 &lt; 2?</summary>\n\nSì, perché $1 < 2$.\n\n</details>" in text
    assert "**Quanto vale $x$?**\n\n<details>\n<summary>Risposta</summary>\n\nZero.\n\n</details>" in text


def test_solutions_go_to_the_end(cells: list[NotebookNode]) -> None:
    assert find(cells, "## 1.3. Esercizi") == (
        "## 1.3. Esercizi\n\n**Esercizio 1.1 ★ Il primo**\n\nCalcola $x^2$.\n\n*Soluzione in fondo al quaderno.*"
    )
    *_, summary, title, solution, code, cleaning, licence = [cell.source for cell in cells]
    assert summary == "## 1.4. In breve\n\n- Fine." and title == "## Soluzioni"
    assert solution == "### Esercizio 1.1 ★ Il primo\n\nSi moltiplica." and code == "x * x" and cleaning == "del x"
    assert licence.startswith("---\n\nDal libro *libro*: [1. Primo capitolo](https://s/uno.html). Noi; ")


def test_code_and_captions(cells: list[NotebookNode]) -> None:
    "Le direttive spariscono, il codice della pagina resta in ordine, quello nascosto si ripiega."
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == ["import sys", "x = 2", "draw(x)", "x * x", "del x"]
    assert [cell.metadata.get("cellView") for cell in code] == ["form", None, "form", None, "form"]
    assert cells[1] == code[0] and code[2].outputs == [SVG]
    assert cells[cells.index(code[2]) + 1].source == "*Figura 1.1: Il disegno.*"
