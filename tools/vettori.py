"""Che cosa sa il corpus di chi si dice ogni indizio: vettori di parole contati su `train.tsv` (capitolo 19).

    python tools/vettori.py --data CARTELLA

Conta quali parole inglesi stanno vicine (entro tre posti), ne fa vettori (informazione mutua positiva, poi una SVD) e
misura, per ogni coppia di «it», quanto l'indizio somiglia al nome giusto più che all'altro. Lo stesso con i pezzi di
`base-en-it` al posto delle parole: il vettore di una parola è allora la somma di quelli dei suoi pezzi. Scrive
`book/dati/vettori.json`.
"""

import argparse
import json
import re
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import torch
from provenienza import ROOT, commit, processor, sha256, told_errors
from torch import Tensor

from annotated import load_pretrained
from annotated.common import atomic_write
from annotated.data import read_pairs
from annotated.study.coreference import Probe, read_probes

OUT = ROOT / "book" / "dati" / "vettori.json"
WINDOW, SIZE, WORDS = 3, 300, 30_000


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'t)?", text.lower())


def neighbours(ids: list[list[int]], n: int) -> Tensor:  # (n, n), sparsa
    "Quante volte due unità, numerate da 1, stanno a non più di `WINDOW` posti; lo 0 non conta."
    line = np.concatenate([np.array([*sentence, *[0] * WINDOW]) for sentence in ids])
    counts = torch.sparse_coo_tensor(size=(n, n))
    for distance in range(1, WINDOW + 1):
        one, other = line[:-distance], line[distance:]
        both = (one > 0) & (other > 0)
        found, times = map(torch.from_numpy, np.unique(one[both] * n + other[both], return_counts=True))
        counts = counts + torch.sparse_coo_tensor(torch.stack((found // n, found % n)), times.float(), (n, n))
    return (counts + counts.T).coalesce()


def vectors(counts: Tensor) -> Tensor:  # (n, SIZE), righe di norma 1
    "Informazione mutua positiva (Levy e Goldberg 2014), ridotta da una SVD troncata."
    (rows, columns), times = counts.indices(), counts.values()
    totals = torch.sparse.sum(counts, dim=1).to_dense()
    contexts = totals**0.75
    pmi = (times / totals[rows] / (contexts / contexts.sum())[columns]).log().clamp(min=0)
    torch.manual_seed(0)
    U, S, _ = torch.svd_lowrank(torch.sparse_coo_tensor(counts.indices(), pmi, counts.shape), q=SIZE, niter=6)
    return torch.nn.functional.normalize(U * S.sqrt())


def margin(probe: Probe, table: Tensor, units: dict[str, list[int]]) -> float | None:
    "Coseno fra indizio e nome giusto, meno quello con l'altro nome; `None` se una parola non c'è."
    ids = [units[text] for text in (probe.clue, *(noun.en for noun in probe.nouns))]
    if not all(ids):
        return None
    clue, *nouns = (torch.nn.functional.normalize(table[some].sum(dim=0), dim=0) for some in ids)
    right, other = nouns[probe.antecedent], nouns[1 - probe.antecedent]
    return round((clue @ right - clue @ other).item(), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    sentences = [pair.source for pair in read_pairs(args.data / "train.tsv")]
    probes = read_probes()
    wanted = sorted({text for p in probes for text in (p.clue, *(noun.en for noun in p.nouns))})

    split = [words(sentence) for sentence in sentences]
    common = Counter(word for sentence in split for word in sentence).most_common(WORDS)
    number = {word: i for i, (word, times) in enumerate(common, 1) if times >= 5}
    table = vectors(neighbours([[number.get(word, 0) for word in sentence] for sentence in split], len(number) + 1))
    by_word = {text: [number[word] for word in words(text) if word in number] for text in wanted}
    whole = [margin(probe, table, by_word) for probe in probes]

    _, tokenizer = load_pretrained("base-en-it")
    table = vectors(neighbours(tokenizer.encode(sentences), tokenizer.vocab_size))
    by_piece = dict(zip(wanted, tokenizer.encode(wanted), strict=True))
    pieces = [margin(probe, table, by_piece) for probe in probes]

    origin = {
        "comando": "python tools/vettori.py --data CARTELLA",
        "commit": commit(),
        "data": str(date.today()),
        "processore": processor(),
        "torch": torch.__version__,
        "train.tsv": sha256(args.data / "train.tsv"),
    }
    counted = {probe.clue: len(by_piece[probe.clue]) for probe in probes}
    found = {"provenienza": origin, "pezzi per indizio": counted, "parole": whole, "pezzi": pieces}
    with atomic_write(OUT) as file:
        file.write((json.dumps(found, ensure_ascii=False, indent=1) + "\n").encode())


if __name__ == "__main__":
    with told_errors():
        main()
