"""Un allievo impara le probabilità del maestro, che resta com'è."""

import copy
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from provenienza import read_log

from annotated import Transformer, load_pretrained
from annotated.cli import main
from annotated.common import PAD
from annotated.data import Batch, Pair, encode_pairs
from annotated.distillation import Distillation
from annotated.study.microlingua import generate
from annotated.training import TrainingConfig, train
from annotated.transformer import Config
from conftest import SHAPE, write_data


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [Pair(example.en, example.it) for example in generate(40, seed=3)]


@pytest.fixture(scope="module")
def batch(pairs: list[Pair]) -> Batch:
    _, tokenizer = load_pretrained("mini")
    short = Pair("The cat.", "Il gatto.")  # con del riempitivo
    return encode_pairs([*pairs[:6], short], tokenizer, 64).batch(range(7))


def pupil() -> Transformer:
    torch.manual_seed(0)
    return Transformer(Config(700, dropout=0.0, **SHAPE))


def test_loss_and_gradient_are_those_of_the_formula(batch: Batch) -> None:
    teacher, student = load_pretrained("mini").model, pupil()
    assert (batch.tgt_out == PAD).any()
    logits = student(batch.src, batch.tgt_in)
    with torch.no_grad():
        p = teacher(batch.src, batch.tgt_in).softmax(dim=-1)
    expected = -(p * logits.log_softmax(dim=-1)).sum(dim=-1)[batch.tgt_out != PAD].sum()
    wanted = torch.autograd.grad(expected, [*student.parameters()])
    for scale in (1.0, torch.tensor(0.25)):
        loss = Distillation(student, teacher=teacher)(*batch, scale)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)  # `scale` non tocca il valore
        for found, gradient in zip(torch.autograd.grad(loss, [*student.parameters()]), wanted, strict=True):
            torch.testing.assert_close(found, gradient * scale, rtol=1e-3, atol=1e-5)


def test_the_given_translation_is_only_read(batch: Batch) -> None:
    objective = Distillation(pupil(), teacher=load_pretrained("mini").model)
    other = torch.where(batch.tgt_out == PAD, PAD, 5)  # altri pezzi da predire, agli stessi posti
    assert objective(*batch) == objective(batch.src, batch.tgt_in, other)
    assert objective(*batch) != objective(batch.src, batch.tgt_in.clamp(max=5), batch.tgt_out)


def test_teacher_has_no_dropout_and_does_not_learn(batch: Batch) -> None:
    teacher = Transformer(Config(700, dropout=0.5, **SHAPE))
    before = copy.deepcopy(teacher.state_dict())
    objective = Distillation(pupil(), teacher=teacher).train()
    assert objective(*batch) == objective(*batch)
    assert teacher.training  # com'era
    objective(*batch).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(x, before[name]) for name, x in teacher.state_dict().items())


def test_train_brings_the_pupil_near_the_teacher(pairs: list[Pair], tmp_path: Path) -> None:
    teacher, tokenizer = load_pretrained("mini")
    corpus = encode_pairs(pairs, tokenizer, 64)
    whole, student = corpus.batch(range(len(corpus))), pupil()
    divergence = partial(Distillation, teacher=teacher)
    with torch.no_grad():
        least, before = (divergence(model)(*whole).item() for model in (copy.deepcopy(teacher), student))
    config = TrainingConfig(max_steps=60, max_tokens=512, warmup=10, valid_every=60, average=1)
    train(student, tokenizer, corpus, corpus, config, tmp_path, progress=False, objective=divergence)
    with torch.no_grad():
        after = divergence(student.eval())(*whole).item()
    assert least < after < least + (before - least) / 2


TINY = ["--max-steps", "2", "--warmup", "1", "--valid-every", "1", "--max-tokens", "256", "--device", "cpu"]


@pytest.fixture
def data(pairs: list[Pair], tmp_path: Path) -> Path:
    lines = [f"prova\t{pair.source}\t{pair.target}" for pair in pairs]
    return write_data(tmp_path, lines, lines)


def test_a_new_pupil_takes_the_teachers_vocabulary(data: Path) -> None:
    out, shape = data / "allievo", data / "forma.json"
    shape.write_text(json.dumps(SHAPE), "utf-8")
    start = ["train", "--data", str(data), "--config", str(shape), "--teacher", "mini", *TINY, "--out", str(out)]
    assert main(start) == 0
    student, vocabulary = load_pretrained(out)
    assert student.config.d_model == 32 and vocabulary.fingerprint == load_pretrained("mini").tokenizer.fingerprint
    assert main(["train", "--resume", "--max-steps", "3", "--out", str(out), "--device", "cpu"]) == 0
    assert read_log(out)[-1]["step"] == 3  # chi riprende non ridice il maestro


def test_mini_has_nothing_to_learn_from_mini(data: Path, pairs: list[Pair]) -> None:
    "Con sé stesso per maestro la perdita è l'entropia, non la distanza dal corpus."
    teacher, tokenizer = load_pretrained("mini")
    batch = encode_pairs(pairs, tokenizer, 64).batch(range(len(pairs)))
    with torch.inference_mode():
        p = teacher(batch.src, batch.tgt_in).softmax(dim=-1)[batch.tgt_out != PAD]
    wide = [*TINY, "--max-tokens", "4096", "--factor", "1e-9"]  # tutte le coppie in un lotto
    for name, more, expected in (
        ("da solo", ["--smoothing", "0"], -p.gather(1, batch.tgt_out[batch.tgt_out != PAD][:, None]).log().mean()),
        ("con il maestro", ["--teacher", "mini"], -(p * p.log()).sum(dim=-1).mean()),
    ):
        out = data / name
        assert main(["train", "--data", str(data), "--init", "mini", *wide, *more, "--out", str(out)]) == 0
        [loss] = [row["loss"] for row in read_log(out) if "loss" in row]
        assert loss == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--teacher che-non-c-e", "modello «che-non-c-e»: non è una cartella"),
        ("--teacher mini --smoothing 0.2", "--teacher: bersaglio e vocabolario li dà lui. Togli --smoothing."),
        ("--teacher mini --vocab-size 300 --smoothing 0", "Togli --smoothing, --vocab-size."),
        ("--teacher mini --vocab-size 300", "--teacher: bersaglio e vocabolario li dà lui. Togli --vocab-size."),
        ("--teacher mini --config tiny", "legge frasi fino a 64 pezzi, e chi impara fino a 256"),
        ("--teacher small-en-it --init mini", "il suo vocabolario non è quello di chi impara"),
    ],
)
def test_refused_before_work(data: Path, options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = data / "allievo"
    assert main(["train", "--data", str(data), *TINY, "--out", str(out), *options.split()]) == 1
    error = capsys.readouterr().err
    assert error.startswith("errore: ") and message in error and error.count("\n") == 1
    assert not list(out.glob("*.safetensors"))
