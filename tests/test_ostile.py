"""Chi usa i comandi male, o apposta contro: dispositivi, modelli guasti, testi che non lo sono, nomi impossibili."""

import bz2
import errno
import gzip
import json
import lzma
import multiprocessing
import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import sentencepiece as spm
import torch
from safetensors import safe_open

from annotated import AnnotatedError, Config, Transformer, evaluate, load_pretrained, translate
from annotated.checkpoint import load_state, save_state
from annotated.cli import main
from annotated.common import BOS, EOS, PAD, UNK, atomic_write, one_line
from annotated.data import LINE_LIMIT, Pair, encode_pairs, read_lines, read_pairs
from annotated.decoding import piece_scores
from annotated.engine import autocast
from annotated.knn import knn, soft_knn
from annotated.multihead import MultiHeadAttention
from annotated.positional import sinusoids
from annotated.study.coreference import microlingua_probes, noun_masses
from annotated.study.efficient import linear_attention, local_attention
from annotated.study.flow import linear_probe
from annotated.study.microlingua import generate
from annotated.study.viewer import attention_view, read_attention
from annotated.tokenizer import Tokenizer
from annotated.training import TrainingConfig
from conftest import PAIRS, TEXT, assert_refused, write_data

ROOT = Path(__file__).resolve().parent.parent
ANNOTATED = [sys.executable, "-c", "import sys; from annotated.cli import main; sys.exit(main())"]
Spoil = Callable[[Path], object]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copia"))


@pytest.fixture
def english(tmp_path: Path) -> Path:
    path = tmp_path / "en.txt"
    path.write_text("\n".join(TEXT[:3]) + "\n", "utf-8")
    return path


def run(*arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    "Il comando in un processo suo: qui una FIFO che non finisce fa scadere il tempo, non la prova."
    command = [*ANNOTATED, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


# --- 1. Le uscite


def translate_to(output: Path, model: Path, english: Path) -> int:
    return main(["translate", "--model", str(model), "--input", str(english), "--output", str(output)])


def test_a_link_is_followed(model: Path, english: Path, tmp_path: Path) -> None:
    for name in ("vecchio", "manca"):
        target, link = tmp_path / f"{name}.txt", tmp_path / f"verso-{name}"
        link.symlink_to(target)
    (tmp_path / "vecchio.txt").write_text("vecchio")
    for name in ("vecchio", "manca"):
        assert translate_to(tmp_path / f"verso-{name}", model, english) == 0
        assert (tmp_path / f"verso-{name}").is_symlink()
        assert len((tmp_path / f"{name}.txt").read_text("utf-8").splitlines()) == 3


def test_a_disk_without_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Su certi dischi di rete chmod non si può fare: il file si scrive lo stesso."

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    for text in (b"uno", b"due"):
        with atomic_write(tmp_path / "nota.txt") as file:
            file.write(text)
        assert (tmp_path / "nota.txt").read_bytes() == text


def test_permissions_stay(model: Path, english: Path, tmp_path: Path) -> None:
    output = tmp_path / "riservato.txt"
    output.write_text("mio")
    output.chmod(0o600)
    assert translate_to(output, model, english) == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600 and output.read_text("utf-8") != "mio"


@pytest.mark.skipif(os.geteuid() == 0, reason="chi amministra la macchina scrive ovunque")
def test_a_protected_file_stays(model: Path, english: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "riservato.txt"
    output.write_text("mio")
    output.chmod(0o400)
    assert_refused(translate_to(output, model, english), capsys.readouterr().err, "permesso negato")
    assert output.read_text() == "mio" and stat.S_IMODE(output.stat().st_mode) == 0o400


@pytest.mark.parametrize("kind", ["annotated", "marian", "web"])
def test_an_export_respects_what_is_there(kind: str, model: Path, tmp_path: Path, capsys: Capture) -> None:
    rest = tmp_path / ".0123456789abcdef.parziale"  # lo lascia chi viene ucciso: da solo non conta, e non autorizza
    rest.touch()
    (tmp_path / "modello-vecchio.safetensors").write_text("miei")
    command = ["export", "--model", str(model), "--to", kind, str(tmp_path)]
    assert_refused(main(command), capsys.readouterr().err, "non è una cartella vuota")
    assert {path.name for path in tmp_path.iterdir()} == {rest.name, "modello-vecchio.safetensors"}
    (tmp_path / "modello-vecchio.safetensors").unlink()
    assert main(command) == 0


def test_an_export_in_the_working_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qui").mkdir()
    inode = (tmp_path / "qui").stat().st_ino
    monkeypatch.chdir(tmp_path / "qui")
    assert main(["export", "--model", str(model), "."]) == 0 and (tmp_path / "qui").stat().st_ino == inode
    assert (tmp_path / "qui/config.json").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_pipe_receives_the_text(model: Path, english: Path, tmp_path: Path) -> None:
    fifo, received = tmp_path / "tubo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: received.append(fifo.read_text("utf-8")), daemon=True)
    reader.start()
    assert translate_to(fifo, model, english) == 0
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    reader.join(timeout=10)
    assert len(received[0].splitlines()) == 3


def test_a_pipe_nobody_reads_is_not_a_full_disk(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tubo")
    reader = os.open(tmp_path / "tubo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BrokenPipeError), atomic_write(tmp_path / "tubo") as file:
        os.close(reader)
        file.write(b"nessuno lo legge")


def test_a_device_stays_a_device(model: Path, english: Path, tmp_path: Path) -> None:
    device = tmp_path / "nulla"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # come /dev/null, ma nostro
        device.write_text("prova")
    except PermissionError:
        pytest.skip("qui non si possono creare dispositivi")
    assert translate_to(device, model, english) == 0
    assert stat.S_ISCHR(device.stat().st_mode)


def test_links_in_a_circle(tmp_path: Path, model: Path, english: Path, capsys: Capture) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert_refused(translate_to(tmp_path / "a", model, english), capsys.readouterr().err, "girano in tondo")
    assert (tmp_path / "a").is_symlink()


# --- 2. Gli ingressi


def test_a_pipe_is_not_read_twice(model: Path, tmp_path: Path, capsys: Capture) -> None:
    output, fifo = tmp_path / "prezioso.txt", tmp_path / "tubo"
    output.write_text("prezioso")
    os.mkfifo(fifo)
    command = ["translate", "--model", str(model), "--output", str(output), "--input"]
    done = run(*command, "/dev/stdin", input="\n".join(TEXT[:3]))
    assert_refused(done.returncode, done.stderr, "è una pipe o un dispositivo")
    assert_refused(main([*command, str(fifo)]), capsys.readouterr().err, "è una pipe o un dispositivo")
    assert output.read_text() == "prezioso"
    assert_refused(main(["evaluate", str(fifo)]), capsys.readouterr().err, "tubo: non riesco a leggere")


def test_standard_input_from_a_file_can_be_read_twice(model: Path, english: Path) -> None:
    with english.open() as file:
        done = run("translate", "--model", model, "--input", "/dev/stdin", stdin=file)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3


# --- 3. La pagina


def test_a_sentence_that_looks_like_a_template(copy: Path, tmp_path: Path) -> None:
    page = tmp_path / "vista.html"
    view = attention_view(read_attention(*load_pretrained(str(copy)), "A {vista} and a {titolo}."))
    view.save(page, "Attenzione: A {vista} and a {titolo}.")
    text = page.read_text("utf-8")
    assert "<title>Attenzione: A {vista} and a {titolo}.</title>" in text and text.count(view.html) == 1


# --- 4. Modelli che chiedono troppa memoria

BOMBS: list[dict[str, int]] = [
    {"N": 10**6},
    {"N": 1024, "d_model": 2**16, "d_ff": 2**18},
    {"d_model": 10**6},
    {"vocab_size": 10**9},
    {"vocab_size": 2**24, "d_model": 2**12},
    {"d_ff": 2**18, "N": 1024},
    {"max_len": 10**9},
]
LIMITED = """
import re, resource, sys
from annotated.cli import main
used = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1])
resource.setrlimit(resource.RLIMIT_AS, (used + {allowed}, used + {allowed}))
"""


def run_limited(
    allowed: int, *arguments: str | Path, then: str = "sys.exit(main())", **options: Any
) -> "subprocess.CompletedProcess[str]":
    "Il comando, con al più `allowed` byte di memoria oltre a quella che serve a PyTorch per esistere."
    if not Path("/proc/self/status").exists():
        pytest.skip("qui non si sa quanta memoria usa un processo")
    command = [sys.executable, "-c", LIMITED.format(allowed=allowed) + then, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


EACH = """
import contextlib, io, json
for folder in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["translate", "--model", folder, "The dog."])
    print(json.dumps([code, error.getvalue()]))
"""


def test_models_larger_than_their_weights(model: Path, tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(model, tmp_path / str(i))) for i in range(len(BOMBS))]
    for folder, changes in zip(folders, BOMBS, strict=True):
        change_config(folder, **changes)
    done = run_limited(400_000_000, *folders, then=EACH)  # un processo per tutti: il limite vale dal primo all'ultimo
    assert done.returncode == 0, done.stderr
    for line, changes in zip(done.stdout.splitlines(), BOMBS, strict=True):
        code, error = json.loads(line)
        assert_refused(code, error, "")
        assert "config.json" in error and "memoria" not in error, changes


@pytest.mark.parametrize("name", ["mini", "tiny", "small", "base"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_parameters_are_counted_from_the_shape(name: str, norm_first: bool) -> None:
    config = Config.preset(name, 123, norm_first=norm_first)
    with torch.device("meta"):  # si contano, e basta
        model = Transformer(config)
    assert config.parameters == sum(p.numel() for p in model.parameters())


# --- 5. Modelli guasti

CONFIGS: list[dict[str, object]] = [
    {"N": -1}, {"N": 0}, {"h": 0}, {"h": 3}, {"h_cross": 3}, {"d_model": 31}, {"d_ff": -64}, {"max_len": 0},
    {"dropout": 7}, {"dropout": float("nan")}, {"dropout": "0.1"}, {"d_model": "trentadue"}, {"d_model": 32.0},
    {"vocab_size": None}, {"N": [2]}, {"N": True}, {"norm_first": "no"}, {"norm_first": None}, {"N_decoder": 0},
    {"vocab_size": 300}, {"colore": "rosso"}, {"max_len": "1" * 9_999},
]  # fmt: skip
JSONS = ["[]", "null", "3", '"modello"', "{}", "[" * 100_000, '{"vocab_size": ' + "[" * 100_000, "1" * 10_000, "\x00"]


def refuse(folder: Path, capsys: Capture, message: str) -> None:
    assert_refused(main(["translate", "--model", str(folder), TEXT[0]]), capsys.readouterr().err, message)


@pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: one_line(str(c))[:40])
def test_an_impossible_shape(copy: Path, capsys: Capture, changes: dict[str, object]) -> None:
    change_config(copy, **changes)
    refuse(copy, capsys, "config.json")


@pytest.mark.parametrize("text", JSONS, ids=range(len(JSONS)))
def test_a_configuration_that_is_not_one(copy: Path, capsys: Capture, text: str) -> None:
    (copy / "config.json").write_text(text)
    refuse(copy, capsys, "config.json: non descrive un modello")


def resave(folder: Path, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x, **metadata: str) -> None:
    "Riscrive i pesi, con l'impronta del vocabolario che c'è nella cartella."
    path = folder / "model.safetensors"
    tensors = {name: change(x) for name, x in safetensors.torch.load_file(path).items()}
    vocabulary = Tokenizer((folder / "tokenizer.model").read_bytes()).fingerprint
    safetensors.torch.save_file(tensors, path, {"vocabulary": json.dumps(vocabulary), **metadata})


WEIGHTS: list[tuple[str, Spoil, str]] = [
    ("NaN", lambda f: resave(f, lambda x: x * torch.nan), "un peso è infinito o non è un numero"),
    ("infiniti", lambda f: resave(f, lambda x: x + torch.inf), "un peso è infinito o non è un numero"),
    ("enormi", lambda f: resave(f, lambda x: torch.full_like(x, 3e38)), "i suoi pesi sono rovinati"),
    ("interi", lambda f: resave(f, lambda x: x.to(torch.int8)), "i pesi sono di tipo I8"),
    ("di altre forme", lambda f: resave(f, lambda x: x.reshape(1, -1)), "i pesi non hanno la forma"),
    ("metadati annidati", lambda f: resave(f, parts="[" * 100_000), "troncato o rovinato"),
    ("una FIFO", lambda f: ((f / "model.safetensors").unlink(), os.mkfifo(f / "model.safetensors")), "è una pipe"),
    ("configurazione FIFO", lambda f: ((f / "config.json").unlink(), os.mkfifo(f / "config.json")), "è una pipe"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), [case[1:] for case in WEIGHTS], ids=[case[0] for case in WEIGHTS])
def test_weights_that_are_not_weights(copy: Path, capsys: Capture, spoil: Spoil, message: str) -> None:
    spoil(copy)
    refuse(copy, capsys, message)


def vocabulary(size: int, kind: str = "bpe", pad: int = PAD, unk: int = UNK, bos: int = BOS, eos: int = EOS) -> Spoil:
    "Mette un altro vocabolario, e nei pesi la sua impronta."

    def spoil(folder: Path) -> None:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(text for line in PAIRS for text in line.split("\t")[1:]),
            model_prefix=str(folder / "tokenizer"), model_type=kind, vocab_size=size,
            pad_id=pad, unk_id=unk, bos_id=bos, eos_id=eos, minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        resave(folder)

    return spoil


VOCABULARIES: list[tuple[str, Spoil, str]] = [
    ("più piccolo", vocabulary(300), "tokenizer.model ne ha 300"),
    ("più grande", vocabulary(450), "tokenizer.model ne ha 450"),
    ("speciali scambiati", vocabulary(400, bos=EOS, eos=BOS), "vocabolario d'altro tipo"),
    ("senza riempitivo", vocabulary(400, pad=-1, unk=0, bos=1, eos=2), "vocabolario d'altro tipo"),
    ("unigram", vocabulary(400, "unigram"), "vocabolario d'altro tipo"),
    ("parole", vocabulary(400, "word"), "vocabolario d'altro tipo"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "message"), [case[1:] for case in VOCABULARIES], ids=[case[0] for case in VOCABULARIES]
)
def test_a_vocabulary_of_another_kind(copy: Path, capsys: Capture, spoil: Spoil, message: str) -> None:
    spoil(copy)
    refuse(copy, capsys, message)


# --- 7. Righe senza fine


def test_an_archive_of_one_endless_line(copy: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomba.xz"
    path.write_bytes(600 * lzma.compress(b"a" * 1_000_000))  # archivi in fila sono un archivio solo
    assert path.stat().st_size < 1_000_000
    done = run_limited(400_000_000, "translate", "--model", copy, "--input", path)
    assert_refused(done.returncode, done.stderr, f"bomba.xz, riga 1: supera {LINE_LIMIT} byte")


def test_an_endless_line_from_standard_input(copy: Path, tmp_path: Path) -> None:
    with (tmp_path / "zeri").open("w+b") as file:
        file.truncate(10**9)
        done = run_limited(400_000_000, "translate", "--model", copy, stdin=file)
    assert_refused(done.returncode, done.stderr, "standard input, riga 1: supera")


def test_the_longest_line_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "lunga.txt").write_bytes(b"a" * (LINE_LIMIT - 1) + b"\nb\n")
    assert [len(line) for line in read_lines(tmp_path / "lunga.txt")] == [LINE_LIMIT - 1, 1]


# --- 8. Opzioni fuori misura


@pytest.mark.parametrize(
    "option", ["alpha=nan", "alpha=inf", "alpha=-inf", "alpha=1e9", "alpha=-1e9", "alpha=-1", "beam=1000000"]
)
def test_options_out_of_scale(copy: Path, capsys: Capture, option: str) -> None:
    code = main(["translate", "--model", str(copy), f"--{option}", TEXT[0]])
    assert_refused(code, capsys.readouterr().err, f"{option.split('=')[0]} = ")


def test_the_widest_beam(copy: Path) -> None:
    assert main(["translate", "--model", str(copy), "--beam", "1000", "--alpha", "10", TEXT[0]]) == 0


# --- 9. Semi e vocabolari


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70])
def test_a_seed_out_of_range_is_refused_before_writing(tmp_path: Path, capsys: Capture, seed: int) -> None:
    out = tmp_path / "modello"
    assert_refused(main(["train", f"--seed={seed}", "--out", str(out)]), capsys.readouterr().err, f"seed = {seed}: ")
    assert not out.exists()


@pytest.mark.parametrize(
    ("size", "advice"), [("5000000000", "chiedine meno"), ("2147483647", "al più"), ("1", "chiedine più di 4")]
)
def test_a_vocabulary_out_of_scale(tmp_path: Path, capfd: Capture, size: str, advice: str) -> None:
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    code = main(["train", "--data", str(data), "--vocab-size", size, "--out", str(out), "--device", "cpu"])
    assert_refused(code, capfd.readouterr().err, advice)


# --- 10. Chi smette di leggere, e nomi impossibili


def test_the_reader_goes_away(model: Path, tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("\n".join(TEXT * 20) + "\n", "utf-8")
    command = [*ANNOTATED, "translate", "--model", str(model), "--beam", "1", "--input", str(tmp_path / "en.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141
    assert "Traceback" not in error and "Broken" not in error and "errore" not in error


def test_a_closed_standard_input(model: Path) -> None:
    done = run("translate", "--model", model, preexec_fn=lambda: os.close(0))
    assert_refused(done.returncode, done.stderr, "lo standard input è chiuso")


@pytest.mark.parametrize("command", [["--help"], ["evaluate", "--beam", "1"]])
def test_nobody_reads(model: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "p.tsv").write_text(f"x\t{TEXT[0]}\tUna frase.\n", "utf-8")
    rest = ["--model", str(model), str(tmp_path / "p.tsv")] if len(command) > 1 else []
    read, write = os.pipe()
    os.close(read)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    whole, options = [*ANNOTATED, *command, *rest], {"stderr": subprocess.PIPE, "text": True, "env": buffered}
    done = subprocess.run(whole, stdout=write, check=False, **options)
    os.close(write)
    assert done.returncode == 141 and "Broken" not in done.stderr and "Exception" not in done.stderr


def test_closed_outputs(model: Path, capsys: Capture) -> None:
    command = ["translate", "--model", str(model), "--beam", "1", TEXT[0]]
    done = run(*command, preexec_fn=lambda: os.close(1))
    assert_refused(done.returncode, done.stderr, "lo standard output è chiuso")
    done = run(*command, preexec_fn=lambda: os.close(2))
    assert main(command) == 0 and (done.returncode, done.stdout) == (0, capsys.readouterr().out)
    done = run(*command[:-1], "", preexec_fn=lambda: os.close(2))
    assert done.returncode == 1 and not done.stdout  # l'errore non finisce fra le traduzioni


def test_an_output_without_accents() -> None:
    accented = "The dog saw the car because it was very noisy."
    done = run("translate", "--model", "mini", accented, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert_refused(done.returncode, done.stderr, "in ascii, che non ha")


def test_a_device_without_numbers(model: Path, capsys: Capture) -> None:
    code = main(["translate", "--model", str(model), "--device", "meta", TEXT[0]])
    assert_refused(code, capsys.readouterr().err, "--device meta: non disponibile")


LONG = "a" * 300
TOO_LONG = [
    ["translate", "--model", LONG, "Hi."],
    ["train", "--init", LONG, "--out", "OUT"],
    ["train", "--out", LONG, "--device", "cpu"],
    ["train", "--data", LONG, "--out", "OUT"],
    ["translate", "--model", "MODELLO", "--input", LONG],
    ["translate", "--model", "MODELLO", "--output", LONG, "Hi."],
    ["evaluate", LONG],
    ["prepare", LONG, LONG, "--out", "OUT"],
    ["export", "--model", LONG, "OUT"],
    ["attention", "Hi.", "--model", "MODELLO", "-o", f"{LONG}.html"],
]


@pytest.mark.parametrize("arguments", TOO_LONG, ids=lambda a: f"{a[0]} {a[1][:9]}")
def test_a_name_of_three_hundred_letters(model: Path, tmp_path: Path, capsys: Capture, arguments: list[str]) -> None:
    places = {"MODELLO": str(model), "OUT": str(tmp_path / "uscita")}
    assert_refused(main([places.get(a, a) for a in arguments]), capsys.readouterr().err, LONG)


# --- 11. Riprendere da uno stato guasto

STATES: list[Callable[[dict[str, str]], object]] = [
    lambda m: m.pop("stream"), lambda m: m.pop("step"), lambda m: m.pop("log"), lambda m: m.update(stream="[]"),
    lambda m: m.update(stream='{"seed": 1}'), lambda m: m.update(step='"tre"'), lambda m: m.update(step="-1"),
    lambda m: m.update(parts="0"), lambda m: m.update(log="[1, 2]"), lambda m: m.update(log="3"),
]  # fmt: skip


def test_a_state_without_its_pieces(tmp_path: Path, capfd: Capture) -> None:
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    options = "--vocab-size 400 --max-tokens 256 --valid-every 2 --max-steps 2 --average 1 --device cpu".split()
    assert main(["train", "--data", str(data), "--out", str(out), *options]) == 0
    path = out / "state.safetensors"
    with safe_open(path, framework="pt") as file:
        whole = dict(file.metadata())
    tensors = safetensors.torch.load_file(path)
    capfd.readouterr()
    for spoil in STATES:
        metadata = dict(whole)
        spoil(metadata)
        safetensors.torch.save_file(tensors, path, metadata)
        code = main(["train", "--resume", "--out", str(out), "--device", "cpu"])
        assert_refused(code, capfd.readouterr().err, "state.safetensors: non è lo stato di un addestramento")
    stream = json.loads(whole["stream"])
    old = {name: stream[name] for name in ("seed", "max_tokens", "tokens")}  # com'erano prima delle impronte
    for metadata in (whole, whole | {"stream": json.dumps(old)}):
        safetensors.torch.save_file(tensors, path, metadata)
        assert main(["train", "--resume", "--max-steps", "4", "--out", str(out), "--device", "cpu"]) == 0


def test_the_generator_of_the_device_where_the_model_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    "Nello stato va il generatore della GPU del modello, che può non essere quella corrente, o nessuno."
    loaded, tokenizer = load_pretrained(str(model))
    optimizer, path = torch.optim.Adam(loaded.parameters()), tmp_path / "stato"
    asked: list[tuple[str, Any]] = []

    def get(device: Any = "cuda") -> torch.Tensor:
        asked.append(("legge", device))
        return torch.zeros(16, dtype=torch.uint8)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _, device="cuda": asked.append(("scrive", device)))
    second = torch.device("cuda", 1)
    for device, wanted in ((torch.device("cpu"), []), (second, [("legge", second), ("scrive", second)])):
        monkeypatch.setattr(loaded, "parameters", lambda device=device: iter([SimpleNamespace(device=device)]))
        save_state(path, loaded, optimizer, tokenizer)
        load_state(path, loaded, optimizer, tokenizer)
        assert asked == wanted


# --- 12, 13, 14. I testi e i loro nomi


@pytest.mark.skipif(sys.platform != "linux", reason="altrove il disco rifiuta questi nomi")
@pytest.mark.parametrize("name", [b"caff\xe8.en", b"tab\tqui.en", b"a\ncapo.en", b"\x1b[31mrosso.en"])
def test_prepare_from_any_file_name(tmp_path: Path, capsys: Capture, name: bytes) -> None:
    source, target = tmp_path / os.fsdecode(name), tmp_path / "mio.it"
    for path, side in ((source, 1), (target, 2)):
        path.write_text("\ufeff" + "\n".join(line.split("\t")[side] for line in PAIRS) + "\n", "utf-8")
    assert main(["prepare", str(source), str(target), "--out", str(tmp_path / "dati")]) == 0
    for path in (tmp_path / "dati").iterdir():
        text = path.read_text("utf-8")
        assert not {"\ufeff", "\x1b", "\ufffd"} & set(text) and len(list(read_pairs(path))) == text.count("\n") > 0
    assert "\x1b" not in capsys.readouterr().err.replace("\x1b[A", "")  # con questo la barra torna su una riga


def test_the_mark_at_the_beginning_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "bom.txt").write_bytes("\ufeffperché\r\nsì\n".encode())
    assert list(read_lines(tmp_path / "bom.txt")) == ["perché", "sì"]


def test_text_in_utf16_without_a_mark(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "u16.txt").write_bytes(TEXT[0].encode("utf-16-le"))
    code = main(["translate", "--model", str(copy), "--input", str(tmp_path / "u16.txt")])
    assert_refused(code, capsys.readouterr().err, "u16.txt, riga 1: contiene byte nulli")


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        (gzip.compress, "gzip. Scompattalo, o chiamalo .gz."),
        (bz2.compress, "bzip2. Scompattalo"),
        (lzma.compress, "xz. Scompattalo"),
    ],
)
def test_a_compression_by_its_first_bytes(
    copy: Path, tmp_path: Path, capsys: Capture, packed: Callable[[bytes], bytes], told: str
) -> None:
    (tmp_path / "frasi.txt").write_bytes(packed(TEXT[0].encode()))
    code = main(["translate", "--model", str(copy), "--input", str(tmp_path / "frasi.txt")])
    assert_refused(code, capsys.readouterr().err, f"frasi.txt: è compresso con {told}")


def test_what_is_not_text(copy: Path) -> None:
    model, tokenizer = load_pretrained(str(copy))
    with pytest.raises(AnnotatedError, match="testo, riga 2: non è testo"):
        translate(model, tokenizer, [TEXT[0], float("nan")])  # type: ignore[list-item]
    for wrong in (
        lambda: tokenizer.encode([None]),  # type: ignore[list-item]
        lambda: evaluate([None], ["a"]),  # type: ignore[list-item]
        lambda: Tokenizer.train(["a b", None], 20),  # type: ignore[list-item]
    ):
        with pytest.raises(AnnotatedError, match="non è testo"):
            wrong()


def test_the_vocabulary_of_another_model(copy: Path) -> None:
    (model, _), (_, other) = load_pretrained(str(copy)), load_pretrained("mini")
    for wrong in (
        lambda: translate(model, other, TEXT[:1]),
        lambda: piece_scores(model, other, TEXT[:1], TEXT[:1]),
        lambda: read_attention(model, other, TEXT[0]),
    ):
        with pytest.raises(AnnotatedError, match="il modello ha 400 pezzi, il vocabolario 700"):
            wrong()


def test_values_that_would_mean_something_else(copy: Path) -> None:
    "Prima davano un numero, o un errore in inglese."
    model, tokenizer = load_pretrained(str(copy))
    corpus = encode_pairs([Pair(TEXT[0], TEXT[1])] * 3, tokenizer, 64)
    probes, Q = microlingua_probes(generate(2, held_out=True)), torch.randn(4, 8)
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (IndexError, "non una maschera", lambda: corpus.batch(np.array([False, False, True]))),
        (IndexError, "almeno una coppia", lambda: corpus.batch(np.array([], dtype=int))),
        (ValueError, "serve un numero pari", lambda: sinusoids(4, 5)),
        (ValueError, "k = 0: serve un numero di vicini fra 1 e 2", lambda: knn(*torch.ones(3, 2, 1), k=0)),
        (ValueError, "k = 3: serve un numero di vicini fra 1 e 2", lambda: knn(*torch.ones(3, 2, 1), k=3)),
        (ValueError, "tau = 0: serve una temperatura positiva", lambda: soft_knn(*torch.ones(3, 2, 1), tau=0)),
        (ValueError, "tau = nan: serve", lambda: soft_knn(*torch.ones(3, 2, 1), tau=float("nan"))),
        (ValueError, "h=0 non divide d_model=8", lambda: MultiHeadAttention(8, 0)),
        (AnnotatedError, "compiled = 'no'", lambda: TrainingConfig(compiled="no")),  # type: ignore[arg-type]
        (AnnotatedError, "scegli fra fp32", lambda: autocast(torch.device("cpu"), "bfloat16")),
        (AnnotatedError, "da «indizzio» non si può", lambda: noun_masses(model, tokenizer, probes, "indizzio")),
        (AnnotatedError, "da «30» non si può guardare", lambda: noun_masses(model, tokenizer, probes, 30)),
        (AnnotatedError, "una cornice sola", lambda: linear_probe(torch.randn(4, 3), torch.ones(4), [0] * 4)),
        (AnnotatedError, "r = -1: il raggio", lambda: local_attention(*torch.randn(3, 4, 8), r=-1)),
        (AnnotatedError, "4 query e 3 chiavi", lambda: local_attention(Q, Q[:3], Q[:3], r=1)),
        (AnnotatedError, "4 query e 3 chiavi", lambda: linear_attention(Q, Q[:3], Q[:3], causal=True)),
        (AnnotatedError, r"maschera \(4, 4\)", lambda: linear_attention(Q, Q, Q, Q @ Q.T > 0)),
    ]
    for kind, told, wrong in cases:
        with pytest.raises(kind, match=told):
            wrong()


def test_pieces_as_numpy_numbers(copy: Path) -> None:
    _, tokenizer = load_pretrained(str(copy))
    ids = np.array(tokenizer.encode(TEXT[:1])[0])
    assert tokenizer.decode(ids[None]) == tokenizer.decode([ids.tolist()]) == TEXT[:1]  # type: ignore[arg-type]
    for row in (ids, [*ids], torch.tensor(3)):
        with pytest.raises(AnnotatedError, match="una frase sola"):
            tokenizer.decode(row)  # type: ignore[arg-type]


def test_a_bad_line_under_the_bar(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    data = write_data(tmp_path / "dati", [*PAIRS, "prova\tThe dog."])
    code = main(["train", "--data", str(data), "--init", str(copy), "--out", str(tmp_path / "nuovo")])
    assert_refused(code, capsys.readouterr().err, f"train.tsv, riga {len(PAIRS) + 1}: 2 colonne invece di 3")


def test_gzip_as_xz(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "frasi.gz").write_bytes(gzip.compress(b"The dog.\nThe cat.\n"))
    assert [*read_lines(tmp_path / "frasi.gz")] == ["The dog.", "The cat."]
    whole = gzip.compress(b"The dog.\n" * 9)
    rotten = whole[:10] + b"\xff" * 5 + whole[15:]
    for name, row, spoiled in (("corto", 9, whole[:-9]), ("falso", 0, b"The dog.\n"), ("guasto", 0, rotten)):
        (tmp_path / f"{name}.gz").write_bytes(spoiled)
        code = main(["translate", "--model", str(copy), "--input", str(tmp_path / f"{name}.gz")])
        told = f"{name}.gz, dopo la riga {row}: archivio .gz troncato o rovinato"
        assert_refused(code, capsys.readouterr().err, told)


def test_nothing_to_evaluate() -> None:
    with pytest.raises(AnnotatedError, match="nessuna frase da valutare"):
        evaluate([], [])
    with pytest.raises(AnnotatedError, match="una lista di frasi"):
        evaluate("ciao", "ciao")  # type: ignore[arg-type]
    with pytest.raises(AnnotatedError, match="1 traduzioni e 2 riferimenti"):
        evaluate(["a"], ["a", "b"])
    with pytest.raises(AnnotatedError, match="una lista di frasi, non di liste"):
        evaluate(["a b"], [["a b"]])  # type: ignore[list-item]
    with pytest.raises(AnnotatedError, match="tokenize = «none»: scegli fra 13a"):
        evaluate(["a b"], ["a b"], "none")
    assert evaluate(iter(["a b c d"]), np.array(["a b c d"])).exact == 1
    assert evaluate(["a b", "a b "], ["a b", "a b"]).exact == 0.5


def test_a_notebook_that_trains_in_a_folder_with_spaces() -> None:
    cells = json.loads((ROOT / "book/85_base_su_gpu.ipynb").read_text("utf-8"))["cells"]
    (code,) = ("".join(c["source"]) for c in cells if "main(command" in "".join(c["source"]))
    received: list[str] = []
    names = {"GPU": False, "MINUTES": 1, "data": Path("Il mio Drive/dati"), "run": Path("Il mio Drive/base")}
    exec(code, names | {"shlex": shlex, "main": lambda command: received.extend(command) or 0})
    assert {"Il mio Drive/dati", "Il mio Drive/base", "--resume"} <= set(received)


def test_lines_that_end_with_cr_alone(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    text = "\r".join(TEXT[:3]) + "\r"
    (tmp_path / "mac.txt").write_bytes(text.encode())
    code = main(["translate", "--model", str(copy), "--input", str(tmp_path / "mac.txt")])
    assert_refused(code, capsys.readouterr().err, "mac.txt, riga 1: le righe finiscono con CR")
    done = run("translate", "--model", copy, input=text)
    assert_refused(done.returncode, done.stderr, "standard input, riga 1: le righe finiscono con CR")
    (tmp_path / "misto.txt").write_bytes(b"a\rb\r\nc\n")  # un CR perso in una riga non fa male
    assert list(read_lines(tmp_path / "misto.txt")) == ["a\rb", "c"]


# --- 15. Una FIFO fra i dati


def test_training_data_that_are_a_pipe(tmp_path: Path, capfd: Capture) -> None:
    data = write_data(tmp_path / "dati")
    (data / "train.tsv").unlink()
    os.mkfifo(data / "train.tsv")
    code = main(["train", "--data", str(data), "--out", str(tmp_path / "modello"), "--device", "cpu"])
    assert_refused(code, capfd.readouterr().err, "train.tsv: non riesco a leggere (è una pipe o un dispositivo")


# --- 16, 17. I file provvisori

fork = multiprocessing.get_context("fork")  # i figli non devono reimportare torch


def write_and_wait(path: Path, pipe: Connection) -> None:
    with atomic_write(path) as file:
        file.write("a metà".encode())
        file.flush()
        pipe.send("scrivo")
        pipe.recv()


def writer(path: Path) -> tuple[multiprocessing.Process, Connection]:
    mine, its = fork.Pipe()
    process = fork.Process(target=write_and_wait, args=(path, its))
    process.start()
    assert mine.recv() == "scrivo"
    return process, mine  # type: ignore[return-value]


def test_orphans_are_removed_and_the_living_are_not(tmp_path: Path) -> None:
    (dead, _), (alive, pipe) = writer(tmp_path / "morto"), writer(tmp_path / "vivo")
    dead.kill()
    dead.join()
    assert len(list(tmp_path.glob(".*.parziale"))) == 2
    with atomic_write(tmp_path / "altro") as file:
        file.write(b"intero")
    assert len(list(tmp_path.glob(".*.parziale"))) == 1
    pipe.send("basta")
    alive.join()
    assert alive.exitcode == 0
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == {"altro": "intero", "vivo": "a metà"}


def test_a_name_changes_when_its_bytes_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "nota.txt", []
    path.write_bytes(b"vecchio")
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((os.fstat(fd).st_size, path.read_bytes())))
    with atomic_write(path) as file:
        file.write(b"nuovo e intero")
    assert seen == [(14, b"vecchio")] and path.read_bytes() == b"nuovo e intero"


@pytest.mark.parametrize("length", [250, 255])
def test_the_longest_name_the_disk_accepts(model: Path, english: Path, tmp_path: Path, length: int) -> None:
    assert translate_to(tmp_path / ("b" * length), model, english) == 0
    assert main(["export", "--model", str(model), str(tmp_path / ("m" * length))]) == 0


# --- 18. Ciò che si stampa


@pytest.mark.parametrize("nasty", ["\x1b[2J\x1b[31mrosso", "due\nrighe", "\u202eorsoR", "\x9b31m"])
def test_control_sequences_are_not_printed(nasty: str, capsys: Capture) -> None:
    for arguments in (["translate", "--model", nasty, "Hi."], ["train", "--max-steps", nasty], ["evaluate", nasty]):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(str(stop.code))
        error = capsys.readouterr().err
        assert code and nasty not in error and one_line(nasty) in error
        assert error.count("\n") == 1 and error[:-1].isprintable()


def test_memory_limits_are_real() -> None:
    "La prova delle prove: chi chiede più memoria del concesso muore davvero."
    assert "MemoryError" in run_limited(400_000_000, then="bytes(10**9)").stderr
