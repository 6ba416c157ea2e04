"""Le prove rifatte con più passi: il codice è quello dei quaderni, e cambia soltanto ciò che si dice."""

import json
from pathlib import Path

import nbformat
import piu_passi
import pytest
import torch
from piu_passi import TRIALS, Trial, code_of, run

from annotated.common import AnnotatedError


@pytest.mark.parametrize(("name", "steps"), [(name, steps) for name, trial in TRIALS.items() for steps in trial.steps])
def test_only_the_steps_of_the_chapter_change(name: str, steps: str) -> None:
    trial = TRIALS[name]
    same, other = code_of(trial, trial.usual), code_of(trial, steps)
    path = piu_passi.ROOT / "book" / f"{trial.notebook}.ipynb"
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert same == cells[: len(same)] and trial.last in same[-1] and not any(trial.last in one for one in same[:-1])
    assert sum(a != b for a, b in zip(same, other, strict=True)) == 1


@pytest.fixture
def small_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    "Un quaderno di tre celle: la prova, ciò che ne resta, e una cella che non si deve eseguire."
    sources = [
        "import torch\nassert 2 + 2 == 5\ndef learn(steps=2):\n    assert steps\n    return torch.ones(3, steps)",
        "print('le celle non si sentono')\ntable = {'una': learn(), ('due', 7): learn()[0]}",
        "raise RuntimeError",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    (tmp_path / "book").mkdir()
    nbformat.write(notebook, tmp_path / "book" / "prova.ipynb")
    monkeypatch.setattr(piu_passi, "ROOT", tmp_path)
    monkeypatch.setitem(TRIALS, "prova", Trial("prova", "steps=…", "2", ("5",), "table =", "table"))
    return tmp_path


@pytest.mark.usefixtures("small_book")
def test_the_cells_are_run_up_to_the_trial(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prova", "5") == ("prova", "5", {"una": [[1.0] * 5] * 3, "due, 7": [1.0] * 5})
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("where", "written"), [("steps=…3", "steps=23"), ("steps", "steps")])
def test_what_is_not_there_just_once_is_refused(small_book: Path, where: str, written: str) -> None:
    with pytest.raises(AnnotatedError, match=f"prova.ipynb: «{written}» c'è . volte"):
        code_of(TRIALS["prova"]._replace(where=where), "5")


def test_the_chapters_read_three_seeds_of_every_trial() -> None:
    found = json.loads(piu_passi.OUT.read_text("utf-8"))
    for name, trial in TRIALS.items():
        assert tuple(found[name]) == trial.steps
        for tables in found[name].values():
            assert all(len(torch.tensor(rows)) == 3 for rows in tables.values())
