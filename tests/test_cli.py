"""La riga di comando: addestra, riprende, traduce, valuta; e dice in una riga che cosa non va."""

import argparse
import gzip
import json
import lzma
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from provenienza import read_log

import annotated
from annotated import cli, evaluate, load_pretrained, translate
from annotated.checkpoint import publish_model
from annotated.cli import main
from annotated.data import Pair, encode_pairs, read_pairs
from annotated.study.microlingua import generate
from annotated.tokenizer import Tokenizer
from annotated.training import validation_loss
from conftest import PAIRS, TEXT, assert_refused, fill_disk, write_data

ANNOTATED = str(Path(sys.executable).with_name("annotated"))  # il comando installato
Write = Callable[[Path], object]


def train(data: Path, out: Path, steps: int, *more: str) -> int:
    options = "--config mini --vocab-size 400 --max-tokens 256 --warmup 100 --valid-every 4 --device cpu".split()
    return main(["train", "--data", str(data), "--out", str(out), "--max-steps", str(steps), *options, *more])


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_train_translate_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_data(tmp_path / "dati")
    with lzma.open(data / "train-altre.tsv.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*PAIRS, "p\tA dog.\t" + "cane " * 100]) + "\n")
    out = tmp_path / "modello"
    assert train(data, out, 8) == 0
    first, last = [entry for entry in read_log(out) if "valid_loss" in entry]
    assert (first["step"], last["step"]) == (4, 8) and last["valid_loss"] < first["valid_loss"]
    assert not list(out.rglob("*.parziale"))
    told = capsys.readouterr().err
    assert "800 coppie" in told and "addestramento: scartate 1 coppie più lunghe di 64 pezzi\n" in told
    assert main(["translate", "--model", str(out), "--beam", "2", "The dog saw the car."]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["evaluate", "--model", str(out), "--beam", "1", str(data / "valid.tsv")]) == 0
    assert "BLEU" in (report := capsys.readouterr().out) and "version:" in report


def test_the_log_has_the_bleu_if_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    assert train(data, out, 4, "--valid-bleu", "5") == 0
    assert "), bleu " in capsys.readouterr().err
    assert main(["train", "--out", str(out), "--resume", "--max-steps", "8"]) == 0  # l'opzione vale ancora
    assert [row["step"] for row in read_log(out) if "bleu" in row] == [4, 8]
    rows = [line.split("\t") for line in (out / "traduzioni.tsv").read_text("utf-8").splitlines()]
    written = evaluate([row[2] for row in rows], [row[1] for row in rows]).bleu
    assert len(rows) == 5 and written == pytest.approx(read_log(out)[-1]["bleu"])
    known = [(pair.source, pair.target) for pair in read_pairs(data / "valid.tsv")]
    assert [(source, target) for source, target, _ in rows] == known[::4]  # venti coppie: una ogni quattro
    assert main(["train", "--out", str(out), "--resume", "--max-steps", "12", "--valid-bleu", "0"]) == 0
    assert [row["step"] for row in read_log(out) if "bleu" in row] == [4, 8]  # 0: non più


def test_the_bleu_survives_strange_sentences(tmp_path: Path) -> None:
    data = write_data(tmp_path / "dati")
    with (data / "valid.tsv").open("a", encoding="utf-8") as file:
        file.write("p\t\u200b\tnulla\np\t€ 日本\tIl cane.\n")
    assert train(data, tmp_path / "modello", 4, "--valid-bleu", "100000") == 0


def test_resume_equals_uninterrupted(tmp_path: Path) -> None:
    data = write_data(tmp_path / "dati")
    assert train(data, tmp_path / "intero", 8) == 0
    assert train(data, tmp_path / "ripreso", 4) == 0
    assert train(data, tmp_path / "ripreso", 8, "--resume") == 0
    whole, resumed = files(tmp_path / "intero"), files(tmp_path / "ripreso")
    assert whole["model.safetensors"] == resumed["model.safetensors"]


def test_a_refused_resume_teaches_no_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    "Il vocabolario di prima non passa per quello dei dati nuovi."
    data, folder = write_data(tmp_path / "dati"), tmp_path / "modello"
    assert train(data, folder, 4) == 0
    before = {path.name for path in (folder / "data").glob("*.model")}
    lines = (data / "train.tsv").read_text("utf-8")
    (data / "train.tsv").write_text(lines.replace("the", "zebra"), "utf-8")
    assert train(data, folder, 8, "--resume") == 1
    assert {path.name for path in (folder / "data").glob("*.model")} == before
    capsys.readouterr()
    assert train(data, folder, 8, "--resume", "--repeat", "ignota=2") == 1
    assert "ignota" in capsys.readouterr().err
    assert train(data, tmp_path / "vuoto", 4, "--repeat", "prova=0") == 1  # 0: mai
    assert "--repeat non lascia nessuna coppia" in capsys.readouterr().err


def test_another_seed_learns_its_own_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    "Quello tenuto da parte vale per gli stessi file, con lo stesso seme."
    data = write_data(tmp_path / "dati")
    for seed in (1, 2, 1):
        cli._corpus_vocabulary(argparse.Namespace(vocab_size=400, seed=seed), tmp_path, [data / "train.tsv"], {})
    assert len(list((tmp_path / "data").glob("*.model"))) == 2
    assert capsys.readouterr().err.count("imparo 400 pezzi") == 2


def test_resume_remembers_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_data(tmp_path / "dati")
    for name in ("ridette", "taciute"):
        first = ("--warmup", "30", "--norm-first", "--average", "2", "--repeat", "prova=2")
        assert train(data, tmp_path / name, 4, *first) == 0
    again = ("--warmup", "30", "--norm-first", "--average", "2", "--repeat", "prova=2", "--resume")
    assert train(data, tmp_path / "ridette", 8, *again) == 0
    capsys.readouterr()
    assert main(["train", "--resume", "--max-steps", "8", "--out", str(tmp_path / "taciute"), "--device", "cpu"]) == 0
    assert "riprendo con altre opzioni: max_steps = 8, era 4\n" in capsys.readouterr().err
    told, silent = (files(tmp_path / name) for name in ("ridette", "taciute"))
    assert told["model.safetensors"] == silent["model.safetensors"]
    added = ("--max-steps", "8", "--patience", "3", "--dropout", "0.2", "--device", "cpu")
    assert main(["train", "--resume", "--out", str(tmp_path / "taciute"), *added]) == 0
    usual = "era la scelta predefinita"
    assert f"riprendo con altre opzioni: dropout = 0.2, {usual}, patience = 3, {usual}\n" in capsys.readouterr().err
    assert train(data, tmp_path / "nuova", 4, "--resume") == 0
    assert "non c'è nulla da riprendere" in capsys.readouterr().err


def test_killed_run_resumes(tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    command = [ANNOTATED, "train", "--data", str(data), "--out", str(out)]
    options = "--vocab-size 400 --max-tokens 256 --valid-every 2 --device cpu".split()
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (out / "log.jsonl").exists():
            time.sleep(0.05)
        process.kill()
    step = read_log(out)[-1]["step"]
    assert main([*command[1:], *options, "--resume", "--max-steps", str(step + 4)]) == 0
    assert read_log(out)[-1]["step"] == step + 4


def test_nobody_reads_the_messages(tmp_path: Path) -> None:
    "Se chi legge lo standard error se ne va, come `tee` a un Ctrl-C, l'addestramento continua e salva."
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    options = "--config mini --vocab-size 400 --max-tokens 256 --valid-every 4 --max-steps 8 --device cpu".split()
    command = [ANNOTATED, "train", "--data", str(data), "--out", str(out), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr
        process.stderr.readline()
        process.stderr.close()
    assert process.returncode == 0 and read_log(out)[-1]["step"] == 8


def test_stops_when_the_minutes_are_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    assert train(data, out, 100_000, "--minutes", "0.01") == 0
    step = read_log(out)[-1]["step"]
    assert f"tempo finito al passo {step} di 100000: per continuare, --out {out} --resume\n" in capsys.readouterr().err
    assert main(["train", "--resume", "--max-steps", str(step), "--out", str(out), "--device", "cpu"]) == 0
    assert "tempo finito" not in capsys.readouterr().err


def test_reads_file_and_standard_input(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [example.en for example in generate(3, seed=7)]
    (tmp_path / "en.txt").write_text("\n".join(sentences) + "\n", "utf-8")
    output = tmp_path / "it.txt"
    assert main(["translate", "--model", str(model), "--input", str(tmp_path / "en.txt"), "--output", str(output)]) == 0
    monkeypatch.setattr("sys.stdin", (tmp_path / "en.txt").open(encoding="utf-8"))
    assert main(["translate", "--model", str(model)]) == 0
    assert output.read_text("utf-8") == capsys.readouterr().out
    assert len(output.read_text("utf-8").splitlines()) == 3


@pytest.mark.timeout(60)
def test_standard_input_is_translated_as_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading, encoding="utf-8"))
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        pipe.write("\ufeffuna\ndue\ntre, a m".encode())
        _, chunks = cli._sentences(argparse.Namespace(text=None, input=None))
        assert next(chunks) == (1, ["una", "due"])  # senza aspettare la fine
        pipe.write("età\n".encode())
        assert next(chunks) == (3, ["tre, a metà"])
        pipe.write(b"\n" * 1500 + b"ultima")
    assert [(first, len(chunk)) for first, chunk in chunks] == [(4, 1000), (1004, 500), (1504, 1)]


def test_at_a_terminal_an_empty_line_is_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard, terminal = os.openpty()
    monkeypatch.setattr("sys.stdin", os.fdopen(terminal, encoding="utf-8"))
    os.write(keyboard, b"una\n\ndue\n\x04")
    _, chunks = cli._sentences(argparse.Namespace(text=None, input=None))
    assert [sentence.strip() for _, chunk in chunks for sentence in chunk] == ["una", "due"]
    assert "Ctrl+D" in capsys.readouterr().err


def test_the_standard_output_is_not_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "it.txt").write_text("già scritto\n", "utf-8")
    command = [ANNOTATED, "translate", "--model", str(model), "--output", "/dev/stdout", "The dog."]
    with (tmp_path / "it.txt").open("a") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert_refused(done.returncode, done.stderr, "/dev/stdout: è già lo standard output")
    assert (tmp_path / "it.txt").read_text("utf-8") == "già scritto\n"


def test_the_precision_asked_is_the_one_used(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(cli, "n_best", lambda m, *_, **__: used.append(type(m.embedding).__name__) or [[(0.0, "x")]])
    for precision in ("fp32", "int8"):
        assert main(["translate", "--model", str(model), "--precision", precision, "The dog."]) == 0
    assert used == ["TiedEmbedding", "_SplitEmbedding"]


def test_the_options_reach_the_beam_search(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = []
    monkeypatch.setattr(cli, "n_best", lambda *args, **_: used.append(args[3:]) or [[(0.0, "x")]])
    monkeypatch.setattr(cli, "translate", lambda *args, **_: used.append(args[3:]) or ["x"])
    (tmp_path / "prova.tsv").write_text(f"{PAIRS[0]}\n", "utf-8")
    options = ["--model", str(model), "--beam", "3", "--alpha", "0.2", "--max-tokens", "77"]
    assert main(["translate", *options, "The dog."]) == 0
    assert main(["evaluate", *options, str(tmp_path / "prova.tsv")]) == 0
    assert used == [(3, 0.2, 77)] * 2 and "beam 3, alfa 0.2" in capsys.readouterr().out


def test_lines_are_numbered_and_unknown_letters_told_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    "Anche se le frasi arrivano a gruppi."
    chunks = iter([(1, ["A €.", "A £."]), (3, ["Two €."])])
    options = argparse.Namespace(beam=1, alpha=0.6, max_tokens=None, n_best=1)
    lines = list(cli._translations(options, *load_pretrained(str(model)), "standard input", chunks))
    assert [line.split("\t")[0] for line in lines] == ["1", "2", "3"]
    assert capsys.readouterr().err.count("€") == 1
    letters = [chr(0x4E00 + n) for n in range(51)]  # al più cinquanta
    assert cli._few({*letters[:50]}) == " ".join(letters[:50]) and cli._few({*letters}) == " ".join(letters[:50]) + " …"


def test_what_precedes_an_unreadable_line_is_translated(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "en.txt").write_bytes(b"The dog saw the car.\nThe cat saw the dog.\n\xff\xfe\n")
    monkeypatch.setattr("sys.stdin", (tmp_path / "en.txt").open(encoding="utf-8"))
    assert main(["translate", "--model", str(model)]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2 and "standard input, riga 3" in told.err


def test_evaluate_drops_what_the_model_cannot_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, long = tmp_path / "prova.tsv", "p\t" + "dog " * 100 + "\tcane"
    path.write_text("\n".join([PAIRS[0], long, PAIRS[1], "p\t\u200b\tnulla"]) + "\n", "utf-8")
    written, tokenizer = tmp_path / "it.txt", load_pretrained(str(model)).tokenizer
    options = ["--model", str(model), "--beam", "1", "--tokenize", "char", "--output", str(written)]
    assert main(["evaluate", *options, str(path)]) == 0
    assert [bool(line) for line in written.read_text("utf-8").splitlines()] == [True, False, True, False]
    told = capsys.readouterr()
    assert f"{path}: 2 frasi, beam 1" in told.out and "tok:char" in told.out
    assert "scartate 2 coppie, vuote o più lunghe di 64 pezzi (righe 2, 4)\n" in told.err
    exact = next(text for n in range(65) if len(tokenizer.encode([text := "a " * n])[0]) == 64)  # e manca la fine
    for text in (long, f"p\t{exact}\tcane"):
        path.write_text(f"{text}\n", "utf-8")
        assert main(["evaluate", "--model", str(model), str(path)]) == 1
        assert "nessuna frase entra in 64 pezzi" in capsys.readouterr().err


def test_evaluate_opens_the_output_before_translating(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prova.tsv"
    path.write_text(f"{PAIRS[0]}\n", "utf-8")
    monkeypatch.setattr(cli, "translate", lambda *_args, **_options: pytest.fail("traduce prima di poter scrivere"))
    assert main(["evaluate", "--model", str(model), "--output", str(path / "it.txt"), str(path)]) == 1
    assert "non riesco a scrivere" in capsys.readouterr().err


def test_evaluate_tells_what_the_model_never_writes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prova.tsv"
    path.write_text(f"{PAIRS[0]}\np\tThe dog ran.\tL’animale corse…\n", "utf-8")
    assert main(["evaluate", "--model", str(model), "--beam", "1", str(path)]) == 0
    assert f"{path}: 1 traduzioni hanno segni" in capsys.readouterr().err
    path.write_text("p\tThe €.\tIl €.\np\tThe dog.\tIl €.\n", "utf-8")  # il primo segno si può copiare
    assert main(["evaluate", "--model", str(model), "--beam", "1", str(path)]) == 0
    assert f"{path}: 1 traduzioni hanno segni" in capsys.readouterr().err


def test_score_is_the_loss_of_each_pair(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, long = tmp_path / "prova.tsv", "p\tA dog.\t" + "cane " * 100
    path.write_text("\n".join([PAIRS[0], long, PAIRS[1]]) + "\n", "utf-8")
    assert main(["score", "--model", str(model), str(path)]) == 0
    told = capsys.readouterr()
    network, tokenizer = load_pretrained(str(model))
    for pair, line in zip(PAIRS, told.out.splitlines()[::2], strict=False):
        corpus = encode_pairs([Pair(*pair.split("\t")[1:])], tokenizer, 64)
        total, pieces = line.split("\t")
        expected = float(validation_loss(network, corpus, 4096))
        assert -float(total) / int(pieces) == pytest.approx(expected, abs=1e-4)
    assert told.out.splitlines()[1] == "" and "scartate 1 coppie, vuote o più lunghe di 64 pezzi (righe 2)" in told.err
    for n, side in ((1, "en"), (2, "it")):
        rows = [line.split("\t")[n] for line in PAIRS[:2]]
        (tmp_path / side).write_text("\n".join(rows) + "\n", "utf-8")
    assert main(["score", "--pieces", "--model", str(model), str(tmp_path / "en"), str(tmp_path / "it")]) == 0
    for line, summed in zip(capsys.readouterr().out.splitlines(), told.out.splitlines()[::2], strict=True):
        scores = [float(piece.rpartition(":")[2]) for piece in line.split(" ")]
        assert sum(scores) == pytest.approx(float(summed.split("\t")[0]), abs=1e-2)
    path.write_text(f"{PAIRS[0]}\nsolo una colonna\n", "utf-8")
    assert main(["score", "--model", str(model), str(path)]) == 1
    wrong = capsys.readouterr()
    assert "riga 2" in wrong.err and not wrong.out


def test_score_tells_of_the_whole_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    "Anche di ciò che sta nelle prime mille coppie, che si giudicano da sole."
    path, long = tmp_path / "prova.tsv", "p\tA dog.\t" + "cane " * 100
    path.write_text("\n".join([long, "p\tA €.\tUn €.", *["p\tA dog.\tUn cane."] * 999]) + "\n", "utf-8")
    assert main(["score", "--model", str(model), str(path)]) == 0
    told = capsys.readouterr()
    assert "scartate 1 coppie" in told.err and "(righe 1)" in told.err and "non ha i caratteri €" in told.err
    scores = [line.split("\t") for line in told.out.splitlines()[1:]]
    perplexity = math.exp(-sum(float(total) for total, _ in scores) / sum(int(pieces) for _, pieces in scores))
    written = re.search(r"1\.000 coppie, perplessità ([\d.]+,\d\d)\n", told.err)
    assert written and float(written[1].replace(".", "").replace(",", ".")) == pytest.approx(perplexity, abs=0.02)


def test_score_refuses_when_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("en", "it"):
        (tmp_path / name).write_text("word " * 100, "utf-8")
    code = main(["score", "--model", "mini", str(tmp_path / "en"), str(tmp_path / "it")])
    assert_refused(code, capsys.readouterr().err, "nessuna coppia entra in 64 pezzi")


def test_prepare_suggests_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, word in (("en", "dog"), ("it", "cane")):
        (tmp_path / name).write_text("".join(f"{word} {n}\n" for n in range(60)), "utf-8")
    out = tmp_path / "dati"
    assert main(["prepare", str(tmp_path / "en"), str(tmp_path / "it"), "--out", str(out)]) == 0
    suggested = f"Ora: annotated train --data {out} --config tiny --vocab-size 200 --max-steps 8000"
    assert suggested in capsys.readouterr().err
    for name, seed in (("uno", "1"), ("due", "2")):
        options = ["--out", str(tmp_path / name), "--held-out", "7", "--seed", seed]
        assert main(["prepare", str(tmp_path / "en"), str(tmp_path / "it"), *options]) == 0
    one, two = ((tmp_path / name / "valid.tsv").read_text("utf-8").splitlines() for name in ("uno", "due"))
    assert len(one) == len(two) == 7 and one != two


def test_a_run_without_a_model_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state.safetensors").touch()
    assert main(["translate", "--model", str(tmp_path), "Hi."]) == 1
    assert f"Riprendilo: annotated train --resume --out {tmp_path}" in capsys.readouterr().err


def test_commands_of_the_readme_are_accepted() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8").replace("--seed N ", "--seed 1 ")
    written = re.findall(r"^annotated .+$|`annotated [^`]+`", text, re.MULTILINE)
    assert len(written) >= 14
    for line in written:
        cli.make_parser().parse_args(shlex.split(line.strip("`"), comments=True)[1:])


def test_writes_a_page_with_the_attention(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "vista.html"
    command = ["attention", "The dog saw the car.", "--model", str(model), "-o", str(page)]
    assert main([*command, "--target", "Il cane vide la macchina."]) == 0
    text = page.read_text("utf-8")
    assert '<html lang="it">' in text and "Attenzione: The dog saw the car." in text and '"kind":"cross"' in text
    assert "traduzione: Il cane vide la macchina." in capsys.readouterr().err
    assert main([*command, "--other", "The cat saw the car.", "--target", "Il cane."]) == 0
    assert len(page.read_text("utf-8")) > len(text) and [p.name for p in tmp_path.iterdir()] == ["vista.html"]


def broken_line(line: str) -> Write:
    return lambda folder: write_data(folder, [*PAIRS[:2], line, *PAIRS[2:]])


def not_utf8(folder: Path) -> None:
    path = write_data(folder) / "train.tsv"
    path.write_bytes(path.read_bytes() + "prova\tcity\tcittà\n".encode("latin-1"))


def truncated_xz(folder: Path) -> None:
    data = lzma.compress((write_data(folder) / "train.tsv").read_bytes())
    (folder / "train-altre.tsv.xz").write_bytes(data[: len(data) // 2])


def gzipped(folder: Path) -> None:
    write_data(folder)
    (folder / "train-altre.tsv.gz").write_bytes(gzip.compress(b"p\tThe dog.\tIl cane.\np\tThe dog.\n"))


def no_valid(folder: Path) -> None:
    (write_data(folder) / "valid.tsv").unlink()


def twice(folder: Path) -> None:
    (folder / "train.tsv.xz").write_bytes(lzma.compress((write_data(folder) / "train.tsv").read_bytes()))


BAD_DATA: list[tuple[str, Write, str]] = [
    ("cartella che manca", lambda folder: None, "dati: la cartella non esiste"),
    ("cartella vuota", Path.mkdir, "dati: manca train*.tsv"),
    ("senza validazione", no_valid, "dati: manca valid.tsv"),
    ("un file", lambda path: path.write_text("x"), "dati: non è una cartella"),
    ("due volte lo stesso", twice, "train.tsv.xz: c'è anche train.tsv"),
    ("non UTF-8", not_utf8, "train.tsv, riga 401: non è UTF-8"),
    ("due colonne", broken_line("prova\tThe dog."), "train.tsv, riga 3: 2 colonne invece di 3"),
    ("frase vuota", broken_line("prova\tThe dog.\t "), "train.tsv, riga 3: frase vuota"),
    ("file vuoto", lambda f: write_data(f).joinpath("train.tsv").write_text(""), "train.tsv: il file è vuoto"),
    ("archivio troncato", truncated_xz, "train-altre.tsv.xz, dopo la riga"),
    ("archivio gzip", gzipped, "train-altre.tsv.gz, riga 2: 2 colonne invece di 3"),
    ("testo troppo poco", lambda folder: write_data(folder, PAIRS[:1]), "il testo è troppo poco"),
    ("tutte troppo lunghe", lambda f: write_data(f, [f"p\t{line * 20}\tx" for line in TEXT]), "nessuna coppia di add"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "message"), [case[1:] for case in BAD_DATA], ids=[case[0] for case in BAD_DATA])
def test_bad_data(tmp_path: Path, capfd: pytest.CaptureFixture[str], write: Write, message: str) -> None:
    write(tmp_path / "dati")
    code = train(tmp_path / "dati", tmp_path / "modello", 4)
    assert_refused(code, capfd.readouterr().err, message)
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("*.parziale"))


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def other_vocabulary(folder: Path) -> None:
    Tokenizer.train((line.split("\t")[1] for line in PAIRS), 300).save(folder / "tokenizer.model")


def other_shape(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"d_model": 64}))


def exported(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "marian", "d_model": 512, "vocab_size": 400}')


BAD_MODELS: list[tuple[str, Write, str]] = [
    ("di un altro programma", exported, "copia: è un modello per transformers (marian), che qui non si legge"),
    ("cartella che manca", shutil.rmtree, "non è una cartella, né un modello pubblicato"),
    ("senza configurazione", lambda folder: (folder / "config.json").unlink(), "qui non c'è un modello"),
    ("checkpoint troncato", truncate, "model.safetensors: checkpoint troncato o rovinato"),
    ("altro vocabolario", other_vocabulary, "model.safetensors: checkpoint di un altro vocabolario"),
    ("vocabolario rovinato", lambda f: (f / "tokenizer.model").write_bytes(b"?"), "tokenizer.model: non è un vocab"),
    ("altra forma", other_shape, "i pesi non hanno la forma"),
]


@pytest.mark.parametrize(("spoil", "message"), [case[1:] for case in BAD_MODELS], ids=[case[0] for case in BAD_MODELS])
def test_bad_model(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Write, message: str) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "copia"))
    spoil(folder)
    code = main(["translate", "--model", str(folder), "The dog saw the car."])
    assert_refused(code, capfd.readouterr().err, message)


BAD_TEXT = [
    ("frase vuota", "The dog.\n\nThe cat.\n", "en.txt, riga 2: frase vuota"),
    ("frase troppo lunga", "The dog.\nThe cat.\n" + "dog " * 100 + "\n", "en.txt, riga 3: frase di"),
]


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in BAD_TEXT], ids=[case[0] for case in BAD_TEXT])
def test_bad_text(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, message: str) -> None:
    (tmp_path / "en.txt").write_text(text, "utf-8")
    arguments = ["--input", str(tmp_path / "en.txt"), "--output", str(tmp_path / "it.txt")]
    code = main(["translate", "--model", str(model), *arguments])
    assert_refused(code, capfd.readouterr().err, message)
    assert [p.name for p in tmp_path.iterdir()] == ["en.txt"]


def test_what_precedes_a_bad_line_is_translated(model: Path) -> None:
    "Ciò che arriva da un altro programma non si può rileggere prima: ciò che è arrivato non si perde."
    text = "The dog saw the car.\nThe cat saw the car.\n\nThe dog.\n"
    command = [ANNOTATED, "translate", "--model", str(model)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert_refused(done.returncode, done.stderr, "standard input, riga 3: frase vuota")
    assert len(done.stdout.splitlines()) == 2


def test_n_best(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "The dog didn't see the car because it was tired."
    assert main(["translate", "--model", "mini", "--n-best", "3", sentence]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3
    assert sorted((float(row[1]) for row in rows), reverse=True) == [float(row[1]) for row in rows]
    main(["translate", "--model", "mini", sentence])
    assert capsys.readouterr().out.rstrip() == rows[0][2]


def test_typographic_signs_and_unknown_letters(capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    plain = 'The dog didn\'t see the "car" - it left.'
    for sentence in (plain, "The dog didn’t see the “car” — it left.", "The dog didn't see the €ar."):
        assert main(["translate", "--model", "small-en-it", sentence]) == 0
        told[sentence] = capsys.readouterr()
    straight, curly, unknown = told.values()
    assert curly.out == straight.out and " non " in straight.out
    assert "vocabolario non ha" not in straight.err + curly.err
    assert unknown.err.rstrip().endswith("questi caratteri, che una traduzione può soltanto copiare: €")
    assert "€" in unknown.out


def test_a_compressed_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    "Scriverebbe testo in chiaro in un file che, riletto, sembrerebbe rovinato."
    for suffix in (".gz", ".xz"):
        path = tmp_path / f"uscita{suffix}"
        assert main(["translate", "--model", "mini", "The dog.", "--output", str(path)]) == 1
        assert "qui si scrive testo in chiaro" in capsys.readouterr().err and not path.exists()


def test_evaluate_and_attention_tell_unknown_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "coppie.tsv").write_text("mia\tThe €og.\tIl cane.\n", encoding="utf-8")
    told = "il vocabolario non ha questi caratteri, che una traduzione può soltanto copiare: €"
    assert main(["evaluate", str(tmp_path / "coppie.tsv"), "--model", "mini"]) == 0
    assert f"coppie.tsv: {told}" in capsys.readouterr().err
    assert main(["attention", "The €og.", "--model", "mini", "-o", str(tmp_path / "pagina.html")]) == 0
    assert f"frase: {told}" in capsys.readouterr().err


def test_a_missing_reference_is_not_an_error_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "en").write_text("The dog saw the car.\n" * 2, "utf-8")
    (tmp_path / "it").write_text("Il cane vide la macchina.\n\n", "utf-8")
    files = [str(tmp_path / name) for name in ("en", "it")]
    assert main(["evaluate", "--model", "mini", *files, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["sentences"] == 1 and "(righe 2)" in told.err
    assert_refused(main(["score", "--model", "mini", *files[:1] * 2]), capsys.readouterr().err, "sono lo stesso file")
    (tmp_path / "it").write_text("")
    (tmp_path / "en").write_text("")
    assert_refused(main(["score", "--model", "mini", *files]), capsys.readouterr().err, "en: il file è vuoto")


def test_two_files_and_a_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = generate(5, held_out=True)
    for name, texts in (("en", [e.en for e in examples]), ("it", [e.it for e in examples])):
        (tmp_path / name).write_text("\n".join(texts) + "\n", "utf-8")
    (tmp_path / "p.tsv").write_text("".join(f"x\t{e.en}\t{e.it}\n" for e in examples), "utf-8")
    told = []
    for files in (["en", "it"], ["p.tsv"]):
        assert main(["evaluate", "--model", "mini", "--json", *(str(tmp_path / file) for file in files)]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0]["bleu"] == told[1]["bleu"] and told[0]["sentences"] == 5 and "version:" in told[0]["bleu_signature"]
    (tmp_path / "it").write_text("una\n", "utf-8")
    code = main(["evaluate", "--model", "mini", str(tmp_path / "en"), str(tmp_path / "it")])
    assert_refused(code, capsys.readouterr().err, "it: finisce dopo 1 righe, l'altro no")


def test_pairs_are_not_sentences_and_lines_are_not_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.tsv").write_text("x\tThe dog.\tIl cane.\n", "utf-8")
    code = main(["translate", "--model", "mini", "--input", str(tmp_path / "test.tsv")])
    assert_refused(code, capsys.readouterr().err, "test.tsv: è un file di coppie, non di frasi")
    assert main(["translate", "--model", "mini", "The dog saw the car.\nThe cat saw the car.\n"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_language_the_vocabulary_cannot_write(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "valid"):
        rows = [f"x\tThe dog saw {i} cars.\tСобака видела {i} машин.\n" for i in range(20)]
        (tmp_path / f"{name}.tsv").write_text("".join(rows), "utf-8")
    code = main(["train", "--data", str(tmp_path), "--init", "mini", "--out", str(tmp_path / "out")])
    assert_refused(code, capfd.readouterr().err, "dei pezzi non è nel vocabolario di mini. Addestra da capo")


def test_a_shape_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path / "dati")
    (tmp_path / "forma.json").write_text('{"d_model": 32, "d_ff": 48, "h": 4, "N": 1, "norm_first": true}', "utf-8")
    monkeypatch.chdir(tmp_path)
    sizes = ["--vocab-size", "60", "--max-tokens", "200", "--valid-every", "2", "--seed", "3"]
    assert main(["train", "--data", "dati", "--config", "forma.json", "--max-steps", "2", *sizes]) == 0
    model = load_pretrained(tmp_path / "runs" / "forma").model
    assert (model.config.d_model, model.config.N, model.config.norm_first) == (32, 1, True)
    monkeypatch.chdir("/")
    resume = ["train", "--out", str(tmp_path / "runs" / "forma"), "--resume", "--max-steps"]
    (tmp_path / "forma.json").write_text('{"d_model": 64, "h": 4, "N": 1, "dropout": 0.5}', "utf-8")
    assert main([*resume, "4"]) == 0
    (tmp_path / "forma.json").unlink()  # chi riprende ha già tutto
    assert main([*resume, "6"]) == 0
    assert load_pretrained(tmp_path / "runs" / "forma").model.config == model.config


def test_a_model_to_start_from_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["train", "--init", str(tmp_path / "manca"), "--out", str(tmp_path / "out")])
    assert_refused(code, capfd.readouterr().err, "né un modello pubblicato")
    assert not (tmp_path / "out").exists()


BAD_SHAPES = [
    ('{"N": 2, "d_modello": 3, "dff": 4}', "max_len. Togli d_modello, dff."),
    ('{"N": 2,\n "h" 4}', "forma.json, riga 2, colonna 6: qui il JSON è sbagliato"),
    ("[]", "servono i campi"),
    ('{"h": 5}', "un multiplo delle teste"),
    ('{"vocab_size": 60}', "vocab_size non è della forma. Togli il campo, e dillo con --vocab-size"),
]


@pytest.mark.parametrize(("text", "message"), BAD_SHAPES)
def test_bad_shape(tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, message: str) -> None:
    (tmp_path / "forma.json").write_text(text, "utf-8")
    code = main(["train", "--config", str(tmp_path / "forma.json"), "--out", str(tmp_path / "out")])
    assert_refused(code, capfd.readouterr().err, message)
    assert not (tmp_path / "out").exists()


BAD_OPTIONS = [
    ("preset", ["train", "--config", "enorme"], "configurazione «enorme» sconosciuta"),
    ("pezzi", ["train", "--vocab-size", "8"], "8 pezzi non basta ai caratteri del testo: chiedine almeno"),
    ("pezzi spezzati", ["train", "--vocab-size", "55"], "coppie della microlingua non entrano in 64 pezzi"),
    ("modello vuoto", ["train", "--init", ""], "serve un modello, il nome o la cartella: questo è vuoto"),
    ("cartella vuota", ["train", "--out", ""], "serve il nome di una cartella: questo è vuoto"),
    ("fattore", ["train", "--factor", "-1"], "serve un numero positivo, non «-1»"),
    ("codifica", ["translate", "--model", "mini", "caff\udce9"], "frase, riga 1: non è UTF-8"),
    ("fattore infinito", ["train", "--factor", "inf"], "serve un numero positivo, non «inf»"),
    ("stesso file", ["translate", "--input", "en.txt", "--output", "./en.txt"], "en.txt: è anche il file da tradurre"),
    ("ipotesi di troppo", ["translate", "--n-best", "5", "Hi."], "--n-best 5: le ipotesi sono 4. Alza --beam."),
    ("stesse coppie", ["evaluate", "en.tsv", "--output", "./en.tsv"], "en.tsv: è anche il file da tradurre"),
    ("uscita", ["translate", "--model", "mini", "--output", "/tmp", "Hi."], "/tmp: è una cartella"),
    ("stesse traduzioni", ["evaluate", "en", "it", "--output", "./it"], "it: è anche il file da tradurre"),
    ("quota", ["train", "--dropout", "1"], "serve un numero da 0 a 1, 1 escluso, non «1»"),
    ("ipotesi", ["translate", "--beam", "0", "Hi."], "serve un intero positivo, non «0»"),
    ("numero", ["train", "--max-steps", "-3"], "serve un intero positivo, non «-3»"),
    ("opzione", ["train", "--modello", "x"], "argomenti sconosciuti: --modello x"),
    ("opzione ambigua", ["train", "--m", "3"], "--m è ambiguo: può essere --max-steps, --max-tokens, --minutes"),
    ("valore di troppo", ["train", "--resume=1"], "--resume: non vuole un valore, ma ha '1'"),
    ("comando", ["traduci"], "'traduci' non esiste"),
    ("dispositivo", ["train", "--device", "cuda:99"], "--device cuda:99: non disponibile"),
    ("fonte", ["train", "--repeat", "prova=2", "--out", "/dev/null/mai"], "--repeat: vale con --data."),
    ("modello", ["translate", "--model", "che-non-c-e", "Hi."], "modello «che-non-c-e»: non è una cartella"),
    ("frase vuota", ["attention", " ", "--model", "mini", "-o", "vista.html"], "frase, riga 1: frase vuota"),
    ("estensione", ["attention", "Hi.", "-o", "vista.pdf"], "vista.pdf: la vista è una pagina web"),
    ("cartella", ["attention", "Hi.", "-o", "/non/esiste/vista.html"], "/non/esiste: la cartella non esiste"),
    ("file", ["evaluate", "/non/esiste.tsv"], "/non/esiste.tsv: non riesco a leggere (non esiste)"),
]


@pytest.mark.parametrize(("arguments", "message"), [c[1:] for c in BAD_OPTIONS], ids=[c[0] for c in BAD_OPTIONS])
def test_bad_options(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # senza --out si scrive in runs/, qui
    whole = cli._microlingua_pairs
    monkeypatch.setattr(cli, "_microlingua_pairs", lambda n, *rest, **kw: whole(min(n, 2_000), *rest, **kw))
    try:
        code = main(arguments)
    except SystemExit as exit:  # se ne accorge argparse
        code = int(exit.code or 0)
    assert_refused(code, capfd.readouterr().err, message)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("command", [[ANNOTATED], [sys.executable, "-m", "annotated.cli"]], ids=["comando", "modulo"])
def test_the_command_exits_with_what_main_returns(command: list[str]) -> None:
    told = [*command, "translate", "--model", "che-non-c-e", "Hi."]  # un rifiuto che `main` rende, e non solleva
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    assert_refused(done.returncode, done.stderr, "modello «che-non-c-e»: non è una cartella")


def test_the_version_is_the_one_of_the_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", None)  # sorgenti mai installati
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"annotated {annotated.__version__}\n"


def test_who_calls_main_keeps_their_own_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argparse, "_", str.upper)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert argparse._ is str.upper  # type: ignore[attr-defined]


FULL = [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"), RuntimeError("altro")]


@pytest.mark.parametrize("error", FULL, ids=["Python", "CPU", "un altro guasto"])
def test_memory_ends_while_translating(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fails(*_: object, **__: object) -> list[str]:
        raise error

    monkeypatch.setattr(cli, "n_best", fails)
    command = ["translate", "--model", str(model), "The dog."]
    if str(error) == "altro":
        with pytest.raises(RuntimeError, match="altro"):
            main(command)
    else:
        told = "memoria esaurita: riduci --max-tokens e, se traduci, --beam; o prendi un modello più piccolo."
        assert_refused(main(command), capsys.readouterr().err, told)


def test_full_disk(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = write_data(tmp_path / "dati"), tmp_path / "modello"
    assert train(data, out, 4) == 0
    before = files(out)
    fill_disk(monkeypatch)
    capfd.readouterr()
    code = train(data, out, 8, "--resume")
    assert_refused(code, capfd.readouterr().err, "spazio su disco esaurito")
    assert files(out) == before


def test_publishes_in_bfloat16(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--model", str(model), "--to", "annotated", str(tmp_path / "pubblicato")]
    assert main(command) == 0
    original, published = (load_pretrained(str(folder))[0] for folder in (model, tmp_path / "pubblicato"))
    for p, q in zip(original.parameters(), published.parameters(), strict=True):
        assert torch.equal(p.to(torch.bfloat16).float(), q)
    before = files(tmp_path)
    assert main(command) == 1 and "non è una cartella vuota" in capfd.readouterr().err
    assert files(tmp_path) == before


def test_refuses_parts_of_two_publications(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network, tokenizer = load_pretrained(str(model))
    publish_model(tmp_path / "una", network, tokenizer, part_bytes=40_000)
    network.decoder.layers[0].self_attention.W_o.weight.data.zero_()
    publish_model(tmp_path / "altra", network, tokenizer, part_bytes=40_000)
    parts = sorted(path.name for path in (tmp_path / "una").glob("model-*"))
    assert len(parts) > 2 and load_pretrained(str(tmp_path / "una"))
    shutil.copy(tmp_path / "altra" / parts[0], tmp_path / "una" / parts[0])
    assert main(["translate", "--model", str(tmp_path / "una"), "The dog."]) == 1
    assert "non vanno insieme" in capfd.readouterr().err


def test_published_model_resolves_it(capsys: pytest.CaptureFixture[str]) -> None:
    examples = generate(200, seed=11, held_out=True)
    translations = translate(*load_pretrained("mini"), [example.en for example in examples])
    assert sum(t == e.it for t, e in zip(translations, examples, strict=True)) >= 198
    for cue, expected in (("tired", "esso era troppo stanco"), ("wide", "essa era troppo larga")):
        sentence = f"The animal didn't cross the street because it was too {cue}."
        assert main(["translate", "--model", "mini", sentence]) == 0
        assert expected in capsys.readouterr().out
