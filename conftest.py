"""Un quaderno che nbval ha eseguito e confrontato da cima a fondo è eseguito anche per il libro.

Le uscite finiscono nella cache da cui jupyter-book le prende, così `make test` esegue ogni quaderno una volta sola.
"""

from collections.abc import Generator

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from tools.quaderni import keep_for_book

DONE = pytest.StashKey[set[int]]()  # di un quaderno, le celle andate bene


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield  # una cella che fallisce, o si salta, finisce qui
    if isinstance(item, IPyNbCell):
        item.cell.outputs = item.test_outputs
        item.parent.stash.setdefault(DONE, set()).add(item.cell_num)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if isinstance(item, IPyNbCell) and (nextitem is None or nextitem.parent is not item.parent):
        remember(item.parent)


def remember(file: IPyNbFile) -> None:
    "Mette un quaderno nella cache del libro, se ogni sua cella è andata bene."
    cells = [cell for cell in file.nb.cells if cell.cell_type == "code"]
    due = {i for i, cell in enumerate(cells) if "nbval-skip" not in cell.metadata.get("tags", [])}
    if file.stash.get(DONE, set()) == due:
        for count, cell in enumerate(cells, 1):  # nbval esegue senza contare
            cell.execution_count = count
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
        keep_for_book(file.nb, file.path)
