"""Misura sulle coppie minime di «it» uno o più modelli, e scrive `book/dati/coppie.npz` per il capitolo 21.

    python tools/coppie.py NOME=CARTELLA…      per esempio: con=models/small-en-it

Di ogni modello: l'accordo sulle coppie del libro e su frasi generate con coppie di nomi mai viste insieme; lo scarto
di ogni testa da cinque punti di partenza, e nel decoder anche contando gli articoli; gli scambi fra frasi gemelle,
strato per strato e posto per posto; le strade che dall'aggettivo inglese arrivano alla desinenza. Un modello già nel
file resta com'era, se non lo si nomina.
"""

import json
import sys
import time
from collections.abc import Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenienza import ROOT, commit, processor, told_errors, weights_sha256

from annotated.checkpoint import load_model
from annotated.common import PAD, atomic_write
from annotated.multihead import split_heads
from annotated.study.coreference import Probe, agreement, gap, group_means, noun_masses, piece_mask, read_probes
from annotated.study.heads import Head, all_heads, attention_of
from annotated.study.patching import Inlet, Spot, Stream, Twins, activations, exchange, margins, places, replaced, twins
from annotated.study.pronouns import generate
from annotated.tokenizer import Tokenizer
from annotated.transformer import Transformer, attention_weights

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
    N, below = model.config.N, model.config.N_decoder or model.config.N
    found: list[Experiment] = [
        (f"encoder/{i}/{name}", {Stream("encoder", i): mask}) for i in range(N + 1) for name, mask in english.items()
    ]
    found += [
        (f"decoder/{i}/{name}", {Stream("decoder", i): mask})
        for i in range(1, below + 1)
        for name, mask in italian.items()
    ]
    heads = [head for head in all_heads(model) if head.attention != "encoder"]
    return found + [(f"{head}/desinenza", {head: italian["desinenza"]}) for head in heads]


Values = dict[Spot, torch.Tensor]


def heard(model: Transformer, tokenizer: Tokenizer, pairs: Twins, at: torch.Tensor, spots: Sequence[Spot]) -> Values:
    """Ciò che arriva in `spots` quando il solo aggettivo inglese è quello della gemella, e lo leggono soltanto le teste
    incrociate, soltanto dove `at` (n, T) è vera: nel resto del decoder ogni testa dice ciò che diceva."""
    memory, clue = Stream("encoder", model.config.N), places(tokenizer, pairs)["indizio"]
    twin = activations(model, pairs.other, pairs.target, [memory])[memory]
    twin = twin.gather(1, pairs.partner[..., None].expand(-1, -1, twin.size(-1)))
    heads = [head for head in all_heads(model) if head.attention != "encoder"]
    said = activations(model, pairs.source, pairs.target, heads)
    held = {head: ((pairs.target != PAD) & ~(at & (head.attention == "cross")), x) for head, x in said.items()}
    with replaced(model, {memory: (clue, twin), **held}):
        return activations(model, pairs.source, pairs.target, spots)


def stem(model: Transformer, pairs: Twins, spots: Sequence[Spot]) -> Values:
    "Ciò che arriva in `spots`, dove si scrive la desinenza, se la radice già scritta è quella della gemella."
    other = pairs.target[torch.arange(len(pairs.target)) ^ 1]
    rows, last = torch.arange(len(other)), (other != PAD).sum(dim=1) - 1
    values = activations(model, pairs.source, other, spots)
    return {spot: x[rows, last][:, None].expand(-1, other.size(1), -1) for spot, x in values.items()}


def shares(
    model: Transformer, pairs: Twins, query: dict[Spot, tuple[torch.Tensor, torch.Tensor]], layer: int
) -> tuple[torch.Tensor, torch.Tensor]:  # (n, h, T, d_k): che cosa dà ogni parola alla desinenza, e di quanto cambia
    "Le teste del decoder di uno strato, parola per parola, prima e con le query di `query`."
    inlet, last = Inlet("decoder", layer, "W_v"), (pairs.target != PAD).sum(dim=1) - 1
    own = attention_of(model, Head("decoder", layer, 0))
    V = split_heads(own.W_v(activations(model, pairs.source, pairs.target, [inlet])[inlet]), own.h)
    looks = [attention_weights(model, pairs.source, pairs.target).decoder[layer]]
    with replaced(model, query):
        looks.append(attention_weights(model, pairs.source, pairs.target).decoder[layer])
    before, after = (look[torch.arange(len(last)), :, last, :, None] for look in looks)  # (n, h, T, 1)
    return before * V, (after - before) * V


@torch.inference_mode()
def routes(model: Transformer, tokenizer: Tokenizer, pairs: Twins, probes: Sequence[Probe]) -> dict[str, torch.Tensor]:
    "I margini quando la gemella si sente per una strada sola: quale posto la raccoglie, quale testa, da quale parola."
    c, where = model.config, italian_places(tokenizer, pairs, probes)
    below, ending, written = c.N_decoder or c.N, where.pop("desinenza"), pairs.target != PAD
    words = {}
    for number, noun in zip("12", where.values(), strict=True):
        words |= {f", {number}° articolo": noun.roll(-1, 1) & ~noun, f", {number}° nome": noun}
    words |= {", altro": written & ~torch.stack(list(words.values())).any(dim=0), "": written}
    top, found = Stream("decoder", below), {}

    def reading(swaps: dict[Spot, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        with replaced(model, swaps):
            return margins(model, pairs)

    queries = [Inlet("decoder", i, "W_q") for i in range(1, below)]
    english, italian = heard(model, tokenizer, pairs, ending, [top, *queries]), stem(model, pairs, queries)
    found["inglese, diretta"] = reading({top: (ending, english[top])})
    elsewhere = written & ~ending
    inlets = [Inlet("decoder", i, part) for i in range(1, below) for part in ("W_k", "W_v")]
    keys = heard(model, tokenizer, pairs, elsewhere, inlets)
    found["inglese, altri posti"] = reading({spot: (elsewhere, x) for spot, x in keys.items()})
    for layer, inlet in enumerate(queries, 1):
        for clue, values in (("inglese", english), ("radice", italian)):
            query = {inlet: (ending, values[inlet])}
            found[f"{clue}, query {layer + 1}"] = reading(query)
            said, change = shares(model, pairs, query, layer)
            for j, (name, mask) in product(range(c.h), words.items()):
                if name and clue == "inglese":
                    continue  # parola per parola soltanto per la radice
                moved = said[:, j].sum(dim=1) + (change[:, j] * mask[..., None]).sum(dim=1)
                swap = {Head("decoder", layer, j): (ending, moved[:, None].expand(-1, written.size(1), -1))}
                found[f"{clue}, {layer + 1}.{j + 1}{name}"] = reading(swap)
    return found


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
    routed = routes(model, tokenizer, pairs, probes)
    found |= {"routes": np.array(list(routed)), "routed": torch.stack(list(routed.values())).numpy()}
    return found


def main(models: dict[str, Path]) -> None:
    stored = dict(np.load(FILE)) if FILE.exists() else {}
    facts = json.loads(str(stored.pop("provenance", "{}")))
    for name, folder in models.items():
        started = time.perf_counter()
        stored = {key: value for key, value in stored.items() if not key.startswith(f"{name}/")}
        stored |= {f"{name}/{key}": value for key, value in measure(folder).items()}
        facts[name] = {
            "command": f"python tools/coppie.py {name}={folder}",
            "weights": weights_sha256(folder),
            "commit": commit(),
            "date": date.today().isoformat(),
            "machine": processor(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - started),
        }
        print(f"{name}: {facts[name]['seconds']} s", file=sys.stderr)
        with atomic_write(FILE) as file:  # dopo ogni modello: chi interrompe perde soltanto l'ultimo
            np.savez_compressed(file, provenance=np.array(json.dumps(facts, ensure_ascii=False)), **stored)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not all("=" in argument for argument in sys.argv[1:]):
        sys.exit(__doc__)
    with told_errors():
        main({name: Path(folder) for name, folder in (argument.split("=", 1) for argument in sys.argv[1:])})
