"""Pulisce una cartella di coppie inglese–italiano e la scrive pronta per «annotated train --data».

    python tools/dati.py CARTELLA --out CARTELLA [--dev 1000] [--seed 1]

Legge i file `train*.tsv` di CARTELLA, anche compressi, e scrive `train.tsv`; copia com'erano `valid*`, `dev*`, `test*`;
ricava `dev-quotidiano.tsv`, frasi di ogni giorno di cui in `train.tsv` non resta né l'inglese né l'italiano. Quante
coppie toglie ciascuna regola, fonte per fonte, sta in `LEGGIMI.md`, con le impronte dei file letti e scritti.
"""

import argparse
import html
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from provenienza import commit, sha256, told_errors
from tqdm import tqdm

from annotated.common import AnnotatedError, atomic_write
from annotated.corpora import normalize
from annotated.data import find_data, read_lines, read_pairs

EVERYDAY = ("tatoeba", "tatoeba_pivot")  # da qui viene dev-quotidiano
OURS = re.compile(r"train(-pronomi|-retrotradotte)?\.tsv.*")  # ciò che scrive questo programma, e chi viene dopo
PER_STAMP = 10  # coppie che si tengono di uno stesso stampo

# Parole grammaticali, senza quelle che due delle lingue scrivono uguali («a», «i», «all», «per»)
_WORDS = """
the of and to with for is are this that from by be will have was your can at when has they we our
il lo gli di del della dei delle degli che con un una non si sono è nel nella alla dal da su più anche
les des et est pour dans une sur der das und ist nicht mit für los por je vous nous och att pas que las
"""
ENGLISH, ITALIAN, OTHERS = (set(line.split()) for line in _WORDS.strip().splitlines())

SIGNS = re.compile(r"<[^<>]+>|\{[^{}]*\}|https?:|%[^\W\d]|~[a-z%]|/\w+/|[_\\|=<>\[\]{}@#$~]")
CUT_EN = re.compile(r"[a-z] Nos?\.?$")  # «No 5» diviso prima del numero, che è nella frase che segue
CUT_IT = re.compile(r"\b([Nn]n?|[Oo]nn?|artt?)\.$")


class Row(NamedTuple):
    "Una coppia con la sua fonte."

    source: str
    en: str
    it: str


def repair(text: str) -> str:
    "Ricompone le entità HTML, anche spezzate da spazi («l & # x02BC; uomo»), e raddrizza gli apostrofi."
    if "&" in text:
        text = re.sub(r" ?& # x02BC; ?", "'", text)
        text = html.unescape(re.sub(r"& # (x\w+;)", r"&#\1", text))
    return " ".join(re.sub("[’ʼ´]", "'", text).split())


def repair_pair(row: Row) -> Row:
    "Ripara le due metà, e nell'italiano la virgola o il punto e virgola finale che l'inglese non ha."
    en, it = repair(row.en), repair(row.it)
    if not en.endswith((";", ",", ":")):
        it = re.sub(" ?[;,]$", en[-1] if en.endswith((".", "!", "?")) else "", it)
    return Row(row.source, en, it)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text)


def lopsided(row: Row) -> bool:
    "Una metà è lunga più del doppio dell'altra, e di quindici caratteri ancora."
    short, long = sorted((len(row.en), len(row.it)))
    return long > 2 * short + 15


def untranslated(row: Row) -> bool:
    "Le parole inglesi che non sono nomi (minuscole, di almeno tre lettere) sono quasi tutte anche nell'italiano."
    common = {word for word in words(row.en) if len(word) > 2 and word.islower()}
    if row.en.casefold() == row.it.casefold():
        return bool(common)
    return len(common) > 2 and len(common & set(words(row.it))) > 0.8 * len(common)


def foreign(row: Row) -> bool:
    "In una metà le parole grammaticali di altre lingue sono almeno due, e più di quelle della sua."
    en, it = words(row.en.casefold()), words(row.it.casefold())
    if sum(w in ENGLISH or w in OTHERS for w in it) > max(1, sum(w in ITALIAN for w in it)):
        return True
    return sum(w in ITALIAN or w in OTHERS for w in en) > max(1, sum(w in ENGLISH for w in en))


def codes(row: Row) -> bool:
    "Una metà è una sigla con cifre o barre, oppure di lettere ne ha meno di sei segni su dieci."
    for text in (row.en, row.it):
        if re.fullmatch(r"[^a-zà-ù]*[\d_()/][^a-zà-ù]*", text):
            return True
        if len(text) > 20 and sum(map(str.isalpha, text)) < 0.6 * len(text.replace(" ", "")):
            return True
    return False


def marked_up(row: Row) -> bool:
    "Più di due segni di markup, segnaposto, indirizzi o percorsi."
    return max(len(SIGNS.findall(row.en)), len(SIGNS.findall(row.it))) > 2


def cut(row: Row) -> bool:
    "Finisce con «No» o «n.», o l'italiano comincia con un numero che l'inglese non ha: il resto è nella frase accanto."
    start = re.match(r"\d+", row.it)
    return bool(CUT_IT.search(row.it) or CUT_EN.search(row.en)) or (start is not None and start[0] not in row.en)


RULES = {
    "vuote": lambda row: not (row.en and row.it),  # di sole entità: «&nbsp;»
    "lunghezze": lopsided,
    "non tradotte": untranslated,
    "altra lingua": foreign,
    "codici": codes,
    "segni": marked_up,
    "troncate": cut,
}


def stamp(row: Row) -> str:
    "La frase inglese senza le parole che passano uguali in italiano, cioè nomi e sigle, e senza numeri."
    copied = set(row.it.split())
    masked = ("·" if word in copied or any(map(str.isdigit, word)) else word for word in row.en.split())
    return re.sub("·( ·)+", "·", " ".join(masked))


def read_rows(files: list[Path]) -> Iterator[Row]:
    for path in files:
        for _ in read_pairs(path):  # si ferma, con file e riga, a una riga malformata
            pass
        for line in tqdm(read_lines(path), desc=path.name, unit=" righe", unit_scale=True):
            source, en, it = line.split("\t")
            yield Row(source, en, it)


def clean(rows: Iterator[Row], held_out: set[str], counts: dict[str, Counter[str]]) -> Iterator[Row]:
    "Le righe, riparate, che passano tutte le regole; in `counts`, di ogni fonte, quante ne ha lette, riparate e tolte."
    seen: set[tuple[str, str]] = set()
    stamps: Counter[tuple[str, str]] = Counter()
    for raw in rows:
        row = repair_pair(raw)
        count, pair = counts[row.source], (row.en, row.it)
        count["lette"] += 1
        count["riparate"] += row != raw
        if pair in seen:
            count["doppie"] += 1
        elif normalize(row.en) in held_out:
            count["nelle prove"] += 1
        elif broken := next((name for name, breaks in RULES.items() if breaks(row)), None):
            count[broken] += 1
        elif stamps[key := (row.source, stamp(row))] == PER_STAMP:
            count["a stampo"] += 1
        else:
            stamps[key] += 1
            seen.add(pair)
            yield row


def draw(rows: list[Row], size: int, seed: int) -> list[Row]:
    "`size` frasi di ogni giorno, ciascuna con la prima delle sue traduzioni, estratte con `seed`."
    first: dict[str, Row] = {}
    for row in rows:
        if row.source in EVERYDAY:
            first.setdefault(normalize(row.en), row)
    if not 0 < size <= len(first):
        told = f"di {' e '.join(EVERYDAY)} le frasi diverse sono {len(first)}"
        raise AnnotatedError(f"--dev {size}: {told}. Chiedine almeno una, e non di più.")
    return [first[key] for key in random.Random(seed).sample(sorted(first), size)]


def table(counts: dict[str, Counter[str]]) -> str:
    "I conti di ogni fonte, in Markdown, dalla fonte che resta più grande."
    columns = ["lette", "riparate", "doppie", "nelle prove", *RULES, "a stampo", "come in dev", "tenute"]
    total: Counter[str] = sum(counts.values(), Counter())
    ordered = sorted(counts.items(), key=lambda item: (-item[1]["tenute"], item[0]))
    lines = [["fonte", *columns], ["---", *["---:"] * len(columns)]]
    lines += [[name, *(str(count[column]) for column in columns)] for name, count in [*ordered, ("tutte", total)]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(path: Path, rows: list[Row]) -> None:
    with atomic_write(path) as file:
        file.writelines(("\t".join(row) + "\n").encode() for row in rows)


def main(folder: Path, out: Path, size: int, seed: int) -> None:
    if out.resolve() == folder.resolve():
        raise AnnotatedError(f"{out}: è la cartella da leggere, e train.tsv vi sarebbe riscritto. Scegline un'altra.")
    files = find_data(folder).train
    copied = sorted(path for prefix in ("valid", "dev", "test") for path in folder.glob(f"{prefix}*.tsv*"))
    if old := [path for path in copied if path.name.startswith("dev-quotidiano.")]:
        raise AnnotatedError(f"{old[0]}: c'è già, e si ricava da train. Toglilo, o rileggi i dati grezzi.")
    if strange := [path for path in sorted(out.glob("train*.tsv*")) if not OURS.fullmatch(path.name)]:
        raise AnnotatedError(f"{strange[0]}: c'è già, e si addestrerebbe anche su quello. Toglilo, o cambia --out.")
    held_out = {normalize(repair(pair.source)) for path in copied for pair in read_pairs(path)}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    rows = list(clean(read_rows(files), held_out, counts))
    dev = draw(rows, size, seed)
    english, italian = {normalize(row.en) for row in dev}, {normalize(row.it) for row in dev}
    train = [row for row in rows if normalize(row.en) not in english and normalize(row.it) not in italian]
    kept, clean_rows = Counter(row.source for row in train), Counter(row.source for row in rows)
    for source, count in counts.items():
        count["tenute"], count["come in dev"] = kept[source], clean_rows[source] - kept[source]

    write(out / "train.tsv", train)
    write(out / "dev-quotidiano.tsv", [Row("dev_quotidiano", row.en, row.it) for row in dev])
    for path in copied:
        shutil.copyfile(path, out / path.name)
    prints = [f"- letto `{path.name}`: {sha256(path)}" for path in [*files, *copied]]
    prints += [f"- scritto `{name}`: {sha256(out / name)}" for name in ("train.tsv", "dev-quotidiano.tsv")]
    command = f"`python tools/dati.py CARTELLA --out CARTELLA --dev {size} --seed {seed}`"
    text = ["# Coppie inglese–italiano, pulite", f"{command}, commit {commit()}, {date.today()}.", table(counts)]
    with atomic_write(out / "LEGGIMI.md") as file:
        file.write("\n\n".join([*text, "Impronte SHA-256:", "\n".join(prints) + "\n"]).encode())
    print(table(counts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="CARTELLA", help="dove sono train*.tsv, valid.tsv e le prove")
    parser.add_argument("--out", type=Path, required=True, metavar="CARTELLA", help="dove scrivere i dati puliti")
    parser.add_argument("--dev", type=int, default=1000, metavar="N", help="frasi di ogni giorno (predefinito: 1000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="decide quali (predefinito: 1)")
    arguments = parser.parse_args()
    with told_errors():
        main(arguments.folder, arguments.out, arguments.dev, arguments.seed)
