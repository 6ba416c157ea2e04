"""Le appendici di solo testo citano sezioni, figure, nomi del pacchetto e prove: qui si controlla che esistano tutti.

Si leggono i file, senza costruire il libro né eseguire i quaderni.
"""

import ast
import json
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

from annotated.transformer import PRESETS, Config

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
PAGES = ["92_glossario", "93_notazione", "94_dalle_fonti", "95_dall_articolo", "96_galleria", "96_numeri"]
SECTIONS = [  # {ref}`pagina:titolo`, {ref}`testo <pagina:titolo>`, {ref}``testo <pagina:titolo con `codice`>``
    re.compile(r"\{ref\}`(?:[^`<]+<)?(\d\d_\w+):([^`>]+)>?`"),
    re.compile(r"\{ref\}``[^`<]+<(\d\d_\w+):(.+?)>``"),
]


def markdown(page: str) -> str:
    if (path := BOOK / f"{page}.md").exists():
        return path.read_text("utf-8")
    cells = json.loads((BOOK / f"{page}.ipynb").read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


TEXT = {name: markdown(name) for name in PAGES}


@cache
def titles(page: str) -> set[str]:
    return set(re.findall(r"^#+ (.+?)\s*$", markdown(page), re.MULTILINE))


@pytest.mark.parametrize("name", PAGES)
def test_cited_sections_exist(name: str) -> None:
    cited = [found for pattern in SECTIONS for found in pattern.findall(TEXT[name])]
    assert len(cited) == len(re.findall(r"[`<]\d\d_\w+:", TEXT[name])) > 0  # nessun rimando è scritto in un altro modo
    assert not [f"{page}: {title}" for page, title in cited if title not in titles(page)]


def test_cited_figures_exist() -> None:
    notebooks = "".join(path.read_text("utf-8") for path in BOOK.glob("*.ipynb"))
    cited = set(re.findall(r"\{numref\}`(fig-[\w-]+)`", "".join(TEXT.values())))
    assert cited and not [name for name in cited if f'"name": "{name}"' not in notebooks]


def test_cited_names_exist() -> None:
    names = set(re.findall(r"`(annotated(?:\.\w+)+)`", "".join(TEXT.values())))
    assert len(names) > 30
    for name in sorted(names):
        resolve_name(name)  # AttributeError se non c'è


def test_cited_tests_exist() -> None:
    cited = re.findall(r"`tests/(\w+\.py)::(\w+)`", "".join(TEXT.values()))
    assert len(cited) > 15
    for file, name in sorted(set(cited)):
        tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def glossary() -> dict[str, str]:
    "Ogni voce con la sua definizione."
    blocks = re.findall(r"^```\{glossary\}\n(.*?)^```", TEXT["92_glossario"], re.MULTILINE | re.DOTALL)
    return dict(entry.split("\n  ", 1) for block in blocks for entry in block.strip().split("\n\n"))


def test_glossary_and_english_index_agree() -> None:
    entries = glossary()
    assert len(entries) >= 120 and list(entries) == sorted(entries, key=_sorting)
    rows = re.findall(r"^\| (?!inglese|:?-)(.+?) \| (.+?) \|$", TEXT["92_glossario"], re.MULTILINE)
    assert [english for english, _ in rows] == sorted((english for english, _ in rows), key=_sorting)
    index = {(english, voice) for english, cell in rows for voice in re.findall(r"\{term\}`(.+?)`", cell)}
    expected = set()
    for voice, definition in entries.items():
        if voice in ("mini", "small"):  # nomi di modelli: non c'è nulla da tradurre
            continue
        english = re.match(r"\*(.+?)\*\. ", definition)
        expected |= {(word, voice) for word in (english[1] if english else voice).split(", ")}
    assert index == expected


def _sorting(text: str) -> str:
    plain = text.lower().translate(str.maketrans("àèéìòù", "aeeiou"))
    return "".join(c for c in plain if c.isalnum() or c == " ")


def test_every_term_is_defined() -> None:
    cited = re.findall(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`", "".join(TEXT.values()))
    assert len(cited) > 100 and not set(cited) - set(glossary())


def test_named_shapes() -> None:
    "La tabella delle forme con un nome dice ciò che dice `PRESETS`."
    table = re.findall(r"^\| `(\w+)` \|(.+)\|$", TEXT["93_notazione"].split("## Le forme con un nome")[1], re.MULTILINE)
    shapes = {name: [cell.strip() for cell in cells.split("|")] for name, cells in table}
    assert shapes.keys() == PRESETS.keys()
    for name, cells in shapes.items():
        c = Config.preset(name, vocab_size=1)
        values = (c.d_model, c.d_ff, c.h, c.N, c.N_decoder or "–", c.h_cross or "–", c.dropout, c.max_len)
        assert cells == [str(value).replace(".", ",") for value in values]


def test_no_concept_is_missing() -> None:
    codes = re.findall(r"^\| ([KMPTAVS]\d\d) \|", TEXT["94_dalle_fonti"], re.MULTILINE)
    assert len(codes) == len(set(codes))
    for letter, count in {"K": 12, "M": 4, "P": 5, "T": 12, "A": 13, "V": 6, "S": 13}.items():
        assert [code for code in codes if code[0] == letter] == [f"{letter}{i:02}" for i in range(1, count + 1)]
