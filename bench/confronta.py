"""Misura fianco a fianco addestramento e traduzione di annotated e dei suoi concorrenti.

Scrive in `risultati/` le misure grezze con l'ambiente e la tabella dei rapporti con MarianMT.
"""

import argparse
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import numpy as np
import torch
from concorrenti import BASELINE, CONFIG, CONTENDERS, PIECES, Contender
from torch import Tensor

from annotated.common import EOS, atomic_write, number
from annotated.data import Batch, Corpus, make_batches
from tools.provenienza import commit, processor, told_errors, write_json

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "joeynmt", "OpenNMT-py", "ctranslate2")
TASKS = ("addestramento", "traduzione")
RAW = ("ambiente", "lavoro di ogni giro", "secondi")  # le parti dei risultati grezzi
SEED = 1
POSITIONS = {"cpu": 1024, "cuda": 8192}  # di un lotto, per lato
STEPS = {"cpu": 1, "cuda": 20}  # passi di ogni giro: uno solo, sulla scheda, dura meno del suo rumore
SENTENCES = 64  # da tradurre
LEAST = 3  # giri di una misura da scrivere
SLOW = 4  # chi impiega più di SLOW volte MarianMT non ripete la prova e non fa le successive
SAME_SHAPE = 1e-3  # scarto ammesso nel numero dei parametri


def training_batches(n: int, device: str) -> list[Batch]:
    "`n` lotti di frasi inventate, di lunghezza log-normale, raccolte come nel capitolo sui dati."
    rng = np.random.default_rng(SEED)
    source = rng.lognormal(np.log(PIECES), 0.6, size=50 * POSITIONS[device])
    lengths = np.column_stack((source, source * rng.lognormal(0, 0.15, size=len(source)))).astype(int).clip(2, 128)
    ends = np.cumsum(lengths)
    tokens = rng.integers(EOS + 1, CONFIG.vocab_size, size=ends[-1])
    tokens[ends - 1] = EOS
    corpus = Corpus(tokens, np.concatenate(([0], ends)))
    batches = make_batches(corpus.lengths, POSITIONS[device], SEED)[:n]
    return [Batch(*(x.to(device) for x in corpus.batch(indices))) for indices in batches]


def sources(device: str) -> Tensor:
    "Le frasi da tradurre, (SENTENCES, PIECES)."
    generator = torch.Generator().manual_seed(SEED)
    src = torch.randint(EOS + 1, CONFIG.vocab_size, (SENTENCES, PIECES), generator=generator)
    src[:, -1] = EOS
    return src.to(device)


def build(names: list[str], device: str) -> dict[str, Contender]:
    "I concorrenti installati; degli altri dice che li salta. Controlla che la forma sia la stessa."
    contenders = {}
    for name in names:
        torch.manual_seed(SEED)
        try:
            contenders[name] = CONTENDERS[name](device)
        except (ImportError, NotImplementedError) as error:
            if name == BASELINE:
                told = "è la base del confronto: pip install -r bench/requirements.txt"
                raise SystemExit(f"{name}: {error}; {told}") from None
            print(f"{name}: saltato ({error})", file=sys.stderr)
    expected = parameters(contenders[BASELINE])
    for name, contender in contenders.items():
        if contender.step and abs(parameters(contender) / expected - 1) > SAME_SHAPE:
            raise SystemExit(f"{name}: {parameters(contender)} parametri invece di circa {expected}.")
    return contenders


def parameters(contender: Contender) -> int:
    "Quanti parametri si addestrano."
    return sum(p.numel() for p in contender.model.parameters() if p.requires_grad)


def seconds(work: Callable[[], object], device: str) -> float:
    "Quanto dura `work`: tempo di CPU del processo, oppure tempo vero fino a che la GPU ha finito."
    if device == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compete(
    task: str, works: dict[str, Callable[[int], object]], rounds: int, slow: set[str], device: str
) -> dict[str, list[float]]:
    "I secondi di ogni concorrente a ogni giro; a giri alterni l'ordine si rovescia."
    times: dict[str, list[float]] = {name: [] for name in works if name not in slow}
    for i in range(rounds):
        for name in list(times)[:: (-1) ** i]:
            if name not in slow:
                times[name].append(seconds(lambda: works[name](i), device))  # noqa: B023
                print(f"{task}, giro {i + 1}: {name} {times[name][-1]:.2f} s", file=sys.stderr)
        slow.update(name for name in times if times[name][0] > SLOW * times[BASELINE][0])
    return times


def measure_training(
    contenders: dict[str, Contender], rounds: int, bf16: bool, device: str, slow: set[str]
) -> tuple[dict, dict]:
    "Per ogni precisione, i secondi di tutti a ogni giro, e quante posizioni ha ogni giro."
    batches, times, steps = training_batches(rounds, device), {}, range(STEPS[device])
    for precision in ("fp32", "bf16")[: 1 + bf16]:
        works = {}
        for name, c in contenders.items():
            if c.step:
                c.model.train()
                c.step(batches[0], precision == "bf16")  # riscaldamento: la memoria del primo passo non si conta
                works[name] = lambda i, c=c: [c.step(batches[i], precision == "bf16") for _ in steps]  # noqa: B023
        times[f"addestramento {precision}"] = compete(f"addestramento {precision}", works, rounds, slow, device)
    return times, {task: [len(steps) * batch.tgt_out.numel() for batch in batches] for task in times}


def measure_translation(
    contenders: dict[str, Contender], rounds: int, device: str, slow: set[str]
) -> tuple[dict, dict]:
    "Con greedy e beam 4, i secondi di tutti a ogni giro, e quante frasi ha ogni giro."
    src, times = sources(device), {}
    for c in contenders.values():
        if c.model:
            c.model.eval()
    for task, beam in (("traduzione greedy", 1), ("traduzione beam 4", 4)):
        works = {}
        for name, c in contenders.items():
            if name not in slow:
                lengths = {len(ids) for ids in c.translate(src, beam)}  # riscaldamento
                if lengths != {PIECES}:
                    raise SystemExit(f"{name}: traduzioni di {lengths} pezzi invece di {PIECES}.")
                works[name] = lambda i, c=c: c.translate(src, beam)  # noqa: B023
        times[task] = compete(task, works, rounds, slow, device)
    return times, {task: [SENTENCES] * rounds for task in times}


def ratios(times: dict[str, list[float]], name: str) -> list[float]:
    "A ogni giro, quante volte `name` è più veloce di MarianMT."
    return [base / own for base, own in zip(times[BASELINE], times.get(name, ()), strict=False)]


def table(times: dict, units: dict) -> str:
    "La tabella in Markdown: mediana (minimo–massimo) dei rapporti con MarianMT."
    names = [name for name in CONTENDERS if any(name in row for row in times.values())]
    rates = {task: median(n / s for n, s in zip(units[task], times[task][BASELINE], strict=True)) for task in times}
    of = ["posizioni" if task.startswith("addestramento") else "frasi" for task in times]
    rows = [["", *times], ["---", *("---:" for _ in times)]]
    rows.append([f"{BASELINE}, {'/'.join(dict.fromkeys(of))} al secondo", *(number(r, ".2f") for r in rates.values())])
    for name in names:
        cells = []
        for task in times:
            r = ratios(times[task], name)
            spread = f" ({number(min(r), '.2f')}–{number(max(r), '.2f')})" if len(r) > 1 else ""
            cells.append(number(median(r), ".2f") + spread if r else "–")
        rows.append([name, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def environment(device: str) -> dict[str, object]:
    "Dove e con che cosa si è misurato."

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {
        "comando": shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "data": date.today().isoformat(),
        "commit": commit().removesuffix("+"),
        "file modificati": commit().endswith("+"),
        "dispositivo": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "istruzioni": torch.backends.cpu.get_cpu_capability(),
        "thread": torch.get_num_threads(),
        "carico della macchina all'inizio": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: installed(package) for package in PACKAGES},
    }


def write(path: Path, task: str, where: dict, times: dict, units: dict) -> None:
    "Mette una prova fra i risultati, al posto di com'era la volta prima, e rifà la tabella."
    raw = json.loads(path.read_text("utf-8")) if path.exists() else {part: {} for part in RAW}
    raw["ambiente"][task] = where
    for part, new in zip(RAW[1:], (units, times), strict=True):
        rows = {name: row for name, row in raw[part].items() if not name.startswith(task)} | new
        raw[part] = dict(sorted(rows.items(), key=lambda row: TASKS.index(row[0].split()[0])))
    write_json(path, raw)
    with atomic_write(path.with_suffix(".md")) as file:
        file.write(table(raw["secondi"], raw["lavoro di ogni giro"]).encode())


def main() -> None:
    "Legge le opzioni, misura, scrive."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=POSITIONS, default="cpu", help="dove misurare (predefinito: cpu)")
    parser.add_argument(
        "--rounds", type=int, default=5, help=f"giri (predefinito: 5), sotto {LEAST} si stampa soltanto"
    )
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help=f"solo questi, oltre a {BASELINE}")
    parser.add_argument("--bf16", action="store_true", help="misura anche l'addestramento in bfloat16")
    parser.add_argument("--task", choices=TASKS, help="solo questa prova; l'altra resta com'è nei risultati")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: serve almeno un giro")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    where = environment(args.device)
    names = [name for name in CONTENDERS if name == BASELINE or not args.only or name in args.only]
    contenders = build(names, args.device)
    slow: set[str] = set()
    for task in [args.task] if args.task else TASKS:
        if task == "addestramento":
            times, units = measure_training(contenders, args.rounds, args.bf16, args.device, slow)
        else:
            times, units = measure_translation(contenders, args.rounds, args.device, slow)
        print(table(times, units))
        if args.rounds >= LEAST:
            write(HERE / "risultati" / f"{args.device}.json", task, where, times, units)


if __name__ == "__main__":
    with told_errors():
        main()
