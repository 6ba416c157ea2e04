"""Il diario di un addestramento lungo, per il capitolo 19: perdite, ore, pezzi letti; a ogni istantanea BLEU e accordo.

    python tools/diario.py book/dati/base.json --snapshots CARTELLA --stage RUN DATI "annotated train …" [--stage …]

Ogni tappa comincia dai pesi della precedente; passi, pezzi e ore si sommano. Le tappe già nel diario restano
com'erano (le loro cartelle possono non esserci più), fino a quella il cui comando si ripete: da lì in poi si ridicono
tutte. Un'istantanea è una copia di `model.safetensors`, la media degli ultimi checkpoint, presa quando è quella del
passo che il suo nome dice: sta in `CARTELLA/NOME-DELLA-RUN/weights-PASSO.safetensors`, e quelle già misurate, con gli
stessi pesi, non si rimisurano. I BLEU sono sugli insiemi di sviluppo, con decodifica greedy.
"""

import argparse
import json
from itertools import accumulate, chain, count, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from provenienza import checkpoints, commit, processor, read_log, sha256, told_errors, write_json
from tappe import pieces, share, shares_right

from annotated import Transformer, evaluate, translate
from annotated.checkpoint import load_model
from annotated.data import find_data, load_corpus, make_batches, read_pairs
from annotated.study.coreference import agreement, read_probes
from annotated.tokenizer import Tokenizer
from annotated.training import read_weights

DEV = "dev-quotidiano", "dev-newssyscomb2009"
SPENT = "step", "pieces", "seconds"
MEAN = 100  # una riga del diario è la media delle perdite di tanti passi


def pieces_read(
    run: Path, data: Path, options: dict[str, Any], tokenizer: Tokenizer, max_len: int, steps: int
) -> list[int]:
    "Quanti pezzi d'arrivo veri si sono letti alla fine di ogni passo, dallo 0."
    repeat = {source: float(times) for source, times in options["repeat"]}
    corpus = load_corpus(find_data(data).train, tokenizer, max_len, run / "data", repeat)
    epochs = (make_batches(corpus.lengths, options["max_tokens"], [options["seed"], epoch]) for epoch in count())
    sizes = (int(corpus.lengths[batch, 1].sum()) for batch in islice(chain.from_iterable(epochs), steps))
    return list(accumulate(sizes, initial=0))


def losses(log: list[dict[str, Any]], read: list[int]) -> list[dict[str, Any]]:
    "Le perdite d'addestramento, a gruppi di `MEAN` passi, e quelle di validazione."
    rows, group = list[dict[str, Any]](), list[float]()
    for row in log:
        if "loss" not in row:
            rows.append(row)
            continue
        group.append(row["loss"])
        if row["step"] % MEAN == 0:
            mean = {"loss": round(fmean(group), 4), "pieces": read[row["step"]], "seconds": row["seconds"]}
            rows.append({"step": row["step"], **mean})
            group = []
    return rows


def added(row: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    "La riga con passi, pezzi e secondi contati dall'inizio della prima tappa."
    return {**row, **{name: round(row[name] + before[name], 1) for name in SPENT if name in row}}


def clues_seen(data: Path) -> list[str]:
    "Gli indizi delle coppie che finiscono anche qualche frase generata."
    last = {pair.source.rstrip(".").rsplit(maxsplit=1)[-1] for pair in read_pairs(data / "train-pronomi.tsv")}
    return sorted(last & {probe.clue for probe in read_probes()})


def by_clue(model: Transformer, tokenizer: Tokenizer, seen: list[list[str]]) -> dict[str, dict[str, Any]]:
    "L'accordo sulle coppie, secondo la tappa in cui il loro indizio si è visto la prima volta."
    probes = read_probes()
    right = (agreement(model, tokenizer, probes) > 0).tolist()
    groups: dict[str, list[bool]] = {name: [] for name in (*map(str, range(1, len(seen) + 1)), "mai")}
    for probe, ok in zip(probes, right, strict=True):
        groups[next((str(n) for n, clues in enumerate(seen, 1) if probe.clue in clues), "mai")].append(ok)
    return {name: {"frasi": len(some), "giuste": sum(some)} for name, some in groups.items() if some}


def measure(model: Transformer, tokenizer: Tokenizer, data: Path, seen: list[list[str]]) -> dict[str, Any]:
    "BLEU sugli insiemi di sviluppo e accordo di «it»."
    scores = {}
    for name in DEV:
        sources, references = zip(*read_pairs(data / f"{name}.tsv"), strict=True)
        hypotheses = translate(model, tokenizer, list(sources), beam=1, progress=True)
        scores[name] = round(evaluate(hypotheses, list(references)).bleu, 2)
    shares = {name: round(value, 4) for name, value in shares_right(model, tokenizer).items()}
    return {"bleu": scores, "accordo": shares, "indizi": by_clue(model, tokenizer, seen)}


def kept(stages: list[dict[str, Any]], command: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    "Le tappe che precedono quella di `command`, o tutte se non c'è, e a che passo finiscono."
    commands = [stage["comando"] for stage in stages]
    past = stages[: commands.index(command)] if command in commands else [*stages]
    return past, past[-1]["fine"] if past else dict.fromkeys(SPENT, 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="FILE.json", help="il diario da scrivere o da continuare")
    parser.add_argument("--snapshots", type=Path, required=True, metavar="CARTELLA")
    parser.add_argument("--stage", nargs=3, action="append", required=True, metavar=("RUN", "DATI", "COMANDO"))
    parser.add_argument("--hardware", default=processor(), help="dove si è addestrato (predefinito: questa macchina)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    old = {"provenienza": {"tappe": []}, "diario": [], "istantanee": []}
    if args.out.exists():
        old = json.loads(args.out.read_text("utf-8"))
    measured = {row["step"]: row for row in old["istantanee"]}
    stages, before = kept(old["provenienza"]["tappe"], args.stage[0][2])
    diary, snapshots = (
        [row for row in old[part] if row["step"] <= before["step"]] for part in ("diario", "istantanee")
    )
    for folder, data_folder, command in args.stage:
        run, data = Path(folder), Path(data_folder)
        model, tokenizer = load_model(run)
        options = json.loads((run / "options.json").read_text("utf-8"))
        log = read_log(run)
        read = pieces_read(run, data, options, tokenizer, model.config.max_len, log[-1]["step"])
        clues = clues_seen(data)
        timed = [{"step": 0, "seconds": 0.0}, *(row for row in log if "seconds" in row)]
        for path in checkpoints(args.snapshots / run.name):
            step, weights = int(path.stem.removeprefix("weights-")), sha256(path)
            total = before["step"] + step
            if measured.get(total, {}).get("pesi") != weights:
                model.load_state_dict(read_weights(path))
                seconds = max(row["seconds"] for row in timed if row["step"] <= step)
                spent = added({"step": step, "pieces": read[step], "seconds": seconds}, before)
                seen = [*(stage["indizi"] for stage in stages), clues]
                measured[total] = spent | {"pesi": weights} | measure(model, tokenizer, data, seen)
                write_json(args.out, old | {"istantanee": list(measured.values())})  # chi interrompe riparte da qui
            snapshots.append(measured[total])
        diary += [added(row, before) for row in losses(log, read)]
        files = [*find_data(data).train, *(data / f"{name}.tsv" for name in DEV)]
        quota = round(share(pieces(data, tokenizer), options["repeat"]), 3)
        end = log[-1]["step"]
        before = added({"step": end, "pieces": read[end], "seconds": timed[-1]["seconds"]}, before)
        stage = {"comando": command, "processore": args.hardware, "commit": commit(), "torch": torch.__version__}
        stage |= {"quota di pronomi": quota, "fine": before, "indizi": clues}
        stages.append(stage | {path.name: sha256(path) for path in files})
    write_json(args.out, {"provenienza": {"tappe": stages}, "diario": diary, "istantanee": snapshots})


if __name__ == "__main__":
    with told_errors():
        main()
