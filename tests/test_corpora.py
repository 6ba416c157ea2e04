"""I corpora pubblici, provati su depositi finti con la disposizione di quelli veri: nessuna rete."""

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from annotated import AnnotatedError, corpora, load_pretrained
from annotated.cli import main
from annotated.corpora import CORPORA, Lottery, clean, download, normalize, prepare
from annotated.data import Pair, find_data, read_pairs
from conftest import fill_disk

Row = dict[str, Any]
Pairs = Sequence[tuple[str | None, str | None]]
SENTENCES = [(f"The cat number {i} sleeps on the sofa.", f"Il gatto numero {i} dorme sul divano.") for i in range(300)]


def parallel(pairs: Pairs, target: str = "it") -> list[Row]:
    "Le righe di europarl e wmt14: una colonna sola, con una frase per lingua."
    return [{"translation": {"en": en, target: other}} for en, other in pairs]


def two_columns(pairs: Pairs) -> list[Row]:
    "Le righe di parallel-sentences-tatoeba."
    return [{"english": en, "non_english": it} for en, it in pairs]


def repository(folder: Path, config: str, splits: dict[str, list[Row]]) -> Path:
    "README.md con le configurazioni, e i file Parquet di ogni parte, come sui depositi veri."
    (folder / config).mkdir(parents=True)
    files = [{"split": split, "path": f"{config}/{split}-*"} for split in splits]
    card = {"configs": [{"config_name": config, "data_files": files}]}
    (folder / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n# Deposito\n", "utf-8")
    for split, rows in splits.items():
        n = 2 if split == "train" else 1
        for i in range(n):
            part = rows[i * len(rows) // n : (i + 1) * len(rows) // n]
            pq.write_table(pa.Table.from_pylist(part), folder / config / f"{split}-{i:05}-of-{n:05}.parquet")
    return folder


def europarl(folder: Path, pairs: Pairs) -> Path:
    return repository(folder, "en-it", {"train": parallel(pairs)})


def sources(path: Path) -> list[str]:
    return [pair.source for pair in read_pairs(path)]


def keys(path: Path) -> set[str]:
    return set(map(normalize, sources(path)))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_download_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = europarl(tmp_path / "deposito", SENTENCES)
    monkeypatch.setattr("annotated.cli.download", partial(download, source=source, valid_size=20))
    assert main(["download", "europarl-en-it", "--out", str(tmp_path / "dati")]) == 0
    assert set(files(tmp_path / "dati")) == {"train.tsv", "valid.tsv"}


def test_words_and_what_is_not_text() -> None:
    assert clean("una\0due") == "una due"
    assert normalize("वह आया।") != normalize("वह आयी।")  # «lui venne», «lei venne»: i segni vocalici contano
    assert normalize("❤️, l'Été!") == normalize("❤ L'ÉTÉ")
    assert normalize("Ｄｉｅ Straße: ﬁne") == normalize("DIE STRASSE, fine")


def test_contents_and_cleaning(tmp_path: Path) -> None:
    dirty: Pairs = [
        ("The sitting\tis\nclosed.\r\n", "  La seduta è \u2028 tolta. "),
        ("", "Solo arrivo."),
        ("Only source.", " \n"),
        (None, "Nulla."),
        ("Nothing.", None),
        ("\u200b \ufeff", "Uno spazio di larghezza zero."),
        ("A replacement character.", "\ufffd"),
    ]
    source = europarl(tmp_path / "deposito", [*SENTENCES, *dirty])
    result = download("europarl-en-it", tmp_path / "dati", source, valid_size=20)
    assert set(files(tmp_path / "dati")) == {"train.tsv", "valid.tsv"}
    assert (result.train, result.valid, result.test, result.empty, result.shared) == (281, 20, 0, 6, 0)
    lines = b"".join(files(tmp_path / "dati").values()).decode().splitlines()
    assert sorted(lines) == sorted(
        "\t".join(("europarl", *pair)) for pair in [*SENTENCES, ("The sitting is closed.", "La seduta è tolta.")]
    )
    assert "281" in str(result) and "6 vuote" in str(result)


def test_carved_valid_is_disjoint_and_keeps_one_pair_per_sentence(tmp_path: Path) -> None:
    variants = [(en.upper() + "!", it) for en, it in SENTENCES] + [(f"({en})", f"{it}!") for en, it in SENTENCES]
    source = europarl(tmp_path / "deposito", [*SENTENCES, *variants])
    result = download("europarl-en-it", tmp_path / "dati", source, valid_size=50)
    train, valid = sources(tmp_path / "dati/train.tsv"), sources(tmp_path / "dati/valid.tsv")
    assert len(valid) == len(set(map(normalize, valid))) == 50
    assert not set(map(normalize, train)) & set(map(normalize, valid))
    assert (len(train), result.shared) == (250 * 3, 50 * 2)


def test_same_seed_same_files_whatever_the_order(tmp_path: Path) -> None:
    shuffled = random.Random(0).sample(SENTENCES, len(SENTENCES))
    for name, pairs in (("a", SENTENCES), ("b", shuffled)):
        europarl(tmp_path / name, pairs)
    for out, source, seed in (("1", "a", 1), ("2", "a", 1), ("3", "b", 1), ("4", "a", 2)):
        download("europarl-en-it", tmp_path / out, tmp_path / source, valid_size=30, seed=seed)
    assert files(tmp_path / "1") == files(tmp_path / "2")
    assert keys(tmp_path / "1/valid.tsv") == keys(tmp_path / "3/valid.tsv") != keys(tmp_path / "4/valid.tsv")
    first = [normalize(en) for en, _ in SENTENCES[:30]]
    assert keys(tmp_path / "1/valid.tsv") != set(first), "la validazione non è l'inizio del corpus"


def test_native_splits_are_kept_and_removed_from_train(tmp_path: Path) -> None:
    splits = {"train": SENTENCES, "validation": [*SENTENCES[:5], ("New one.", "Neu.")], "test": SENTENCES[5:8]}
    rows = {split: parallel(pairs, "de") for split, pairs in splits.items()}
    source = repository(tmp_path / "deposito", "de-en", rows)
    result = download("wmt14-en-de", tmp_path / "dati", source, valid_size=100)
    assert (result.train, result.valid, result.test, result.shared) == (292, 6, 3, 8)
    assert list(read_pairs(tmp_path / "dati/valid.tsv")) == [Pair(*pair) for pair in splits["validation"]]
    assert list(read_pairs(tmp_path / "dati/test.tsv")) == [Pair(*pair) for pair in splits["test"]]
    assert not keys(tmp_path / "dati/train.tsv") & {normalize(en) for en, _ in SENTENCES[:8]}
    assert (tmp_path / "dati/train.tsv").read_text().startswith("wmt14\tThe cat number 8 "), "dall'inglese al tedesco"


def test_two_column_layout(tmp_path: Path) -> None:
    rows = {"dev": two_columns(SENTENCES[:10]), "train": two_columns(SENTENCES)}
    source = repository(tmp_path / "deposito", "en-it", rows)
    result = download("tatoeba-en-it", tmp_path / "dati", source)
    assert (result.train, result.valid, result.shared) == (290, 10, 10)
    assert next(read_pairs(tmp_path / "dati/valid.tsv")) == Pair(*SENTENCES[0])


def test_lottery_is_a_minimum_and_memory_is_bounded() -> None:
    pairs = [Pair(str(i % 4000), str(i)) for i in range(20_000)]
    lottery, released = Lottery(10, seed=3), []
    for pair in pairs:
        released += lottery.put(pair.source, pair)
        assert len(lottery.winners) == len(lottery.heap) <= 10
    held = [pair for group in lottery.winners.values() for pair in group]
    assert sorted(held + released) == sorted(pairs), "nessuna coppia si perde né si ripete"
    assert all(len(group) == 5 for group in lottery.winners.values())
    numbers: dict[str, int] = {}
    for i in range(4000):
        one = Lottery(1, seed=3)
        one.put(str(i), Pair(str(i), ""))
        numbers[str(i)] = -one.heap[0][0]
    assert set(lottery.winners) == set(sorted(numbers, key=numbers.__getitem__)[:10])


def test_train_accepts_the_folder(tmp_path: Path) -> None:
    source = europarl(tmp_path / "deposito", SENTENCES)
    download("europarl-en-it", tmp_path / "dati", source, valid_size=20)
    (tmp_path / "dati" / "train.tsv.orig").write_text("una copia\n", "utf-8")  # non è fra i dati
    assert find_data(tmp_path / "dati").valid.name == "valid.tsv"
    options = "--config mini --vocab-size 120 --max-steps 2 --max-tokens 256 --valid-every 2 --device cpu".split()
    assert main(["train", "--data", str(tmp_path / "dati"), "--out", str(tmp_path / "modello"), *options]) == 0


def interrupt(monkeypatch: pytest.MonkeyPatch, source: Path) -> type[BaseException]:
    "Ctrl-C dopo duecento coppie."
    calls = iter(range(200))

    def stop(text: str) -> str:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return normalize(text)

    monkeypatch.setattr(corpora, "normalize", stop)
    return KeyboardInterrupt


def truncate(monkeypatch: pytest.MonkeyPatch, source: Path) -> type[BaseException]:
    "Il secondo file del train è monco."
    path = source / "en-it/train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    return AnnotatedError


@pytest.mark.parametrize("accident", [interrupt, truncate])
def test_an_accident_leaves_nothing(
    accident: Callable[[pytest.MonkeyPatch, Path], type[BaseException]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = europarl(tmp_path / "deposito", SENTENCES * 10)  # più di mille coppie per file: si legge a lotti
    written: list[str] = []
    original = corpora.Lottery.put

    def put(self: Lottery, key: str, pair: Pair) -> list[Pair]:
        written.extend(path.name for path in (tmp_path / "dati").iterdir())
        return original(self, key, pair)

    monkeypatch.setattr(corpora.Lottery, "put", put)
    with pytest.raises(accident(monkeypatch, source)):
        download("europarl-en-it", tmp_path / "dati", source, valid_size=20)
    assert any(name.endswith(".parziale") for name in written), "l'incidente è avvenuto a scrittura cominciata"
    assert files(tmp_path / "dati") == {}


@pytest.mark.parametrize("present", ["train.tsv", "train-altro.tsv.xz", "valid.tsv", "test.tsv"])
def test_existing_data_are_left_alone(present: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "dati"
    out.mkdir()
    (out / present).write_text("mio")
    monkeypatch.setattr(corpora, "_load", lambda *_: pytest.fail("ha cominciato a leggere"))
    with pytest.raises(AnnotatedError, match=rf"{present}: esiste già"):
        download("europarl-en-it", out, europarl(tmp_path / "deposito", SENTENCES))
    assert files(out) == {present: b"mio"}


def test_what_another_program_left_does_not_allow_to_overwrite(tmp_path: Path) -> None:
    "Il file provvisorio di un comando ucciso non dice di chi sia `valid.tsv`: non lo si tocca."
    source, out = europarl(tmp_path / "deposito", SENTENCES), tmp_path / "dati"
    out.mkdir()
    (out / "valid.tsv").write_text("mio")
    (out / ".0123456789abcdef.parziale").write_text("di un altro")
    with pytest.raises(AnnotatedError, match=r"valid\.tsv: esiste già"):
        download("europarl-en-it", out, source, valid_size=20)
    assert (out / "valid.tsv").read_text() == "mio"


def fails(tmp_path: Path, match: str, name: str = "europarl-en-it", **options: Any) -> None:
    with pytest.raises(AnnotatedError, match=match) as caught:
        download(name, tmp_path / "dati", **options)
    assert "\n" not in str(caught.value)
    assert files(tmp_path / "dati") == {}


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = europarl(tmp_path / "deposito", SENTENCES)
    fails(tmp_path, "nessuno: corpus sconosciuto.*europarl-en-it.*wmt14-en-fr", name="nessuno", source=source)
    fails(tmp_path, "la cartella non esiste.*Helsinki-NLP/europarl", source=tmp_path / "manca")
    fails(tmp_path, "almeno una", source=source, valid_size=0)
    fails(tmp_path, "troppo poche coppie", source=source, valid_size=300)
    fails(tmp_path, "troppo poche coppie", source=source, valid_size=301)
    fails(tmp_path, "de-en/test: non riesco a leggere.*copia", name="wmt14-en-de", source=source)
    fails(tmp_path, "en-it/dev: non riesco a leggere.*copia", name="tatoeba-en-it", source=source)
    empty = {
        split: parallel(SENTENCES if split == "train" else [("", "Leer.")], "de")
        for split in ("validation", "test", "train")
    }
    no_valid = repository(tmp_path / "senza-valid", "de-en", empty)
    fails(tmp_path, "troppo poche coppie: 300 di train, 0 di test, 0 di valid", name="wmt14-en-de", source=no_valid)
    monkeypatch.setitem(sys.modules, "datasets", None)
    fails(tmp_path, "manca la libreria datasets.*pip install datasets", source=source)


def test_no_network(tmp_path: Path) -> None:
    code = "import sys; from annotated.corpora import download; download('europarl-en-it', sys.argv[1])"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-c", code, str(tmp_path / "dati")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "AnnotatedError: Helsinki-NLP/europarl, en-it/train: non riesco a leggere" in last
    assert last.endswith("Controlla la rete e riprova.") and files(tmp_path / "dati") == {}


def test_remote_asks_for_the_pinned_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, config: str, **options: Any) -> Any:
        asked.append((path, config, options["split"], options["revision"], options["streaming"]))
        return datasets.IterableDataset.from_generator(lambda: iter(parallel(SENTENCES, "fr")))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(AnnotatedError, match="troppo poche"):  # prova, validazione e train hanno le stesse frasi
        download("wmt14-en-fr", tmp_path / "dati")
    revision = CORPORA["wmt14-en-fr"].revision
    assert asked == [("wmt/wmt14", "fr-en", split, revision, True) for split in ("test", "validation", "train")]
    assert all(len(corpus.revision) == 40 for corpus in CORPORA.values())


def two_files(folder: Path, english: str, italian: str) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    paths = folder / "mio.en", folder / "mio.it"
    for path, text in zip(paths, (english, italian), strict=True):
        path.write_bytes(text.encode())
    return paths


def test_prepare_wants_two_files(tmp_path: Path) -> None:
    (tmp_path / "mio.en").write_text("One.\n" * 100)
    (tmp_path / "mio.it").symlink_to(tmp_path / "mio.en")
    with pytest.raises(AnnotatedError, match="sono lo stesso file"):
        prepare(tmp_path / "mio.en", tmp_path / "mio.it", tmp_path / "dati")
    (tmp_path / "coppie.tsv").write_text("p\tOne.\tUno.\n" * 100)  # tre colonne: non è un file di frasi
    with pytest.raises(AnnotatedError, match="coppie.tsv: è un file di coppie"):
        prepare(tmp_path / "coppie.tsv", tmp_path / "mio.en", tmp_path / "dati")


def test_prepare(tmp_path: Path) -> None:
    pairs = [*SENTENCES, *[("Thank you.", "Grazie."), ("thank  you", "Vi\tringrazio.")] * 20, ("Nothing.", "")]
    english, italian = ("".join(f"{text}\n" for text in side) for side in zip(*pairs, strict=True))
    result = prepare(*two_files(tmp_path, english, italian), tmp_path / "dati", held_out=30)
    assert (result.valid, result.test, result.empty) == (30, 30, 1) and sum(result) == len(pairs)
    names = ("train", "valid", "test")
    parts = [keys(tmp_path / "dati" / f"{name}.tsv") for name in names]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 301, "una frase di partenza sta da una parte sola"
    written = {(p.source, p.target) for name in names for p in read_pairs(tmp_path / "dati" / f"{name}.tsv")}
    assert written <= {(" ".join(en.split()), " ".join(it.split())) for en, it in pairs}, "le coppie restano coppie"
    assert len(find_data(tmp_path / "dati").train) == 1
    again = prepare(tmp_path / "mio.en", tmp_path / "mio.it", tmp_path / "altri", held_out=30)
    assert again == result and files(tmp_path / "altri") == files(tmp_path / "dati")
    prepare(tmp_path / "mio.en", tmp_path / "mio.it", tmp_path / "seme", held_out=30, seed=2)
    assert all(keys(tmp_path / "seme" / f"{name}.tsv") != part for name, part in zip(names, parts, strict=True))


@pytest.mark.parametrize(("rows", "size"), [(9, 1), (59, 2), (39_980, 1999), (40_040, 2000)])
def test_a_twentieth_is_held_out_and_two_thousand_at_most(
    rows: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "_write", lambda *a: {name: lottery.size for name, lottery in a[3].items()})
    assert prepare(*two_files(tmp_path, "a\n" * rows, "b\n" * rows), tmp_path / "dati") == dict(test=size, valid=size)


def test_where_there_is_train_there_is_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    english, italian = ("".join(f"{text}\n" for text in side) for side in zip(*SENTENCES, strict=True))
    paths = two_files(tmp_path, english, italian)
    for after in range(3):
        fill_disk(monkeypatch, after)
        with pytest.raises(AnnotatedError, match="spazio su disco esaurito"):
            prepare(*paths, tmp_path / str(after))
        assert len(files(tmp_path / str(after))) == after and not (tmp_path / str(after) / "train.tsv").exists()


def test_prepare_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    english, italian = ("".join(f"{text}\n" for text in side) for side in zip(*SENTENCES, strict=True))
    command = ["prepare", *map(str, two_files(tmp_path, english, italian)), "--out", str(tmp_path / "dati")]
    assert main(command) == 0
    assert "train 270, valid 15, test 15 coppie" in capsys.readouterr().err
    assert main(command) == 1 and "esiste già" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("english", "italian", "match"),
    [
        ("a\nb\nc\n", "a\nb\n", r"mio\.en ha 3 righe e .*mio\.it ne ha 2"),
        ("", "", "troppo poche coppie: 0 di train"),
        ("a\nb\n", "a\nb\n", "troppo poche coppie"),
        ("a\n" * 9, "b\n" * 9, "troppo poche coppie"),
    ],
)
def test_prepare_refuses(english: str, italian: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(AnnotatedError, match=match):
        prepare(*two_files(tmp_path, english, italian), tmp_path / "dati")
    assert not (tmp_path / "dati").exists()
    (tmp_path / "dati").mkdir()
    with pytest.raises(AnnotatedError, match=match):
        prepare(tmp_path / "mio.en", tmp_path / "mio.it", tmp_path / "dati")
    assert not list((tmp_path / "dati").iterdir())  # quella di chi chiama resta


@pytest.mark.parametrize("read", [find_data, lambda folder: prepare("mio.en", "mio.it", folder)])
def test_a_closed_folder(read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_files(tmp_path, "a\n" * 30, "b\n" * 30)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chiusa").mkdir()
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(AnnotatedError, match=r"chiusa: non riesco a leggere \(permesso negato\)"):
        read(tmp_path / "chiusa")


def test_what_is_not_empty_has_pieces() -> None:
    "I caratteri fino ai surrogati, poi gli altri del piano di base, ciascuno come frase."
    characters = [*map(chr, range(0xD800)), *map(chr, range(0xE000, 0x10000))]
    assert all(load_pretrained("mini")[1].encode([c for c in characters if clean(c)]))


def test_prepare_names_the_bad_line(tmp_path: Path) -> None:
    source, target = two_files(tmp_path, "a\nb\n", "a\nb\n")
    target.write_bytes("uno\ncaffè\n".encode("latin-1"))
    with pytest.raises(AnnotatedError, match=r"mio\.it, riga 2: non è UTF-8"):
        prepare(source, target, tmp_path / "dati")
    with pytest.raises(AnnotatedError, match="manca: non riesco a leggere"):
        prepare(tmp_path / "manca", target, tmp_path / "dati")
