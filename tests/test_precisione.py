"""Sedici bit: fp16 con la scala della perdita, e nessuna attesa della scheda dentro un passo."""

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from provenienza import read_log
from torch import nn
from torch.amp import GradScaler
from torch.utils._python_dispatch import TorchDispatchMode

from annotated import AnnotatedError, Config, Transformer, attention_weights, cli
from annotated.common import EOS
from annotated.data import Batch
from annotated.engine import Objective, new_scaler, train_step, vocabulary_loss
from annotated.layers import Dropout
from annotated.optim import make_optimizer
from annotated.training import TrainingConfig, on_device, train, validation_loss
from conftest import SHAPE, Setting

CPU = torch.device("cpu")


def losses(setting: Setting, precision: str) -> torch.Tensor:
    tokenizer, corpus, _ = setting
    torch.manual_seed(1)
    model = Transformer(Config(tokenizer.vocab_size, dropout=0.0, **SHAPE))
    objective, optimizer, scaler = Objective(model, 0.1), make_optimizer(model), new_scaler(CPU, precision)
    batches = [corpus.batch(range(8 * i, 8 * i + 8)) for i in range(60)]  # type: ignore[arg-type]
    return torch.stack([train_step(objective, optimizer, b, 1e-3, precision=precision, scaler=scaler) for b in batches])


def test_half_precision_learns_as_single(setting: Setting) -> None:
    exact, half = losses(setting, "fp32"), losses(setting, "fp16")
    assert exact[-1] < exact[0] - 1
    assert (half - exact).abs().max() < 0.02


@pytest.mark.parametrize("scale", [0.25, torch.tensor(65_536.0)])
def test_the_vocabulary_loss_scales_its_gradients(scale: float | torch.Tensor) -> None:
    x, weight = torch.randn(3, 7, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(1, 50, (3, 7))
    plain, scaled = (vocabulary_loss(x, weight, targets, 0.1, 5, s) for s in (1.0, scale))
    assert plain == scaled
    for a, b in zip(*(torch.autograd.grad(loss, (x, weight)) for loss in (plain, scaled)), strict=True):
        torch.testing.assert_close(a * scale, b)


def test_an_overflow_skips_the_step_and_lowers_the_scale(setting: Setting) -> None:
    tokenizer, corpus, _ = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    optimizer, scaler = make_optimizer(model), GradScaler("cpu", init_scale=2.0**60)
    before = [p.detach().clone() for p in model.parameters()]
    batch = corpus.batch(range(8))  # type: ignore[arg-type]
    loss = train_step(Objective(model), optimizer, batch, 1e-3, precision="fp16", scaler=scaler)
    assert loss.isfinite() and scaler.get_scale() == 2.0**59
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    scaler.update(1024.0)
    train_step(Objective(model), optimizer, batch, 1e-3, precision="fp16", scaler=scaler)
    assert not torch.equal(before[0], next(model.parameters()))


def test_resume_keeps_the_scale(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, corpus, validation = setting
    monkeypatch.setattr("annotated.training.new_scaler", lambda *_: GradScaler("cpu", init_scale=2.0**45))
    config = TrainingConfig(max_steps=40, max_tokens=256, warmup=20, valid_every=20, average=1, precision="fp16")

    def run(folder: Path, steps: int) -> dict[str, Any]:
        torch.manual_seed(1)
        model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
        train(model, tokenizer, corpus, validation, TrainingConfig(**vars(config) | {"max_steps": steps}), folder, True)
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    whole = run(tmp_path / "intero", 40)
    run(tmp_path / "ripreso", 20)
    resumed = run(tmp_path / "ripreso", 40)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    state = (tmp_path / "ripreso" / "state.safetensors").read_bytes()
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])["__metadata__"]
    assert json.loads(header["scaler"])["scale"] < 2.0**45  # qualche passo è stato saltato, e lo si ricorda


def test_validation_in_the_same_precision(setting: Setting) -> None:
    tokenizer, _, validation = setting
    torch.manual_seed(0)
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    exact, *rounded = (validation_loss(model, validation, 512, precision) for precision in ("fp32", "bf16", "fp16"))
    assert all(r == pytest.approx(exact, abs=0.02) and r != exact for r in rounded)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_dropout_in_sixteen_bits_is_dropout(p: float) -> None:
    "Stessi valori, media e varianza di `nn.Dropout`; sorteggi indipendenti, e gli stessi con lo stesso seme."
    x = torch.ones(999, 1001, dtype=torch.bfloat16, requires_grad=True)
    torch.manual_seed(0)
    theirs, ours = torch.nn.Dropout(p)(x), Dropout(p)(x)
    assert torch.equal(theirs.unique(), ours.unique())
    a, b = (y.detach().float().flatten() for y in (theirs, ours))
    assert (b == 0).float().mean() == pytest.approx(p, abs=0.002)
    torch.testing.assert_close(b.mean(), a.mean(), rtol=0, atol=0.005 / (1 - p))
    torch.testing.assert_close(b.var(), a.var(), rtol=0.01, atol=0)
    for step in (1, 2, 3, 4, 1001):
        assert torch.corrcoef(torch.stack((b[:-step], b[step:])))[0, 1].abs() < 0.005
    assert torch.equal(*torch.autograd.grad(ours.sum(), x), ours)
    torch.manual_seed(0)
    assert torch.equal(torch.nn.Dropout(p)(x), theirs) and torch.equal(Dropout(p)(x), ours)


@pytest.mark.parametrize(
    ("p", "zeros"), [(0.3, 19_661), (0.7, 45_875), (2**-17, 0), (1 - 2**-18, 65_535), (1 - 1e-9, 65_535)]
)
def test_dropout_in_sixteen_bits_rounds_its_probability(monkeypatch: pytest.MonkeyPatch, p: float, zeros: int) -> None:
    "Con tutti i sedici bit possibili, una volta ciascuno, gli azzerati sono `p` per 65.536, arrotondato."
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.int64)
    monkeypatch.setattr(torch.Tensor, "random_", lambda self, *_: self.copy_(every))
    assert (Dropout(p)(torch.ones(2**16, dtype=torch.bfloat16)) == 0).sum() == zeros


ELSEWHERE = [(0.1, True, torch.float32), *((p, t, torch.bfloat16) for p, t in ((0.1, False), (0.0, True), (1.0, True)))]


@pytest.mark.parametrize(("p", "training", "dtype"), ELSEWHERE)
def test_elsewhere_dropout_is_that_of_pytorch(p: float, training: bool, dtype: torch.dtype) -> None:
    x, found = torch.randn(50, 7, dtype=dtype), []
    for kind in (torch.nn.Dropout, Dropout):
        torch.manual_seed(0)
        found.append(kind(p).train(training)(x))
    assert torch.equal(*found)


class NoReading(TorchDispatchMode):
    "Un numero letto dalla scheda la fa aspettare: qui è un errore."

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "il passo aspetta la scheda"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_never_waits_for_the_device(setting: Setting, precision: str) -> None:
    tokenizer, corpus, _ = setting
    model, batch = Transformer(Config(tokenizer.vocab_size, **SHAPE)), corpus.batch(range(8))  # type: ignore[arg-type]
    objective, optimizer, scaler = Objective(model, 0.1), make_optimizer(model), new_scaler(CPU, precision)
    with NoReading():
        train_step(objective, optimizer, batch, 1e-3, parts=2, precision=precision, scaler=scaler)
        with pytest.raises(AssertionError, match="aspetta la scheda"):
            batch.src.sum().item()


def test_a_step_stays_on_its_device(setting: Setting) -> None:
    "Su «meta», dove un tensore non ha numeri, mescolare i dispositivi è un errore."
    tokenizer, corpus, _ = setting
    batch = Batch(*(x.to("meta") for x in corpus.batch(range(8))))  # type: ignore[arg-type]
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE)).to("meta")
    loss = train_step(Objective(model, 0.1), torch.optim.SGD(model.parameters()), batch, 1e-3, parts=2)
    assert loss.device.type == "meta"


HEADERS = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.mark.skipif(
    not (shutil.which("g++") and HEADERS.exists()), reason="torch.compile sulla CPU vuole g++ e Python.h"
)
def test_compiled_training_gives_the_same_losses(setting: Setting, tmp_path: Path) -> None:
    tokenizer, corpus, validation = setting
    found = []
    for compiled in (False, True):
        torch.manual_seed(1)
        model = Transformer(Config(tokenizer.vocab_size, dropout=0.0, **SHAPE))
        # con questo seme nel primo lotto S ≠ T: se no PyTorch li crede uguali, e poi ricompila
        config = TrainingConfig(20, max_tokens=256, warmup=20, valid_every=20, average=1, seed=6, compiled=compiled)
        train(model, tokenizer, corpus, validation, config, tmp_path / str(compiled))
        rows = read_log(tmp_path / str(compiled))
        found.append([row[name] for row in rows for name in ("loss", "valid_loss") if name in row])
    assert len(found[0]) == 2 and found[0] == pytest.approx(found[1], abs=1e-4)


def test_after_a_compiled_training_the_attention_is_seen(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    "I blocchi compilati non sentono i ganci: `train` alla fine li rimette com'erano."
    compile_block = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda block, **_: compile_block(block, backend="eager"))
    tokenizer, corpus, validation = setting
    model = Transformer(Config(tokenizer.vocab_size, **SHAPE))
    config = TrainingConfig(max_steps=2, max_tokens=256, warmup=2, average=1, compiled=True)
    train(model, tokenizer, corpus, validation, config, tmp_path, progress=False)
    src = torch.tensor([[8, 9, EOS]])
    assert len(attention_weights(model, src, src).cross) == len(model.decoder.layers)
    with torch.inference_mode():  # come in validazione
        Objective(model.eval(), compiled=True)(src, src, src)
    assert len(attention_weights(model, src, src).cross) == len(model.decoder.layers)  # anche compilato
    assert all(layer._compiled_call_impl for layer in model.decoder.layers)  # e compilato resta


def test_batches_reach_the_device_in_order(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    "Anche col lotto mandato in anticipo: una scheda finta, in cui bloccare la memoria non fa nulla."
    _, corpus, _ = setting
    batches = [corpus.batch(range(i, i + 3)) for i in range(5)]  # type: ignore[arg-type]
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    moved: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: moved.append(device) or self)
    sent = list(on_device(iter(batches), torch.device("cuda")))
    assert len(sent) == 5 and moved == [torch.device("cuda")] * 15
    assert all(torch.equal(a.src, b.src) for a, b in zip(sent, batches, strict=True))


@pytest.mark.parametrize(
    ("asked", "device", "native", "expected"),
    [(None, "cpu", False, "fp32"), ("bf16", "cpu", False, "bf16"), ("int8", "cpu", False, "int8"),
     (None, "cuda", True, "bf16"), (None, "cuda", False, "fp16"), ("fp32", "cuda", True, "fp32")],
)  # fmt: skip
def test_the_precision_is_what_the_card_has(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, device: str, native: bool, expected: str
) -> None:
    def supported(including_emulation: bool) -> bool:
        assert not including_emulation
        return native

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert cli._precision(asked, torch.device(device)) == expected


@pytest.mark.parametrize("fast", [True, False])
def test_whoever_asks_for_imitated_bfloat16_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fast: bool
) -> None:
    monkeypatch.setattr(cli, "_fast_bf16", lambda: fast)
    for asked in (None, "fp32", "bf16", "int8"):
        cli._precision(asked, CPU)
    said = capsys.readouterr().err
    assert said.count("\n") == (not fast) and ("--precision fp32" in said) == (not fast)


@pytest.mark.parametrize(("asked", "device"), [("fp16", "cpu"), ("int8", "cuda")])
def test_an_impossible_precision_is_refused(asked: str, device: str) -> None:
    with pytest.raises(AnnotatedError, match="--precision"):
        cli._precision(asked, torch.device(device))


@pytest.mark.parametrize(
    ("flags", "fast"),
    [("avx2", True), ("avx512f avx512bw", False), ("avx512f avx512_bf16", True), ("avx512f amx_bf16", True)],
)
def test_avx512_alone_imitates_bfloat16(monkeypatch: pytest.MonkeyPatch, flags: str, fast: bool) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(Path, "read_text", lambda *_: f"flags\t\t: fpu {flags} ht\n")
    assert cli._fast_bf16() == fast
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert not cli._fast_bf16()
