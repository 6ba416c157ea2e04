"""La pianta del progetto: funzioni corte, il nucleo che non guarda gli studi, addestrare senza disegnare."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = [p for folder in ("annotated", "tools", "bench", "book/_ext") for p in sorted((ROOT / folder).rglob("*.py"))]
WRITTEN = [path for path in CODE if path.name != "_modidx.py"]  # questo lo scrive nbdev
USES_STUDIES = {name: {"microlingua", "viewer"} for name in ("cli", "web")}  # chi del nucleo ne ha bisogno


def functions(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text("utf-8"))
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]


def test_no_function_is_longer_than_forty_lines() -> None:
    found = [(path.name, name, lines) for path in WRITTEN for name, lines in functions(path)]
    assert len(found) > 300
    assert not [row for row in found if row[2] > 40]


def imported(path: Path) -> set[str]:
    "I moduli del pacchetto che `path` importa, come `data` o `study.viewer`."
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("annotated.")):
            names.add((node.module or "").removeprefix("annotated."))
    return names


@pytest.mark.parametrize("path", sorted((ROOT / "annotated").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_the_core_does_not_need_the_studies(path: Path) -> None:
    studies = {name.removeprefix("study.") for name in imported(path) if name.startswith("study")}
    assert studies <= USES_STUDIES.get(path.stem, set())


def test_the_reference_has_every_module() -> None:
    listed = re.findall(r"\{riferimento\} annotated\.([\w.]+)", (ROOT / "book/80_riferimento.md").read_text("utf-8"))
    core, studies = (
        sorted(path.stem for path in (ROOT / "annotated" / wing).glob("[!_]*.py")) for wing in ("", "study")
    )
    assert sorted(listed) == sorted([*core, *(f"study.{name}" for name in studies)])


def test_training_needs_no_drawing() -> None:
    "I moduli che addestrano e traducono importano torch, numpy, sentencepiece, safetensors, filelock e tqdm."
    seen, waiting = set(), ["training", "decoding", "pretrained"]
    while waiting:
        name = waiting.pop()
        if name not in seen and (path := ROOT / "annotated" / f"{name}.py").exists():
            seen.add(name)
            waiting += imported(path)
    text = "".join((ROOT / "annotated" / f"{name}.py").read_text("utf-8") for name in seen)
    assert {"engine", "data", "tokenizer"} < seen
    assert not re.findall(r"^(?:import|from) (matplotlib|altair|sacrebleu|datasets|transformers)\b", text, re.MULTILINE)


UNWANTED = "matplotlib altair pandas IPython datasets transformers ctranslate2 sacremoses".split()


def test_the_command_works_without_the_others(tmp_path: Path) -> None:
    "Per tradurre e valutare non servono né i disegni né gli altri programmi."
    (tmp_path / "prova.tsv").write_text("x\tThe dog saw the car.\tIl cane vide la macchina.\n", "utf-8")
    code = f"import sys\nsys.modules.update(dict.fromkeys({UNWANTED!r}))\nfrom annotated.cli import main\n"
    code += "sys.exit(main(['evaluate', '--model', 'mini', sys.argv[1]]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "prova.tsv")], check=True)


SAME = 6  # righe


def test_no_six_lines_stand_twice() -> None:
    "Né nel pacchetto, né negli strumenti, né nelle misure; non contano rientri, righe vuote e importazioni."
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    twice = []
    for path in WRITTEN:
        lines = [(n, line.strip()) for n, line in enumerate(path.read_text("utf-8").splitlines(), 1)]
        lines = [(n, line) for n, line in lines if line and not line.startswith(("#", "import ", "from "))]
        for i in range(len(lines) - SAME + 1):
            window = tuple(line for _, line in lines[i : i + SAME])
            here = (path.name, lines[i][0])
            if len(set(window)) > SAME // 2 and seen.setdefault(window, here) != here:
                twice.append((seen[window], here))
    assert len(seen) > 3000
    assert not twice
