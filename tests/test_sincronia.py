"""`annotated/` deve essere esattamente ciò che i quaderni esportano."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def modules(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")}


def test_package_is_what_notebooks_export(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("_build"))
    subprocess.run([Path(sys.executable).with_name("nbdev-export")], cwd=tmp_path, check=True)
    assert modules(tmp_path / "annotated") == modules(ROOT / "annotated")


def test_every_module_says_what_it_is() -> None:
    "nbdev prende la docstring dal riquadro sotto il titolo, e soltanto se la cella comincia con il titolo."
    silent = [
        p.name for p in ROOT.glob("annotated/**/[!_]*.py") if not ast.get_docstring(ast.parse(p.read_text("utf-8")))
    ]
    assert not silent


def test_imports_of_the_package_are_relative() -> None:
    "nbdev rende relative soltanto quelle di una riga: un'importazione fra parentesi, in un quaderno, si divide."
    texts = modules(ROOT / "annotated")
    assert len(texts) > 30 and not [name for name, text in texts.items() if "\nfrom annotated." in text]
