"""Misura sulle coppie minime di «it» uno o più modelli, e scrive `book/dati/coppie.npz` per il capitolo 21.

    python tools/coppie.py NOME=CARTELLA…      per esempio: con=models/small-en-it

Di ogni modello: l'accordo sulle coppie del libro e su frasi generate con cornici e coppie di nomi mai viste; lo scarto
di ogni testa da cinque punti di partenza, e nel decoder anche contando gli articoli; gli scambi fra frasi gemelle,
strato per strato e posto per posto. Un modello già nel file resta com'era, se non lo si nomina.
"""

import json
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenienza import ROOT, commit, processor, sha256

from annotated.checkpoint import load_model
from annotated.common import PAD, atomic_write
from annotated.study.coreference import (
    Probe,
    agreement,
    gap,
    group_means,
    noun_masses,
    piece_mask,
    read_probes,
)
from annotated.study.heads import Head
from annotated.study.patching import Spot, Stream, Twins, exchange, margins, places, twins
from annotated.study.pronouns import generate
from annotated.tokenizer import Tokenizer
from annotated.transformer import Transformer

FILE = ROOT / "book" / "dati" / "coppie.npz"
STARTS: tuple[int | str, ...] = (0, 1, "indizio", "decoder", "cross")
ASSESSABLE = 0.55  # sotto, gli scambi non si fanno
UNSEEN = 300  # frasi generate con coppie di nomi tenute da parte
Experiment = tuple[str, dict[Spot, torch.Tensor]]


def italian_places(tokenizer: Tokenizer, pairs: Twins, probes: Sequence[Probe]) -> dict[str, torch.Tensor]:
    "Dove stanno, nell'italiano già scritto, i due nomi e il pezzo prima della desinenza: (n, T)."
    masks = {name: torch.zeros_like(pairs.target, dtype=torch.bool) for name in ("1° nome", "2° nome", "desinenza")}
    for row, (ids, probe) in enumerate(zip(pairs.target, probes, strict=True)):
        length = int((ids != PAD).sum())
        found = piece_mask(tokenizer.pieces(ids[:length].tolist()), [noun.it for noun in probe.nouns]).bool()
        masks["1° nome"][row, :length], masks["2° nome"][row, :length] = found.T
        masks["desinenza"][row, length - 1] = True
    return masks


def experiments(model: Transformer, tokenizer: Tokenizer, pairs: Twins, probes: Sequence[Probe]) -> list[Experiment]:
    "Gli scambi, con la loro etichetta: «encoder/strato/posto», «decoder/strato/posto», «testa/desinenza»."
    english, italian = places(tokenizer, pairs), italian_places(tokenizer, pairs, probes)
    N, below, h = model.config.N, model.config.N_decoder or model.config.N, model.config.h
    found: list[Experiment] = [
        (f"encoder/{i}/{name}", {Stream("encoder", i): mask}) for i in range(N + 1) for name, mask in english.items()
    ]
    found += [
        (f"decoder/{i}/{name}", {Stream("decoder", i): mask})
        for i in range(1, below + 1)
        for name, mask in italian.items()
    ]
    heads = [Head(kind, i, j) for kind in ("decoder", "cross") for i in range(below) for j in range(h)]
    return found + [(f"{head}/desinenza", {head: italian["desinenza"]}) for head in heads]


def measure(folder: Path) -> dict[str, Any]:
    model, tokenizer = load_model(folder)
    probes = read_probes()
    frames = [probe.frame for probe in probes]
    unseen = [probe for probe in generate(UNSEEN, seed=1, held_out=True) if probe.it != probe.wrong]
    found: dict[str, Any] = {
        "agreement": agreement(model, tokenizer, probes).numpy(),
        "unseen": agreement(model, tokenizer, unseen).numpy(),
        "unseen_frames": np.array([probe.frame for probe in unseen]),
    }
    for start in STARTS:
        found[f"gaps/{start}"] = group_means(gap(noun_masses(model, tokenizer, probes, start), probes), frames).numpy()
    articled = noun_masses(model, tokenizer, probes, "decoder", articles=True)
    found["gaps/articoli"] = group_means(gap(articled, probes), frames).numpy()
    if (found["agreement"] > 0).mean() < ASSESSABLE:
        return found  # di un modello che accorda a caso non c'è nulla da scambiare
    pairs = twins(tokenizer, probes)
    tried = experiments(model, tokenizer, pairs, probes)
    found |= {
        "experiments": np.array([label for label, _ in tried]),
        "base": margins(model, pairs).numpy(),
        "other": margins(model, pairs, pairs.other).numpy(),
        "patched": exchange(model, pairs, [swaps for _, swaps in tried]).numpy(),
    }
    return found


def main(models: dict[str, Path]) -> None:
    stored = dict(np.load(FILE)) if FILE.exists() else {}
    facts = json.loads(str(stored.pop("provenance", "{}")))
    for name, folder in models.items():
        started = time.perf_counter()
        stored |= {f"{name}/{key}": value for key, value in measure(folder).items()}
        facts[name] = {
            "command": f"python tools/coppie.py {name}={folder}",
            "weights": sha256(folder / "model.safetensors"),
            "commit": commit(),
            "date": date.today().isoformat(),
            "machine": processor(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - started),
        }
        print(f"{name}: {facts[name]['seconds']} s", file=sys.stderr)
    with atomic_write(FILE) as file:
        np.savez_compressed(file, provenance=np.array(json.dumps(facts, ensure_ascii=False)), **stored)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not all("=" in argument for argument in sys.argv[1:]):
        sys.exit(__doc__)
    main({name: Path(folder) for name, folder in (argument.split("=", 1) for argument in sys.argv[1:])})
