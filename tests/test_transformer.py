"""Proprietà del modello che una pagina non mostra bene."""

import pytest
import torch

from annotated import Config, Transformer


@pytest.mark.parametrize(("vocab_size", "parameters"), [(37_000, 63_082_496), (32_000, 60_522_496)])
def test_base_parameters(vocab_size: int, parameters: int) -> None:
    with torch.device("meta"):
        model = Transformer(Config.preset("base", vocab_size))
    assert sum(p.numel() for p in model.parameters()) == parameters
