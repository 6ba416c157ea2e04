"""Dove va il tempo di annotated su CPU: un passo di addestramento e una traduzione, operazione per operazione."""

import warnings

import torch
from concorrenti import annotated
from confronta import sources, training_batches
from torch.profiler import ProfilerActivity, profile

ROWS = 12


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
        with profile(activities=[ProfilerActivity.CPU]) as result:
            work()
        print(name, result.key_averages().table("self_cpu_time_total", row_limit=ROWS), sep="\n")


if __name__ == "__main__":
    main()
