"""Le leggi di scala in piccolo: un giro minuscolo scrive ciò che la pagina legge; senza dati ci si ferma."""

import json
import re
from pathlib import Path

import pytest
import scala

from annotated import AnnotatedError
from annotated.study.microlingua import generate
from conftest import write_data

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    "Una cartella di microlingua, e uno strumento che vi si accontenta di poco."
    for name, value in {"SIZES": ((16, 1, 1, 2), (32, 1, 1, 1)), "DATA": (512, 1024), "RATES": (1e-3, 1e-2)}.items():
        monkeypatch.setattr(scala, name, value)
    for name, value in {"VOCABULARY": 120, "T": 8, "ROWS": 4, "WARMUP": 4}.items():
        monkeypatch.setattr(scala, name, value)
    pairs = [f"prova\t{example.en}\t{example.it}" for example in generate(420)]
    return write_data(tmp_path / "dati", pairs[:400], pairs[400:])


def test_a_tiny_run_writes_what_the_page_reads(tiny: Path, tmp_path: Path) -> None:
    found = scala.scale(tiny, tmp_path / "runs")
    published = json.loads((ROOT / "book/dati/scala.json").read_text("utf-8"))
    assert found.keys() == published.keys()
    assert {"comando", "commit", "data", "opzioni", "minuti di un core", "train.tsv"} <= found["provenienza"].keys()
    for name, count in (("prove", 4), ("giri", 2)):
        assert len(found[name]) == count and found[name][0].keys() == published[name][0].keys()
    assert [[point["D"] for point in row["righe"]] for row in found["giri"]] == [[512, 1024], [512]]
    for row in found["giri"]:
        tried = {t["righe"][0]["perdita"]: t["learning rate"] for t in found["prove"] if t["N"] == row["N"]}
        assert len(tried) == 2 and row["learning rate"] == tried[min(tried)]
    small, large = sorted(row["N"] for row in found["giri"])
    assert 3 < large / small < 5  # larghezza doppia

    kept = sorted((tmp_path / "runs").rglob("*.json"))
    times = [path.stat().st_mtime_ns for path in kept]
    again = scala.scale(tiny, tmp_path / "runs")
    assert again["prove"] == found["prove"] and again["giri"] == found["giri"]
    assert [path.stat().st_mtime_ns for path in kept] == times and len(kept) == 6


def test_every_piece_is_read_once(tiny: Path) -> None:
    (train, valid), _ = scala.read(tiny)
    assert train.shape[1] == scala.T + 1 and (train[1:, 0] == train[:-1, -1]).all()
    assert len(valid) and scala.DATA[-1] <= len(train) * scala.T


def test_missing_or_scarce_data_are_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scala, "DATA", (10_000_000,))
    with pytest.raises(AnnotatedError, match=r"soltanto \d+ pezzi, e ne servono 10000000\. Usa più dati\."):
        scala.scale(tiny, tiny / "runs")
    (tiny / "train.tsv").unlink()
    with pytest.raises(AnnotatedError, match=re.escape("manca train*.tsv")):
        scala.scale(tiny, tiny / "runs")
