"""Ciò che viene dai quaderni: `annotated/` è quello che esportano, il libro ha le uscite che nbval ha confrontato."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import quaderni
from jupyter_cache import get_cache
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

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


def test_imports_at_the_top_are_relative() -> None:
    "nbdev rende relative soltanto quelle di una riga: un'importazione fra parentesi, in un quaderno, si divide."
    texts = modules(ROOT / "annotated")
    assert len(texts) > 30 and not [name for name, text in texts.items() if "\nfrom annotated." in text]


@pytest.mark.parametrize("path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_cell_is_empty(path: Path) -> None:
    assert all(cell.source.strip() for cell in nbformat.read(path, 4).cells)


def test_a_notebook_that_passes_is_executed_for_the_book(tmp_path: Path) -> None:
    "Non chi è stato eseguito in parte, né chi non dà le uscite che dichiarava."
    for name in ("conftest.py", "tools/quaderni.py", "book/_config.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    skipped = new_code_cell("1 / 0", metadata={"tags": ["nbval-skip"]})
    for name, told in (("giusto", "2"), ("sbagliato", "3")):
        outputs = [new_output("execute_result", {"text/plain": told}, execution_count=2)]
        cells = [skipped, new_code_cell("1 + 1", outputs=outputs, execution_count=2), new_code_cell("print('a')")]
        nbformat.write(new_notebook(cells=cells), tmp_path / "book" / f"{name}.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "book"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed" in done.stdout, done.stdout
    [record] = get_cache(tmp_path / "book/_build/.jupyter_cache").list_cache_records()
    assert Path(record.uri).name == "giusto.ipynb"


def test_a_notebook_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "capitolo.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Titolo")]), path)
    before = path.read_bytes()

    def full(self: Path, content: str, encoding: str) -> None:
        self.write_bytes(content[:40].encode())
        raise OSError("disco pieno")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="disco pieno"):
        broken.setattr(Path, "write_text", full)
        quaderni.reshape([path])
    assert path.read_bytes() == before
    assert quaderni.reshape([path]) == quaderni.verify([path]) == 0 and path.read_bytes() != before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, "non è JSON", nbformat.writes(new_notebook(cells=[new_code_cell("1")]))])
def test_what_is_not_a_chapter_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "capitolo.ipynb"
    if content:
        path.write_text(content, "utf-8")
    with pytest.raises(SystemExit, match=r"errore: .*capitolo\.ipynb: non .*\.$"):
        quaderni.reshape([path])


def test_a_renamed_notebook_does_not_stop_the_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "La cache ricorda anche i quaderni che non ci sono più: chi ne rinomina uno costruisce lo stesso."
    monkeypatch.setattr(quaderni, "CACHE", tmp_path / "cache")
    old, new = tmp_path / "vecchio.ipynb", tmp_path / "nuovo.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 1")], metadata=quaderni.METADATA), old)
    assert quaderni.anticipate([old]) == 0
    old.rename(new)
    new.write_text(new.read_text("utf-8").replace("1 + 1", "2 + 2"), "utf-8")
    assert quaderni.anticipate([new]) == 0
    assert len(get_cache(tmp_path / "cache").list_cache_records()) == 2
