"""Il cammino principale dei capitoli 1–9: quanto testo e quanto codice ha davanti chi legge senza aprire nulla.

Parole: la prosa di titoli, paragrafi, elenchi, tabelle e margini, separata da spazi; una formula nel testo, o un
rimando, vale una parola. Non si contano le formule a sé, le didascalie, ciò che la pagina ripiega (`dropdown`), gli
esercizi con le loro soluzioni.

Celle: quelle il cui codice si vede senza aprirle, soluzioni escluse. Le loro righe devono stare nella colonna.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
import yaml
from nbformat import NotebookNode
from torch import nn

BOOK = Path(__file__).resolve().parent.parent / "book"
CHAPTERS = sorted(path.stem for path in BOOK.glob("0[1-9]_*.ipynb"))
FOUNDATIONS = "00_tensori"
ALL = sorted(path.stem for path in BOOK.glob("[0-9]*.ipynb"))  # anche le appendici
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


def is_visible(cell: NotebookNode) -> bool:
    shown = cell.cell_type == "code" and not FOLDED & {*cell.metadata.get("tags", [])}
    return shown and any(line and not line.startswith("#|") for line in cell.source.split("\n"))


def visible(cells: list[NotebookNode]) -> int:
    return sum(map(is_visible, cells))


def path_of(name: str) -> list[NotebookNode]:
    return outside_solutions(nbformat.read(BOOK / f"{name}.ipynb", as_version=4))


@pytest.mark.parametrize("name", CHAPTERS)
def test_main_path_is_short(name: str) -> None:
    cells = path_of(name)
    length, code = words(cells), visible(cells)
    assert length <= WORDS and code <= CELLS, f"{name}: {length} parole e {code} celle di codice"


@pytest.mark.parametrize("name", [FOUNDATIONS, *CHAPTERS])
def test_code_fits_the_column(name: str) -> None:
    "Una riga più larga della colonna bisogna farla scorrere, e di solito quel che nasconde è il commento."
    cells = nbformat.read(BOOK / f"{name}.ipynb", as_version=4).cells
    shown = [c for c in cells if c.cell_type == "code" and "remove-cell" not in c.metadata.get("tags", [])]
    assert not [line for cell in shown for line in cell.source.split("\n") if len(line) > WIDTH]


def minutes(name: str) -> float:
    "Duecento parole al minuto, e un minuto per ogni cella in vista."
    cells = path_of(name)
    return words(cells) / 200 + visible(cells)


def nearest_five(minutes: float) -> int:
    return 5 * round(minutes / 5)


@pytest.mark.parametrize("name", ALL)
def test_chapter_says_how_long_it_takes(name: str) -> None:
    text = " ".join("\n".join(cell.source for cell in path_of(name) if cell.cell_type == "markdown").split())
    declared = re.search(r"\*\*Tempo\*\* circa (\d+) minuti di lettura", text)
    if declared or name[0] < "8":  # qualche appendice si consulta, e non lo dice
        assert declared and int(declared[1]) == nearest_five(minutes(name)), minutes(name)


def test_introduction_says_how_long_the_first_parts_take() -> None:
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text("utf-8"))["parts"][:4]
    files = [[chapter["file"] for chapter in part["chapters"]] for part in toc]
    assert sum(files, []) == [FOUNDATIONS, *CHAPTERS]
    intro = " ".join((BOOK / "intro.md").read_text("utf-8").split())
    declared = re.search(r"circa (\d+) minuti, la parte I (\d+), la II (\d+), la III (\d+)", intro)
    assert declared and list(map(int, declared.groups())) == [nearest_five(sum(map(minutes, part))) for part in files]


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


# ---------------------------------------------------------------- ciò che il codice e la prosa danno per noto

HOMES = (torch, torch.Tensor, torch.optim, torch.autograd.functional, nn, nn.functional, nn.init, nn.utils.rnn)
PYTORCH = {
    name
    for home in HOMES
    for name in dir(home)
    if not name.startswith("_") and not isinstance(getattr(home, name), ModuleType)
}
# metodi di Python, di NumPy e di matematica, o nomi nostri, che anche PyTorch ha
OURS = {"cross", "e", "index", "pi", "round", "split", "values"}
CODE = re.compile(r"`([^`\n]+)`")


def words_in_code(text: str) -> set[str]:
    return {word for code in CODE.findall(text) for word in re.findall(r"[A-Za-z_]\w*", code)}


def unexplained(chapters: list[list[NotebookNode]]) -> Iterator[str]:
    "I nomi di PyTorch nelle celle in vista di cui non ha ancora parlato né la prosa né quella subito sotto la cella."
    known = set(OURS)
    for cells in chapters:
        for i, cell in enumerate(cells):
            if cell.cell_type == "markdown":
                known |= words_in_code(cell.source)
            elif is_visible(cell):
                below = next((c.source for c in cells[i + 1 : i + 3] if c.cell_type == "markdown"), "")
                tree = ast.parse(cell.source)
                used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
                yield from sorted(used & PYTORCH - known - words_in_code(below))


def test_code_uses_only_what_the_prose_has_explained() -> None:
    chapters = [path_of(name) for name in (FOUNDATIONS, *CHAPTERS)]
    used = {word for cells in chapters for cell in cells if is_visible(cell) for word in cell.source.split()}
    assert len(used) > 1000
    assert not sorted({*unexplained(chapters)})


def test_unexplained_names_are_found() -> None:
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [
        markdown("Si somma con `sum`."),
        code("x.sum() + x.einsum()"),
        code("x.detach()"),
        markdown("`detach()` stacca."),
        code("x.backward()", metadata={"tags": ["hide-cell"]}),
    ]
    assert list(unexplained([cells])) == ["einsum"]
    assert list(unexplained([[code("x.relu()")], [markdown("`relu`"), code("x.relu()")]])) == ["relu"]


# parole di ogni giorno, che il glossario prende in un senso suo
EVERYDAY = {"accordo", "blocco", "forma", "ipotesi", "passo", "pezzo", "porta", "prova", "scala", "scarto", "stato"}
ENTRY = re.compile(r"^(?P<term>[^\s`:#(].*)\n  (?P<body>.+)$", re.MULTILINE)
BIRTH = re.compile(r"\{ref\}`+(?:[^`<]*?(?:`[^`]*`)?[^`<]*<)?(?P<page>\d\d_\w+):(?P<section>[^>]+?)`*>?`")
LABEL = re.compile(r"^\((cap-[\w-]+)\)=$", re.MULTILINE)


def prose(name: str) -> str:
    "La prosa in vista di un capitolo, dalla prima sezione in poi."
    text = "\n\n".join(cell.source for cell in path_of(name) if cell.cell_type == "markdown")
    return "## " + BLOCK.sub(unfold, text).partition("\n## ")[2]


def births() -> dict[str, tuple[str, str]]:
    "Di ogni voce del glossario, la pagina e la sezione in cui nasce: la prima fra quelle a cui rimanda."
    found = {}
    for entry in ENTRY.finditer((BOOK / "92_glossario.md").read_text("utf-8")):
        places = [(match["page"], match["section"]) for match in BIRTH.finditer(entry["body"])]
        if places:
            found[entry["term"]] = min(places, key=lambda place: place[0])
    return found


def born_late(texts: dict[str, str], births: dict[str, tuple[str, str]], labels: dict[str, str]) -> Iterator[str]:
    """Le voci usate prima che nascano, e senza presentarle.

    Le presenta il capoverso che le mette in risalto, o che rimanda al capitolo dove nascono.
    """
    for term, (page, section) in births.items():
        word = re.compile(rf"(?<![\w«-]){re.escape(term)}(?![\w-])", re.IGNORECASE if term.islower() else 0)
        first = next(((name, found) for name, text in texts.items() if (found := word.search(text))), None)
        if term in EVERYDAY or first is None:
            continue
        name, found = first
        text = texts[name]
        heading = re.search(rf"^#+ {re.escape(section)}", text, re.MULTILINE)
        if name > page or (name == page and (heading is None or found.start() >= heading.start())):
            continue
        start, end = text.rfind("\n\n", 0, found.start()), text.find("\n\n", found.end())
        paragraph = text[start:end]
        shown = re.search(rf"\*{{1,2}}[^*]*{re.escape(term)}[^*]*\*{{1,2}}", paragraph, re.IGNORECASE)
        if not shown and labels.get(page, "nessuna") not in paragraph:
            yield f"{term} in {name}: «{' '.join(text[found.start() - 40 : found.end() + 20].split())}»"


def test_terms_are_born_before_they_are_used() -> None:
    texts = {name: prose(name) for name in (FOUNDATIONS, *CHAPTERS)}
    labels = {}
    for path in BOOK.glob("[0-9][0-9]_*.ipynb"):
        if found := LABEL.search(nbformat.read(path, as_version=4).cells[0].source):
            labels[path.stem] = found[1]
    assert len(births()) > 200 and len(labels) > 30
    assert not [*born_late(texts, births(), labels)]


def test_a_term_used_early_is_found() -> None:
    texts = {"00_a": "## Uno\n\nIl gradiente.\n\n## Due\n\nUn **tensore** e uno strato.", "01_b": "## Tre\n\nStrato."}
    places = {"gradiente": ("01_b", "Tre"), "tensore": ("01_b", "Tre"), "strato": ("00_a", "Due")}
    assert [row.split()[0] for row in born_late(texts, places, {})] == ["gradiente"]
    assert not [*born_late({"00_a": "## Uno\n\nIl gradiente ({numref}`cap-b`)."}, places, {"01_b": "cap-b"})]
