"""Le mappe di attenzione: ogni casella al suo posto, ogni asse con i suoi pezzi."""

import pytest
import torch

from annotated.viewer import attention_map, weight_table

QUERIES, KEYS = ["a", "b", "a"], ["w", "x", "y", "x", "z"]
WEIGHTS = [torch.rand(1, 2, 3, 5, generator=torch.Generator().manual_seed(i)).softmax(-1) for i in range(4)]


def test_every_weight_in_its_cell() -> None:
    table = weight_table(WEIGHTS)
    assert len(table) == 4 * 2 * 3 * 5
    for row in table:
        layer, head, i, j = (int(row[name]) for name in ("strato", "testa", "query", "chiave"))
        assert row["peso"] == pytest.approx(WEIGHTS[layer - 1][0, head - 1, i, j].item(), abs=1e-4)


def test_axes_and_menus() -> None:
    spec = attention_map(WEIGHTS, QUERIES, KEYS, layer=3, head=2).to_dict()
    assert '["w", "x", "y", "x", "z"]' in spec["encoding"]["x"]["axis"]["labelExpr"]
    assert '["a", "b", "a"]' in spec["encoding"]["y"]["axis"]["labelExpr"]
    menus = {p["name"]: (p["value"], p["bind"]["options"]) for p in spec["params"]}
    assert sorted(menus.values()) == [(2, [1, 2]), (3, [1, 2, 3, 4])]


def test_refuses_wrong_labels() -> None:
    with pytest.raises(ValueError, match="5 query e 3 chiavi"):
        attention_map(WEIGHTS, KEYS, QUERIES)
