"""Che cosa cambia per una cosa sola: due corse dagli stessi pesi, una con e una senza (capitolo 19; 85_distillare).

    python tools/gemelle.py con=RUN senza=RUN --data CARTELLA --command "annotated train …" --out FILE

Di ogni corsa si prende la media di checkpoint con la validazione migliore; si misura l'accordo, e la traduzione della
validazione e degli insiemi di sviluppo, mai delle prove. La differenza di BLEU ha un intervallo al 95 %: si ripescano
le frasi, le stesse per le due corse.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from provenienza import origin, sha256, told_errors, weights_sha256, write_json
from pubblica import ALPHA, BEAM, FILES, averages
from tappe import shares_right

from annotated import evaluate, translate
from annotated.checkpoint import load_model
from annotated.data import find_data, read_pairs
from annotated.study.heads import bleu_difference, bleu_statistics

SETS = {file: what for file, what in FILES.items() if not file.startswith("test-")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="NOME=RUN", help="le due corse: con=…, senza=…")
    parser.add_argument("--data", type=Path, required=True, help="i dati, con gli insiemi di sviluppo")
    parser.add_argument("--command", required=True, help="il comando della corsa «con»")
    parser.add_argument("--out", type=Path, required=True, help="il .json da scrivere")
    args = parser.parse_args()
    runs = {name: Path(folder) for name, _, folder in (run.partition("=") for run in args.runs)}
    if set(runs) != {"con", "senza"}:
        parser.error(f"le due corse si chiamano con=RUN e senza=RUN, non {' '.join(args.runs)}")
    found: dict[str, Any] = {}
    counted: dict[tuple[str, str], np.ndarray] = {}
    pairs = {file: list(read_pairs(args.data / file)) for file in SETS}
    for name, run in runs.items():
        model, tokenizer = load_model(run)
        best = min(averages(run, model, tokenizer, args.data / "valid.tsv"), key=lambda row: row["valid_loss"])
        model.load_state_dict(best.pop("weights"))
        scores = []
        for file, what in SETS.items():
            sources, references = ([getattr(pair, side) for pair in pairs[file]] for side in ("source", "target"))
            hypotheses = translate(model, tokenizer, sources, BEAM, ALPHA, progress=True, origin=file)
            counted[name, file] = bleu_statistics(hypotheses, references)
            score = vars(evaluate(hypotheses, references))
            scores.append({"file": file, "what": what, "pairs": len(hypotheses), **score})
        agreement = {key: round(value, 4) for key, value in shares_right(model, tokenizer).items()}
        found[name] = best | {"accordo": agreement, "scores": scores}
    for score in found["con"]["scores"]:
        gain = bleu_difference(*(counted[name, score["file"]] for name in ("con", "senza")))
        score["differenza"] = [round(gain.low, 3), round(gain.high, 3)]
    data = {path.name: sha256(path) for path in [*find_data(args.data).train, *(args.data / file for file in SETS)]}
    weights = {f"pesi, {name}": weights_sha256(run) for name, run in runs.items()}
    write_json(args.out, {"provenienza": origin(args.command, **weights, **data), **found})


if __name__ == "__main__":
    with told_errors():
        main()
