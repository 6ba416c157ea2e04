"""Da dove viene una misura: il codice com'era, gli ultimi checkpoint, i giri di un confronto."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import provenienza
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.usefixtures("plain_git")
def test_modified_code_is_told_and_new_measures_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenienza, "ROOT", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=chi", "-c", "user.email=chi@example.org"]
    code = [tmp_path / name for name in ("annotated/a.py", "tools/b.py", "bench/c.py")]
    for path in (*code, tmp_path / "bench" / "risultati" / "cpu.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("prima")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "prima"], check=True)
    commit = provenienza.commit.__wrapped__  # senza la memoria
    (tmp_path / "bench" / "risultati" / "cpu.json").write_text("dopo")
    assert not commit().endswith("+")
    for path in code:
        path.write_text("dopo")
        assert commit().endswith("+"), path
        path.write_text("prima")


def test_checkpoints_are_in_order_of_step(tmp_path: Path) -> None:
    names = [f"weights-{step}.safetensors" for step in ("0000100", "9999000", "10000000")]
    for name in (*names, "weights-0000100-copia.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    assert [path.name for path in provenienza.checkpoints(tmp_path)] == names


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any] | None]:
    "Il confronto fra i programmi con misure finte: rende ciò che ha scritto, se ha scritto."
    monkeypatch.syspath_prepend(ROOT / "bench")
    confronta = importlib.import_module("confronta")
    monkeypatch.setattr(confronta, "HERE", tmp_path)
    monkeypatch.setattr(confronta, "build", lambda *_: {})

    def run(*options: str, seconds: float = 1.0, translated: bool = True) -> dict[str, Any] | None:
        tasks = "addestramento fp32", "traduzione greedy"
        training, translation = (({task: {"MarianMT": [seconds]}}, {task: [1]}) for task in tasks)
        monkeypatch.setattr(confronta, "measure_training", lambda *_: training)
        monkeypatch.setattr(confronta, "measure_translation", lambda *_: translation if translated else sys.exit("no"))
        monkeypatch.setattr(sys, "argv", ["confronta.py", *options])
        with suppress(SystemExit) if not translated else nullcontext():
            confronta.main()
        path = tmp_path / "risultati" / "cpu.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    return run


def test_a_comparison_is_written_one_task_at_a_time(compare: Callable[..., dict[str, Any] | None]) -> None:
    "Una traduzione che fallisce non perde l'addestramento appena misurato; una prova breve non scrive."
    assert compare("--rounds", "2") is None
    assert compare()["secondi"] == {"addestramento fp32": {"MarianMT": [1]}, "traduzione greedy": {"MarianMT": [1]}}
    found = compare(seconds=2, translated=False)
    assert found["secondi"] == {"addestramento fp32": {"MarianMT": [2]}, "traduzione greedy": {"MarianMT": [1]}}
    assert [*found["ambiente"]] == ["addestramento", "traduzione"]


def test_a_comparison_of_no_rounds_is_refused(
    compare: Callable[..., dict[str, Any] | None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare("--rounds", "0")
    assert "--rounds 0: serve almeno un giro" in capsys.readouterr().err
