"""Dà un inglese a frasi italiane che non l'hanno: lo scrive un modello, l'italiano resta vero (Sennrich 2016).

    python tools/retrotraduci.py MODELLO monolingue-it.txt.xz --data CARTELLA

MODELLO traduce dall'italiano all'inglese. Scrive `CARTELLA/train-retrotradotte.tsv`, la cui fonte è «retrotradotte»;
salta le frasi che stanno già in un file di CARTELLA: quelle di validazione e di prova perché non si possono usare,
quelle di addestramento perché una compagna vera ce l'hanno.
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


def unpaired(path: Path, data: Path) -> list[str]:
    "Le frasi di `path`, una volta sola, che in `data` non sono la traduzione di nessuna."
    out = data / f"train-{SOURCE}.tsv"
    if (old := out.with_suffix(".tsv.xz")).exists():
        raise AnnotatedError(f"{old}: c'è già. Toglilo: il file nuovo lo sostituisce.")
    known = {normalize(pair.target) for file in data.glob("*.tsv*") if file != out for pair in read_pairs(file)}
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
    english = translate(fast, tokenizer, italian, beam=1, progress=True)
    with atomic_write(args.data / f"train-{SOURCE}.tsv") as file:
        file.writelines(f"{SOURCE}\t{en}\t{it}\n".encode() for en, it in zip(english, italian, strict=True) if en)


if __name__ == "__main__":
    with told_errors():
        main()
