"""Valuta un modello su Multi30k En→De test2016 con la misura della ricetta pubblicata e con quella di sacreBLEU.

    annotated train --data CARTELLA --config tiny --vocab-size 10000 --max-steps 8000 --warmup 2000 --factor 2.53 \\
        --valid-every 106 --average 10 --patience 10 --out runs/multi30k
    python bench/multi30k.py runs/multi30k --data CARTELLA --hardware "2 core" --command "annotated train …"

La ricetta (Wu et al. 2021) dichiara 41,02 BLEU: frasi divise alla maniera di Moses, beam 5, media di dieci checkpoint.
Scrive in `risultati/multi30k.json`, con il diario.
"""

import argparse
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from sacrebleu import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from annotated import evaluate, load_pretrained, translate
from annotated.data import read_pairs
from annotated.training import read_weights
from tools.provenienza import checkpoints, commit, read_log, sha256, told_errors, weights_sha256, write_json

OUT = Path(__file__).parent / "risultati" / "multi30k.json"
PUBLISHED = 41.02
BEAM = 5
ALPHAS = 0.6, 1.0


def moses() -> Callable[[str], str]:
    "Come multi-bleu.perl vuole il tedesco: punteggiatura normalizzata, parole separate da spazi."
    normalizer, tokenizer = MosesPunctNormalizer("de"), MosesTokenizer("de")
    return lambda text: tokenizer.tokenize(normalizer.normalize(text), escape=False, return_str=True)


def scores(hypotheses: list[str], references: list[str]) -> dict[str, object]:
    split = moses()
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    tokenized = bleu.corpus_score([split(h) for h in hypotheses], [[split(r) for r in references]])
    return {"tokenized": tokenized.score, "precisions": tokenized.precisions, **vars(evaluate(hypotheses, references))}


def validation(run: Path) -> list[tuple[float, float]]:
    return [(row["step"], row["valid_loss"]) for row in read_log(run) if "valid_loss" in row]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--command", required=True, help="il comando che l'ha addestrato")
    parser.add_argument("--other", nargs=2, action="append", default=[], metavar=("NOME", "RUN"), help="altre curve")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    test = args.data / "test-2016-flickr.tsv"
    pairs = list(read_pairs(test))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    log = read_log(args.run)
    model, tokenizer = load_pretrained(str(args.run))
    *_, last = checkpoints(args.run) or [args.run / "model.safetensors"]  # con --average 1
    results = []
    for average in (True, False):
        if not average:
            model.load_state_dict(read_weights(last))
        for alpha in ALPHAS:
            hypotheses = translate(model.eval(), tokenizer, sources, BEAM, alpha, progress=True)
            results.append({"averaged": average, "alpha": alpha, **scores(hypotheses, references)})
            print(results[-1])
    record = {
        "published": PUBLISHED,
        "command": args.command,
        "hardware": args.hardware,
        "minutes": round(max(row.get("seconds", 0) for row in log) / 60),
        "date": str(date.today()),
        "commit": commit(),
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "pesi": weights_sha256(args.run),
        "sha256": {path.name: sha256(path) for path in sorted(args.data.glob("*.tsv*"))},
        "beam": BEAM,
        "results": results,
        "log": log,
        "others": {name: validation(Path(run)) for name, run in args.other},
    }
    write_json(OUT, record)


if __name__ == "__main__":
    with told_errors():
        main()
