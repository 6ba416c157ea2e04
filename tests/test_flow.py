"""Valori e flusso: nullo dove deve esserlo, e l'effetto piantato si trova."""

import pytest
import torch

from annotated import Config, Transformer, load_pretrained
from annotated.common import PAD
from annotated.multihead import MultiHeadAttention, merge_heads, split_heads
from annotated.study.coreference import microlingua_probes
from annotated.study.flow import (
    INPUT,
    deletion,
    flow,
    flows,
    integrated_gradients,
    linear_probe,
    occlusion,
    rollout,
    through,
)
from annotated.study.microlingua import generate
from annotated.study.patching import activations, margins, replaced, twins

model, tokenizer = load_pretrained("mini")
pairs = twins(tokenizer, microlingua_probes(generate(12, seed=8, held_out=True)))
mask = pairs.source != PAD
step = (pairs.target != PAD).sum(1) - 1


def test_a_weight_on_an_empty_value_carries_nothing() -> None:
    torch.manual_seed(0)
    attention, weights = MultiHeadAttention(8, 2), torch.rand(1, 2, 3, 4).softmax(-1)
    V, slope = torch.randn(1, 2, 4, 4), torch.randn(1, 3, 8)
    V[:, :, 1] = 0.0
    found = flow(attention, weights, V, slope)
    assert found.weights[..., 1].min() > 0
    assert found.norms[..., 1].abs().max() == 0 and found.pushes[..., 1].abs().max() == 0


def test_norms_and_pushes_are_those_of_what_arrives() -> None:
    torch.manual_seed(0)
    attention, weights = MultiHeadAttention(8, 2), torch.rand(1, 2, 3, 4).softmax(-1)
    V, slope = torch.randn(1, 2, 4, 4), torch.randn(1, 3, 8)
    found = flow(attention, weights, V, slope)
    only = torch.zeros_like(weights)
    only[..., 2] = weights[..., 2]  # ciò che arriva dalla terza chiave, calcolato per intero
    arrived = merge_heads(only @ V) @ attention.W_o.weight.T
    torch.testing.assert_close(found.norms[..., 2], arrived.norm(dim=-1))
    whole = (split_heads(slope, 2) * (weights @ V)).sum(-1)
    torch.testing.assert_close(found.pushes.sum(-1), whole)


def test_pushes_are_the_gradient_of_the_weights() -> None:
    "Girando un poco un peso della cross-attention, il margine cambia quanto dice la sua spinta."
    cross, rows = flows(model, pairs)[-1], torch.arange(len(step))
    attention, before = model.decoder.layers[-1].cross_attention, margins(model, pairs)
    W_o = attention.W_o
    V = split_heads(activations_of(attention), attention.h)

    def more(_, args):  # type: ignore[no-untyped-def]
        x = args[0].clone()
        x[rows, step] += 1e-2 * cross.weights[rows, 0, step, 5:6] * V[rows, 0, 5]
        return (x,)

    handle = W_o.register_forward_pre_hook(more)
    change = (margins(model, pairs) - before) / 1e-2
    handle.remove()
    torch.testing.assert_close(change, cross.pushes[rows, 0, step, 5], atol=2e-2, rtol=5e-2)


def activations_of(attention: MultiHeadAttention) -> torch.Tensor:
    "I valori, (n, S, d_model), che la cross-attention riceve."
    seen: list[torch.Tensor] = []
    handle = attention.W_v.register_forward_hook(lambda _, args, out: seen.append(out.detach()))
    margins(model, pairs)
    handle.remove()
    return seen[0]


def test_rollout_follows_a_planted_path() -> None:
    first, second = torch.eye(4)[[0, 3, 2, 1]][None], torch.eye(4)[[1, 0, 2, 3]][None]
    path = rollout([first, second], residual=0)[0]
    assert path[0].tolist() == [0, 0, 0, 1]  # 0 guarda 1, che guardava 3
    half = rollout([torch.rand(2, 5, 5), torch.rand(2, 5, 5)])
    torch.testing.assert_close(half.sum(-1), torch.ones(2, 5))


@pytest.mark.parametrize("measure", ["weights", "norms", "pushes"])
def test_scores_share_one_and_ignore_padding(measure: str) -> None:
    *encoder, cross = flows(model, pairs)
    scores = through(encoder, cross, measure, step)
    torch.testing.assert_close(scores.sum(1), torch.ones(len(step)), atol=1e-4, rtol=0)
    assert (~mask).any() and scores[~mask].abs().max() < 1e-6


def test_a_path_starts_from_one_cross_attention() -> None:
    "Un decoder di più strati ha più cross-attention: se ne sceglie una, e le altre non entrano."
    torch.manual_seed(0)
    deep = Transformer(Config(model.config.vocab_size, d_model=16, d_ff=16, h=2, N=2, N_decoder=3, max_len=64)).eval()
    found = flows(deep, pairs)
    assert len(found) == 5
    encoder, cross = found[:2], found[3]
    scores = through(encoder, cross, "weights", step)
    rows = cross.weights.mean(dim=1)[torch.arange(len(step)), step]
    half = [0.5 * torch.eye(mask.size(1)) + 0.5 * one.weights.mean(dim=1) for one in encoder]
    torch.testing.assert_close(scores, torch.einsum("ns,nst,ntu->nu", rows, half[1], half[0]))
    torch.testing.assert_close(scores.sum(1), torch.ones(len(step)), atol=1e-4, rtol=0)


def test_integrated_gradients_are_complete() -> None:
    x = activations(model, pairs.source, pairs.target, [INPUT])[INPUT].clone()
    blank = x[mask].mean(0).expand_as(x)
    with replaced(model, {INPUT: (mask, blank)}):
        empty = margins(model, pairs)
    scores = integrated_gradients(model, pairs, steps=64)
    torch.testing.assert_close(scores.sum(1), margins(model, pairs) - empty, atol=0.3, rtol=0.02)
    assert scores[~mask].abs().sum() == 0


def test_deletion_begins_with_the_sentence_and_ends_with_nothing() -> None:
    found = occlusion(model, pairs)
    curve = deletion(model, pairs, found, mask.size(1))
    torch.testing.assert_close(curve[0], margins(model, pairs))
    torch.testing.assert_close(curve[0] - curve[1], found.masked_fill(~mask, -torch.inf).amax(1), atol=1e-3, rtol=0)
    worst = deletion(model, pairs, -found, 2)
    assert curve[1].mean() < worst[1].mean()


def test_a_probe_finds_what_is_there_and_nothing_else() -> None:
    torch.manual_seed(0)
    frames = [i // 10 for i in range(400)]
    labels = torch.rand(400) < 0.5
    noise = torch.randn(400, 16)
    planted = noise + 2.0 * (labels.float() * 2 - 1)[:, None] * torch.eye(16)[3]
    assert linear_probe(planted, labels, frames).mean() > 0.9
    assert abs(linear_probe(noise, labels, frames).mean() - 0.5) < 0.06
    kinds = torch.randint(5, (400,))  # più di due classi
    assert linear_probe(noise + 3.0 * torch.eye(16)[kinds], kinds, frames).mean() > 0.9
    assert abs(linear_probe(noise, kinds, frames).mean() - 0.2) < 0.06
    memory = torch.eye(40)[torch.tensor(frames)]  # chi riconosce la cornice, su cornici nuove non sa nulla
    assert abs(linear_probe(memory, torch.tensor([f % 2 == 0 for f in frames]), frames).mean() - 0.5) < 0.15
