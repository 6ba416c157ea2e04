"""Tre modelli da una pila: maschere riga per riga, parole nascoste, continuazioni, e gli errori di chi li usa male."""

import pytest
import torch
from torch import Tensor

from annotated.common import BOS, EOS, PAD, UNK, AnnotatedError
from annotated.masks import causal_mask
from annotated.study.family import LanguageModel, continue_text, mask_tokens, nucleus, prefix_mask
from annotated.transformer import Config

V, MASK = 30, 4


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Config(V, d_model=32, d_ff=48, h=4, N=2, dropout=0.1, max_len=12)).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(MASK + 1, V, shape, generator=torch.Generator().manual_seed(0))


def test_prefix_mask_is_its_definition() -> None:
    prefix = torch.tensor([0, 2, 5, 7])
    mask = prefix_mask(prefix, 7)
    assert mask.shape == (4, 1, 7, 7)
    for b, p in enumerate(prefix.tolist()):
        assert all(mask[b, 0, t, s] == (s <= t or s < p) for t in range(7) for s in range(7))


@pytest.mark.parametrize("kind", ["none", "causal", "prefix"])
def test_padding_changes_nothing(model: LanguageModel, kind: str) -> None:
    short = tokens(3, 6)
    padded = torch.cat([short, torch.full((3, 4), PAD)], dim=1)
    masks = {"none": lambda n: None, "causal": causal_mask, "prefix": lambda n: prefix_mask(torch.tensor([3, 1, 4]), n)}
    alone, together = (model(x, masks[kind](x.size(1)))[:, :6] for x in (short, padded))
    assert torch.allclose(alone, together, atol=1e-5)


def test_words_after_the_prefix_reach_neither_it_nor_the_past(model: LanguageModel) -> None:
    text = tokens(1, 8)
    other = text.clone()
    other[0, 6] = MASK + 1 + (other[0, 6] - MASK) % (V - MASK - 1)
    mask = prefix_mask(torch.tensor([4]), 8)
    changed = (model(text, mask) != model(other, mask)).any(-1)[0]
    assert changed.tolist() == [False] * 6 + [True] * 2


def test_special_tokens_are_never_asked_nor_drawn() -> None:
    text = tokens(200, 10)
    text[:, 0], text[:, 5], text[:, 9] = BOS, UNK, EOS
    corrupted, targets = mask_tokens(text, MASK, V, rate=1.0, generator=torch.Generator().manual_seed(1))
    for t in (0, 5, 9):
        assert torch.equal(corrupted[:, t], text[:, t]) and (targets[:, t] == PAD).all()
    assert corrupted[:, 1:5].min() == MASK and corrupted[:, 1:5].max() < V
    assert torch.equal(targets[:, 1:5], text[:, 1:5])
    same, coins = torch.full((5000, 1), MASK + 1), torch.Generator().manual_seed(1)
    drawn, _ = mask_tokens(same, MASK, V, rate=1.0, generator=coins)
    assert drawn.unique().tolist() == list(range(MASK, V))  # ogni parola, anche l'ultima, può uscire a caso


@pytest.mark.parametrize("arguments", [{"rate": 0.0}, {"rate": 1.5}, {"mask": V - 1}, {"mask": -1}])
def test_masking_that_cannot_work_says_so(arguments: dict[str, float]) -> None:
    with pytest.raises(AnnotatedError, match="rate"):
        mask_tokens(tokens(2, 5), **{"mask": MASK, "vocab_size": V, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", [False, True])
def test_greedy_continuation_is_the_best_word_at_every_step(model: LanguageModel, prefix: bool) -> None:
    start, given = tokens(4, 3), torch.tensor([3 if prefix else 0])
    out = continue_text(model, start, 6, prefix)
    assert torch.equal(out[:, :3], start)
    for row in out:
        written = row[row != PAD]
        for t in range(3, len(written)):
            logits = model(written[None, :t], prefix_mask(given, t))[0, -1]
            logits[:EOS] = -torch.inf
            assert logits.argmax() == written[t]


def test_nothing_is_written_after_the_end(model: LanguageModel) -> None:
    model.embedding.weight.data[EOS] *= 3  # più facile da pescare
    out, again = (
        continue_text(model, tokens(64, 2), 10, temperature=2.0, generator=torch.Generator().manual_seed(0))
        for _ in range(2)
    )
    assert torch.equal(out, again)
    ended = (out == EOS).cumsum(1)
    assert ended.max() == 1 and (out[(ended.cumsum(1) > 1)] == PAD).all() and not (out[ended == 0] == PAD).any()


@pytest.mark.parametrize("top_p", [1e-3, 0.3, 0.7, 0.99])
def test_the_nucleus_is_the_smallest_that_reaches_its_share(top_p: float) -> None:
    p = torch.randn(50, V, generator=torch.Generator().manual_seed(0)).mul(2).softmax(dim=-1)
    for row, kept in zip(p, nucleus(p, top_p), strict=True):
        words = row.sort(descending=True).indices.tolist()
        share, inside = 0.0, []
        while words and share < top_p:
            inside.append(words.pop(0))
            share += row[inside[-1]].item()
        assert torch.equal(kept[inside], row[inside]) and not kept[words].any()


def test_words_are_drawn_in_the_nucleus(model: LanguageModel) -> None:
    start = tokens(1, 2).expand(300, 2)
    logits = model(start[:1], causal_mask(2))[0, -1]
    logits[:EOS] = -torch.inf
    inside = nucleus((logits / 2.0).softmax(dim=-1)[None], 0.5)[0].nonzero()[:, 0]
    free, kept = (
        continue_text(model, start, 1, False, 2.0, top_p, torch.Generator().manual_seed(0))[:, 2].unique()
        for top_p in (1.0, 0.5)
    )
    assert torch.equal(kept, inside) and len(free) > len(inside) > 1


def test_continuations_that_cannot_work_say_so(model: LanguageModel) -> None:
    with pytest.raises(AnnotatedError, match="riempitivo"):
        continue_text(model, torch.tensor([[BOS, 7, PAD]]), 2)
    with pytest.raises(AnnotatedError, match="temperatura"):
        continue_text(model, tokens(1, 3), 2, temperature=-1.0)
    for top_p in (0.0, 1.1, float("nan")):
        with pytest.raises(AnnotatedError, match="top_p"):
            continue_text(model, tokens(1, 3), 2, temperature=1.0, top_p=top_p)
    assert continue_text(model, tokens(1, 11), 2).size(1) == 13  # la tredicesima parola non si rilegge
    model.embedding.weight.data[EOS] *= 100  # anche se finirebbe prima: non dipende da ciò che scrive
    with pytest.raises(ValueError, match="max_len"):
        continue_text(model, tokens(1, 11), 5)
