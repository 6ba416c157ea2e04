"""Quanto costano le frasi con «it»: due corse uguali, dagli stessi pesi, una con e una senza (capitolo 19).

    python tools/gemelle.py con=RUN senza=RUN --data CARTELLA --command "annotated train …"

Di ogni corsa si prende la media di checkpoint con la validazione migliore; si misura l'accordo, e la traduzione della
validazione e degli insiemi di sviluppo, mai delle prove. La differenza di BLEU ha un intervallo al 95 %: si ripescano
le frasi, le stesse per le due corse. Scrive `book/dati/base_gemelle.json`.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from provenienza import ROOT, origin, sha256, told_errors, write_json
from pubblica import ALPHA, BEAM, FILES, averages
from sacrebleu import BLEU
from tappe import shares_right
from torch import Tensor

from annotated import evaluate, translate
from annotated.checkpoint import load_model
from annotated.data import find_data, read_pairs

OUT = ROOT / "book" / "dati" / "base_gemelle.json"
SETS = {file: what for file, what in FILES.items() if not file.startswith("test-")}
DRAWS = 2000


def counts(hypotheses: list[str], references: list[str]) -> Tensor:  # (n, 10)
    "Di ogni frase ciò che il BLEU somma: n-grammi giusti (4) e scritti (4), le due lunghezze."
    bleu, rows = BLEU(), []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = bleu.corpus_score([hypothesis], [[reference]])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return torch.tensor(rows)


def corpus_bleu(total: Tensor) -> float:  # total (10,)
    right, written, lengths = total[:4].tolist(), total[4:8].tolist(), total[8:].tolist()
    return BLEU.compute_bleu(right, written, *lengths, smooth_method="exp").score


def difference(one: Tensor, other: Tensor) -> list[float]:  # gli estremi dell'intervallo al 95 %
    "Di quanto il BLEU di `one` supera quello di `other`, ripescando le frasi."
    torch.manual_seed(0)
    draws = torch.randint(len(one), (DRAWS, len(one)))
    found = torch.tensor([corpus_bleu(one[d].sum(dim=0)) - corpus_bleu(other[d].sum(dim=0)) for d in draws])
    return [round(x, 3) for x in found.quantile(torch.tensor([0.025, 0.975])).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="NOME=RUN", help="le due corse: con=…, senza=…")
    parser.add_argument("--data", type=Path, required=True, help="i dati, con gli insiemi di sviluppo")
    parser.add_argument("--command", required=True, help="il comando della corsa «con»")
    args = parser.parse_args()
    runs = {name: Path(folder) for name, _, folder in (run.partition("=") for run in args.runs)}
    found: dict[str, Any] = {}
    written: dict[tuple[str, str], list[str]] = {}
    pairs = {file: list(read_pairs(args.data / file)) for file in SETS}
    for name, run in runs.items():
        model, tokenizer = load_model(run)
        best = min(averages(run, model, tokenizer, args.data / "valid.tsv"), key=lambda row: row["valid_loss"])
        model.load_state_dict(best.pop("weights"))
        model.eval()
        scores = []
        for file, what in SETS.items():
            sources, references = zip(*((pair.source, pair.target) for pair in pairs[file]), strict=True)
            hypotheses = translate(model, tokenizer, list(sources), BEAM, ALPHA, progress=True, origin=file)
            written[name, file] = hypotheses
            score = vars(evaluate(hypotheses, list(references)))
            scores.append({"file": file, "what": what, "pairs": len(hypotheses), **score})
        agreement = {key: round(value, 4) for key, value in shares_right(model, tokenizer).items()}
        found[name] = best | {"accordo": agreement, "scores": scores}
    for k, file in enumerate(SETS):
        references = [pair.target for pair in pairs[file]]
        one, other = (counts(written[name, file], references) for name in ("con", "senza"))
        found["con"]["scores"][k]["differenza"] = difference(one, other)
    data = {path.name: sha256(path) for path in [*find_data(args.data).train, *(args.data / file for file in SETS)]}
    write_json(OUT, {"provenienza": origin(args.command, **data), **found})


if __name__ == "__main__":
    with told_errors():
        main()
