"""Addestra molte volte un modello piccolo di microlingua; dal passo 100, ogni 25, gli chiede che cosa sa e chi guarda.

    python tools/dinamica.py addestra [--runs CARTELLA] [--semi 20] [--larghi 0]    salta ciò che è già fatto così
    python tools/dinamica.py misura [--runs CARTELLA]          scrive book/dati/dinamica.json

Cambiano il seme e il decoder: «stretto», uno strato con una testa incrociata, o «largo», due strati con
quattro. Ci si ferma quando in ogni categoria almeno il 98 % degli accordi è giusto per quattro misure di
fila, o dopo mille passi.

La regola. Per ogni addestramento e ogni categoria dell'antecedente, all'ultimo passo, su metà delle cornici
si sceglie lo sguardo (testa e posto da cui guarda) con il t più alto, e lo scambio (testa e posto) con il t
più alto; le loro curve si leggono sull'altra metà. Lo scarto di una frase è in media con quello della gemella,
e gli sguardi ciechi per costruzione non si scelgono. Una curva «sale» alla prima di due misure di fila sopra
la metà della sua altezza finale (gli accordi si contano da 0,5). Contano le categorie in cui, sull'altra metà,
lo sguardo (o lo scambio) scelto batte i segni sorteggiati (p < 0,05); non, e l'abbiamo corretto
dopo aver guardato, se all'ultimo passo è a zero o sotto. Fra testa e
capacità viene prima quella che sale prima, se l'intervallo al 95 % della differenza media, ripescando gli
addestramenti, sta tutto da una parte; altrimenti non si sa. Il conto lo fanno `rises`, `delays` e `verdict`,
nell'appendice «Una testa che nasce».
"""

import argparse
import json
import os
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenienza import ROOT, commit, told_errors
from torch import Tensor
from tqdm import tqdm

from annotated.common import AnnotatedError, atomic_write
from annotated.data import Corpus, Pair, encode_pairs
from annotated.engine import Objective, train_step
from annotated.optim import make_optimizer, noam
from annotated.pretrained import load_pretrained
from annotated.study.coreference import gap, group_means, halves, microlingua_probes, noun_masses, search
from annotated.study.heads import all_heads, without_heads
from annotated.study.microlingua import generate
from annotated.study.patching import exchange, margins, places, twins
from annotated.training import batch_stream
from annotated.transformer import Config, Transformer

DECODERS = {"stretto": {"N_decoder": 1, "h_cross": 1}, "largo": {"N_decoder": 2, "h_cross": 4}}
FORM = {"d_model": 64, "d_ff": 128, "N": 2, "dropout": 0.0}
OPTIONS = {"coppie": 50_000, "max_tokens": 2048, "warmup": 300, "factor": 0.7, "ogni": 25, "al più": 1000}
SETTINGS = json.dumps({**FORM, **OPTIONS, **DECODERS}, ensure_ascii=False)
MACHINE = f"{os.cpu_count()} core, un thread per addestramento, torch {torch.__version__.split('+')[0]}"
KINDS = ["animal", "place", "food", "machine"]
STARTS: dict[str, int | str] = {
    "encoder, da «it»": 0, "encoder, dal pezzo dopo": 1, "encoder, dall'indizio": "indizio",
    "decoder, dal pronome": "decoder", "incrociata, dal pronome": "cross",
}  # fmt: skip
_, tokenizer = load_pretrained("mini")  # lo stesso vocabolario per tutti
probes = microlingua_probes(generate(120, seed=3, held_out=True))
pairs, frames = twins(tokenizer, probes), [probe.frame for probe in probes]
kind = np.array([KINDS.index(probe.nouns[probe.antecedent].category) for probe in probes])
where = {name: mask for name, mask in places(tokenizer, pairs).items() if name in ("it", "dopo «it»", "indizio")}


def looks(model: Transformer) -> list[str]:
    "I nomi degli sguardi, nell'ordine in cui `measure` li mette."
    shapes = {name: [h for h in all_heads(model) if h.attention == name] for name in ("encoder", "decoder", "cross")}
    kinds = {start: str(start) if start in shapes else "encoder" for start in STARTS.values()}
    return [f"{head}, {label}" for label, start in STARTS.items() for head in shapes[kinds[start]]]


def measure(model: Transformer) -> dict[str, np.ndarray]:
    "Frase per frase: accordo (n,), scarto di ogni sguardo (n, sguardi), effetto di ogni scambio (n, scambi)."
    heads = [head for head in all_heads(model) if head.attention == "encoder"]
    base = margins(model, pairs)
    swapped = exchange(model, pairs, [{head: mask} for head in heads for mask in where.values()])
    gaps = [gap(noun_masses(model, tokenizer, probes, start), probes).flatten(1) for start in STARTS.values()]
    values = {"giusti": (base > 0).float(), "sguardi": torch.cat(gaps, 1), "scambi": (base - swapped).T}
    return {name: x.numpy().astype(np.float16) for name, x in values.items()}


def run(decoder: str, seed: int, corpus: Corpus) -> dict[str, Any]:
    "Un addestramento intero, misurato lungo la strada."
    torch.manual_seed(seed)
    model = Transformer(Config.preset("mini", tokenizer.vocab_size, **FORM, **DECODERS[decoder]))
    objective, optimizer, started = Objective(model), make_optimizer(model), time.process_time()
    found: list[dict[str, Any]] = []
    for step, batch in enumerate(batch_stream(corpus, int(OPTIONS["max_tokens"]), seed), 1):
        rate = noam(step, FORM["d_model"], OPTIONS["warmup"], OPTIONS["factor"])
        train_step(objective, optimizer, batch, rate)
        if step % OPTIONS["ogni"] or step < 100:
            continue
        found.append({"passo": step} | measure(model))
        solved = [all(one["giusti"][kind == k].mean() >= 0.98 for k in range(4)) for one in found[-4:]]
        if sum(solved) == 4 or step == OPTIONS["al più"]:
            break
    heads = [head for head in all_heads(model) if head.attention == "encoder"]
    without = []
    for head in heads:
        with without_heads(model, [head]):
            without.append((margins(model, pairs) > 0).numpy())
    names = {"nomi_sguardi": looks(model), "nomi_scambi": [f"{h}, {place}" for h in heads for place in where]}
    return {
        **{key: np.stack([one[key] for one in found]) for key in found[0]}, **names,
        "senza": np.stack(without), "secondi": round(time.process_time() - started),
        "opzioni": SETTINGS, "commit": commit(), "macchina": MACHINE,
    }  # fmt: skip


def read_run(path: Path) -> dict[str, np.ndarray]:
    found = dict(np.load(path))
    if str(found.get("opzioni")) != SETTINGS:
        told = "è di altre opzioni, o di quando il file non le diceva"
        raise AnnotatedError(f"{path}: {told}. Toglilo, o scegli un'altra --runs.")
    return found


def train_all(runs: Path, narrow: int, wide: int) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    sentences = generate(int(OPTIONS["coppie"]), seed=0)
    corpus = encode_pairs((Pair(e.en, e.it) for e in sentences), tokenizer, max_len=64)
    for decoder, seed in [("stretto", s + 1) for s in range(narrow)] + [("largo", s + 1) for s in range(wide)]:
        path = runs / f"{decoder}-{seed}.npz"
        if path.exists():
            read_run(path)
            continue
        found = run(decoder, seed, corpus)
        with atomic_write(path) as file:
            np.savez_compressed(file, **found)
        print(f"{decoder} {seed}: {found['passo'][-1]} passi, {found['secondi']} s", flush=True)


def by_frame(values: np.ndarray, k: int, half: Tensor | None = None) -> Tensor:
    "La media per cornice, sulle frasi il cui antecedente è della categoria `k`; o di metà delle cornici."
    allowed = set(range(max(frames) + 1) if half is None else half.tolist())
    mine = [i for i in range(len(probes)) if kind[i] == k and frames[i] in allowed]
    return group_means(torch.from_numpy(values[mine].astype(np.float32)), [frames[i] for i in mine])


def unbiased(gaps: np.ndarray) -> np.ndarray:
    "Gli scarti (passi, n, sguardi) in media con la gemella: chi guarda sempre lo stesso nome vale zero."
    return (gaps + gaps[:, np.arange(gaps.shape[1]) ^ 1]) / 2


def is_blind(name: str) -> bool:
    "Uno sguardo del primo strato che parte prima dell'indizio non può saperne nulla."
    return name.startswith("encoder 1.") and name.endswith(("da «it»", "dal pezzo dopo"))


def category(found: dict[str, np.ndarray], k: int) -> dict[str, Any]:
    "Le curve di un addestramento, per gli antecedenti di una categoria."
    choose, report = halves(max(frames) + 1)
    found = {**found, "sguardi": unbiased(found["sguardi"].astype(np.float32))}
    curves: dict[str, Any] = {"giusti": [by_frame(x, k).mean().item() for x in found["giusti"]]}
    for name in ("sguardi", "scambi"):
        blind = torch.tensor([is_blind(label) for label in found[f"nomi_{name}"].tolist()])
        best = int(search(by_frame(found[name][-1], k, choose), 1, blind=blind).t.argmax())
        last = by_frame(found[name][-1][:, [best]], k, report)
        curves[name] = [by_frame(x[:, best], k, report).mean().item() for x in found[name]]
        curves[f"scelto_{name}"] = str(found[f"nomi_{name}"][best])
        curves[f"conta_{name}"] = search(last).p.item()
        curves[f"p_{name}"] = [search(by_frame(x, k), 500, blind=blind).p.min().item() for x in found[name]]
    return curves


def measure_all(runs: Path, output: Path) -> None:
    rows, origins = [], {"commit": {commit()}, "macchina": set[str]()}
    for decoder in DECODERS:
        paths = sorted(runs.glob(f"{decoder}-*.npz"), key=lambda path: int(path.stem.split("-")[1]))
        for path in tqdm(paths, desc=decoder):
            found = read_run(path)
            for name, those in origins.items():
                those.add(str(found[name]))
            row = {"decoder": decoder, "seme": int(path.stem.split("-")[1]), "secondi": int(found["secondi"])}
            row |= {"passi": found["passo"].tolist(), "teste": int(found["senza"].shape[0])}
            row["senza"] = [[float(one[kind == k].mean()) for k in range(4)] for one in found["senza"]]
            row |= {"categorie": {name: category(found, k) for k, name in enumerate(KINDS)}}
            rows.append(json.loads(json.dumps(row), parse_float=lambda text: round(float(text), 3)))
    if not rows:
        raise AnnotatedError(f"{runs}: non c'è nessun addestramento. Controlla --runs.")
    narrow = sum(row["decoder"] == "stretto" for row in rows)
    shapes = [f"{name}: strati {x['N_decoder']}, teste incrociate {x['h_cross']}" for name, x in DECODERS.items()]
    facts = {
        "comando": f"python tools/dinamica.py addestra --semi {narrow} --larghi {len(rows) - narrow}, poi misura",
        "opzioni": ", ".join(f"{key} {value}" for key, value in {**FORM, **OPTIONS}.items()),
        "decoder": "; ".join(shapes),
        "semi": ", ".join(f"{row['decoder']} {row['seme']}" for row in rows),
        "commit": ", ".join(sorted(origins["commit"])),
        "data": date.today().isoformat(),
        "macchina": "; ".join(sorted(origins["macchina"])),
        "durata": f"{sum(row['secondi'] for row in rows) / 60:.0f} minuti di un core in tutto",
    }
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    with atomic_write(output) as file:
        head = json.dumps(facts, ensure_ascii=False)
        file.write(f'{{"provenienza": {head},\n"righe": [\n{lines}\n]}}\n'.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("azione", choices=["addestra", "misura"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "dinamica")
    parser.add_argument("--semi", type=int, default=20, help="addestramenti con il decoder stretto")
    parser.add_argument("--larghi", type=int, default=0, help="addestramenti con il decoder largo")
    parser.add_argument("--out", type=Path, default=ROOT / "book" / "dati" / "dinamica.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with told_errors():
        if arguments.azione == "addestra":
            train_all(arguments.runs, arguments.semi, arguments.larghi)
        else:
            measure_all(arguments.runs, arguments.out)
