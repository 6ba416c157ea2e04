"""Misura che cosa cambia a spegnere le teste di un modello, e scrive `book/dati/teste.npz` per il capitolo 22.

    python tools/teste.py [--model small-en-it] [--device cpu]

Va rifatto quando cambiano i pesi pubblicati: il capitolo confronta la loro impronta con quella scritta nel file.
"""

import argparse
import json
import sys
import time
from datetime import date
from typing import Any

import numpy as np
import torch
from provenienza import ROOT, commit, processor, sha256, told_errors, weights_sha256

from annotated.common import AnnotatedError, atomic_write
from annotated.data import Pair, encode_pairs, read_pairs
from annotated.decoding import translate
from annotated.pretrained import MODELS, load_pretrained
from annotated.study.coreference import agreement, read_probes
from annotated.study.heads import Head, ablation, all_heads, bleu_statistics, without_heads
from annotated.tokenizer import Tokenizer
from annotated.transformer import Transformer

DATA = ROOT / "book" / "dati"
DRAWS = 5  # sorteggi delle teste da tenere
FRACTIONS = (0, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1)  # quante teste tenere, in parte del totale


def agreements(model: Transformer, tokenizer: Tokenizer, heads: list[Head]) -> np.ndarray:  # (1 + teste, frasi)
    "L'accordo sulle coppie minime: intero, poi senza ciascuna testa."
    probes, margins = read_probes(), []
    for off in ([], *([head] for head in heads)):
        with without_heads(model, off):
            margins.append(agreement(model, tokenizer, probes).numpy())
    return np.stack(margins).astype(np.float32)


def statistics(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair], groups: list[list[Head]]) -> np.ndarray:
    "I conteggi da cui viene il BLEU di ogni frase, senza le teste di ciascun gruppo."
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    rows = []
    for off in groups:
        with without_heads(model, off):
            rows.append(bleu_statistics(translate(model, tokenizer, sources, beam=1, progress=True), references))
    return np.stack(rows).astype(np.uint16)


def provenance(name: str, device: str, seconds: float) -> dict[str, Any]:
    return {
        "command": f"python tools/teste.py --model {name} --device {device}",
        "commit": commit(),
        "model": name,
        "weights": weights_sha256(MODELS / name),
        "sentences": sha256(DATA / "teste.tsv.xz"),
        "date": date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "torch": torch.__version__,
        "seconds": round(seconds),
    }


def main(name: str, device: str) -> None:
    started = time.perf_counter()
    model, tokenizer = load_pretrained(MODELS / name, device)
    pairs = list(read_pairs(DATA / "teste.tsv.xz"))
    corpus = encode_pairs(pairs, tokenizer, model.config.max_len)
    if corpus.skipped:
        raise AnnotatedError(
            f"teste.tsv.xz: {corpus.skipped} coppie troppo lunghe per {name}. Le metà non tornerebbero."
        )
    heads, half = all_heads(model), len(pairs) // 2
    second = encode_pairs(pairs[half:], tokenizer, model.config.max_len)

    effects = ablation(model, corpus, [[head] for head in heads])  # (teste, frasi)
    print(f"effetti di {len(heads)} teste: {time.perf_counter() - started:.0f} s", file=sys.stderr)

    ranked = effects[:, :half].sum(axis=1).argsort()[::-1].tolist()  # dalla più utile, sulla prima metà
    shuffles = [np.random.default_rng(seed).permutation(len(heads)).tolist() for seed in range(DRAWS)]
    kept = sorted({round(len(heads) * f) for f in FRACTIONS})
    dropped = [[heads[i] for i in order[k:]] for k in kept for order in (ranked, *shuffles)]
    curve = ablation(model, second, dropped).reshape(len(kept), 1 + DRAWS, -1)  # (k, 1 + sorteggi, frasi)
    print(f"curva per {len(kept)} valori di k: {time.perf_counter() - started:.0f} s", file=sys.stderr)

    margins = agreements(model, tokenizer, heads)
    print(f"accordo: {time.perf_counter() - started:.0f} s", file=sys.stderr)

    groups: list[tuple[str, list[Head]]] = [("nessuna", [])]
    groups += [(f"senza {heads[i]}", [heads[i]]) for i in (*ranked[:4], ranked[-1])]
    groups += [(f"le {k} migliori", [heads[i] for i in ranked[k:]]) for k in kept if 0 < k < len(heads)]
    counts = statistics(model, tokenizer, pairs[half:], [off for _, off in groups])
    facts = provenance(name, device, time.perf_counter() - started)
    facts |= {"heads": heads, "kept": kept, "bleu": [label for label, _ in groups]}
    arrays = {
        "effects": effects.astype(np.float16),
        "curve": curve.astype(np.float16),
        "agreement": margins,
        "bleu": counts,
    }
    with atomic_write(DATA / "teste.npz") as file:
        np.savez_compressed(file, provenance=np.array(json.dumps(facts, ensure_ascii=False)), **arrays)
    print(f"scritto {DATA / 'teste.npz'}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small-en-it", help="un modello pubblicato, sotto models/")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    with told_errors():
        main(arguments.model, arguments.device)
