"""Dà un inglese a frasi italiane che non l'hanno: lo scrive un modello, l'italiano resta vero (Sennrich 2016).

    python tools/retrotraduci.py MODELLO monolingue-it.txt.xz --data CARTELLA

MODELLO traduce dall'italiano all'inglese. Scrive `CARTELLA/train-retrotradotte.tsv`, la cui fonte è «retrotradotte»;
salta le frasi che stanno già in un file di CARTELLA: quelle di validazione e di prova perché non si possono usare,
quelle di addestramento perché una compagna ce l'hanno. Così, interrotto, riparte da dov'era; per rifarle tutte con un
altro modello si toglie `train-retrotradotte.tsv`.
"""

import argparse
import sys
from itertools import compress
from pathlib import Path

from provenienza import told_errors

from annotated import load_pretrained, translate
from annotated.common import AnnotatedError, atomic_write
from annotated.corpora import normalize
from annotated.data import read_lines, read_pairs
from annotated.decoding import with_precision

SOURCE = "retrotradotte"
BLOCK = 10_000  # frasi fra una scrittura e l'altra


def unpaired(path: Path, data: Path) -> list[str]:
    "Le frasi di `path`, una volta sola, che in `data` non sono la traduzione di nessuna."
    if (old := data / f"train-{SOURCE}.tsv.xz").exists():
        raise AnnotatedError(f"{old}: c'è già. Toglilo: il file nuovo lo sostituisce.")
    known = {normalize(pair.target) for file in data.glob("*.tsv*") for pair in read_pairs(file)}
    distinct = {normalize(line): line.replace("\t", " ").strip() for line in read_lines(path)}
    return [sentence for key, sentence in distinct.items() if key and key not in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODELLO", help="nome o cartella di un modello dall'italiano all'inglese")
    parser.add_argument("sentences", type=Path, metavar="FRASI", help="una frase italiana per riga, anche .xz")
    parser.add_argument("--data", type=Path, required=True, metavar="CARTELLA", help="i dati dell'addestramento")
    args = parser.parse_args()
    italian = unpaired(args.sentences, args.data)
    model, tokenizer = load_pretrained(args.model)
    fits = [0 < len(ids) < model.config.max_len for ids in tokenizer.encode(italian)]
    print(f"{args.sentences}: {len(fits) - sum(fits)} frasi troppo lunghe restano fuori", file=sys.stderr)
    italian = [*compress(italian, fits)]
    fast = with_precision(model, "bf16")
    out = args.data / f"train-{SOURCE}.tsv"
    rows = list(read_lines(out)) if out.exists() else []
    for start in range(0, len(italian), BLOCK):
        some = italian[start : start + BLOCK]
        english = translate(fast, tokenizer, some, beam=1, progress=True)
        rows += [f"{SOURCE}\t{en}\t{it}" for en, it in zip(english, some, strict=True) if en]
        with atomic_write(out) as file:
            file.writelines(f"{row}\n".encode() for row in rows)


if __name__ == "__main__":
    with told_errors():
        main()
