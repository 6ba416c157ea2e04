"""Un modello cresciuto calcola, all'inizio, la stessa funzione; poi le due copie si separano."""

from argparse import Namespace

import pytest
import torch

from annotated import AnnotatedError, Config, Transformer
from annotated.cli import _new_model
from annotated.growth import grow, twice

SHAPES = [
    {"N": 1},
    {"N": 2, "N_decoder": 1, "h_cross": 2},
    {"N": 3, "dropout": 0.3},
]


def randomize(model: Transformer) -> Transformer:
    "Pesi qualunque ovunque, anche nei bias e nelle normalizzazioni, che appena nati sono 0 e 1."
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=0.1, std=0.3)
    return model.eval()


@pytest.mark.parametrize("shape", SHAPES)
def test_same_logits_with_the_same_positions(shape: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = randomize(Transformer(Config(50, d_model=16, d_ff=24, h=4, max_len=20, **shape)))
    grown = grow(model)
    grown.embedding.positional.table = twice(model.embedding.positional.table).repeat(2, 1)
    src, tgt = torch.randint(4, 50, (2, 3, 9))
    with torch.inference_mode():
        torch.testing.assert_close(grown(src, tgt), model(src, tgt), rtol=1e-3, atol=1e-4)
    assert not grown.training and grow(model.train()).training and grown.config.dropout == model.config.dropout


def test_everything_doubles() -> None:
    small = Config(50, d_model=16, d_ff=24, h=4, N=3, N_decoder=1, h_cross=2, max_len=20)
    assert grow(Transformer(small)).config == Config(
        50, d_model=32, d_ff=48, h=8, N=6, N_decoder=2, h_cross=4, max_len=40
    )


def test_seed_decides_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    model = Transformer(Config(50, d_model=16, d_ff=24, h=4, N=2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    one, same, other = (grow(model, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_every_parameter_learns_and_the_copies_part() -> None:
    torch.manual_seed(0)
    grown = grow(Transformer(Config(50, d_model=16, d_ff=24, h=4, N=2, dropout=0.0)))
    optimizer = torch.optim.Adam(grown.parameters(), lr=1e-3)
    born = {name: p.detach().clone() for name, p in grown.named_parameters()}
    src, tgt = torch.randint(4, 50, (2, 8, 9))
    for _ in range(2):  # i rami nuovi cominciano a zero: chi li legge riceve gradiente dal secondo passo
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(grown(src, tgt).flatten(0, 1), tgt.roll(-1, 1).flatten()).backward()
        optimizer.step()
    assert not [name for name, p in grown.named_parameters() if torch.equal(p, born[name])]
    one, two = grown.embedding.weight.detach().unflatten(-1, (-1, 2, 2)).unbind(-2)
    assert not torch.allclose(one, two, atol=1e-5)


def test_new_heads_and_neurons_read_as_the_next_block() -> None:
    torch.manual_seed(0)
    model = randomize(Transformer(Config(50, d_model=16, d_ff=24, h=4, N=3, max_len=20)))
    grown = grow(model)
    for old, new in ((model.encoder.layers, grown.encoder.layers), (model.decoder.layers, grown.decoder.layers)):
        for i, (own, following) in enumerate(zip(old, [*old[1:], old[0]], strict=True)):  # dopo l'ultimo, il primo
            for block, halves in ((new[2 * i], (own, following)), (new[2 * i + 1], (following, own))):
                for name in ("self_attention.W_q", "feed_forward.0"):
                    reader, sources = block.get_submodule(name), [half.get_submodule(name) for half in halves]
                    both = reader.weight.unflatten(-1, (-1, 2, 2)).sum(-2).flatten(-2)  # il rumore si annulla
                    torch.testing.assert_close(both, torch.cat([source.weight for source in sources]))
                    assert torch.equal(reader.bias, torch.cat([source.bias for source in sources]))


def test_pre_ln_is_refused() -> None:
    with pytest.raises(AnnotatedError, match="soltanto un modello Post-LN"):
        grow(Transformer(Config(50, d_model=16, d_ff=24, h=4, N=1, norm_first=True)))


@pytest.mark.parametrize(
    ("config", "norm_first", "asked", "scale"),
    [("mini", None, None, 1), ("base", None, None, 0.25), ("base", True, None, 1), ("mini", None, 0.5, 0.5)],
)
def test_deep_shapes_start_from_small_branches(
    config: str, norm_first: bool | None, asked: float | None, scale: float
) -> None:
    shape = Namespace(seed=3, config=config, dropout=None, norm_first=norm_first, branch_scale=asked)
    model = _new_model(shape, Namespace(vocab_size=50), None)
    torch.manual_seed(3)
    usual = Transformer(Config.preset(config, 50, norm_first=bool(norm_first)))
    closing = [name for name in usual.state_dict() if name.endswith(("W_o.weight", "feed_forward.2.weight"))]
    assert len(closing) == 2 * len(usual.encoder.layers) + 3 * len(usual.decoder.layers)
    for (name, ours), theirs in zip(model.state_dict().items(), usual.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs * (scale if name in closing else 1)), name
