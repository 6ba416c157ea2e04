"""Il motore: gradienti che non dipendono da come si divide il lavoro, e addestramenti che non perdono nulla."""

import contextlib
import errno
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from provenienza import read_log
from safetensors.torch import save_file
from tqdm import tqdm

from annotated import AnnotatedError, Config, Transformer, cli, load_pretrained, translate
from annotated.checkpoint import load_model, load_state, load_tensors, save_model, save_tensors
from annotated.common import PAD
from annotated.data import Batch, Corpus, Pair, encode_pairs, load_corpus, make_batches, pad, read_pairs
from annotated.engine import Objective, train_step, train_step_in_memory, vocabulary_loss
from annotated.evaluation import evaluate
from annotated.optim import noam, translation_loss
from annotated.study.microlingua import generate
from annotated.tokenizer import Tokenizer
from annotated.training import (
    LOG_EVERY,
    TrainingConfig,
    averaged_model,
    batch_stream,
    check_folder,
    make_optimizer,
    train,
    validation_loss,
)
from annotated.transformer import without_dropout
from conftest import SHAPE, Setting, Stopped, fill_disk, write_data

SHORT = TrainingConfig(max_steps=40, max_tokens=256, warmup=20, valid_every=5, average=3)
BIN = Path(sys.executable).parent
fork = multiprocessing.get_context("fork")  # i figli non devono reimportare torch


def gradients(model: Transformer, objective: Objective, batch: tuple[torch.Tensor, ...], parts: int) -> torch.Tensor:
    train_step(objective, torch.optim.SGD(model.parameters()), batch, 0.0, parts)  # type: ignore[arg-type]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_accumulated_gradients_equal_one_large_batch(setting: Setting) -> None:
    tokenizer, corpus, _ = setting
    torch.manual_seed(0)
    model = Transformer(Config(tokenizer.vocab_size, dropout=0.0, **SHAPE))
    batch = corpus.batch(corpus.lengths.sum(axis=1).argsort()[::20])  # lunghezze molto diverse
    objective = Objective(model, 0.1)
    whole = gradients(model, objective, batch, 1)
    for parts in (2, 3, len(batch.src)):
        assert (gradients(model, objective, batch, parts) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 5, 4096])
def test_vocabulary_loss_equals_the_loss_on_logits(smoothing: float, rows: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 7, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(1, 50, (3, 7))
    targets[0, :2] = PAD
    expected = translation_loss(x @ weight.T, targets, smoothing)
    loss = vocabulary_loss(x, weight, targets, smoothing, rows)
    torch.testing.assert_close(loss, expected)
    found = (torch.autograd.grad(y, (x, weight), retain_graph=True) for y in (loss, expected))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(RuntimeError):  # i gradienti si sono riscritti
        loss.backward()


def run(setting: Setting, folder: Path, config: TrainingConfig = SHORT) -> None:
    tokenizer, training, validation = setting
    torch.manual_seed(99 if (folder / "state.safetensors").exists() else 1)  # chi riprende trova i pesi nello stato
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    with contextlib.suppress(KeyboardInterrupt):
        train(model, tokenizer, training, validation, config, folder, resume=True, progress=False)


@pytest.mark.parametrize("shown", [True, False])
def test_progress_is_told_only_if_wanted(
    setting: Setting, tmp_path: Path, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer, training, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    train(model, tokenizer, training, validation, replace(SHORT, max_steps=LOG_EVERY), tmp_path, progress=shown)
    told = capfd.readouterr().err
    assert "validazione" in told if shown else not told


def test_measuring_changes_nothing_but_the_log(setting: Setting, tmp_path: Path) -> None:
    tokenizer, training, validation = setting
    short = replace(SHORT, max_steps=10)
    models = []
    for name, more in (("senza", {}), ("con", {"measure": cli._bleu_on(validation, tokenizer, 7, tmp_path)})):
        torch.manual_seed(1)
        models.append(Transformer(Config(tokenizer.vocab_size, **SHAPE)))
        train(models[-1], tokenizer, training, validation, short, tmp_path / name, progress=False, **more)
    assert all(torch.equal(p, q) for p, q in zip(*(model.parameters() for model in models), strict=True))
    assert weights(tmp_path / "con") == weights(tmp_path / "senza")
    rows = [row for row in read_log(tmp_path / "con") if "valid_loss" in row]
    best, best_tokenizer = load_model(tmp_path / "con")
    chosen = [validation[i * len(validation) // 7] for i in range(7)]
    english, italian = (tokenizer.decode([pair[side].tolist() for pair in chosen]) for side in (0, 1))
    expected = evaluate(translate(best, best_tokenizer, english, beam=1), italian).bleu
    assert [row["step"] for row in rows] == [5, 10] and rows[-1]["bleu"] == pytest.approx(expected)


def test_the_bleu_of_a_validation_keeps_the_sentences_in_order(tmp_path: Path) -> None:
    mini, tokenizer = load_pretrained("mini")
    corpus = encode_pairs([Pair(e.en, e.it) for e in generate(50, held_out=True)], tokenizer, 64)
    assert cli._bleu_on(corpus, tokenizer, 20, tmp_path)(mini)["bleu"] > 95


def test_each_process_reads_its_share(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = setting[1]
    whole = make_batches(corpus.lengths, 256, [1, 0])[0]
    monkeypatch.setattr(Corpus, "batch", lambda _, i: Batch(torch.tensor(i), torch.tensor(i), torch.tensor(i) + 1))
    for size in (2, 3, len(whole) + 1):  # nell'ultimo caso a uno non tocca nulla: il suo lotto non conta
        shares = []
        for rank in range(size):
            monkeypatch.setattr("annotated.training.rank_and_size", lambda place=(rank, size): place)
            shares.append(next(batch_stream(corpus, 256, 1)))
        read = [share.src for share in shares if share.tgt_out.any()]
        assert sorted(torch.cat(read).tolist()) == sorted(whole.tolist())


def exhausted(_: Transformer) -> dict[str, float]:
    raise MemoryError


@pytest.mark.parametrize("measure", [exhausted, lambda _: None, lambda _: {"bleu": "n/d"}])
def test_a_measure_that_fails_loses_no_steps(
    setting: Setting, tmp_path: Path, measure: Callable[[Transformer], dict[str, float]]
) -> None:
    tokenizer, training, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    with pytest.raises((MemoryError, AttributeError, ValueError)):
        train(model, tokenizer, training, validation, SHORT, tmp_path, progress=False, measure=measure)
    assert [row["step"] for row in read_log(tmp_path) if "valid_loss" in row] == [5]
    train(model, tokenizer, training, validation, replace(SHORT, max_steps=10), tmp_path, True, progress=False)
    assert [row["step"] for row in read_log(tmp_path) if "valid_loss" in row] == [5, 10]


def test_a_model_that_could_not_be_written_is_written_on_resume(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    "Se il disco si riempie mentre si scrive il migliore, il diario non lo crede scritto."
    tokenizer, training, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("annotated.training.save_model", no_room)
        with pytest.raises(OSError):
            train(model, tokenizer, training, validation, SHORT, tmp_path, progress=False)
    assert not [row for row in read_log(tmp_path) if "valid_loss" in row]
    config = replace(SHORT, max_steps=5)  # non c'è altro da fare: manca la sola validazione
    loss = train(model, tokenizer, training, validation, config, tmp_path, True, progress=False)
    assert loss == pytest.approx(validation_loss(load_model(tmp_path)[0], validation, 256), abs=1e-5)


def test_an_interrupted_validation_is_done_on_resume(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, training, validation = setting
    model, config = Transformer(Config(tokenizer.vocab_size, **SHAPE)), replace(SHORT, max_steps=10, average=1)
    losses = iter([2.0])  # la seconda validazione, che è l'ultima, la ferma un secondo Ctrl+C

    def interrupted(*_: object) -> float:
        if (loss := next(losses, None)) is None:
            raise KeyboardInterrupt
        return loss

    with monkeypatch.context() as stopped:
        stopped.setattr("annotated.training.validation_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, tokenizer, training, validation, config, tmp_path, progress=False)
    assert [row["step"] for row in read_log(tmp_path) if "valid_loss" in row] == [5]
    train(model, tokenizer, training, validation, config, tmp_path, True, progress=False)
    assert [row["step"] for row in read_log(tmp_path) if "valid_loss" in row] == [5, 10]


def test_short_integers_choose_the_same_pairs(setting: Setting) -> None:
    corpus = setting[1]
    for dtype, i in ((np.int8, 100), (np.uint8, 200)):  # il doppio non ci sta
        assert corpus.batch(np.array([i], dtype)).src.equal(corpus.batch(np.array([i])).src)
    with pytest.raises(IndexError, match="servono gli indici"):
        corpus.batch(np.array([0.5]))


@pytest.mark.parametrize(("spoiled", "step"), [(False, 5), (True, 0)])
def test_a_validation_that_fails_saves_good_weights_only(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: bool, step: int
) -> None:
    tokenizer, training, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))

    def failing(*_: object) -> float:
        if spoiled:
            model.embedding.weight.data[5, 0] = math.nan
        raise MemoryError

    monkeypatch.setattr("annotated.training.validation_loss", failing)
    with pytest.raises(MemoryError):
        train(model, tokenizer, training, validation, SHORT, tmp_path, progress=False)
    again = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    assert load_state(tmp_path / "state.safetensors", again, make_optimizer(again), tokenizer)["step"] == step


def test_pairs_that_do_not_fit_are_refused_at_once(setting: Setting, tmp_path: Path) -> None:
    tokenizer, training, validation = setting
    small = Transformer(Config(tokenizer.vocab_size, **SHAPE | {"max_len": 8}))
    with pytest.raises(AnnotatedError, match="più di 8 pezzi"):
        train(small, tokenizer, training, validation, SHORT, tmp_path / "corto")
    last = validation.tokens.max()
    foreign = Corpus(np.where(validation.tokens == last, tokenizer.vocab_size, validation.tokens), validation.offsets)
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    with pytest.raises(AnnotatedError, match="altro vocabolario"):
        train(model, tokenizer, training, foreign, SHORT, tmp_path / "altro")
    assert not list(tmp_path.iterdir())
    longest = int(max(training.lengths.max(), validation.lengths.max()))  # il limite compreso
    just = Transformer(Config(tokenizer.vocab_size, **SHAPE | {"max_len": longest}))
    train(just, tokenizer, training, validation, replace(SHORT, max_steps=1), tmp_path, progress=False)


def test_weights_of_another_program_are_not_called_broken(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors", {"format": "pt"})  # metadati che non sono JSON
    with pytest.raises(AnnotatedError, match="w.safetensors: checkpoint di un altro vocabolario"):
        load_tensors(tmp_path / "w.safetensors", load_pretrained("mini")[1])


def test_a_careless_measure_does_not_stop_the_dropout(setting: Setting, tmp_path: Path) -> None:
    def careless(model: Transformer) -> dict[str, Any]:
        model.eval()
        return {"uno": torch.tensor(1.0), "valid_loss": 0.0}  # un tensore si scrive, una misura del libro non si copre

    tokenizer, training, validation = setting
    models, short = [], replace(SHORT, max_steps=10, average=1)  # il modello misurato è quello che si addestra
    for name, more in (("senza", {}), ("con", {"measure": careless})):
        torch.manual_seed(1)
        models.append(Transformer(Config(tokenizer.vocab_size, **SHAPE)))
        train(models[-1], tokenizer, training, validation, short, tmp_path / name, progress=False, **more)
    last = json.loads((tmp_path / "con" / "log.jsonl").read_text("utf-8").splitlines()[-1])
    assert last["uno"] == 1.0 and last["valid_loss"] > 0
    assert all(torch.equal(p, q) for p, q in zip(*(model.parameters() for model in models), strict=True))


def run_child(setting: Setting, folder: Path) -> None:
    tqdm.set_lock(threading.RLock())  # il lucchetto di tqdm è comune ai figli: ucciso chi lo ha, si fermano tutti
    run(setting, folder)


def start(setting: Setting, folder: Path) -> multiprocessing.Process:
    child = fork.Process(target=run_child, args=(setting, folder))
    child.start()
    return child  # type: ignore[return-value]


def saved(folder: Path) -> int:
    "Quando lo stato è stato scritto l'ultima volta; 0 se non c'è ancora."
    path = folder / "state.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.skipif(sys.platform == "darwin", reason="là, dopo fork, PyTorch non è affidabile")
def test_kill_at_random_moments(setting: Setting, tmp_path: Path) -> None:
    "Ucciso venti volte a caso, e ogni volta ripreso, l'addestramento dà lo stesso modello, bit per bit."
    began = time.perf_counter()
    run(setting, tmp_path / "intero")
    stage = (time.perf_counter() - began) / 8  # da un salvataggio all'altro, su questa macchina
    random.seed(0)
    folder, kills = tmp_path / "ucciso", 0
    while kills < 20:
        before, child = saved(folder), start(setting, folder)
        if random.random() < 0.8:  # il colpo cade dopo un salvataggio; le altre volte, ovunque
            while child.is_alive() and saved(folder) == before:
                time.sleep(0.002)
        time.sleep(random.uniform(0, stage))
        child.kill()  # SIGKILL; se intanto è finito, nulla
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)  # chi riprende non fallisce mai
        kills += child.exitcode != 0
        if child.exitcode == 0:  # finito prima del colpo: si ricomincia da capo
            assert weights(folder) == weights(tmp_path / "intero")
            for path in sorted(folder.glob("*")):
                path.unlink()
    run(setting, folder)
    assert weights(folder) == weights(tmp_path / "intero")


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_sigterm_saves_and_resumes(setting: Setting, tmp_path: Path) -> None:
    tokenizer, corpus, validation = setting
    run(setting, tmp_path / "intero")
    run((tokenizer, Stopped(corpus, at=12), validation), tmp_path / "fermato")
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    step = load_state(tmp_path / "fermato" / "state.safetensors", model, make_optimizer(model), tokenizer)["step"]
    assert step == 12  # finito il passo, non all'ultima validazione
    run(setting, tmp_path / "fermato")
    assert weights(tmp_path / "fermato") == weights(tmp_path / "intero")


def test_nan_keeps_the_last_good_state(setting: Setting, tmp_path: Path) -> None:
    run(setting, tmp_path, replace(SHORT, max_steps=10))
    good = (tmp_path / "state.safetensors").read_bytes()
    with pytest.raises(AnnotatedError, match="non è più un numero"):
        run(setting, tmp_path, replace(SHORT, factor=1e30))
    assert (tmp_path / "state.safetensors").read_bytes() == good


@pytest.mark.parametrize("change", [{"seed": 2}, {"max_tokens": 128}])
def test_resume_refuses_another_stream(setting: Setting, tmp_path: Path, change: dict[str, int]) -> None:
    run(setting, tmp_path, replace(SHORT, max_steps=5))
    with pytest.raises(AnnotatedError, match="Riprendilo così"):
        run(setting, tmp_path, replace(SHORT, **change))  # type: ignore[arg-type]


def test_resume_refuses_another_shape(setting: Setting, tmp_path: Path) -> None:
    tokenizer, training, validation = setting
    run(setting, tmp_path, replace(SHORT, max_steps=5))
    other = Transformer(Config(tokenizer.vocab_size, **SHAPE | {"d_ff": 48}))
    before = {name: x.clone() for name, x in other.state_dict().items()}
    with pytest.raises(AnnotatedError, match="è lo stato di un modello d'altra forma"):
        train(other, tokenizer, training, validation, SHORT, tmp_path, resume=True, progress=False)
    assert all(torch.equal(x, before[name]) for name, x in other.state_dict().items())


def test_patience_stops_early(setting: Setting, tmp_path: Path) -> None:
    run(setting, tmp_path, replace(SHORT, max_steps=1000, factor=0.0, average=1, patience=2))
    log = read_log(tmp_path)
    assert [row["step"] for row in log if "valid_loss" in row] == [5, 10, 15]  # learning rate nullo: non migliora mai


def test_two_processes_equal_one(tmp_path: Path) -> None:
    "Con torchrun e due processi (gloo) le perdite sono quelle di un processo solo."
    write_data(tmp_path, valid=[f"prova\t{e.en}\t{e.it}" for e in generate(40, held_out=True)])
    (tmp_path / "forma.json").write_text(json.dumps(SHAPE), "utf-8")
    options = f"train --data {tmp_path} --config {tmp_path / 'forma.json'} --vocab-size 400 --max-steps 20"
    options += " --max-tokens 300 --valid-every 10 --warmup 20 --factor 0.3 --dropout 0 --device cpu --valid-bleu 5"
    assert cli.main(f"{options} --out {tmp_path / 'uno'}".split()) == 0
    launch = f"{BIN / 'torchrun'} --standalone --nproc-per-node 2 --no-python {BIN / 'annotated'}"
    command = f"{launch} {options} --out {tmp_path / 'due'}".split()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for one, two in zip(read_log(tmp_path / "uno"), read_log(tmp_path / "due"), strict=True):
        assert one.keys() == two.keys()
        for key in one.keys() - {"tokens_per_second", "seconds", "bleu"}:  # un pareggio può cambiare una parola
            assert two[key] == pytest.approx(one[key], rel=1e-3)


def damaged(data: bytes, rng: random.Random) -> bytes:
    "Gli stessi byte con un guasto a caso: un taglio, qualche byte cambiato, un pezzo ripetuto."
    at = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            return data[:at]
        case 1:
            changed = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                changed[rng.randrange(min(len(data), 2000))] = rng.randrange(256)
            return bytes(changed)
        case _:
            return data[:at] + data[max(0, at - 50) :]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.model", "model.safetensors", "state.safetensors"])
def test_damaged_model_files(setting: Setting, tmp_path: Path, name: str) -> None:
    "Un file guasto si carica (se il guasto non si vede) o si rifiuta con `AnnotatedError`: nient'altro."
    tokenizer, _, _ = setting
    run(setting, tmp_path, replace(SHORT, max_steps=5))
    whole, rng, refused = (tmp_path / name).read_bytes(), random.Random(0), 0
    for _ in range(150):
        (tmp_path / name).write_bytes(damaged(whole, rng))
        try:
            if name == "state.safetensors":
                model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
                load_state(tmp_path / name, model, make_optimizer(model), tokenizer)
            else:
                load_model(tmp_path)
        except AnnotatedError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


def test_damaged_text_files(tmp_path: Path) -> None:
    text = "".join(f"prova\t{e.en}\t{e.it}\n" for e in generate(100)).encode()
    rng, path, refused = random.Random(0), tmp_path / "train.tsv", 0
    for _ in range(200):
        path.write_bytes(damaged(text, rng))
        try:
            for pair in read_pairs(path):
                assert pair.source and pair.target
        except AnnotatedError as error:
            refused += 1
            assert "riga" in str(error) or "vuoto" in str(error)
    assert refused > 50


def test_half_of_a_source_is_counted_on_its_own(tmp_path: Path) -> None:
    lines = [f"{source}\t{source} {i}\tx\n" for i in range(4) for source in ("atti", "strada")]
    (tmp_path / "train.tsv").write_text("".join(lines), "utf-8")
    for source, other in (("atti", "strada"), ("strada", "atti")):
        read = [pair.source for pair in read_pairs(tmp_path / "train.tsv", {source: 0.5})]
        assert sorted(read) == sorted([f"{source} 1", f"{source} 3", *(f"{other} {i}" for i in range(4))])


def test_the_cache_gives_back_what_is_asked(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, path = setting[0], tmp_path / "train.tsv"
    path.write_text("".join(f"prova\t{e.en}\t{e.it}\n" for e in generate(100)), "utf-8")
    for max_len, repeat in ((64, None), (64, {"prova": 2.0}), (16, None)):
        expected = encode_pairs(read_pairs(path, repeat), tokenizer, max_len)
        for divide in (encode_pairs, None):  # la seconda volta dal disco
            monkeypatch.setattr("annotated.data.encode_pairs", divide)
            corpus = load_corpus([path], tokenizer, max_len, tmp_path / "cache", repeat, progress=False)
            assert np.array_equal(corpus.tokens, expected.tokens) and corpus.skipped == expected.skipped
    assert 0 < expected.skipped < 100


@pytest.mark.parametrize("name", ["tokens.npy", "offsets.npy", "info.json"])
def test_damaged_cache_is_rebuilt(setting: Setting, tmp_path: Path, name: str) -> None:
    tokenizer, _, _ = setting
    path, rng = tmp_path / "train.tsv", random.Random(0)
    path.write_text("".join(f"prova\t{e.en}\t{e.it}\n" for e in generate(100)), "utf-8")
    expected = load_corpus([path], tokenizer, 64, tmp_path / "cache")
    assert isinstance(expected.tokens, np.memmap)  # già la prima volta fuori dalla memoria
    expected = Corpus(*(np.array(x) for x in (expected.tokens, expected.offsets)))
    [stored] = (tmp_path / "cache").glob(f"*/{name}")
    whole = stored.read_bytes()
    for _ in range(40):
        stored.write_bytes(whole[: rng.randrange(len(whole))])
        corpus = load_corpus([path], tokenizer, 64, tmp_path / "cache")
        assert np.array_equal(corpus.tokens, expected.tokens) and np.array_equal(corpus.offsets, expected.offsets)


@pytest.mark.parametrize("writes", range(3))
def test_a_model_is_replaced_whole_or_not_at_all(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    "Di un'altra forma: pesi nuovi accanto a un config.json vecchio, o il contrario, non si leggerebbero."
    tokenizer, _, _ = setting
    save_model(tmp_path, Transformer(Config(tokenizer.vocab_size, **SHAPE)), tokenizer)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["config.json", "model.safetensors", "tokenizer.model"]
    fill_disk(monkeypatch, after=writes)
    other = Transformer(Config(tokenizer.vocab_size, **SHAPE | {"d_ff": 32}))
    with pytest.raises(AnnotatedError, match="spazio su disco esaurito"):
        save_model(tmp_path, other, tokenizer)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_stop_between_two_checkpoints_does_not_change_the_mean(setting: Setting, tmp_path: Path) -> None:
    averaged = replace(SHORT, average=2)
    run(setting, tmp_path / "intero", averaged)
    run(setting, tmp_path / "fermato", replace(averaged, max_steps=7))  # SHORT salva ogni 5 passi
    assert (tmp_path / "fermato" / "weights-0000007.safetensors").exists()
    run(setting, tmp_path / "fermato", averaged)
    assert weights(tmp_path / "fermato") == weights(tmp_path / "intero")


def test_the_mean_is_of_the_last_steps_and_of_nothing_else(setting: Setting, tmp_path: Path) -> None:
    model = Transformer(Config(setting[0].vocab_size, **SHAPE))
    for other in ("weights-0000100-copia", "weights-50"):  # file d'altri
        save_tensors(tmp_path / f"{other}.safetensors", model.state_dict(), {})
    for step, value in ((9_999_000, 1.0), (10_000_000, 3.0)):  # sette cifre, poi otto
        for parameter in model.parameters():
            parameter.data.fill_(value)
        mean = averaged_model(tmp_path, model, step, 2, 1000)
    assert all((p == 2.0).all() for p in mean.parameters())


def test_checkpoints_of_an_older_run_stay_out_of_the_mean(setting: Setting, tmp_path: Path) -> None:
    averaged = replace(SHORT, average=2, max_steps=10)  # SHORT salva ogni 5 passi
    run(setting, tmp_path, averaged)
    run(setting, tmp_path, replace(averaged, average=1, max_steps=20))  # non salva, e non cancella
    assert {p.name for p in tmp_path.glob("weights-*")} == {f"weights-{n:07}.safetensors" for n in (5, 10)}
    run(setting, tmp_path, replace(averaged, max_steps=25))
    assert {p.name for p in tmp_path.glob("weights-*")} == {"weights-0000025.safetensors"}


def test_a_pair_longer_than_a_batch_is_alone_in_it() -> None:
    for lengths, expected in (([[9, 3], [3, 9]], [[0], [1]]), ([[9, 3], [1, 2], [2, 2]], [[0], [1, 2]])):
        assert sorted(sorted(indices) for indices in make_batches(np.array(lengths), 4, seed=0)) == expected


def test_no_pairs_no_measure(setting: Setting) -> None:
    tokenizer, _, validation = setting
    empty = Corpus(validation.tokens[:0], validation.offsets[:1])
    assert make_batches(empty.lengths, 256, 0) == []
    with pytest.raises(AnnotatedError, match="^nessuna coppia"):
        validation_loss(Transformer(Config(tokenizer.vocab_size, **SHAPE)), empty, 256)
    with pytest.raises(AnnotatedError, match="^nessuna coppia"):
        next(batch_stream(empty, 256, 0))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("patience", 0), ("minutes", 0), ("minutes", math.nan), ("precision", "fp8"), ("average", 0),
        ("seed", "3"), ("minutes", "3"), ("smoothing", None), ("factor", True), ("cooldown", 0), ("cooldown", 100_001),
        ("warmup", 0), ("valid_every", 0), ("factor", -1.0), ("smoothing", 1.0), ("smoothing", -0.1),
        ("factor", math.inf), ("minutes", math.inf), ("max_steps", 0), ("max_tokens", 0), ("tensorboard", 1),
    ],
)  # fmt: skip
def test_impossible_options(option: str, value: Any) -> None:
    with pytest.raises(AnnotatedError, match=f"^{option} = "):
        TrainingConfig(**{option: value})


def test_the_learning_rate_ends_in_a_straight_line() -> None:
    config = TrainingConfig(max_steps=100, warmup=10, factor=2.0, cooldown=40)
    whole = [noam(step, 64, 10, 2.0) for step in range(1, 101)]
    assert [replace(config, cooldown=None).learning_rate(step, 64) for step in range(1, 101)] == whole
    shares = [1.0] * 60 + [left / 40 for left in range(40, 0, -1)]
    expected = [rate * share for rate, share in zip(whole, shares, strict=True)]
    assert [config.learning_rate(step, 64) for step in range(1, 101)] == pytest.approx(expected)


def test_training_follows_the_learning_rate_it_declares(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    monkeypatch.setattr(
        "annotated.training.train_step_in_memory", lambda *a: used.append(a[3]) or train_step_in_memory(*a)
    )
    tokenizer, training, validation = setting
    config = replace(SHORT, cooldown=30)
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    train(model, tokenizer, training, validation, config, tmp_path, progress=False)
    rows = read_log(tmp_path)
    written = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert written == {step: config.learning_rate(step, model.config.d_model) for step in (20, 40)}
    assert used == [config.learning_rate(step, model.config.d_model) for step in range(1, 41)]


def test_the_parts_of_a_step_are_remembered(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "annotated.training.train_step_in_memory", lambda *a: asked.append(a[4]) or (torch.zeros(()), 2 * a[4])
    )
    for steps in (3, 5):
        run(setting, tmp_path, replace(SHORT, max_steps=steps))
    assert asked == [1, 2, 4, 8, 16]  # anche da chi riprende


def test_training_gives_the_best_loss_and_keeps_its_weights(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, training, validation = setting
    losses, written = iter([2.0, 1.0, 3.0]), []
    monkeypatch.setattr("annotated.training.validation_loss", lambda *_: next(losses))
    monkeypatch.setattr("annotated.training.save_model", lambda *a: written.append(a[1]) or save_model(*a))
    model, config = Transformer(Config(tokenizer.vocab_size, **SHAPE)), replace(SHORT, max_steps=15)
    assert train(model, tokenizer, training, validation, config, tmp_path, progress=False) == 1.0
    assert len(written) == 2 and torch.equal(load_model(tmp_path)[0].embedding.weight, written[1].embedding.weight)


def test_numbers_of_numpy_are_numbers() -> None:
    assert TrainingConfig(factor=np.logspace(-2, 0, 3)[1]).factor == 0.1


def test_a_sentence_is_not_a_list_and_minus_one_is_not_the_last() -> None:
    tokenizer = load_pretrained("mini")[1]
    with pytest.raises(AnnotatedError, match="serve una lista di frasi"):
        tokenizer.encode("The dog.")  # type: ignore[arg-type]
    with pytest.raises(AnnotatedError, match="serve una lista di frasi"):
        tokenizer.decode(tokenizer.encode(["The dog."])[0])  # type: ignore[arg-type]
    with pytest.raises(AnnotatedError, match="serve una lista di frasi"):
        tokenizer.decode(torch.tensor(tokenizer.encode(["The dog."])[0]))
    with pytest.raises(AnnotatedError, match="serve una lista di frasi"):
        tokenizer.decode(["▁The", "▁dog"])  # type: ignore[list-item]
    assert tokenizer.decode(iter(tokenizer.encode(["The dog."]))) == ["The dog."]  # type: ignore[arg-type]
    with pytest.raises(AnnotatedError, match="ogni frase supera i 4.192 byte"):
        Tokenizer.train(["la casa rossa " * 400], 40)
    for nothing in ([], ["", " "]):
        with pytest.raises(AnnotatedError, match="non c'è nessuna frase"):
            Tokenizer.train(nothing, 40)
    with pytest.raises(AnnotatedError, match="non è testo UTF-8"):
        Tokenizer.train(["la casa rossa"] * 50 + ["caff\udce9"], 20)
    both = ["The dog saw the cat.", "The cat."]
    assert tokenizer.decode(pad(tokenizer.encode(both))) == both
    with pytest.raises(AnnotatedError, match="serve una lista di frasi"):
        Tokenizer.train("The dog saw the cat.", 40)
    assert tokenizer.decode([]) == []
    for wrong in ([[tokenizer.vocab_size]], torch.zeros(1, 1, 1, dtype=torch.long)):
        with pytest.raises(AnnotatedError, match="righe di indici da 0 a"):
            tokenizer.decode(wrong)
    with pytest.raises(AnnotatedError, match="non è testo UTF-8"):
        tokenizer.encode(["caff\udce9"])
    with pytest.raises(AnnotatedError, match="non è testo UTF-8"):
        tokenizer.split("caff\udce9")
    with pytest.raises(IndexError, match="-1"):
        encode_pairs([("The dog.", "Il cane.")], tokenizer, 64).batch(np.array([0, -1]))


def test_no_pairs_leave_no_trace(setting: Setting, tmp_path: Path) -> None:
    tokenizer, training, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    with pytest.raises(AnnotatedError, match="^nessuna coppia"):
        train(model, tokenizer, training, encode_pairs([], tokenizer, 64), SHORT, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_stopped_before_its_first_state_starts_again(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(AnnotatedError, match="contiene già un modello"):
        check_folder(tmp_path, resume=False)
    (tmp_path / "options.json").write_text("{}")
    for resume in (False, True):
        check_folder(tmp_path, resume)


def test_validation_never_holds_all_the_logits(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, corpus, _ = setting
    torch.manual_seed(0)
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE)).eval()
    batches = [corpus.batch(indices) for indices in make_batches(corpus.lengths, 4096, seed=0)]
    with torch.inference_mode():
        total = sum(translation_loss(model(batch.src, batch.tgt_in), batch.tgt_out).item() for batch in batches)
    positions, logits = [], model.embedding.logits
    monkeypatch.setattr(model.embedding, "logits", lambda x: positions.append(len(x)) or logits(x))
    loss = validation_loss(model, corpus, 4096)
    assert loss == pytest.approx(total / sum(int(batch.tgt_out.count_nonzero()) for batch in batches), rel=1e-5)
    assert max(positions) <= 512 < max(batch.tgt_out.numel() for batch in batches)


SCARCE = [MemoryError(), torch.OutOfMemoryError(), RuntimeError("std::bad_alloc"),
          RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
          RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")]  # fmt: skip


class SmallCard(Objective):
    "Una scheda in cui stanno `room` frasi; oltre, `error`."

    def __init__(self, model: Transformer, error: Exception):
        super().__init__(model)
        self.error, self.room = error, 3

    def forward(self, src: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(src) > self.room:
            raise self.error
        return super().forward(src, *rest)


@pytest.mark.parametrize("error", SCARCE)
def test_a_step_out_of_memory_is_retried_in_more_parts(setting: Setting, error: Exception) -> None:
    tokenizer, corpus, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    card, optimizer, batch = SmallCard(model, error), make_optimizer(model), corpus.batch(np.arange(8))
    assert train_step_in_memory(card, optimizer, batch, 0.0, parts=1)[1] == 4
    card.room = 0
    with pytest.raises(AnnotatedError, match="^memoria esaurita"):
        train_step_in_memory(card, optimizer, batch, 0.0, parts=1)


def test_another_failure_is_not_retried(setting: Setting) -> None:
    tokenizer, corpus, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    card = SmallCard(model, RuntimeError("un altro guasto"))
    with pytest.raises(RuntimeError, match="un altro guasto"):
        train_step_in_memory(card, make_optimizer(model), corpus.batch(np.arange(8)), 0.0, parts=1)


def test_memory_that_ends_while_adam_starts(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    "Le medie rimaste a metà si rifanno, e ogni parametro fa un passo solo."
    tokenizer, corpus, _ = setting
    made, zeros_like = [0], torch.zeros_like

    def scarce(*args: Any, **kwargs: Any) -> torch.Tensor:
        made[0] += 1
        if made[0] == 5:  # una è della perdita, poi due per parametro: la seconda media del secondo
            raise MemoryError
        return zeros_like(*args, **kwargs)

    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    objective, optimizer = Objective(model), make_optimizer(model)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros_like", scarce)
        assert train_step_in_memory(objective, optimizer, corpus.batch(np.arange(8)), 0.01, parts=1)[1] == 2
    assert len(optimizer.state) == len(list(model.parameters()))
    assert all(averages["step"] == 1 and "exp_avg_sq" in averages for averages in optimizer.state.values())


def test_memory_that_ends_in_the_optimizer_leaves_no_scale(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    "In fp16 la scala già data ad Adam non si conta due volte: il passo è quello di chi ha memoria."
    tokenizer, corpus, _ = setting
    moved, step = [], torch.optim.Adam.step

    def scarce(*_: object) -> None:
        monkeypatch.setattr(torch.optim.Adam, "step", step)
        raise MemoryError

    for ends in (False, True):
        torch.manual_seed(0)
        model = Transformer(Config(tokenizer.vocab_size, dropout=0.0, **SHAPE))
        objective, optimizer = Objective(model), make_optimizer(model)
        if ends:
            monkeypatch.setattr(torch.optim.Adam, "step", scarce)
        scaler, batch = torch.amp.GradScaler("cpu"), corpus.batch(np.arange(8))
        parts = train_step_in_memory(objective, optimizer, batch, 0.01, 1 if ends else 2, "fp16", scaler)[1]
        moved.append([p.detach() for p in model.parameters()])
        assert parts == 2
    assert all(torch.equal(p, q) for p, q in zip(*moved, strict=True))


def test_with_more_processes_a_step_is_not_retried(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    "Gli altri processi resterebbero ad aspettare quello che ricomincia."
    tokenizer, corpus, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    card, batch = SmallCard(model, MemoryError()), corpus.batch(np.arange(8))
    monkeypatch.setattr("annotated.engine.rank_and_size", lambda: (0, 2))
    with pytest.raises(AnnotatedError, match="^memoria esaurita.*riduci --max-tokens"):
        train_step_in_memory(card, make_optimizer(model), batch, 0.0, parts=1)


def test_a_model_that_cannot_be_compiled_is_said(setting: Setting) -> None:
    def without_compiler(*_: Any) -> None:
        raise FileNotFoundError("g++")

    tokenizer, corpus, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    objective, batch = Objective(model), corpus.batch(np.arange(2))
    for block in model.encoder.layers:
        block.compile(backend=without_compiler)
    with pytest.raises(AnnotatedError, match="^--compile: .*g\\+\\+.*--no-compile"):
        train_step_in_memory(objective, make_optimizer(model), batch, 0.0, parts=1)


def test_without_dropout_leaves_every_part_as_it_was(setting: Setting) -> None:
    tokenizer, corpus, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE)).train()
    model.encoder.eval()
    validation_loss(model, corpus, 4096)
    assert model.training and model.decoder.training and not model.encoder.training
    with pytest.raises(ZeroDivisionError):
        without_dropout(lambda model: 1 / model.training)(model)  # anche se qualcosa va storto
    assert model.training and model.decoder.training and not model.encoder.training
