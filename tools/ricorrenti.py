"""RNNsearch e un Transformer di pari parametri imparano la microlingua: chi prima, in passi e in secondi (capitolo 23).

    python tools/ricorrenti.py [--seeds 6] [--steps 1000]      scrive book/dati/ricorrenti.json

Vocabolario, lotti, ottimizzatore, curva del learning rate e soglia del gradiente sono gli stessi. Cambia la cima della
curva: di ogni macchina si provano, con il seme 0, le tre di `RATES`, e si tiene quella con cui la validazione sta meno
sopra `SOLVED`; con lei si addestrano i semi da 1 in poi. I secondi di un passo, in mediana, sono di processore.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import islice, product
from typing import Any

import torch
from provenienza import ROOT, origin, told_errors, write_json
from torch import Tensor, nn
from tqdm import tqdm

from annotated.common import PAD
from annotated.data import Batch, Corpus, Pair, encode_pairs
from annotated.optim import make_optimizer, translation_loss
from annotated.pretrained import load_pretrained
from annotated.study.coreference import microlingua_probes
from annotated.study.microlingua import generate
from annotated.study.recurrent import torch_rnnsearch
from annotated.training import batch_stream
from annotated.transformer import Config, Transformer

OUT = ROOT / "book" / "dati" / "ricorrenti.json"
RATES = (0.0025, 0.005, 0.01)
PAIRS, MAX_TOKENS, WARMUP, CLIP, EVERY, SOLVED = 80_000, 1024, 100, 1.0, 25, 0.01  # chi tira a sorte «it»: 0,022
FORM: dict[str, Any] = {"d_model": 64, "d_ff": 128, "h": 4, "N": 2, "dropout": 0.0, "max_len": 64}
_, tokenizer = load_pretrained("mini")  # lo stesso vocabolario per tutte e due
MACHINES = {
    "RNNsearch": lambda: torch_rnnsearch(tokenizer.vocab_size, FORM["d_model"], d=74),
    "Transformer": lambda: Transformer(Config(tokenizer.vocab_size, **FORM)),
}
some = microlingua_probes(generate(150, seed=3, held_out=True))  # coppie di nomi mai viste; il caso vale 0,5
both = [*zip(some[::2], some[1::2][::-1], strict=True)]  # due frasi in una riga: il doppio di ciò che si è letto
SETS = {  # inglese, italiano, e con l'altro accordo
    "validazione": [(e.en, e.it, e.it) for e in generate(300, seed=1)],
    "prova": [(p.en, p.it, p.wrong) for p in some],
    "due, la prima": [(f"{p.en} {q.en}", f"{p.it} {q.it}", f"{p.wrong} {q.it}") for p, q in both],
    "due, la seconda": [(f"{p.en} {q.en}", f"{p.it} {q.it}", f"{p.it} {q.wrong}") for p, q in both],
}


@cache
def corpus() -> Corpus:
    return encode_pairs((Pair(e.en, e.it) for e in generate(PAIRS)), tokenizer, FORM["max_len"])


def logits(model: nn.Module, batch: Batch) -> Tensor:
    out = model(batch.src, batch.tgt_in)
    return out if isinstance(out, Tensor) else out[0]


@torch.inference_mode()
def judge(model: nn.Module, rows: list[tuple[str, str, str]]) -> dict[str, float]:
    "Perdita per pezzo, quota di frasi identiche al riferimento, e di frasi in cui è più probabile l'accordo giusto."
    (sources, *sides), found = zip(*rows, strict=True), []
    for side in sides:
        batch = encode_pairs(map(Pair, sources, side), tokenizer, FORM["max_len"]).batch(range(len(rows)))
        log_probs, empty = logits(model.eval(), batch).log_softmax(-1), batch.tgt_out == PAD
        pieces = log_probs.gather(2, batch.tgt_out[..., None])[..., 0].masked_fill(empty, 0)
        same = (log_probs.argmax(-1) == batch.tgt_out) | empty  # se lo è a ogni pezzo, la greedy scrive il riferimento
        found.append((pieces.sum(1), same.all(1), (~empty).sum()))
    (right, same, n), (wrong, _, _) = found
    values = {"perdita": -right.sum() / n, "identiche": same.float().mean(), "accordo": (right > wrong).float().mean()}
    return {name: round(x.item(), 5) for name, x in values.items()}


def learn(name: str, rate: float, seed: int, steps: int) -> dict[str, Any]:
    "Un addestramento, misurato di tanto in tanto."
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, rows, times = MACHINES[name](), [], []
    optimizer, size = make_optimizer(model), sum(p.numel() for p in model.parameters())
    for step, batch in enumerate(islice(batch_stream(corpus(), MAX_TOKENS, seed), steps), 1):
        start = time.process_time()
        optimizer.param_groups[0]["lr"] = rate * min(step / WARMUP, (WARMUP / step) ** 0.5)
        optimizer.zero_grad()
        (translation_loss(logits(model.train(), batch), batch.tgt_out) / batch.tgt_out.count_nonzero()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        times.append(time.process_time() - start)
        if step % EVERY == 0:
            loss = judge(model, SETS["validazione"])["perdita"]
            rows.append({"passi": step, **judge(model, SETS["prova"]), "perdita": loss})
    found: dict[str, Any] = {"macchina": name, "learning rate": rate, "seme": seed, "parametri": size}
    found |= {"secondi per passo": round(torch.tensor(times).median().item(), 5)}
    found |= {two: judge(model, SETS[two]) for two in SETS if two.startswith("due")}
    return found | {key: [row[key] for row in rows] for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    if args.seeds < 1 or args.steps < EVERY:
        parser.error(f"--seeds {args.seeds} --steps {args.steps}: serve almeno un seme, e almeno {EVERY} passi")
    facts, runs = origin(f"python tools/ricorrenti.py --seeds {args.seeds} --steps {args.steps}"), []
    with ProcessPoolExecutor(2) as pool:
        jobs = [(name, rate, 0) for rate, name in product(RATES, MACHINES)]
        for _ in range(2):  # prima si sceglie, poi si misura
            runs += tqdm(pool.map(learn, *zip(*jobs, strict=True), [args.steps] * len(jobs)), total=len(jobs))
            last_is_best = sorted(runs, key=lambda run: -sum(loss >= SOLVED for loss in run["perdita"]))
            best = {run["macchina"]: run["learning rate"] for run in last_is_best}
            jobs = [(name, best[name], seed) for seed, name in product(range(1, args.seeds + 1), MACHINES)]
    facts["opzioni"] = f"coppie {PAIRS}, max_tokens {MAX_TOKENS}, warmup {WARMUP}, clip {CLIP}, {FORM}"
    write_json(OUT, {"provenienza": facts, "corse": runs})


if __name__ == "__main__":
    with told_errors():
        main()
