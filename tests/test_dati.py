"""La pulizia dei dati, su una cartella di poche righe: ciascuna regola toglie la sua riga, e le altre restano."""

import subprocess
import sys
from pathlib import Path

import dati
import pytest

from annotated import AnnotatedError
from annotated.corpora import normalize
from annotated.data import find_data, read_lines

TOOLS = Path(__file__).resolve().parent.parent / "tools"
Line = tuple[str, ...]
BROKEN = {
    "doppie": ("Why?", "E perché mai?"),
    "nelle prove": ("The house is on the hill!", "La casa sta in cima al colle."),
    "vuote": ("&nbsp;", "Ciao a tutti."),
    "lunghezze": ("No, never.", "No, mai, e lo ripeterò finché qualcuno non mi darà ascolto."),
    "non tradotte": ("Press return and wait until done.", "Poi press return and wait until done."),
    "altra lingua": ("They told me the truth.", "Ils m'ont dit la vérité, et je vous crois."),
    "codici": ("Motion B5-0204/1999, A4-0116/97", "Proposta B5-0204/1999, A4-0116/97"),
    "segni": ("Type <b>{name}</b> to see your files.", "Scrivi <b>{nome}</b> per vedere i tuoi file."),
    "troncate": ("The group rejects Amendment No 12.", "Il gruppo respinge l'emendamento n."),
    "a stampo": ("The source of libfox.", "I sorgenti di libfox."),
}
KEPT = [
    ("Why?", "E perché mai?"),
    ("Tom Jones", "Tom Jones"),  # un nome non si traduce
    ("HELP ME NOW!", "AIUTATEMI SUBITO!"),
    ("It's 9:15.", "Sono le 9.15."),
    ("Turn it on.", "Accendilo."),  # non è un «on.» troncato
    ("I have a dog.", "Ho un cane."),  # «I» e «a» non ne fanno una frase italiana
    *((f"The source of lib{x}.", f"I sorgenti di lib{x}.") for x in "abcdefghij"),  # dieci di uno stampo, e non più
]
REPAIRED = {
    ("The man & # x02BC;s hat", "L & # x02BC; uomo e l’ospite: c’&#xE8;"): ("The man's hat", "L'uomo e l'ospite: c'è"),
    ("Reads files.", "legge file ;"): ("Reads files.", "legge file."),
    ("a red door", "una porta rossa,"): ("a red door", "una porta rossa"),
    ("a red gate;", "un cancello rosso;"): ("a red gate;", "un cancello rosso;"),
}
EVERYDAY = [f"{x}{y}" for x in "bdfgl" for y in "aeiou"]


def write(path: Path, lines: list[Line]) -> None:
    path.write_text("".join("\t".join(line) + "\n" for line in lines), "utf-8")


def corpus(folder: Path) -> Path:
    folder.mkdir()
    lines: list[Line] = [("giochi", *pair) for pair in [*KEPT, *BROKEN.values()]]
    for x in EVERYDAY:
        lines += [("tatoeba", f"My {x} sleeps.", f"Dorme, il mio {x}no.")]
        lines += [("tatoeba_pivot", f"My {x} sleeps.", f"Il mio {x}no dorme.")]  # lo stesso inglese
        lines += [("giochi", f"MY {x} SLEEPS", f"Ronfa il {x}no")]  # lo stesso, normalizzato
        lines += [("giochi", f"Asleep, my {x}!", f"Dorme il mio {x}no!")]  # lo stesso italiano
    write(folder / "train-a.tsv", lines)
    write(folder / "train-b.tsv", [("aula", *pair) for pair in REPAIRED])
    write(folder / "valid.tsv", [("giochi", "The house is on the hill.", "La casa è sulla collina.")])
    write(folder / "test-x.tsv", [("x", "A test.", "Una  prova.")])
    return folder


def read(path: Path) -> list[Line]:
    return [tuple(line.split("\t")) for line in read_lines(path)]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dati")
    dati.main(corpus(folder / "grezzi"), folder / "puliti", size=5, seed=1)
    return folder / "puliti"


def test_each_rule_removes_its_row_and_no_other(cleaned: Path) -> None:
    table = [line.strip("| ").split(" | ") for line in read_lines(cleaned / "LEGGIMI.md") if line.startswith("| ")]
    counts = dict(zip(table[0][1:], map(int, next(row for row in table if row[0] == "giochi")[1:]), strict=True))
    assert {rule: counts[rule] for rule in BROKEN} == dict.fromkeys(BROKEN, 1)
    train = [line[1:] for line in read(cleaned / "train.tsv") if line[0] == "giochi"]
    assert train[: len(KEPT)] == KEPT
    assert counts["tenute"] == len(train) == counts["lette"] - len(BROKEN) - counts["come in dev"]


def test_repairs(cleaned: Path) -> None:
    assert [line[1:] for line in read(cleaned / "train.tsv") if line[0] == "aula"] == list(REPAIRED.values())


def test_everyday_dev_shares_no_sentence_with_train(cleaned: Path) -> None:
    train, dev = read(cleaned / "train.tsv"), read(cleaned / "dev-quotidiano.tsv")
    assert len({normalize(line[1]) for line in dev}) == 5
    for side in (1, 2):
        assert not {normalize(line[side]) for line in train} & {normalize(line[side]) for line in dev}
    others = {normalize(en) for en, _ in KEPT}
    everyday = [line for line in train if line[0] != "aula" and normalize(line[1]) not in others]
    assert len(everyday) == 4 * (len(EVERYDAY) - 5), "si toglie solo ciò che dev contiene"


def test_folder_is_ready_and_test_sets_are_untouched(cleaned: Path) -> None:
    assert [path.name for path in find_data(cleaned).train] == ["train.tsv"]
    for name in ("valid.tsv", "test-x.tsv"):
        assert (cleaned / name).read_bytes() == (cleaned.parent / "grezzi" / name).read_bytes()


def test_same_seed_same_files(cleaned: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        dati.main(cleaned.parent / "grezzi", tmp_path / str(seed), size=5, seed=seed)
    for name in ("train.tsv", "dev-quotidiano.tsv"):
        first, same, other = ((folder / name).read_bytes() for folder in (cleaned, tmp_path / "1", tmp_path / "2"))
        assert first == same != other


def test_what_is_already_there_does_not_enter_the_training(cleaned: Path, tmp_path: Path) -> None:
    raw, old = cleaned.parent / "grezzi", tmp_path / "train-vecchio.tsv.xz"
    (tmp_path / "train-pronomi.tsv").touch()
    old.touch()
    with pytest.raises(AnnotatedError, match=r"train-vecchio.tsv.xz: c'è già"):
        dati.main(raw, tmp_path, size=5, seed=1)
    old.unlink()
    for _ in range(2):  # anche sopra a ciò che ha scritto
        dati.main(raw, tmp_path, size=5, seed=1)


def test_errors(cleaned: Path, tmp_path: Path) -> None:
    write(tmp_path / "valid.tsv", [("x", "A.", "B.")])
    write(tmp_path / "train.tsv", [("x", "A.", "B."), ("x", "Two columns.")])
    with pytest.raises(AnnotatedError, match="riga 2: 2 colonne"):
        dati.main(tmp_path, tmp_path / "out", size=5, seed=1)
    for size in (1000, 0, -1):
        with pytest.raises(AnnotatedError, match=f"--dev {size}: .* sono 25"):
            dati.main(cleaned.parent / "grezzi", tmp_path / "out", size=size, seed=1)
    with pytest.raises(AnnotatedError, match="è la cartella da leggere"):
        dati.main(tmp_path, tmp_path / "x" / "..", size=5, seed=1)
    command = [sys.executable, str(TOOLS / "dati.py"), str(tmp_path / "manca"), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "manca: la cartella non esiste" in result.stderr
    assert not (tmp_path / "out").exists()
