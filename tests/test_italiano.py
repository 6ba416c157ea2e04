"""L'italiano di pagine, messaggi e scheda: numeri scritti allo stesso modo, un termine per ogni idea."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BOX = re.compile(r"```\{[\w-]+\}[^\n]*\n(.*?)```", re.DOTALL)  # un riquadro: dentro c'è prosa
CODE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\{[\w:]+\}`[^`]*`|\]\([^)]*\)|https?:\S+", re.DOTALL)
PERCENT = re.compile(r"(?<![.\d])\d+%|\d\.\d+%")
THOUSANDS = re.compile(r"(?<![\w.,/:-])\d{5,}(?![\w.,/-])")
SYNONYMS = {  # la forma che non si usa: quella che si usa
    r"\battenzion[ei] incrociat[ae]\b": "cross-attention",
    r"\bcaratteristiche casuali\b": "feature casuali",
}
DEFINED_IN = {"03_multihead.ipynb": 1, "08_decoder.ipynb": 1, "92_glossario.md": 9}  # qui si definisce


def prose(path: Path) -> str:
    "Il testo di una pagina senza codice, formule e rimandi."
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return CODE.sub(" ", BOX.sub(r"\1", text))


def messages(path: Path) -> Iterator[str]:
    "Le stringhe di un modulo, docstring comprese; di una f-string, le parti fisse."
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


PAGES = [*sorted((ROOT / "book").glob("*.ipynb")), *sorted((ROOT / "book").glob("*.md"))]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "models").glob("*/README.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_numbers_are_written_in_italian(path: Path) -> None:
    text = prose(path)
    assert not [text[max(0, m.start() - 30) : m.end() + 10] for m in PERCENT.finditer(text)]
    assert not [text[max(0, m.start() - 30) : m.end() + 10] for m in THOUSANDS.finditer(text)]


def test_the_rules_see_what_they_forbid() -> None:
    assert PERCENT.search("il 40% dei pesi") and not PERCENT.search("il 40 % dei pesi")
    assert THOUSANDS.search("base 10000 o") and not THOUSANDS.search("base 10.000, del 2026-11-21, 0,00001")
    assert any(re.search(wrong, "l'attenzione incrociata") for wrong in SYNONYMS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_one_term_for_each_idea(path: Path) -> None:
    text, allowed = prose(path), DEFINED_IN.get(path.name, 0)
    for wrong, right in SYNONYMS.items():
        found = re.findall(wrong, text, re.IGNORECASE)
        assert len(found) <= allowed, f"{path.name}: {found[0]}; il libro scrive «{right}»"


@pytest.mark.parametrize("path", sorted((ROOT / "annotated").rglob("[!_]*.py")), ids=lambda path: path.stem)
def test_messages_of_the_package(path: Path) -> None:
    for text in messages(path):
        assert not PERCENT.search(text)
        assert not any(re.search(wrong, text, re.IGNORECASE) for wrong in SYNONYMS)
    assert not re.search(r"\{[^{}]*:[^{}]*,(?:\.\d+f)?\}|:\.\d%\}", path.read_text("utf-8")), "un numero senza `number`"
