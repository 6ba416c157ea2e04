"""Gli esempi del riferimento danno ciò che vi è scritto, e ogni nome che si importa da `annotated` ne ha uno."""

import doctest
import importlib
from pathlib import Path

import pytest
from riferimento import examples

import annotated

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = examples(ROOT / "book")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    module, _, symbol = name.rpartition(".")
    assert symbol in importlib.import_module(module).__all__
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {}, name, None, 0)
    assert test.examples
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


def test_every_main_name_has_an_example() -> None:
    assert {name.rpartition(".")[2] for name in EXAMPLES} >= set(annotated.__all__)
