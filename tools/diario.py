"""Il diario di un addestramento lungo, per il capitolo 19: perdite, ore, pezzi letti; a ogni istantanea BLEU e accordo.

    python tools/diario.py RUN book/dati/base.json --data CARTELLA --snapshots CARTELLA --command "annotated train …"

Un'istantanea è una copia di `model.safetensors`, la media degli ultimi checkpoint, presa quando è quella del passo che
il suo nome dice, `weights-PASSO.safetensors`; quelle già misurate non si rimisurano. I BLEU sono sugli insiemi di
sviluppo, con decodifica greedy.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import safetensors.torch
import torch
from provenienza import commit, processor, sha256
from tappe import pieces, share, shares_right

from annotated import Transformer, evaluate, translate
from annotated.checkpoint import load_model
from annotated.common import atomic_write
from annotated.data import find_data, load_corpus, make_batches, read_pairs
from annotated.tokenizer import Tokenizer

DEV = "dev-quotidiano", "dev-newssyscomb2009"
MEAN = 100  # una riga del diario è la media delle perdite di tanti passi


def pieces_read(run: Path, data: Path, options: dict[str, Any], tokenizer: Tokenizer, max_len: int) -> list[int]:
    "Quanti pezzi d'arrivo veri si sono letti alla fine di ogni passo, dallo 0."
    repeat = {source: float(times) for source, times in options["repeat"]}
    corpus = load_corpus(find_data(data).train, tokenizer, max_len, run / "data", repeat)
    epochs = (make_batches(corpus.lengths, options["max_tokens"], [options["seed"], epoch]) for epoch in range(3))
    sizes = [int(corpus.lengths[batch, 1].sum()) for batches in epochs for batch in batches]
    return [0, *np.cumsum(sizes).tolist()]


def losses(log: list[dict[str, Any]], read: list[int]) -> list[dict[str, Any]]:
    "Le perdite d'addestramento, a gruppi di `MEAN` passi, e quelle di validazione."
    rows, group = list[dict[str, Any]](), list[float]()
    for row in log:
        if "loss" in row:
            group.append(row["loss"])
        else:
            rows.append(row)
        if "loss" in row and row["step"] % MEAN == 0:
            mean = {"loss": round(fmean(group), 4), "pieces": read[row["step"]], "seconds": row["seconds"]}
            rows.append({"step": row["step"], **mean})
            group = []
    return rows


def measure(model: Transformer, tokenizer: Tokenizer, data: Path) -> dict[str, Any]:
    "BLEU sugli insiemi di sviluppo e accordo di «it»."
    scores = {}
    for name in DEV:
        sources, references = zip(*read_pairs(data / f"{name}.tsv"), strict=True)
        hypotheses = translate(model, tokenizer, list(sources), beam=1, progress=True)
        scores[name] = round(evaluate(hypotheses, list(references)).bleu, 2)
    agreement = {name: round(value, 4) for name, value in shares_right(model, tokenizer).items()}
    return {"bleu": scores, "accordo": agreement}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="la cartella dell'addestramento")
    parser.add_argument("out", type=Path, metavar="FILE.json", help="il diario da scrivere o da continuare")
    parser.add_argument("--data", type=Path, required=True, metavar="CARTELLA")
    parser.add_argument("--snapshots", type=Path, required=True, metavar="CARTELLA")
    parser.add_argument("--command", required=True, help="il comando dell'addestramento, da scrivere nel diario")
    args = parser.parse_args()
    model, tokenizer = load_model(args.run)
    options = json.loads((args.run / "options.json").read_text("utf-8"))
    log = [json.loads(line) for line in (args.run / "log.jsonl").read_text("utf-8").splitlines()]
    old = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {"istantanee": []}
    measured = {row["step"]: row for row in old["istantanee"]}
    read = pieces_read(args.run, args.data, options, tokenizer, model.config.max_len)
    for path in sorted(args.snapshots.glob("weights-*.safetensors")):
        if (step := int(path.stem.removeprefix("weights-"))) not in measured:
            model.load_state_dict(safetensors.torch.load_file(path))
            seconds = max((row["seconds"] for row in log if "seconds" in row and row["step"] <= step), default=0.0)
            spent = {"pieces": read[step], "seconds": seconds}
            measured[step] = {"step": step, **spent, **measure(model, tokenizer, args.data)}
    files = [*find_data(args.data).train, *(args.data / f"{name}.tsv" for name in DEV)]
    origin = {"comando": args.command, "commit": commit(), "processore": processor(), "torch": torch.__version__}
    origin |= {path.name: sha256(path) for path in files}
    origin["quota di pronomi"] = round(share(pieces(args.data, tokenizer), options["repeat"]), 3)
    diary = {"provenienza": origin, "diario": losses(log, read), "istantanee": [measured[n] for n in sorted(measured)]}
    with atomic_write(args.out) as file:
        file.write((json.dumps(diary, ensure_ascii=False, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
