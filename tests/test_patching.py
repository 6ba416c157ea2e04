"""Lo scambio fra frasi gemelle: nulla se sono uguali, tutto se si scambia tutto, e solo dove si è detto."""

import pytest
import torch
from torch.nn import functional as F

from annotated import load_pretrained
from annotated.common import PAD
from annotated.study.coreference import agreement, microlingua_probes, read_probes
from annotated.study.heads import Head, all_heads, without_heads
from annotated.study.microlingua import generate
from annotated.study.patching import (
    Inlet,
    Stream,
    ablated,
    activations,
    effect,
    exchange,
    margins,
    places,
    relayed,
    replaced,
    resampled,
    twins,
)

model, tokenizer = load_pretrained("mini")
probes = microlingua_probes(generate(30, seed=8, held_out=True))
pairs = twins(tokenizer, probes)
everywhere = pairs.source != PAD


def test_margins_agree_with_whole_translations() -> None:
    assert ((margins(model, pairs) > 0) == (agreement(model, tokenizer, probes) > 0)).all()


@pytest.mark.parametrize(
    "spot", [Stream("encoder", 0), Stream("encoder", 3), Head("encoder", 1, 2), Head("cross", 0, 0)]
)
def test_equal_sentences_exchange_nothing(spot: Stream | Head) -> None:
    same = twins(tokenizer, [probe for probe in probes[:10] for _ in range(2)])
    mask = (same.source if spot[0] == "encoder" else same.target) != PAD
    torch.testing.assert_close(exchange(model, same, [{spot: mask}])[0], margins(model, same), atol=1e-4, rtol=0)


@pytest.mark.parametrize("layer", range(4))
def test_exchanging_everything_is_reading_the_other_sentence(layer: int) -> None:
    [row] = exchange(model, pairs, [{Stream("encoder", layer): everywhere}])
    torch.testing.assert_close(row, margins(model, pairs, pairs.other), atol=1e-3, rtol=0)


def test_all_the_cross_heads_are_the_cross_attention() -> None:
    last = torch.zeros_like(pairs.target, dtype=torch.bool)
    last[range(len(last)), (pairs.target != PAD).sum(1) - 1] = True
    one, both = exchange(
        model, pairs, [{Head("cross", 0, 0): last}, {Head("cross", 0, 0): last, Stream("encoder", 3): everywhere}]
    )
    torch.testing.assert_close(one, both, atol=1e-3, rtol=0)  # il passo che scrive la desinenza legge solo di lì


def test_an_empty_mask_changes_nothing_and_hooks_go_away() -> None:
    before = margins(model, pairs)
    [row] = exchange(model, pairs, [{Stream("encoder", 2): torch.zeros_like(everywhere)}])
    assert torch.equal(row, before)
    values = activations(model, pairs.source, pairs.target, [Stream("encoder", 1)])[Stream("encoder", 1)]
    with replaced(model, {Stream("encoder", 1): (everywhere, torch.zeros_like(values))}):
        assert not torch.allclose(margins(model, pairs), before)
    assert torch.equal(margins(model, pairs), before)


def test_in_mini_the_answer_sits_after_it() -> None:
    where = places(tokenizer, pairs)
    assert torch.stack(list(where.values())).sum(0).max() == 1  # nessun pezzo in due posti
    rows = dict(zip(where, exchange(model, pairs, [{Stream("encoder", 3): m} for m in where.values()]), strict=True))
    assert (rows["dopo «it»"] < 0).float().mean() > 0.95
    assert all((row > 0).float().mean() > 0.95 for name, row in rows.items() if name != "dopo «it»")
    base, other = margins(model, pairs), margins(model, pairs, pairs.other)
    assert effect(pairs, base, other, base).value == 0 and effect(pairs, base, other, other).value == 1


def test_sentences_of_different_length_are_aligned_around_the_clue() -> None:
    _, small = load_pretrained("small-en-it")
    some = twins(small, read_probes())
    lengths = [(x != PAD).sum(1) for x in (some.source, some.other)]
    assert (lengths[0] != lengths[1]).any()
    for row in range(0, len(some.source), 7):
        n, m = lengths[0][row], lengths[1][row]
        partner = some.partner[row, :n].tolist()
        same = [j for j in range(n) if some.source[row, j] == some.other[row, partner[j]]]
        changed = set(range(n)) - set(same)
        assert partner[0] == 0 and partner[-1] == m - 1 and partner == sorted(partner)
        assert 0 < len(changed) <= 6 and max(changed) - min(changed) < 6  # soltanto l'indizio


def test_silencing_with_zero_is_without_heads() -> None:
    heads = [head for head in all_heads(model) if head.attention == "encoder"][:5]
    for head, row in zip(heads, ablated(model, pairs, heads, "zero"), strict=True):
        with without_heads(model, [head]):
            torch.testing.assert_close(row, margins(model, pairs), atol=1e-4, rtol=0)


def test_padding_is_not_in_the_mean() -> None:
    longer = pairs._replace(source=F.pad(pairs.source, (0, 9), value=PAD), partner=F.pad(pairs.partner, (0, 9)))
    heads = [Head("encoder", 1, 2), Head("encoder", 2, 3)]
    short, padded = (ablated(model, some, heads, "media") for some in (pairs, longer))
    torch.testing.assert_close(padded, short, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="«medie»: una testa si spegne con"):
        ablated(model, pairs, heads, "medie")


def test_another_sentence_comes_from_the_same_place_counted_from_the_end() -> None:
    other = resampled(pairs, seed=3)
    lengths, theirs = ((x != PAD).sum(1) for x in (other.source, other.other))
    rows = torch.arange(len(lengths))
    assert torch.equal(other.partner[rows, lengths - 1], theirs - 1)
    assert torch.equal(other.partner[rows, lengths - 4], theirs - 4)
    everyone = exchange(model, other, [{Stream("encoder", 3): everywhere}])[0]
    assert (everyone > 0).float().mean() < 0.8  # risponde alla frase di un altro


def test_the_inlets_together_are_the_heads() -> None:
    doors = {Inlet("encoder", 1, part): everywhere for part in ("W_q", "W_k", "W_v")}
    heads = {Head("encoder", 1, j): everywhere for j in range(4)}
    one, both = exchange(model, pairs, [doors, heads])
    torch.testing.assert_close(one, both, atol=1e-3, rtol=0)


def test_the_memory_of_the_cross_attention_is_aligned_like_the_encoder() -> None:
    small, small_tokenizer = load_pretrained("small-en-it")
    some = twins(small_tokenizer, read_probes()[:40])
    lengths = [(x != PAD).sum(1) for x in (some.source, some.other)]
    assert (lengths[0] != lengths[1]).any()
    whole = some.source != PAD
    layers = range(len(small.decoder.layers))
    doors = {Inlet("cross", i, part): whole for i in layers for part in ("W_k", "W_v")}
    one, both = exchange(small, some, [doors, {Stream("encoder", small.config.N): whole}])
    torch.testing.assert_close(one, both, atol=1e-3, rtol=0)


def test_a_route_from_nowhere_brings_nothing_and_from_everywhere_everything() -> None:
    clue, end = places(tokenizer, pairs)["indizio"], {Stream("encoder", 2): everywhere}
    nothing = {Stream("encoder", 0): torch.zeros_like(clue)}
    torch.testing.assert_close(relayed(model, pairs, nothing, end), margins(model, pairs), atol=1e-4, rtol=0)
    heads = {Head("encoder", i, j): everywhere for i in range(2) for j in range(4)}
    whole = relayed(model, pairs, {Stream("encoder", 0): everywhere, **heads}, end)
    torch.testing.assert_close(whole, margins(model, pairs, pairs.other), atol=1e-3, rtol=0)


def test_a_route_does_not_pass_through_the_heads_that_are_held() -> None:
    where = places(tokenizer, pairs)
    clue = {Stream("encoder", 0): where["indizio"]}  # senza teste, la parola non lascia il suo posto
    elsewhere = relayed(model, pairs, clue, {Stream("encoder", 3): where["dopo «it»"]})
    torch.testing.assert_close(elsewhere, margins(model, pairs), atol=1e-3, rtol=0)
    [free] = exchange(model, pairs, [clue])
    assert (free < 0).all()
