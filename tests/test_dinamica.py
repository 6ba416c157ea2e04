"""La regola della dinamica, su curve inventate di cui si sa la risposta, e su un addestramento finto."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from annotated import AnnotatedError
from annotated.study.dynamics import delays, rises, verdict

ROOT = Path(__file__).resolve().parent.parent
STEPS = list(range(100, 1001, 25))


def s_curve(middle: float, rng: np.random.Generator, height: float = 1.0) -> np.ndarray:
    "Da 0 a `height`, a metà nel passo `middle`, con un poco di rumore."
    clean = height / (1 + np.exp(-(np.array(STEPS) - middle) / 30))
    return clean + 0.03 * height * rng.standard_normal(len(STEPS))


def trainings(late: float, counts: float = 0.001) -> list[dict[str, Any]]:
    "Venti addestramenti in cui lo sguardo sale `late` passi dopo gli accordi, a meno di quanto è imprevedibile."
    rng, rows = np.random.default_rng(0), []
    for _ in range(20):
        kinds = {}
        for name in ("animal", "place"):
            middle = rng.uniform(300, 700)
            kinds[name] = {
                "giusti": (0.5 + s_curve(middle, rng, 0.5)).tolist(),
                "sguardi": s_curve(middle + late + rng.normal(0, 60), rng, 0.2).tolist(),
                "conta_sguardi": counts,
            }
        rows.append({"passi": STEPS, "categorie": kinds})
    return rows


@pytest.mark.parametrize("late, answer", [(-150, "la testa"), (150, "la capacità"), (0, "non si sa")])
def test_the_rule_says_who_comes_first(late: float, answer: str) -> None:
    found = delays(trainings(late), "sguardi")
    assert len(found) == 20 and abs(found.mean().item() - late) < 40
    assert verdict(found) == answer


def test_what_does_not_count_has_no_vote() -> None:
    rows = trainings(-150)
    for row, other in zip(rows, trainings(400), strict=True):
        row["categorie"]["machine"] = other["categorie"]["animal"] | {"conta_sguardi": 0.4}
    assert verdict(delays(rows, "sguardi")) == "la testa"
    assert len(delays(trainings(0, counts=0.4), "sguardi")) == 0


def test_a_single_spike_is_not_a_rise() -> None:
    assert rises([0, 0.9, 0.1, 0.6, 0.8, 1.0]) == 3
    assert rises([0.5, 0.5, 0.7, 0.8, 1.0], floor=0.5) == 3
    assert rises([0, 0, 0, 1.0]) == 3  # soltanto all'ultima misura
    assert rises([0.0, 0.3, 0.3, 0.6, 1.0], part=0.25) == 1


def test_what_ends_at_zero_has_not_risen() -> None:
    assert rises([0.0, 0.6, 0.6, 0.0]) == rises([0.6, 0.6, 0.55, 0.4], floor=0.5) == 3
    rows = trainings(-150)
    for row in rows:
        row["categorie"]["machine"] = row["categorie"]["animal"] | {"sguardi": [0.0] * len(STEPS)}
    assert torch.equal(delays(rows, "sguardi"), delays(trainings(-150), "sguardi"))
    assert verdict(delays(rows[:1], "sguardi")) == "non si sa"  # da uno solo


def test_the_look_is_chosen_on_half_of_the_frames_and_read_on_the_other() -> None:
    import dinamica

    rng, n = np.random.default_rng(0), len(dinamica.probes)
    choose, report = dinamica.halves(max(dinamica.frames) + 1)
    in_choose = np.isin(dinamica.frames, choose.numpy())
    noise = 0.05 * rng.standard_normal((len(STEPS), n, 5))
    rise = np.clip((np.array(STEPS) - 400) / 300, 0, 1)[:, None]
    noise[:, :, 1] += 0.3 * rise  # la testa che guarda davvero, in tutte le cornici
    noise[:, in_choose, 2] += 0.2  # una che inganna: soltanto dove si sceglie, e meno
    partial = (dinamica.kind == 0) * 1.0
    noise[:, :, 3] += 0.9 * (partial - partial[np.arange(n) ^ 1])  # una che guarda sempre gli animali
    noise[:, :, 4] += 0.9  # una cieca per costruzione
    found = {"giusti": np.ones((len(STEPS), n)), "sguardi": noise, "scambi": noise[:, :, :3]}
    names = ["encoder 1.1, finta", "encoder 1.2, finta", "encoder 1.3, finta", "encoder 2.1, finta"]
    names += ["encoder 1.4, da «it»"]
    found |= {"nomi_sguardi": np.array(names), "nomi_scambi": np.array(names[:3])}
    curves = dinamica.category(found, 0)
    assert curves["scelto_sguardi"] == "encoder 1.2, finta" and curves["conta_sguardi"] < 0.05
    assert abs(STEPS[rises(curves["sguardi"])] - 550) <= 50
    mine = [i for i in range(n) if dinamica.kind[i] == 0 and not in_choose[i]]
    assert {dinamica.frames[i] for i in mine} <= set(report.tolist())
    assert abs(curves["sguardi"][-1] - noise[-1, mine, 1].mean()) < 0.05


def test_only_trainings_with_these_options_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dinamica

    monkeypatch.setattr(dinamica, "generate", lambda *_, **__: [])
    monkeypatch.setattr(dinamica, "encode_pairs", lambda *_, **__: None)
    monkeypatch.setattr(dinamica, "run", lambda *_: {"passo": [100], "secondi": 1, "opzioni": dinamica.SETTINGS})
    dinamica.train_all(tmp_path, 1, 0)
    dinamica.train_all(tmp_path, 1, 0)  # c'è già, ed è lei
    for other in ({"opzioni": "altre"}, {}):  # un altro warmup; un file di prima
        np.savez(tmp_path / "stretto-1.npz", passo=[100], **other)
        with pytest.raises(AnnotatedError, match=r"stretto-1.npz: è di altre opzioni"):
            dinamica.train_all(tmp_path, 1, 0)
        with pytest.raises(AnnotatedError, match=r"stretto-1.npz: è di altre opzioni"):
            dinamica.measure_all(tmp_path, tmp_path / "dinamica.json")


def test_the_file_says_where_it_comes_from() -> None:
    found = json.loads((ROOT / "book" / "dati" / "dinamica.json").read_text("utf-8"))
    assert {"comando", "opzioni", "semi", "commit", "data", "macchina", "durata"} <= set(found["provenienza"])
    assert sum(row["decoder"] == "stretto" for row in found["righe"]) >= 20
    for row in found["righe"]:
        assert set(row["categorie"]) == {"animal", "place", "food", "machine"}
        curves = [c[key] for c in row["categorie"].values() for key in ("giusti", "sguardi", "scambi")]
        assert {len(curve) for curve in curves} == {len(row["passi"])} and row["passi"][-1] <= 1000
