"""Le prove di quattro capitoli rifatte con più passi: che cosa manca alla rete, e che cosa soltanto all'addestramento.

    python tools/piu_passi.py        scrive book/dati/piu_passi.json

Di ogni quaderno esegue le celle di codice fino a quella della prova, così come sono; cambia soltanto ciò che `TRIALS`
dice, e tralascia gli `assert`, che valgono per i passi del capitolo. I semi sono i suoi.
"""

import argparse
import ast
import io
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from itertools import product
from typing import Any, NamedTuple

import matplotlib
import nbformat
import torch
from provenienza import ROOT, origin, told_errors, write_json
from tqdm import tqdm

from annotated.common import AnnotatedError

matplotlib.use("Agg")  # le figure delle celle non si mostrano
OUT = ROOT / "book" / "dati" / "piu_passi.json"


class Trial(NamedTuple):
    notebook: str
    where: str  # il codice del capitolo, con «…» al posto dei passi
    usual: str  # i passi del capitolo
    steps: tuple[str, ...]  # un addestramento per ciascuno
    last: str  # la cella della prova è la prima che contiene queste parole
    table: str  # dove lascia i risultati: per ogni nome, righe = semi


TRIALS = {
    "collo": Trial("23_ricorrenti", "False, steps: int = …", "200", ("1000",), 'results["RNNsearch"]', "results"),
    "richiamo": Trial("25_efficiente", "seed, steps=…", "500", ("2000", "6000"), "recall = {", "recall"),
    "famiglia": Trial("26_famiglia", "data=train, steps=…", "400", ("1600",), "SKILLS =", "table"),
    "immagini": Trial(
        "27_oltre", "{…}", "125: 300, 700: 300, 4000: 500", ("125: 1200, 700: 1200, 4000: 2000",), "STEPS =", "scores"
    ),
}


def code_of(trial: Trial, steps: str) -> list[str]:
    "Le celle di codice fino a quella della prova, con i nuovi passi."
    path = ROOT / "book" / f"{trial.notebook}.ipynb"
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    until = next((i for i, source in enumerate(cells) if trial.last in source), -1)
    cells = cells[: until + 1]
    written, instead = (trial.where.replace("…", value) for value in (trial.usual, steps))
    if (times := sum(source.count(written) for source in cells)) != 1:
        raise AnnotatedError(f"{path}: «{written}» c'è {times} volte, non una. Correggi `TRIALS`.")
    return [source.replace(written, instead) for source in cells]


def run(name: str, steps: str) -> tuple[str, str, dict[str, Any]]:
    "Ciò che la prova trova: per ogni nome, una riga per seme."
    trial, space = TRIALS[name], {"__name__": name}
    for source in code_of(trial, steps):
        tree = ast.parse(source)
        tree.body = [line for line in tree.body if not isinstance(line, ast.Assert)]
        with redirect_stdout(io.StringIO()):
            exec(compile(tree, trial.notebook, "exec"), space)
    tables = {", ".join(map(str, key)) if isinstance(key, tuple) else key: t for key, t in space[trial.table].items()}
    return name, steps, {key: (10_000 * table).round().div(10_000).tolist() for key, table in tables.items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    jobs = [job for name, trial in TRIALS.items() for job in product([name], trial.steps)]
    found: dict[str, Any] = {name: {} for name in TRIALS}
    facts = origin("python tools/piu_passi.py")
    spawn = multiprocessing.get_context("spawn")  # ogni prova comincia in un processo nuovo
    with ProcessPoolExecutor(2, spawn, torch.set_num_threads, (1,), max_tasks_per_child=1) as pool:
        for name, steps, tables in tqdm(pool.map(run, *zip(*jobs, strict=True)), total=len(jobs)):
            found[name][steps] = tables
    write_json(OUT, {"provenienza": facts, **found})


if __name__ == "__main__":
    with told_errors():
        main()
