"""Pubblica un modello addestrato: pesi in bfloat16, diario, misure sugli insiemi di prova e scheda.

    python tools/pubblica.py runs/small small-en-it --data CARTELLA --command "annotated train …"

Un addestramento a tappe (`--init`) dà un `--command` per tappa, e con `--before` i diari delle precedenti.

Pubblica in `models/NOME` la media degli ultimi checkpoint che ha la perdita di validazione più bassa, e la misura dopo
l'arrotondamento a bfloat16.
"""

import argparse
import copy
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from provenienza import checkpoints, commit, processor, sha256, told_errors

from annotated import Transformer, evaluate, load_pretrained, translate
from annotated.checkpoint import publish_model
from annotated.common import atomic_write, number
from annotated.data import encode_pairs, find_data, read_pairs
from annotated.pretrained import MODELS
from annotated.tokenizer import Tokenizer
from annotated.training import mean_weights, read_weights, validation_loss

BEAM, ALPHA = 4, 0.6  # Vaswani 2017, §6.1
FILES = {
    "valid.tsv": "validazione: le stesse fonti dell'addestramento",
    "dev-newssyscomb2009.tsv": "sviluppo: notizie, WMT 2009",
    "dev-quotidiano.tsv": "sviluppo: frasi di ogni giorno, Tatoeba",
    "test-newstest2009.tsv": "prova: notizie, WMT 2009",
    "test-tatoeba.tsv": "prova: frasi di ogni giorno, Tatoeba 2020-07-28",
}
EXAMPLES = [
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
    "Good morning, how are you?",
    "The committee has approved the report.",
    "I would like a cup of coffee, please.",
    "The dog is sleeping on my bed.",
]
CARD = Path(__file__).with_name("scheda.md")


def this_machine(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} core {processor()}"


def measure(model: Transformer, tokenizer: Tokenizer, path: Path) -> dict[str, Any]:
    "BLEU e chrF su un file di coppie."
    pairs = list(read_pairs(path))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    scores = evaluate(translate(model, tokenizer, sources, BEAM, ALPHA, progress=True, origin=str(path)), references)
    return {"file": path.name, "what": FILES[path.name], "pairs": len(pairs), "sha256": sha256(path), **vars(scores)}


def averages(run: Path, model: Transformer, tokenizer: Tokenizer, path: Path) -> Iterator[dict[str, Any]]:
    "Le medie degli ultimi 1, 2, 3, … checkpoint (§6.1), ciascuna con la sua perdita di validazione."
    corpus = encode_pairs(read_pairs(path), tokenizer, model.config.max_len)
    paths = checkpoints(run)[::-1] or [run / "model.safetensors"]  # con --average 1
    weights = [read_weights(path) for path in paths]
    for n in range(1, len(weights) + 1):
        mean = mean_weights(weights[:n])
        model.load_state_dict(mean)
        loss = validation_loss(model, corpus, 4096)
        yield {"checkpoints": n, "valid_loss": loss, "weights": mean}


def card(name: str, metrics: dict[str, Any], model: Transformer) -> str:
    "La scheda: `tools/scheda.md` con i numeri al loro posto."
    c, it = model.config, lambda x: number(x, ".1f")
    n = metrics["checkpoints"]
    best = f"media degli ultimi {n} checkpoint: di tutte, la migliore in validazione"
    alone = "l'ultimo checkpoint: in validazione va meglio di ogni media degli ultimi"
    stacks = (
        f"encoder di {c.N} blocchi, decoder di {c.N_decoder}" if c.N_decoder else f"encoder e decoder di {c.N} blocchi"
    )
    norm = "Pre-LN" if c.norm_first else "Post-LN"
    shape = f"{stacks}, d_model {c.d_model}, d_ff {c.d_ff}, {c.h} teste, {norm}"
    scores = [f"| {m['what']} | {number(m['pairs'])} | {it(m['bleu'])} | {it(m['chrf'])} |" for m in metrics["scores"]]
    rows = {
        "forma": f"{shape}, dropout {it(c.dropout)}",
        "parametri": number(metrics["parameters"]),
        "vocabolario": f"SentencePiece BPE, {number(c.vocab_size)} pezzi, comune alle due lingue",
        "comando": "<br>poi ".join(f"`{command}`" for command in metrics["commands"]),
        "pesi": best if n > 1 else alone,
        "addestramento": "{} passi in {} minuti, ".format(*map(number, (metrics["steps"], metrics["minutes"])))
        + metrics["hardware"],
        "versione": f"{metrics['date']}, commit {metrics['commit']}, seme {metrics['seed']}",
    }
    if again := metrics.get("measured"):
        rows["punteggi"] = f"ripresi con gli stessi pesi: {again['date']}, commit {again['commit']}"
    return CARD.read_text("utf-8").format(
        name=name,
        table="\n".join(f"| {key} | {value} |" for key, value in rows.items()),
        scores="\n".join(scores),
        note=f"{metrics['note']}\n" if metrics.get("note") else "",
        signatures=f"`{metrics['scores'][0]['bleu_signature']}`, `{metrics['scores'][0]['chrf_signature']}`",
        hashes="\n".join(f"- `{file}`: {digest}" for file, digest in metrics["data"].items()),
        examples="\n".join(f"- {english}\n  → {italian}" for english, italian in metrics["examples"]),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="la cartella dell'addestramento")
    parser.add_argument("name", help="il nome con cui pubblicarlo")
    parser.add_argument("--data", type=Path, required=True, help="i dati dell'addestramento, con gli insiemi di prova")
    parser.add_argument("--hardware", help="dove è stato addestrato (predefinito: questa macchina)")
    parser.add_argument(
        "--command", required=True, action="append", help="il comando che l'ha addestrato; uno per tappa"
    )
    parser.add_argument(
        "--before", type=Path, nargs="*", default=[], help="i log.jsonl delle tappe precedenti, in ordine"
    )
    parser.add_argument("--note", help="una riga da aggiungere alla scheda: per esempio quante frasi generate ha letto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def best_average(
    args: argparse.Namespace, model: Transformer, tokenizer: Tokenizer
) -> tuple[Transformer, dict[str, Any], list[dict[str, Any]]]:  # il modello da pubblicare, la sua riga, tutte le righe
    "La media di checkpoint con la perdita più bassa; dell'ultimo e della media più lunga si misura anche il BLEU."
    means = list(averages(args.run, model, tokenizer, args.data / "valid.tsv"))
    best = min(means, key=lambda row: row["valid_loss"])
    for row in means:
        model.load_state_dict(row.pop("weights"))
        if row is best:
            published = copy.deepcopy(model)
        elif row in (means[0], means[-1]):
            row |= measure(model.eval(), tokenizer, args.data / "valid.tsv")
    return published, best, means


def history(logs: list[Path]) -> list[dict[str, Any]]:
    "I diari delle tappe, uno dopo l'altro: passi e secondi si contano dalla prima."
    rows: list[dict[str, Any]] = []
    for path in logs:
        done = {name: max((row.get(name, 0) for row in rows), default=0) for name in ("step", "seconds")}
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            rows.append(row | {name: round(row[name] + done[name], 1) for name in done if name in row})
    return rows


def measures(
    args: argparse.Namespace, model: Transformer, tokenizer: Tokenizer, log: list[dict[str, Any]], seed: int
) -> dict[str, Any]:
    "Ciò che si sa dell'addestramento, e i punteggi di `model` su ogni insieme che c'è."
    return {
        "commands": args.command,
        "note": args.note,
        "hardware": args.hardware or this_machine(args.device),
        "date": str(date.today()),
        "commit": commit(),
        "seed": seed,
        "steps": log[-1]["step"],
        "minutes": round(max(row.get("seconds", 0) for row in log) / 60),
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": {path.name: sha256(path) for path in find_data(args.data).train},
        "beam": BEAM,
        "alpha": ALPHA,
        "scores": [measure(model, tokenizer, args.data / file) for file in FILES if (args.data / file).exists()],
        "examples": list(zip(EXAMPLES, translate(model, tokenizer, EXAMPLES, BEAM, ALPHA), strict=True)),
    }


def main() -> None:
    args = arguments()
    log = history([*args.before, args.run / "log.jsonl"])  # prima: se manca qualcosa, si sa senza aspettare
    seed = json.loads((args.run / "options.json").read_text("utf-8"))["seed"]
    model, tokenizer = load_pretrained(str(args.run), args.device)
    published, best, means = best_average(args, model, tokenizer)
    out = MODELS / args.name
    with tempfile.TemporaryDirectory(dir=MODELS.parent) as folder:
        publish_model(folder, published, tokenizer)
        model, _ = load_pretrained(folder, args.device)
        metrics = measures(args, model, tokenizer, log, seed)
        best |= metrics["scores"][0]
        metrics |= {"valid_loss": best["valid_loss"], "checkpoints": best["checkpoints"], "averages": means}
        for name, text in (
            ("metrics.json", json.dumps(metrics, indent=2, ensure_ascii=False) + "\n"),
            ("log.jsonl", "".join(f"{json.dumps(row)}\n" for row in log)),
            ("README.md", card(args.name, metrics, model)),
        ):
            with atomic_write(Path(folder, name)) as file:
                file.write(text.encode())
        out.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in Path(folder).iterdir()]
        for name in names:
            os.replace(Path(folder, name), out / name)
        for old in out.glob("*"):  # dopo: chi interrompe può trovarne di vecchi e di nuovi, e rilancia
            if old.name not in names:
                old.unlink()
    print(card(args.name, metrics, model))


if __name__ == "__main__":
    with told_errors():
        main()
