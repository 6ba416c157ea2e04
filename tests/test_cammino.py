"""Il cammino principale dei capitoli 1–9: quanto testo e quanto codice ha davanti chi legge senza aprire nulla.

Parole: la prosa di titoli, paragrafi, elenchi, tabelle e margini, separata da spazi; una formula nel testo, o un
rimando, vale una parola. Non si contano le formule a sé, le didascalie, ciò che la pagina ripiega (`dropdown`), gli
esercizi con le loro soluzioni.

Celle: quelle il cui codice si vede senza aprirle, soluzioni escluse. Le loro righe devono stare nella colonna.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

BOOK = Path(__file__).resolve().parent.parent / "book"
CHAPTERS = sorted(path.stem for path in BOOK.glob("0[1-9]_*.ipynb"))
WORDS, CELLS, WIDTH = 1900, 22, 88
FOLDED = {"hide-cell", "hide-input", "remove-cell", "remove-input"}
START, END = "```{solution-start}", "```{solution-end}"
BLOCK = re.compile(r"^(`{3,}|:{3,})\{(?P<name>[\w-]+)\}.*?^\1$\n?", re.MULTILINE | re.DOTALL)


def outside_solutions(notebook: NotebookNode) -> list[NotebookNode]:
    "Le celle, senza il codice e il testo che stanno in una soluzione."
    cells, inside = [], False
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cells += [] if inside else [cell]
            continue
        kept = []
        for line in cell.source.split("\n"):
            if line.startswith(START):
                inside = True
            if not inside:
                kept.append(line)
            if line.startswith(END):
                inside = False
        cells.append(nbformat.v4.new_markdown_cell("\n".join(kept)))
    return cells


def unfold(block: re.Match[str]) -> str:
    "Di un blocco resta ciò che la pagina mostra: niente, se è ripiegato o è un esercizio; altrimenti il suo testo."
    if block["name"] in ("dropdown", "exercise") or re.search(r"^:class: .*\bdropdown\b", block[0], re.MULTILINE):
        return ""
    return "\n".join(line for line in block[0].split("\n")[1:] if not re.match(r"(`{3,}|:{3,}|:\w+:)", line))


def words(cells: list[NotebookNode]) -> int:
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = BLOCK.sub(unfold, text)
    text = re.sub(r"\$\$.*?\$\$(?: \(eq-[\w-]+\))?", " ", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$]+\$|\{[\w:-]+\}(?:``.*?``|`.*?`)", " formula ", text)
    text = re.sub(r"^\([\w-]+\)=$", "", text, flags=re.MULTILINE)
    return sum(any(map(str.isalnum, word)) for word in text.split())


def visible(cells: list[NotebookNode]) -> int:
    code = [cell for cell in cells if cell.cell_type == "code" and not FOLDED & {*cell.metadata.get("tags", [])}]
    return sum(any(line and not line.startswith("#|") for line in cell.source.split("\n")) for cell in code)


@pytest.mark.parametrize("name", CHAPTERS)
def test_main_path_is_short(name: str) -> None:
    cells = outside_solutions(nbformat.read(BOOK / f"{name}.ipynb", as_version=4))
    length, code = words(cells), visible(cells)
    assert length <= WORDS and code <= CELLS, f"{name}: {length} parole e {code} celle di codice"


@pytest.mark.parametrize("name", CHAPTERS)
def test_code_fits_the_column(name: str) -> None:
    "Su uno schermo di 1280 punti la colonna contiene 88 caratteri: una riga più lunga bisogna farla scorrere."
    cells = nbformat.read(BOOK / f"{name}.ipynb", as_version=4).cells
    shown = [c for c in cells if c.cell_type == "code" and "remove-cell" not in c.metadata.get("tags", [])]
    assert not [line for cell in shown for line in cell.source.split("\n") if len(line) > WIDTH]


def test_the_count_sees_what_the_page_shows() -> None:
    "Le due regole, su un quaderno di poche celle in cui si contano a mano."
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [
        markdown("(cap-x)=\n\n# Due parole\n\nLa somma $a + b$, nel {numref}`capitolo %s <cap-y>`:\n\n$$ c $$ (eq-c)"),
        markdown("```{dropdown} Approfondimento\nNon si conta.\n```"),
        markdown(":::{admonition} Nota\n:class: tip\nQui sì.\n:::"),
        code("#| export\nx = 1"),
        code("#| default_exp x"),
        code("x = 2", metadata={"tags": ["hide-cell"]}),
        markdown(f"```{{exercise}} ★ Uno\n:label: es-1\nQuanto?\n```\n\n{START} es-1\n```\n\nTre."),
        code("3"),
        markdown(f"{END}\n```\n\n## In breve"),
    ]
    cells = outside_solutions(nbformat.v4.new_notebook(cells=cells))
    assert words(cells) == 2 + 5 + 2 + 2 and visible(cells) == 1
