"""Misura l'accordo di «it» dopo ogni tappa di un addestramento: scrive `book/dati/tappe.json`, per il capitolo 19.

    python tools/tappe.py --data CARTELLA PARTENZA TAPPA…

PARTENZA è il modello da cui si è cominciato; TAPPA la cartella di un addestramento (`--out`), di cui si misurano gli
ultimi pesi. La quota delle frasi con «it» è quella dei pezzi d'arrivo di ogni giro dei dati.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from provenienza import ROOT, origin, read_log, sha256, told_errors, weights_sha256, write_json

from annotated import Transformer
from annotated.checkpoint import load_model, load_tensors
from annotated.data import find_data, read_lines
from annotated.study.coreference import agreement, read_probes
from annotated.study.pronouns import generate, unseen_frames
from annotated.tokenizer import Tokenizer

OUT = ROOT / "book" / "dati" / "tappe.json"
SOURCE, GENERATED = "pronomi", 400


def pieces(data: Path, tokenizer: Tokenizer) -> Counter[str]:
    "I pezzi d'arrivo di ogni fonte, contati su una coppia ogni cinquanta."
    found: Counter[str] = Counter()
    for path in find_data(data).train:
        rows = [line.split("\t") for i, line in enumerate(read_lines(path)) if i % 50 == 0]
        for (source, *_), ids in zip(rows, tokenizer.encode([row[2] for row in rows]), strict=True):
            found[source] += len(ids) + 1
    return found


def share(counts: Counter[str], repeat: list[tuple[str, float]]) -> float:
    "La quota della fonte `SOURCE`, quando ogni fonte si ripete come dice `repeat`."
    times = dict(repeat)
    weights = {source: n * times.get(source, 1) for source, n in counts.items()}
    return weights.get(SOURCE, 0) / sum(weights.values())


def shares_right(model: Transformer, tokenizer: Tokenizer) -> dict[str, float]:
    "In quante frasi la traduzione giusta è più probabile della gemella che sbaglia l'accordo."
    probes, unseen = read_probes(), set(unseen_frames())
    sets = {
        "generate": [p for p in generate(GENERATED, seed=77, held_out=True) if p.it != p.wrong],
        "coppie": probes,
        "disgiunte": [p for p in probes if p.frame in unseen],
    }
    return {name: float((agreement(model, tokenizer, some) > 0).float().mean()) for name, some in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("start", type=Path, metavar="PARTENZA")
    parser.add_argument("stages", type=Path, nargs="+", metavar="TAPPA")
    args = parser.parse_args()
    model, tokenizer = load_model(args.start)
    counts = pieces(args.data, tokenizer)
    rows: list[dict[str, Any]] = [{"passi": 0, "quota": 0.0, **shares_right(model, tokenizer)}]
    for folder in args.stages:
        options = json.loads((folder / "options.json").read_text("utf-8"))
        state, _ = load_tensors(folder / "state.safetensors", tokenizer)
        model.load_state_dict({k[6:]: tensor for k, tensor in state.items() if k.startswith("model.")})
        steps = read_log(folder)[-1]["step"]
        rows.append({"passi": steps, "quota": share(counts, options["repeat"]), **shares_right(model, tokenizer)})
    names = [folder.name for folder in (args.start, *args.stages)]
    hashes = {path.name: sha256(path) for path in find_data(args.data).train}
    command = f"python tools/tappe.py --data CARTELLA {' '.join(names)}"
    facts = origin(command, partenza=weights_sha256(args.start), **hashes)
    write_json(OUT, {"provenienza": facts, "tappe": rows})
    print(OUT.read_text("utf-8"))


if __name__ == "__main__":
    with told_errors():
        main()
