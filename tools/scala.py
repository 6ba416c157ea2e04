"""Addestra modelli linguistici di cinque grandezze su più quantità di testo: le leggi di scala, in piccolo.

Il testo è il lato italiano di `train*.tsv`, in ordine casuale, letto una volta sola; la perdita è su `valid.tsv`.
Un tronco a learning rate costante, dopo la salita, arriva fino in fondo ai dati; per ogni quantità D se ne stacca un
ramo all'80 % di D, che nell'ultimo quinto scende a zero. Il learning rate di ogni grandezza è il migliore di quelli di
`RATES`, divisi per d_model, con il seme 0, alla seconda quantità. Scrive `book/dati/scala.json`.
"""

import argparse
import copy
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenienza import ROOT, origin, sha256, told_errors, write_json
from tqdm import tqdm

from annotated.common import EOS, AnnotatedError
from annotated.data import find_data, read_pairs
from annotated.engine import autocast, vocabulary_loss
from annotated.masks import causal_mask
from annotated.optim import make_optimizer, translation_loss
from annotated.study.family import LanguageModel
from annotated.tokenizer import Tokenizer, reservoir_sample
from annotated.transformer import Config

SIZES = ((32, 1, 2, 6), (48, 1, 2, 6), (64, 2, 2, 6), (96, 3, 1, 5), (128, 5, 1, 5))  # d_model, blocchi, semi, quantità
DATA, RATES = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000), (0.256, 0.512, 1.024)
SENTENCES, VOCABULARY, T, ROWS, WARMUP, CLIP, FINAL = 250_000, 1000, 64, 8, 100, 1.0, 0.2
OPTIONS = f"vocabolario {VOCABULARY}, contesto {T}, pezzi per lotto {T * ROWS}, passi di salita {WARMUP}, clip {CLIP}"
OPTIONS += f", discesa {FINAL}, Pre-LN, d_ff = 4 d_model, teste di 16 componenti, bf16"


def read(folder: Path) -> tuple[list[np.ndarray], dict[str, str]]:
    "Ciò che si legge e la validazione, e le impronte dei file da cui viene."
    files, pieces = find_data(folder), DATA[-1]
    valid = [pair.target for pair in read_pairs(files.valid)]
    unseen = {pair.target for path in files.train for pair in read_pairs(path)} - {*valid}  # nessuna frase due volte
    sample = reservoir_sample(sorted(unseen), SENTENCES, seed=1)
    np.random.default_rng(1).shuffle(sample)
    tokenizer = Tokenizer.train(sample[:50_000], VOCABULARY)
    text = []
    for sentences in (sample, valid):  # i pezzi in fila, ogni frase chiusa da EOS, in finestre che si toccano
        row = np.array([i for ids in tokenizer.encode(sentences) for i in (*ids, EOS)], np.int16)
        text.append(np.lib.stride_tricks.sliding_window_view(row, T + 1)[::T].copy())  # (n, T + 1)
    if (enough := len(text[0]) * T) < pieces:
        raise AnnotatedError(f"{folder}: soltanto {enough} pezzi, e ne servono {pieces}. Usa più dati.")
    return text, {path.name: sha256(path) for path in (*files.train, files.valid)}


@torch.inference_mode()
def measure(model: LanguageModel, valid: torch.Tensor) -> float:
    "La perdita di validazione, in nat per pezzo."
    total = 0.0
    for rows in valid.split(64):
        with autocast(torch.device("cpu"), "bf16"):
            logits = model(rows[:, :-1], causal_mask(T))
        total += translation_loss(logits.float(), rows[:, 1:]).item()
    return round(total / valid[:, 1:].numel(), 4)


def step(model: LanguageModel, optimizer: torch.optim.Optimizer, rows: torch.Tensor, rate: float) -> None:
    optimizer.param_groups[0]["lr"] = rate
    optimizer.zero_grad()
    with autocast(torch.device("cpu"), "bf16"):
        x = model.states(rows[:, :-1], causal_mask(T))
        loss = vocabulary_loss(x, model.embedding.weight, rows[:, 1:], rows=256, scale=1 / rows[:, 1:].numel())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


def run(d: int, n: int, seed: int, rate: float, data: tuple[int, ...], text: list[np.ndarray]) -> dict[str, Any]:
    "Un tronco con i suoi rami: per ogni quantità di dati la perdita prima e dopo la discesa."
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train, valid = (torch.from_numpy(x).long() for x in text)
    batches = train[torch.from_numpy(np.random.default_rng(seed).permutation(len(train)))].split(ROWS)
    model = LanguageModel(Config(VOCABULARY, d, 4 * d, d // 16, n, dropout=0.0, norm_first=True, max_len=T))
    optimizer, rows, done, started = make_optimizer(model), [], 0, time.process_time()
    for end in (pieces // (T * ROWS) for pieces in data):
        start = end - round(FINAL * end)
        for i in range(done, start):
            step(model, optimizer, batches[i], rate * min(1, (i + 1) / WARMUP))
        done, branch = start, copy.deepcopy((model, optimizer))
        for i in range(start, end):
            step(*branch, batches[i], rate * (end - i) / (end - start))
        rows.append({"D": end * T * ROWS, "tronco": measure(model, valid), "perdita": measure(branch[0], valid)})
    blocks, embedding = (sum(p.numel() for p in x.parameters()) for x in (model.blocks, model.embedding))
    facts = {"d_model": d, "blocchi": n, "N": blocks, "embedding": embedding, "seme": seed, "learning rate": rate}
    return facts | {"secondi": round(time.process_time() - started), "righe": rows}


def scale(folder: Path, runs: Path) -> dict[str, Any]:
    "Le prove del learning rate, poi tutti i giri; ciò che in `runs` è già fatto non si rifà."
    text, files = read(folder)
    runs = runs / hashlib.sha256(repr((OPTIONS, SENTENCES, DATA, files)).encode()).hexdigest()[:16]

    def all_of(jobs: list[Any], what: str) -> list[dict[str, Any]]:
        paths = [runs / f"{'-'.join(map(str, job[:4]))}-{job[4][-1]}.json" for job in jobs]
        for path, job in zip(tqdm(paths, what), jobs, strict=True):
            if not path.exists():
                write_json(path, run(*job, text))
        return [json.loads(path.read_text("utf-8")) for path in paths]

    trials = all_of([(d, n, 0, round(r / d, 5), DATA[1:2]) for d, n, *_ in SIZES for r in RATES], "learning rate")
    best = {x["d_model"]: x["learning rate"] for x in sorted(trials, key=lambda x: -x["righe"][0]["perdita"])}
    jobs = [(d, n, seed + 1, best[d], DATA[:amounts]) for d, n, seeds, amounts in SIZES for seed in range(seeds)]
    found = all_of(jobs, "addestramenti")
    minutes = f"{sum(x['secondi'] for x in (*trials, *found)) / 60:.0f}"
    more = {"opzioni": OPTIONS, "pezzi di validazione": str(text[1][:, 1:].size), "minuti di un core": minutes}
    facts = origin("python tools/scala.py --data CARTELLA", **more, **files)
    return {"provenienza": facts, "prove": trials, "giri": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="la cartella di train.tsv e valid.tsv")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "scala")
    parser.add_argument("--out", type=Path, default=ROOT / "book" / "dati" / "scala.json")
    options = parser.parse_args()
    with told_errors():
        write_json(options.out, scale(options.data, options.runs))
