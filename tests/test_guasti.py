"""Ciò che un addestramento lungo non perdona: cartelle usate, riprese a vuoto, vocabolari che cambiano, attese."""

import copy
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from filelock import FileLock
from provenienza import read_log
from torch.utils._python_dispatch import TorchDispatchMode

from annotated import AnnotatedError, Config, Transformer, attention_weights, cli, load_pretrained, training
from annotated.checkpoint import load_model, publish_model, save_model
from annotated.cli import main
from annotated.common import BOS, EOS, atomic_write
from annotated.data import Corpus, Pair, encode_pairs, pad
from annotated.decoding import beam_search, with_precision
from annotated.study.efficient import fixed_mask, local_mask, strided_mask
from annotated.study.microlingua import generate
from annotated.tokenizer import Tokenizer, reservoir_sample
from annotated.training import LOG_EVERY, TrainingConfig, batch_stream, train, validation_loss
from conftest import SHAPE, Setting, Stopped, write_data

SHORT = TrainingConfig(max_steps=40, max_tokens=256, warmup=20, valid_every=20, average=3)
fork = multiprocessing.get_context("fork")  # i figli non devono reimportare torch


def run(setting: Setting, folder: Path, resume: bool = False, **changes: Any) -> float:
    torch.manual_seed(1)
    tokenizer, corpus, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    return train(model, tokenizer, corpus, validation, replace(SHORT, **changes), folder, resume)


# --- il vocabolario

VOCABULARY = """
from annotated.tokenizer import Tokenizer
sentences = (f"parola{i % 977} numero{i % 1009} resto{i % 13}" for i in range(5_200))
print(Tokenizer.train(sentences, 300, max_sentences=5_000, seed=7).fingerprint)
"""


def test_two_processes_learn_the_same_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    "Questo e un altro, che mescola gli insiemi a modo suo; anche quando delle frasi si prende un campione."
    exec(VOCABULARY, {})
    command, other = [sys.executable, "-c", VOCABULARY], os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=other)
    told = capsys.readouterr().out
    assert done.stdout == told and len(told) == 65


def test_the_sample_is_seeded_and_fair() -> None:
    numbers = [str(i) for i in range(100)]
    assert (
        reservoir_sample(numbers, 10, seed=1)
        == reservoir_sample(iter(numbers), 10, seed=1)
        != reservoir_sample(numbers, 10, seed=2)
    )
    counts = np.bincount([int(n) for seed in range(1_000) for n in reservoir_sample(numbers, 10, seed)], minlength=100)
    assert counts.sum() == 10_000 and abs(counts - 100).max() < 45  # quattro scarti e mezzo
    text = [sentence for e in generate(200) for sentence in (e.en, e.it)]
    first, same, other = (Tokenizer.train(text, 80, 100, seed).fingerprint for seed in (1, 1, 2))
    assert first == same != other


def test_typographic_signs_are_straightened_everywhere() -> None:
    curly, straight = "Il cane “dell’orto” — quello — non c’era.", "Il cane \"dell'orto\" - quello - non c'era."
    tokenizer = Tokenizer.train([curly] * 9, 30)
    assert tokenizer.fingerprint == Tokenizer.train([straight] * 9, 30).fingerprint
    assert tokenizer.split(curly) == tokenizer.split(straight) == tokenizer.pieces(tokenizer.encode([curly])[0])


# --- la cartella


def test_a_new_run_never_mixes_with_an_old_one(setting: Setting, tmp_path: Path) -> None:
    run(setting, tmp_path, max_steps=20)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    with pytest.raises(AnnotatedError, match="contiene già un modello"):
        run(setting, tmp_path, seed=2)
    (tmp_path / "state.safetensors").unlink()
    del before[tmp_path / "state.safetensors"]
    with pytest.raises(AnnotatedError, match="--init"):  # i pesi ci sono, ma non si può riprendere
        run(setting, tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.safetensors")} == before


def test_killed_before_the_first_validation(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(run: Any, _: Corpus) -> None:
        training._averaged(run)  # come un kill: i pesi della media ci sono già, lo stato è ancora quello del passo 0
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(training, "_validate", dies)
        with pytest.raises(ZeroDivisionError):
            run(setting, tmp_path / "ucciso")
    assert list((tmp_path / "ucciso").glob("weights-*"))
    assert run(setting, tmp_path / "ucciso", resume=True) == run(setting, tmp_path / "intero")


def test_one_training_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath("modello").mkdir()
    with FileLock(tmp_path / "modello" / ".lucchetto"):
        assert main(["train", "--out", str(tmp_path / "modello"), "--device", "cpu"]) == 1
    assert "vi scrive già un altro addestramento" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "modello").iterdir()] == [".lucchetto"]


# --- riprendere


def test_resuming_a_run_never_validated(setting: Setting, tmp_path: Path) -> None:
    tokenizer, corpus, validation = setting

    with pytest.raises(KeyboardInterrupt, match="passo 3"):
        run((tokenizer, Stopped(corpus, at=3), validation), tmp_path)
    assert 0 < run(setting, tmp_path, resume=True, max_steps=3) < 20
    assert (
        run(setting, tmp_path, resume=True, max_steps=3) == read_log(tmp_path)[-1]["valid_loss"]
    )  # finito: nulla da fare


OPTIONS = ["[]", "{", "null", '{"vocab_size": "tanti"}', '{"colore": 1}', '{"repeat": [["tatoeba"]]}', '{"seed": true}',
           "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", OPTIONS, ids=range(len(OPTIONS)))
def test_a_malformed_options_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "options.json").write_text(text)
    assert main(["train", "--resume", "--out", str(tmp_path), "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "options.json: non è un file di opzioni" in error
    assert [path.name for path in tmp_path.iterdir()] == ["options.json"]


# --- il diario


def test_tensorboard_receives_every_row(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None: ...
        def __enter__(self) -> "SummaryWriter":
            return self

        def __exit__(self, *_: object) -> None: ...
        def add_scalar(self, *row: Any) -> None:
            written.append(row)

    module = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)  # type: ignore[arg-type]
    run(setting, tmp_path, max_steps=130, valid_every=33, tensorboard=True)
    expected = [(name, row[name], row["step"]) for row in read_log(tmp_path) for name in row.keys() - {"step"}]
    assert sorted(written) == sorted(expected) and len(expected) > 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    "Un passo dura un secondo, una validazione mille."
    now = [0.0]

    def taking(seconds: float, work: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            now[0] += seconds
            return work(*arguments)

        return timed

    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])
    for name, seconds in (("train_step_in_memory", 1), ("validation_loss", 1000)):
        monkeypatch.setattr(training, name, taking(seconds, getattr(training, name)))


def test_the_seconds_count_validations_and_the_speed_does_not(setting: Setting, tmp_path: Path, clock: None) -> None:
    batches = batch_stream(setting[1], SHORT.max_tokens, SHORT.seed)
    pieces = [sum(int(next(batches).tgt_out.count_nonzero()) for _ in range(LOG_EVERY)) for _ in range(2)]
    for steps in (LOG_EVERY, 2 * LOG_EVERY):
        run(setting, tmp_path, resume=True, max_steps=steps, valid_every=10)
    rows = [row for row in read_log(tmp_path) if "seconds" in row]
    assert [row["tokens_per_second"] for row in rows] == [round(n / LOG_EVERY) for n in pieces]
    assert [row["seconds"] for row in rows] == [1020.0, 2040.0]  # chi riprende somma i suoi


def test_minutes_are_of_sixty_seconds(setting: Setting, tmp_path: Path, clock: None) -> None:
    run(setting, tmp_path, minutes=0.5, valid_every=40)
    assert read_log(tmp_path)[-1]["step"] == 31  # il primo passo dopo il mezzo minuto


# --- ogni scheda


def test_no_double_precision_on_the_device(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    "Le schede di Apple non hanno float64: su un dispositivo finto si guarda che nessuno lo chieda."
    tokenizer, _, validation = setting
    kinds: set[torch.dtype] = set()

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.device.type == "meta":
                kinds.add(result.dtype)
            return result

    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.ones(()))
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE)).to("meta")
    with Record():
        validation_loss(model, validation, 256)
    assert torch.float32 in kinds and torch.float64 not in kinds


@pytest.mark.parametrize("mask", [local_mask, strided_mask, fixed_mask])
def test_masks_live_where_they_are_asked(mask: Any) -> None:
    assert mask(6, 2, device=torch.device("meta")).device.type == "meta"


def test_batches_equal_sentence_by_sentence(setting: Setting) -> None:
    _, corpus, _ = setting
    for seed in range(20):
        chosen = np.random.default_rng(seed).choice(len(corpus), 1 + 2 * seed)
        sources, targets = zip(*(corpus[i] for i in chosen), strict=True)
        expected = pad(sources), pad([np.concatenate(([BOS], t[:-1])) for t in targets]), pad(targets)
        assert all(torch.equal(a, b) for a, b in zip(corpus.batch(chosen), expected, strict=True))
    assert corpus.batch(np.array([len(corpus) - 1])).src[0, -1] == EOS  # l'ultima non sporge dal corpus


# --- la decodifica


@torch.inference_mode()
def greedy(model: Transformer, source: torch.Tensor, extra: int) -> list[int]:
    ids = [BOS]
    while len(ids) < len(source) + extra:  # l'ultimo posto è di EOS
        logits = model(source[None], torch.tensor([ids]))[0, -1]
        logits[:EOS] = -math.inf
        if (best := int(logits.argmax())) == EOS:
            break
        ids.append(best)
    return ids[1:]


def test_beam_one_is_greedy() -> None:
    early = 0
    for seed in range(40):  # alcuni di questi modelli a caso chiudono la frase presto
        torch.manual_seed(seed)
        model = Transformer(Config(vocab_size=12, d_model=16, d_ff=16, h=2, N=1, dropout=0.0, max_len=24)).eval()
        model.embedding.weight.data *= 3
        source = torch.tensor([*torch.randint(4, 12, (5,)).tolist(), EOS])
        expected = greedy(model, source, extra=4)
        early += len(expected) < 9
        for alpha in (0.0, 0.6, 2.0, 5.0):
            [[only]] = beam_search(model, source[None], beam=1, alpha=alpha, extra=4)
            assert only.ids == expected
    assert early > 5


# --- la microlingua


def test_validation_shares_no_sentence_with_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "encode_pairs", lambda pairs, *_: Namespace(pairs=set(pairs), skipped=0))
    tokenizer = Tokenizer.train(["a b c d e f"] * 9, 15)
    _, seen, validation = cli._corpora(Namespace(data=None), tmp_path, tokenizer, 64)
    assert len(validation.pairs) == 500 and not validation.pairs & seen.pairs  # type: ignore[attr-defined]


@pytest.mark.parametrize("pair", [{"en": "The dog", "it": "Il cane"}, "Hi", ("The dog",), ("x", "The dog", "Il cane")])
def test_what_is_not_a_pair_is_refused(pair: Any) -> None:
    tokenizer = Tokenizer.train(["a b c d e f"] * 9, 15)
    with pytest.raises(AnnotatedError, match="servono coppie di testi"):
        encode_pairs([pair], tokenizer, 64)


# --- più processi


@pytest.fixture
def alone_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in names.items():  # la porta 0 è una qualunque, libera
        monkeypatch.setenv(name, value)
    yield
    assert not dist.is_initialized()


def test_nobody_waits_in_a_collective_while_data_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone_under_torchrun: None
) -> None:
    order: list[tuple[str, bool]] = []
    pairs = [Pair(e.en, e.it) for e in generate(60)]

    def prepared(*_: Any) -> tuple[Tokenizer, Corpus, Corpus]:
        order.append(("dati", dist.is_initialized()))
        tokenizer = Tokenizer.train((s for pair in pairs for s in pair), 300)
        return tokenizer, *(encode_pairs(pairs, tokenizer, 64) for _ in range(2))

    def trained(*_: Any, **_options: Any) -> float:
        order.append(("passi", dist.is_initialized()))
        return 0.0

    monkeypatch.setattr(cli, "_corpora", prepared)
    monkeypatch.setattr(cli, "train", trained)
    monkeypatch.setattr(cli, "_measure_unseen", lambda *_: None)
    assert main(["train", "--out", str(tmp_path), "--device", "cpu"]) == 0
    assert order == [("dati", False), ("passi", True)]


def test_one_process_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--data", str(tmp_path), "--out", str(tmp_path / "modello"), "--device"]
    monkeypatch.setenv("RANK", "9")
    assert main([*command, "cpu"]) == 1  # gli errori li dice chiunque
    missing = "c'è la variabile RANK senza LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
    assert capsys.readouterr().err.startswith(f"errore: {missing}.")
    for name, value in {"LOCAL_RANK": "99", "WORLD_SIZE": "10", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main([*command, "cuda"]) == 1  # la scheda è la sua
    assert "errore: --device cuda:99: non disponibile" in capsys.readouterr().err
    cli._say("un avviso")
    assert capsys.readouterr().err == ""


def test_the_first_process_of_all_locks_the_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone_under_torchrun: None
) -> None:
    "Con più macchine sulla stessa cartella ognuna ha un LOCAL_RANK 0."
    begun: list[Path] = []
    monkeypatch.setattr(cli, "_train_in", lambda folder, *_: begun.append(folder))
    command = ["train", "--data", str(data), "--out", str(tmp_path / "modello"), "--device", "cpu"]
    (tmp_path / "modello").mkdir()
    with FileLock(tmp_path / "modello" / ".lucchetto"):
        assert main(command) == 1 and not begun
        monkeypatch.setenv("RANK", "4")
        assert main(command) == 0 and begun


AGREEMENT = """
import sys, torch.distributed as dist
from annotated.training import _check_agreement
dist.init_process_group("gloo")
_check_agreement("vocabolario", 1000)
try:
    _check_agreement("vocabolario", 1000 + dist.get_rank())
except Exception as error:
    print(type(error).__name__, error, flush=True)
dist.barrier()  # nessuno se ne va mentre l'altro risponde ancora
dist.destroy_process_group()
"""


def test_machines_with_other_data_refuse(tmp_path: Path) -> None:
    (tmp_path / "accordo.py").write_text(AGREEMENT)
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, str(tmp_path / "accordo.py")], capture_output=True, text=True, check=True)
    assert done.stdout.count("AnnotatedError") == 2 and "Copia la stessa cartella su ogni macchina" in done.stdout


# --- continuare da un modello


@pytest.fixture
def data(tmp_path: Path) -> Path:
    "Una cartella con poche frasi della microlingua."
    return write_data(tmp_path / "dati")


def test_init_goes_on_from_a_model(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["train", "--data", str(data), "--device", "cpu", "--max-tokens", "512", "--valid-every", "4"]
    first, second = tmp_path / "primo", tmp_path / "secondo"
    assert main([*common, "--config", "mini", "--vocab-size", "400", "--max-steps", "8", "--out", str(first)]) == 0
    tuned = [*common, "--init", str(first), "--out", str(second)]
    assert main([*tuned, "--max-steps", "4"]) == 0
    assert main([*tuned[:-1], str(tmp_path / "intero"), "--max-steps", "8"]) == 0
    assert (second / "tokenizer.model").read_bytes() == (first / "tokenizer.model").read_bytes()
    start, other = (next(row["valid_loss"] for row in read_log(f) if "valid_loss" in row) for f in (second, first))
    assert start < other
    first.rename(tmp_path / "spostato")  # chi riprende ha già tutto
    assert main(["train", "--resume", "--max-steps", "8", "--out", str(second), "--device", "cpu"]) == 0
    assert read_log(second)[-1]["step"] == 8
    resumed, whole = (load_model(folder)[0].state_dict() for folder in (second, tmp_path / "intero"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    capsys.readouterr()
    for option, value in (("--vocab-size", "400"), ("--config", "mini")):
        assert main([*tuned, option, value, "--out", str(tmp_path / "terzo")]) == 1
        assert f"Togli {option}" in capsys.readouterr().err
    assert not (tmp_path / "terzo").exists()


def test_a_refused_resume_changes_nothing(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "modello"
    common = ["train", "--data", str(data), "--device", "cpu", "--valid-every", "4", "--out", str(out)]
    first = ["--config", "mini", "--vocab-size", "400", "--max-tokens", "512", "--max-steps", "4"]
    assert main([*common, *first]) == 0
    kept = {name: (out / name).read_bytes() for name in ("tokenizer.model", "options.json", "state.safetensors")}
    assert main([*common, *first]) == 1  # nemmeno chi ricomincia da capo
    for wrong in ("--seed 2", "--vocab-size 500", "--norm-first", "--max-tokens 300", "--init mini"):
        assert main([*common, "--resume", "--max-steps", "8", *wrong.split()]) == 1, wrong
        assert {name: (out / name).read_bytes() for name in kept} == kept, wrong
    assert main(["train", "--resume", "--max-steps", "8", "--out", str(out), "--device", "cpu"]) == 0
    assert read_log(out)[-1]["step"] == 8


def test_grow_starts_from_the_loss_of_the_small_model(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", "--data", str(data), "--device", "cpu", "--max-tokens", "512", "--valid-every", "1"]
    first, second = tmp_path / "primo", tmp_path / "secondo"
    start = [*common, "--config", "mini", "--vocab-size", "400", "--warmup", "20"]
    quiet = ["--max-steps", "40", "--average", "1", "--valid-every", "40"]
    assert main([*start, *quiet, "--out", str(first)]) == 0
    tiny = ["--max-steps", "1", "--factor", "1e-6", "--dropout", "0"]
    assert main([*common, "--init", str(first), "--grow", *tiny, "--out", str(second)]) == 0
    before, after = (min(row["valid_loss"] for row in read_log(f) if "valid_loss" in row) for f in (first, second))
    assert abs(after - before) < 0.05 < before
    assert json.loads((second / "config.json").read_text())["d_model"] == 256
    shutil.rmtree(first)
    assert main(["train", "--resume", "--max-steps", "2", "--out", str(second), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main([*common, "--grow", "--out", str(tmp_path / "terzo")]) == 1
    assert "--grow: manca --init" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "log.jsonl", "tokenizer.model"])
@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_someone_elses_files_stay(
    data: Path, tmp_path: Path, name: str, resume: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("miei")
    assert main(["train", "--data", str(data), "--device", "cpu", "--out", str(tmp_path), *resume]) == 1
    assert name in capsys.readouterr().err and (tmp_path / name).read_text() == "miei"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--config", "nonesiste"], "nonesiste"),
        (["--data", "nonesiste"], "nonesiste"),
        (["--repeat", "prova=2", "--repeat", "prova=1"], "detta due volte"),
    ],
)
def test_what_is_wrong_leaves_no_folder(
    data: Path, tmp_path: Path, wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", str(data), "--device", "cpu", "--out", str(tmp_path / "mai"), *wrong]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "mai").exists()


def test_a_damaged_checkpoint_is_named(setting: Setting, tmp_path: Path) -> None:
    run(setting, tmp_path)
    path = tmp_path / "weights-0000020.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(AnnotatedError, match=f"{path.name}: pesi troncati"):
        run(setting, tmp_path, resume=True, max_steps=60)
    path.unlink()
    run(setting, tmp_path, resume=True, max_steps=60)


def test_a_hopeless_loss_is_told(setting: Setting, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(setting, tmp_path, factor=1e5, max_steps=20)
    assert read_log(tmp_path)[-1]["valid_loss"] > 710  # la sua perplessità non è un numero di macchina
    assert "passo 20: validazione" in capsys.readouterr().err


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with training._signals():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_waits_and_the_second_stops(name: str) -> None:
    def stop(*_: object) -> None:
        raise InterruptedError

    number = getattr(signal, name)
    before = signal.signal(number, stop)
    try:
        with training._signals() as received:
            os.kill(os.getpid(), number)
            assert received == [number]
            with pytest.raises(InterruptedError):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_translating_never_drops(setting: Setting) -> None:
    tokenizer, _, validation = setting
    torch.manual_seed(1)
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE, dropout=0.5)).train()
    src, tgt = torch.tensor([[20, 21, 22, EOS]]), torch.tensor([[BOS, 30, 31]])

    def answers() -> list[Any]:
        [hypotheses] = beam_search(model, src)
        weights = attention_weights(model=model, src=src, tgt=tgt).cross[0]
        return [hypotheses[0].ids, weights.tolist(), validation_loss(model, validation, 4096)]

    learning = answers()
    assert model.training and all(module.training for module in model.modules())
    assert answers() == learning
    model.eval()
    assert answers() == learning and not model.training


def test_where_a_model_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    "Prima qui, poi dove dice la variabile, poi fra quelli del libro, poi dove li mette pip."
    model, sought = Transformer(Config(setting[0].vocab_size, **SHAPE)), []
    pip = "share/annotated/models"
    for name in (f"utente/{pip}/prova", f"tutti/{pip}/altra", "miei/mini", "qui/mini", f"tutti/{pip}/mini"):
        model.embedding.weight.data += 1
        save_model(tmp_path / name, model, setting[0])
        sought.append(model.embedding.weight.detach().clone())
    monkeypatch.setattr("site.getuserbase", lambda: str(tmp_path / "utente"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "tutti"))
    for name, weight in zip(("prova", "altra"), sought[:2], strict=True):
        assert torch.equal(load_pretrained(name).model.embedding.weight, weight)
    assert load_pretrained("mini").model.config.N == 3  # quello del libro
    monkeypatch.setenv("ANNOTATED_MODELS", str(tmp_path / "miei"))
    assert torch.equal(load_pretrained("mini").model.embedding.weight, sought[2])
    monkeypatch.chdir(tmp_path / "qui")
    assert torch.equal(load_pretrained("mini").model.embedding.weight, sought[3])
    monkeypatch.chdir("mini")
    with pytest.raises(AnnotatedError, match="modello «»"):  # vuoto non è la cartella corrente
        load_pretrained("")


def test_a_translator_asks_for_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("annotated.pretrained.translate", lambda _model, _tokenizer, *asked: asked)
    assert load_pretrained().translate(["Hi."]) == (["Hi."], 4, 0.6)
    assert load_pretrained().translate(["Hi."], beam=7, alpha=0.3) == (["Hi."], 7, 0.3)
    with pytest.raises(AnnotatedError, match="meta: non disponibile"):
        load_pretrained("mini", "meta")


def test_publishing_again_leaves_only_the_new_weights(tmp_path: Path, setting: Setting) -> None:
    tokenizer = setting[0]
    small = Transformer(Config(tokenizer.vocab_size, d_model=16, d_ff=16, h=2, N=1)).eval()
    large = Transformer(Config(tokenizer.vocab_size, d_model=32, d_ff=16, h=2, N=1)).eval()
    (tmp_path / "model-vecchio.safetensors").write_text("miei")
    for model, part_bytes in ((large, 20_000), (small, 10**6), (large, 10_000)):
        publish_model(tmp_path, model, tokenizer, part_bytes)
        loaded, _ = load_model(tmp_path)
        assert torch.equal(loaded.embedding.weight, model.embedding.weight.bfloat16().float())
    save_model(tmp_path, large, tokenizer)  # le parti ci sono ancora: vale ciò che si è scritto per ultimo
    assert torch.equal(load_model(tmp_path)[0].embedding.weight, large.embedding.weight)
    assert (tmp_path / "model-vecchio.safetensors").read_text() == "miei"


def write_many(folder: Path, name: str) -> None:
    for i in range(400):
        with atomic_write(folder / f"{name}-{i}") as file:
            file.write(b"x")


def test_writers_in_the_same_folder_do_not_lose_files(tmp_path: Path) -> None:
    writers = [fork.Process(target=write_many, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 1200


def test_a_corpus_ends(setting: Setting) -> None:
    corpus = setting[2]
    assert len(list(corpus)) == len(corpus)  # type: ignore[call-overload]
    with pytest.raises(IndexError):
        corpus[-1]


# --- ciò che non si potrebbe rileggere non si scrive


def test_a_model_of_another_vocabulary_is_not_written(setting: Setting, tmp_path: Path) -> None:
    tokenizer, corpus, validation = setting
    model = Transformer(Config(tokenizer.vocab_size + 48, **SHAPE))
    with pytest.raises(AnnotatedError, match="il modello ha 448 pezzi, il vocabolario 400"):
        save_model(tmp_path / "m", model, tokenizer)
    with pytest.raises(AnnotatedError, match="il modello ha 448 pezzi"):
        train(model, tokenizer, corpus, validation, SHORT, tmp_path / "m")
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # di torch.compile
def test_weights_that_would_not_load_are_not_written(setting: Setting, tmp_path: Path) -> None:
    tokenizer, corpus, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE)).eval()
    save_model(tmp_path, model, tokenizer)
    before = (tmp_path / "model.safetensors").read_bytes()
    wrapped, broken = cast(Transformer, torch.compile(model)), copy.deepcopy(model)
    broken.embedding.weight.data[5, 0] = torch.nan
    for wrong, told in ((with_precision(model, "int8"), "int8"), (wrapped, "torch.compile"), (broken, "infinito")):
        for write in (save_model, publish_model):
            with pytest.raises(AnnotatedError, match=told):
                write(tmp_path, wrong, tokenizer)
        with pytest.raises(AnnotatedError, match=told):
            train(wrong, tokenizer, corpus, validation, SHORT, tmp_path / "m")
    assert (tmp_path / "model.safetensors").read_bytes() == before and not (tmp_path / "m").exists()
    load_model(tmp_path)


def test_weights_are_read_in_float32(setting: Setting, tmp_path: Path) -> None:
    save_model(tmp_path, Transformer(Config(setting[0].vocab_size, **SHAPE)), setting[0])
    torch.set_default_dtype(torch.float64)
    try:
        model, _ = load_model(tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# --- una ripresa con altre frasi, e perché ci si ferma


def test_other_sentences_are_refused(setting: Setting, tmp_path: Path) -> None:
    run(setting, tmp_path, max_steps=20)
    tokenizer, corpus, validation = setting
    shuffled = Corpus(corpus.tokens[::-1].copy(), corpus.offsets)  # altrettanti pezzi, in un altro ordine
    for other in ((tokenizer, corpus, corpus), (tokenizer, shuffled, validation)):
        with pytest.raises(AnnotatedError, match="i dati non sono quelli"):
            run(other, tmp_path, resume=True)
    assert run(setting, tmp_path, resume=True) > 0


def test_why_it_stops_is_said(setting: Setting, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(setting, tmp_path, patience=1, factor=0.0, valid_every=10, average=1)
    assert "fermo al passo 20 di 40: validazioni senza migliorare, 1" in capsys.readouterr().err
    run(setting, tmp_path, resume=True, max_steps=20)
    assert "già al passo 20 di 20: per continuare, --max-steps più grande" in capsys.readouterr().err


def test_nothing_to_resume_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "--device", "cpu"]) == 1
    assert "runs/mini: non c'è nulla da riprendere" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_does_not_hide_a_published_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    assert load_pretrained("mini").model.config.N == 3
    with pytest.raises(AnnotatedError, match="manca config.json"):
        load_pretrained(str(tmp_path / "mini"))
