"""Quante volte il corpus vero ha letto gli indizi delle coppie di «it», e come vi accorda un modello (capitolo 19).

    python tools/indizi.py MODELLO --data CARTELLA

Scrive `book/dati/indizi.json`: di ogni indizio le volte in cui compare nell'inglese di `train.tsv`, di ogni coppia del
libro il margine con cui MODELLO (nome o cartella) preferisce la traduzione giusta.
"""

import argparse
import re
from collections import Counter
from pathlib import Path

from provenienza import ROOT, origin, sha256, told_errors, weights_sha256, write_json
from tqdm import tqdm

from annotated import load_pretrained
from annotated.data import read_pairs
from annotated.pretrained import find_pretrained
from annotated.study.coreference import agreement, read_probes

OUT = ROOT / "book" / "dati" / "indizi.json"


def occurrences(words: set[str], path: Path) -> Counter[str]:
    "Quante volte ogni parola di `words` compare, intera, nelle frasi di partenza di `path`."
    found = re.compile(rf"\b({'|'.join(map(re.escape, sorted(words)))})\b")
    pairs = tqdm(read_pairs(path), desc=path.name, unit=" coppie", unit_scale=True)
    return Counter(word for pair in pairs for word in found.findall(pair.source.lower()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODELLO")
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    probes, corpus = read_probes(), args.data / "train.tsv"
    folder = find_pretrained(args.model)
    model, tokenizer = load_pretrained(folder)
    hashes = {"pesi": weights_sha256(folder), "train.tsv": sha256(corpus)}
    facts = origin(f"python tools/indizi.py {folder.name} --data CARTELLA", **hashes)
    wanted = {probe.clue for probe in probes}
    counts = occurrences(wanted, corpus)
    margins = [round(x, 3) for x in agreement(model, tokenizer, probes).tolist()]
    found = {"provenienza": facts, "indizi": {clue: counts[clue] for clue in sorted(wanted)}, "margini": margins}
    write_json(OUT, found)


if __name__ == "__main__":
    with told_errors():
        main()
