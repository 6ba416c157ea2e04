"""Addestra la microlingua con più semi e due decoder, e misura in ciascun modello chi guarda l'antecedente di «it».

    python tools/semi_microlingua.py addestra [--runs CARTELLA]    ripartibile: salta ciò che è già fatto
    python tools/semi_microlingua.py misura [--runs CARTELLA]      scrive book/dati/semi_microlingua.json

Il capitolo «it → animal» ridisegna le sue figure da quel file. Cambia soltanto il decoder: uno strato con una testa
incrociata, come `mini`, o tre strati con quattro; tutto il resto è quello predefinito di «annotated train».
"""

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch
from provenienza import ROOT, commit

from annotated.checkpoint import load_model, save_model
from annotated.cli import RECIPES
from annotated.common import atomic_write
from annotated.data import Pair, encode_pairs
from annotated.decoding import translate
from annotated.evaluation import evaluate
from annotated.pretrained import load_pretrained
from annotated.study.coreference import (
    agreement,
    bootstrap,
    choose_and_report,
    gap,
    group_means,
    microlingua_probes,
    noun_masses,
    search,
)
from annotated.study.heads import Head, without_heads
from annotated.study.microlingua import generate
from annotated.training import train
from annotated.transformer import Config, Transformer

DECODERS = {"stretto": {"N_decoder": 1, "h_cross": 1}, "largo": {"N_decoder": 3, "h_cross": 4}}
SEEDS = {"stretto": range(1, 6), "largo": range(1, 4)}
RECIPE = RECIPES["microlingua"]
STEPS = range(100, RECIPE.training.max_steps + 1, 100)


def train_all(runs: Path) -> None:
    _, tokenizer = load_pretrained("mini")  # lo stesso vocabolario per tutti
    pairs = [[Pair(e.en, e.it) for e in generate(n, seed)] for n, seed in ((200_000, 0), (500, 1))]
    training, validation = (encode_pairs(p, tokenizer, max_len=64) for p in pairs)
    for name, shape in DECODERS.items():
        for seed in SEEDS[name]:
            folder = runs / f"{name}-{seed}"
            for step in STEPS:  # un tratto alla volta, per tenere i pesi lungo la strada
                if any((folder / str(s) / "secondi").exists() for s in (step, STEPS[-1])):
                    continue
                torch.manual_seed(seed)
                form = Config.preset("mini", tokenizer.vocab_size, dropout=RECIPE.dropout, **shape)
                model, started = Transformer(form), time.perf_counter()
                config = replace(RECIPE.training, max_steps=step, seed=seed)
                train(model, tokenizer, training, validation, config, folder, resume=True)
                save_model(folder / str(step), model, tokenizer)
                (folder / str(step) / "secondi").write_text(f"{time.perf_counter() - started:.0f}")


def threshold(gaps: torch.Tensor) -> float:
    "Il 95° percentile della media più alta, non studentizzata, delle coppie rimescolate."
    coins = torch.randint(0, 2, (2000, len(gaps)), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    return (coins @ gaps.flatten(1) / len(gaps)).amax(dim=1).quantile(0.95).item()


def measure(folder: Path, last: bool) -> dict[str, Any]:
    "Le misure del capitolo su un modello; l'ablazione soltanto alla fine dell'addestramento."
    model, tokenizer = load_model(folder)
    probes = microlingua_probes(generate(200, seed=3, held_out=True))
    frames = [probe.frame for probe in probes]

    def right() -> float:
        return (agreement(model, tokenizer, probes) > 0).float().mean().item()

    def exact() -> float:
        return evaluate(translate(model, tokenizer, [p.en for p in probes], beam=1), [p.it for p in probes]).exact

    masses = [noun_masses(model, tokenizer, probes, offset) for offset in range(6)]
    gaps = torch.stack([group_means(gap(m, probes), frames) for m in masses], dim=-1)  # (coppie, N, h, 6)
    favourite, (apart, *interval) = choose_and_report(gaps.flatten(1))
    place = [int(i) for i in torch.unravel_index(torch.tensor(favourite), gaps.shape[1:])]
    found: dict[str, Any] = {
        "accordo": right(), "scarto": apart, "intervallo_scarto": interval,
        "due_nomi": max(m.sum(-1).mean(0).max().item() for m in masses),  # la testa che più li guarda
        "p": search(gaps).p.flatten()[favourite].item(), "soglia": threshold(gaps), "strato_testa_posto": place,
    }  # fmt: skip
    if last:
        low, high = bootstrap(gaps)
        found |= {"media": gaps.mean(0).tolist(), "intervallo": [low.tolist(), high.tolist()], "esatte": exact()}
        shape, ablated = (model.config.N, model.config.h), []
        for layer, head in product(*map(range, shape)):
            with without_heads(model, [Head("encoder", layer, head)]):
                ablated.append([right(), exact()])
        for name, values in zip(("accordo_senza", "esatte_senza"), zip(*ablated, strict=True), strict=True):
            found[name] = torch.tensor(values).reshape(shape).tolist()
    return rounded(found)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def provenance(rows: list[dict[str, Any]]) -> dict[str, str]:
    shapes = [f"{name}: {x['N_decoder']} strati, {x['h_cross']} teste incrociate" for name, x in DECODERS.items()]
    return {
        "comando": "python tools/semi_microlingua.py addestra, poi misura",
        "opzioni": ", ".join(f"{key} {value}" for key, value in RECIPE.defaults().items()),
        "decoder": "; ".join(shapes),
        "semi": ", ".join(f"{row['decoder']} {row['seme']}" for row in rows if row["passo"] == STEPS[-1]),
        "commit": commit(),
        "data": date.today().isoformat(),
        "macchina": f"2 core, un thread per addestramento, torch {torch.__version__.split('+')[0]}",
        "durata": f"{sum(row['secondi'] for row in rows) / 60:.0f} minuti di addestramento in tutto",
    }


def measure_all(runs: Path, output: Path) -> None:
    rows = []
    for name in DECODERS:
        for seed in SEEDS[name]:
            for step in STEPS:
                folder = runs / f"{name}-{seed}" / str(step)
                if not all((folder.parent / str(s) / "secondi").exists() for s in (step, STEPS[-1])):
                    continue  # addestramento non finito, o tratto non salvato
                row = {"decoder": name, "seme": seed, "passo": step, "secondi": int((folder / "secondi").read_text())}
                rows.append(row | measure(folder, last=step == STEPS[-1]))
                print({key: value for key, value in rows[-1].items() if not isinstance(value, list)}, flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    with atomic_write(output) as file:
        file.write(f'{{"provenienza": {json.dumps(provenance(rows))},\n"righe": [\n{lines}\n]}}\n'.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("azione", choices=["addestra", "misura"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "semi")
    parser.add_argument("--out", type=Path, default=ROOT / "book" / "dati" / "semi_microlingua.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train_all(arguments.runs) if arguments.azione == "addestra" else measure_all(arguments.runs, arguments.out)
