"""Che cosa cambia a copiare i caratteri che il vocabolario non ha, nelle frasi di prova che ne hanno (capitolo 16).

    python tools/sconosciuti.py MODELLO… --data CARTELLA

Scrive `book/dati/sconosciuti.json`: di ogni modello il BLEU su quelle frasi di `test-newstest2009.tsv` se UNK non si
scrive mai, se resta «⁇», se vi si copiano gli sconosciuti della frase nell'ordine, o secondo l'attenzione.
"""

import argparse
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from provenienza import ROOT, origin, sha256, told_errors, weights_sha256, write_json
from tqdm import tqdm

from annotated import beam_search, decoding, evaluate, load_pretrained, translate
from annotated.common import EOS, UNK
from annotated.data import Pair, read_pairs
from annotated.decoding import copy_unknown
from annotated.pretrained import find_pretrained
from annotated.tokenizer import Tokenizer
from annotated.transformer import Transformer

OUT, TEST = ROOT / "book" / "dati" / "sconosciuti.json", "test-newstest2009.tsv"
allowed = decoding.best_continuations


def forbidden(logits: torch.Tensor, scores: torch.Tensor, at_limit: torch.Tensor, copies: torch.Tensor) -> Any:
    "Come `best_continuations`, ma UNK non si scrive mai."
    return allowed(logits, scores, at_limit, torch.zeros_like(copies))


def in_order(tokenizer: Tokenizer, sentence: str, ids: list[int]) -> str:
    "Al posto del primo UNK il primo sconosciuto di `sentence`, e così via; finiti quelli, l'ultimo."
    read = zip(tokenizer.split(sentence), tokenizer.encode([sentence])[0], strict=True)
    unknown = [text for text, i in read if i == UNK]
    pieces, seen = tokenizer.pieces(ids), 0
    for t, i in enumerate(ids):
        if i == UNK:
            pieces[t] = unknown[min(seen, len(unknown) - 1)]
            seen += 1
    return tokenizer.join(pieces)


def measure(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]) -> dict[str, Any]:
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    with patch("annotated.decoding.best_continuations", forbidden):
        texts = {"mai": translate(model, tokenizer, sources, progress=True)}
    texts |= {"⁇": [], "in ordine": [], "attenzione": []}
    for sentence in tqdm(sources, unit="frase"):
        ids = beam_search(model, torch.tensor([[*tokenizer.encode([sentence])[0], EOS]]))[0][0].ids
        texts["⁇"] += tokenizer.decode([ids])
        texts["in ordine"].append(in_order(tokenizer, sentence, ids))
        texts["attenzione"].append(tokenizer.join(copy_unknown(model, tokenizer, sentence, ids)))
    different = sum(a != b for a, b in zip(texts["in ordine"], texts["attenzione"], strict=True))
    bleu = {way: evaluate(found, references).bleu for way, found in texts.items()}
    return {"bleu": bleu, "ordine e attenzione diversi": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODELLO", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    pairs, found, hashes = list(read_pairs(args.data / TEST)), {}, {TEST: sha256(args.data / TEST)}
    for name in args.models:
        model, tokenizer = load_pretrained(name)
        read = tokenizer.encode([pair.source for pair in pairs])
        chosen = [pair for pair, ids in zip(pairs, read, strict=True) if UNK in ids]
        hashes[f"pesi, {name}"] = weights_sha256(find_pretrained(name))
        found[name] = {"frasi": len(chosen), **measure(model, tokenizer, chosen)}
    facts = origin(f"python tools/sconosciuti.py {' '.join(args.models)} --data CARTELLA", **hashes)
    write_json(OUT, {"provenienza": facts, "frasi di prova": len(pairs), "modelli": found})


if __name__ == "__main__":
    with told_errors():
        main()
