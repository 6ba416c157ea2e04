"""Il diario di un addestramento lungo e le frasi retrotradotte, su un corpus di poche righe."""

import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diario
import indizi
import provenienza
import pytest
import retrotraduci
import simmetriche
import torch
import vettori
from torch import Tensor

from annotated.cli import main
from annotated.corpora import normalize
from annotated.data import Pair, find_data, load_corpus, read_pairs
from annotated.pretrained import MODELS
from annotated.study.coreference import read_probes
from annotated.study.microlingua import generate
from annotated.tokenizer import Tokenizer
from annotated.training import batch_stream


def write(path: Path, pairs: list[Pair]) -> None:
    path.write_text("".join(f"prova\t{pair.source}\t{pair.target}\n" for pair in pairs), "utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    "Dati, un addestramento di dodici passi, l'istantanea dell'ottavo."
    root = tmp_path_factory.mktemp("diario")
    data, run, snapshots = root / "dati", root / "run", root / "istantanee"
    for folder in (data, snapshots):
        folder.mkdir()
    pairs = [Pair(e.en, e.it) for e in generate(400)]
    parts = {"train-pronomi": pairs[:300], "valid": pairs[300:330], "dev-quotidiano": pairs[330:340]}
    parts["dev-newssyscomb2009"] = pairs[340:350]
    for name, some in parts.items():
        write(data / f"{name}.tsv", some)
    options = (
        "--config mini --vocab-size 400 --max-tokens 256 --max-steps 12 --valid-every 4 --repeat prova=2 --average 2"
    )
    assert main(["train", "--data", str(data), "--out", str(run), "--device", "cpu", *options.split()]) == 0
    (snapshots / run.name).mkdir()
    name = "weights-0000008.safetensors"
    (snapshots / run.name / name).write_bytes((run / name).read_bytes())
    return data, run, snapshots


def test_pieces_are_those_of_the_batches(folders: tuple[Path, Path, Path]) -> None:
    data, run, _ = folders
    options = json.loads((run / "options.json").read_text("utf-8"))
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    read = diario.pieces_read(run, data, options, tokenizer, max_len=64, steps=40)
    assert len(read) == 41
    corpus = load_corpus(find_data(data).train, tokenizer, 64, run / "data", {"prova": 2.0})
    counted = 0
    for step, batch in zip(range(1, len(read)), batch_stream(corpus, 256, options["seed"]), strict=False):
        counted += int(batch.tgt_out.count_nonzero())
        assert read[step] == counted


def test_losses_are_grouped_and_validations_kept() -> None:
    log = [{"step": step, "loss": float(step), "seconds": step / 2} for step in range(20, 201, 20)]
    log.insert(5, {"step": 100, "valid_loss": 3.0})
    rows = diario.losses(log, read=list(range(0, 2010, 10)))
    assert rows[0] == {"step": 100, "loss": 60.0, "pieces": 1000, "seconds": 50.0}
    assert rows[1] == {"step": 100, "valid_loss": 3.0} and rows[2]["loss"] == 160.0


@pytest.fixture
def diary(
    folders: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[..., dict[str, Any]], list[int], Path]:
    "Racconta una tappa per comando, con misure finte, e rende il diario; poi le misure fatte, e le istantanee."
    data, run, snapshots = folders
    mine, measured = shutil.copytree(snapshots, tmp_path / "istantanee"), []
    monkeypatch.setattr(diario, "share", lambda *_: 0.5)
    monkeypatch.setattr(diario, "measure", lambda *_: measured.append(1) or {"bleu": {}, "accordo": {}})

    def tell(*commands: str, hardware: str = "qui") -> dict[str, Any]:
        out = tmp_path / "diario.json"
        stages = [word for command in commands for word in ("--stage", str(run), str(data), command)]
        options = ["--snapshots", str(mine), "--hardware", hardware, *stages]
        monkeypatch.setattr(sys, "argv", ["diario.py", str(out), *options])
        diario.main()
        return json.loads(out.read_text("utf-8"))

    return tell, measured, mine


def test_only_new_snapshots_are_measured(
    folders: tuple[Path, Path, Path], diary: tuple[Callable[..., dict[str, Any]], list[int], Path]
) -> None:
    (data, run, _), (tell, measured, _) = folders, diary
    for stages, snapshots_seen in ((1, 1), (2, 2)):  # la seconda volta, una tappa in più
        found = tell(*["annotated train"] * stages)
        assert len(measured) == snapshots_seen
    first, second = found["istantanee"]
    steps = [row["step"] for row in found["diario"] if "valid_loss" in row]
    assert [first["step"], second["step"]] == [8, 20] and steps == [4, 8, 12, 16, 20, 24]
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    options = json.loads((run / "options.json").read_text("utf-8"))
    read = diario.pieces_read(run, data, options, tokenizer, max_len=64, steps=12)
    assert second["pieces"] - first["pieces"] == read[12]  # i pezzi di tutta la prima tappa
    assert second["seconds"] > first["seconds"] and len(found["provenienza"]["tappe"]) == 2

    # una tappa nuova, senza più le cartelle delle prime: ciò che se ne sapeva resta
    for _ in range(2):  # la seconda volta rifà soltanto lei
        longer = tell("annotated train --init PRECEDENTE")
    assert longer["provenienza"]["tappe"][:2] == found["provenienza"]["tappe"] and len(measured) == 3
    assert longer["diario"][: len(found["diario"])] == found["diario"] and longer["istantanee"][:2] == [first, second]
    assert longer["istantanee"][2]["step"] == 32 and longer["diario"][-1]["step"] == 36
    assert longer["istantanee"][2]["pieces"] - second["pieces"] == read[12]


def test_a_stage_told_again_forgets_the_next_and_other_weights(
    folders: tuple[Path, Path, Path], diary: tuple[Callable[..., dict[str, Any]], list[int], Path]
) -> None:
    (_, run, _), (tell, measured, mine) = folders, diary
    steps = [row["step"] for row in tell("A", "B")["istantanee"]]
    assert steps == [8, 20] and len(measured) == 2
    found = tell("A", hardware="altrove")
    assert [row["step"] for row in found["istantanee"]] == [8] and len(measured) == 2
    [stage] = found["provenienza"]["tappe"]
    assert stage["processore"] == "altrove" and stage["fine"]["step"] == 12 and stage["commit"]
    [path] = mine.glob("*/*")
    path.write_bytes((run / "weights-0000012.safetensors").read_bytes())
    again = tell("A")["istantanee"]
    assert len(measured) == 3 and again[0]["pesi"] != found["istantanee"][0]["pesi"]


def test_an_interrupted_translation_goes_on(
    folders: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shutil.copytree(folders[0], tmp_path / "dati")
    (tmp_path / "frasi.txt").write_text("Una.\nDue.\nTre.\n", "utf-8")
    asked: list[str] = []

    def stopping(model: object, tokenizer: object, sentences: list[str], **_: Any) -> list[str]:
        asked.extend(sentences)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [sentence.upper() for sentence in sentences]

    monkeypatch.setattr(retrotraduci, "translate", stopping)
    monkeypatch.setattr(retrotraduci, "BLOCK", 1)
    monkeypatch.setattr(sys, "argv", ["retrotraduci.py", "mini", str(tmp_path / "frasi.txt"), "--data", str(data)])
    with pytest.raises(KeyboardInterrupt):
        retrotraduci.main()
    retrotraduci.main()
    assert asked == ["Una.", "Due.", "Due.", "Tre."]
    rows = (data / "train-retrotradotte.tsv").read_text("utf-8").splitlines()
    assert rows == [f"retrotradotte\t{it.upper()}\t{it}" for it in ("Una.", "Due.", "Tre.")]


def test_nothing_of_the_held_out_files_is_translated_back(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    data, _, _ = folders
    held_out = [pair.target for path in data.glob("dev*.tsv") for pair in read_pairs(path)]
    text = [held_out[0].upper(), "Una frase nuova.", "una frase nuova", "", "Un'altra,\tcon una tabulazione."]
    (tmp_path / "frasi.txt").write_text("".join(f"{line}\n" for line in text), "utf-8")
    found = retrotraduci.unpaired(tmp_path / "frasi.txt", data)
    assert [normalize(sentence) for sentence in found] == ["una frase nuova", "un altra con una tabulazione"]
    assert not any("\t" in sentence for sentence in found)


def test_clues_are_counted_as_whole_words(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    write(path, [Pair("Hot tea, a hot dog.", "Tè."), Pair("A hotel is off.", "Un albergo."), Pair("Worn out!", "Liso")])
    assert indizi.occurrences({"hot", "off", "worn out", "of"}, path) == {"hot": 2, "off": 1, "worn out": 1}


def test_clues_are_of_the_published_weights() -> None:
    "Ripubblicare Base senza rifare `tools/indizi.py` lascerebbe nel libro margini di un altro modello."
    found = json.loads(indizi.OUT.read_text("utf-8"))
    assert found["provenienza"]["pesi"] == provenienza.weights_sha256(MODELS / "base-en-it")
    assert len(found["margini"]) == len(read_probes())


def test_vectors_are_of_the_published_weights() -> None:
    "Come sopra, per la sonda di `tools/vettori.py`."
    found = json.loads(vettori.OUT.read_text("utf-8"))
    assert found["provenienza"]["pesi"] == provenienza.weights_sha256(MODELS / "base-en-it")
    assert found["provenienza"]["aggettivi"] == provenienza.sha256(vettori.LEXICON)
    assert len(found["parole"]) == len(read_probes())


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--steps", "0"]])
def test_no_seeds_and_no_steps_are_refused(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simmetriche.py", "--data", ".", *wrong])
    with pytest.raises(SystemExit):
        simmetriche.main()
    assert f"{' '.join(wrong)}: " in capsys.readouterr().err


def test_symmetric_sentences_are_of_the_published_weights() -> None:
    found = json.loads(simmetriche.OUT.read_text("utf-8"))
    assert found["provenienza"]["pesi"] == provenienza.weights_sha256(simmetriche.MODEL)
    assert found["provenienza"]["aggettivi"] == provenienza.sha256(simmetriche.LEXICON)
    assert all(len(run["margini"]) == len(read_probes()) for run in found["corse"])
    assert found["esempi"] == [list(e[:3]) for e in simmetriche.some(6, seed=99, held_pairs=True)]


def test_symmetric_sentences_have_no_usual_place() -> None:
    "Chi ricorda il posto di ogni indizio, sulle frasi simmetriche, tira a sorte; e ciò che è da parte resta da parte."
    read, asked = (simmetriche.some(4000, seed=seed) for seed in (1, 2))
    places: dict[str, Counter[int]] = defaultdict(Counter)
    for e in read:
        places[e.clue][e.antecedent] += 1
    bets = [places[e.clue][e.antecedent] - places[e.clue][1 - e.antecedent] for e in asked]
    right = sum((bet > 0) + (bet == 0) / 2 for bet in bets) / len(bets)
    assert abs(right - 0.5) < 0.03
    common = {word for e in asked[:1000] for word in vettori.words(f"{e.clue} {' '.join(e.nouns)}")}
    few = simmetriche.some(50, seed=1, among=common)
    assert all(common.issuperset(vettori.words(f"{e.clue} {' '.join(e.nouns)}")) for e in few)
    assert all(e.en.lower().index(f" {e.nouns[0]}") < e.en.lower().index(f" {e.nouns[1]}") for e in few)
    aside = simmetriche.some(300, seed=1, held_clues=True)
    assert len({e.clue for e in aside}) > 50 and not {e.clue for e in aside} & {e.clue for e in read}
    endings = [{e.it.split()[-1][:-2] for e in some} for some in (aside, read)]  # l'aggettivo italiano, senza genere
    assert not endings[0] & endings[1]
    tested = {(frozenset(noun.en for noun in probe.nouns), probe.clue) for probe in read_probes()}
    assert not any(clue == e.clue and {noun.lower() for noun in pair} <= {*e.en.lower().split()}
                   for e in read for pair, clue in tested)  # fmt: skip
    assert all(e.it != e.wrong and len(e.it.split()) == len(e.wrong.split()) for e in read)


def test_counted_vectors_learn_who_an_unread_clue_is_said_of() -> None:
    "Un mondo in cui ogni parola ha per vettore il proprio gruppo: la sonda risponde a indizi che non ha letto."
    sets: simmetriche.Sets = {simmetriche.COMMON: simmetriche.some(200, seed=1, held_pairs=True, held_clues=True)}
    groups: dict[str, Tensor] = defaultdict(lambda: torch.zeros(len(simmetriche.GROUPS)))
    for kind, some in simmetriche.clues().items():
        entries = [adjective.en for adjective, _ in some]
        entries += [noun.en for nouns in simmetriche.NOUNS[kind].values() for noun in nouns]
        for word in {word for text in entries for word in vettori.words(text)}:
            groups[word][simmetriche.GROUP[kind]] += 1
    table = torch.nn.functional.normalize(torch.stack([torch.zeros(len(simmetriche.GROUPS)), *groups.values()]))
    number = {word: i for i, word in enumerate(groups, 1)}
    assert simmetriche.counting(number, table, sets, 1)[simmetriche.COMMON]["giuste"][0] > 0.9
    blind = torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    assert abs(simmetriche.counting(number, blind, sets, 1)[simmetriche.COMMON]["giuste"][0] - 0.5) < 0.15
    del number[next(w for w in number if w in vettori.words(sets[simmetriche.COMMON][0].clue))]
    assert simmetriche.counting(number, table, sets, 1)[simmetriche.COMMON]["frasi"] < 200


def test_the_last_snapshot_of_base_is_of_the_published_weights() -> None:
    "`base.json` non ha l'impronta dei pesi: la quota delle coppie dev'essere quella di `indizi.json`, che ce l'ha."
    margins = json.loads(indizi.OUT.read_text("utf-8"))["margini"]
    last = json.loads((indizi.ROOT / "book/dati/base.json").read_text("utf-8"))["istantanee"][-1]
    assert sum(x > 0 for x in margins) / len(margins) == pytest.approx(last["accordo"]["coppie"], abs=1e-4)
