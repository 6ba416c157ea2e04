"""Dove va il tempo di annotated su CPU: un passo di addestramento e una traduzione, operazione per operazione.

Di un passo dice anche quante operazioni fa al secondo, in parte del picco: quelle di un prodotto fra matrici grandi.
"""

import timeit
import warnings
from collections.abc import Callable

import torch
from concorrenti import annotated
from confronta import sources, training_batches
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

ROWS = 12
SIDE = 2048  # delle matrici con cui si misura il picco


def fastest(work: Callable[[], object]) -> float:
    "I secondi del più veloce di cinque giri."
    return min(timeit.repeat(work, number=1))


def share_of_peak(step: Callable[[], object], dtype: torch.dtype) -> str:
    "Le operazioni al secondo dei prodotti di un passo, accanto a quelle di un prodotto solo."
    a = torch.randn(SIDE, SIDE, dtype=dtype)
    with FlopCounterMode(display=False) as counter:
        step()
    rate, peak = counter.get_total_flops() / fastest(step), 2 * SIDE**3 / fastest(lambda: a @ a)
    return f"{rate / 1e9:.0f} GFLOP/s su {peak / 1e9:.0f}: {100 * rate / peak:.0f} % del picco"


def main() -> None:
    "Stampa le operazioni più lunghe di ciascun lavoro."
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    model, step, translate = annotated("cpu")
    (batch,), src = training_batches(1, "cpu"), sources("cpu")
    works = {
        "addestramento, fp32": lambda: step(batch, False),
        "addestramento, bf16": lambda: step(batch, True),
        "traduzione greedy": lambda: translate(src, 1),
        "traduzione beam 4": lambda: translate(src, 4),
    }
    for name, work in works.items():
        model.train(name.startswith("addestramento"))
        work()
        if name.startswith("addestramento"):
            dtype = torch.bfloat16 if name.endswith("bf16") else torch.float32
            print(f"{name}: {share_of_peak(work, dtype)}")
        with profile(activities=[ProfilerActivity.CPU]) as result:
            work()
        print(name, result.key_averages().table("self_cpu_time_total", row_limit=ROWS), sep="\n")


if __name__ == "__main__":
    main()
