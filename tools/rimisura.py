"""Rimisura modelli già pubblicati, quando cambia il modo di tradurre: i punteggi e le frasi d'esempio, e la scheda.

    python tools/rimisura.py small-en-it base-en-it --data CARTELLA

I pesi restano quelli: in `metrics.json`, «measured» dice quando e con quale commit si sono ripresi i punteggi.
"""

import argparse
import json
from datetime import date
from pathlib import Path

from provenienza import commit, told_errors
from pubblica import ALPHA, BEAM, EXAMPLES, FILES, card, measure

from annotated import load_pretrained, translate
from annotated.common import atomic_write
from annotated.pretrained import MODELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODELLO", nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="i dati, con gli insiemi di prova")
    args = parser.parse_args()
    for name in args.models:
        metrics = json.loads((MODELS / name / "metrics.json").read_text("utf-8"))
        model, tokenizer = load_pretrained(name)
        metrics["scores"] = [measure(model, tokenizer, args.data / file) for file in FILES]
        metrics["examples"] = list(zip(EXAMPLES, translate(model, tokenizer, EXAMPLES, BEAM, ALPHA), strict=True))
        metrics["measured"] = {"date": str(date.today()), "commit": commit()}
        texts = {"metrics.json": json.dumps(metrics, indent=2, ensure_ascii=False) + "\n"}
        texts["README.md"] = card(name, metrics, model)
        for file_name, text in texts.items():
            with atomic_write(MODELS / name / file_name) as file:
                file.write(text.encode())


if __name__ == "__main__":
    with told_errors():
        main()
