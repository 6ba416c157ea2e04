"""Il modello: uguale a quello di PyTorch a pesi uguali, causale, indifferente al riempitivo."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from annotated import Config, Transformer
from annotated.attention import attention, fast_attention
from annotated.common import BOS, EOS, PAD, AnnotatedError
from annotated.decoder import Decoder, KVCache
from annotated.decoding import beam_search
from annotated.encoder import Encoder, recorded_weights
from annotated.masks import causal_mask, padding_mask
from annotated.multihead import MultiHeadAttention, merge_heads
from annotated.positional import PositionalEncoding, sinusoids
from annotated.transformer import attention_weights

D_MODEL, D_FF, H, N = 32, 64, 4, 2


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def small_model(norm_first: bool = False) -> Transformer:
    return Transformer(Config(50, D_MODEL, D_FF, H, N, norm_first=norm_first, max_len=32)).eval()


def sentences(*lengths: int) -> Tensor:
    "Frasi casuali chiuse da EOS e riempite con PAD, (B, lunghezza massima)."
    tokens = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(EOS + 1, 50, (length,))
        row[length - 1] = EOS
    return tokens


@pytest.mark.parametrize(
    ("preset", "vocab_size", "parameters"),
    [("base", 37_000, 63_082_496), ("base", 32_000, 60_522_496), ("big", 37_000, 214_245_376)],
)
def test_parameters(preset: str, vocab_size: int, parameters: int) -> None:
    with torch.device("meta"):
        model = Transformer(Config.preset(preset, vocab_size))
    assert sum(p.numel() for p in model.parameters()) == parameters


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.W_q, ours.W_k, ours.W_v)
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    theirs.out_proj.load_state_dict(ours.W_o.state_dict())


@torch.no_grad()
def copy_stack(ours: Encoder | Decoder, theirs: nn.TransformerEncoder | nn.TransformerDecoder) -> None:
    for parameter in ours.parameters():  # anche γ, β e i bias: pesi qualunque, non quelli iniziali
        nn.init.normal_(parameter, std=0.2)
    for layer, other in zip(ours.layers, theirs.layers, strict=True):
        copy_attention(layer.self_attention, other.self_attn)
        if isinstance(ours, Decoder):
            copy_attention(layer.cross_attention, other.multihead_attn)
        linears = [m for m in layer.feed_forward.modules() if isinstance(m, nn.Linear)]
        for linear, target in zip(linears, (other.linear1, other.linear2), strict=True):
            target.load_state_dict(linear.state_dict())
        for i, residual in enumerate(layer.residuals, 1):
            getattr(other, f"norm{i}").load_state_dict(residual.norm.state_dict())
    if theirs.norm is not None:
        theirs.norm.load_state_dict(ours.norm.state_dict())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_equals_torch(norm_first: bool) -> None:
    options = {"dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    norm = nn.LayerNorm(D_MODEL) if norm_first else None  # in Post-LN l'articolo non ha una norma finale
    theirs_encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D_MODEL, H, **options), N, norm)
    norm = nn.LayerNorm(D_MODEL) if norm_first else None
    theirs_decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D_MODEL, H, **options), N, norm)
    encoder = Encoder(N, D_MODEL, D_FF, H, 0.0, norm_first)
    decoder = Decoder(N, D_MODEL, D_FF, H, 0.0, norm_first)
    copy_stack(encoder, theirs_encoder)
    copy_stack(decoder, theirs_decoder)
    mask = padding_mask(sentences(7, 4, 6), PAD)  # (3, 1, 1, 7)
    hidden = ~mask[:, 0, 0]
    x, y = torch.randn(3, 7, D_MODEL), torch.randn(3, 5, D_MODEL)
    memory = encoder(x, mask)
    theirs_memory = theirs_encoder(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(memory, theirs_memory, atol=1e-5, rtol=0)
    out = decoder(y, decoder.keys_values(memory), causal_mask(5), mask)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    theirs_out = theirs_decoder(y, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    torch.testing.assert_close(out, theirs_out, atol=1e-5, rtol=0)


def logits_from(model: Transformer, src: Tensor, x: Tensor, y: Tensor) -> Tensor:
    "I logit a partire dai vettori `x`, `y` al posto dei pezzi: rispetto ai vettori si può derivare."
    mask = padding_mask(src, PAD)
    memory = model.encoder(x, mask)
    out = model.decoder(y, model.decoder.keys_values(memory), causal_mask(y.size(1)), mask)
    return model.embedding.logits(out)


@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients_respect_masks(norm_first: bool) -> None:
    model = small_model(norm_first)
    src = sentences(7, 4)
    x = torch.randn(2, 7, D_MODEL, requires_grad=True)
    y = torch.randn(2, 6, D_MODEL, requires_grad=True)
    for t in range(6):
        logits = logits_from(model, src, x, y)[:, t]
        dx, dy = torch.autograd.grad(logits.square().sum(), (x, y))
        assert (dy[:, t + 1 :] == 0).all()  # nulla viene dal futuro
        assert (dy[:, : t + 1].abs().sum(-1) > 0).all()  # e qualcosa da tutto il passato
        assert (dx[src == PAD] == 0).all()  # nulla viene dal riempitivo
        assert (dx[src != PAD].abs().sum(-1) > 0).all()


def test_forward_uses_masks() -> None:
    model = small_model()
    src, tgt = sentences(7), sentences(6)
    logits = model(src, tgt)
    other = tgt.clone()
    other[:, 4:] = 7
    torch.testing.assert_close(model(src, other)[:, :4], logits[:, :4])
    assert not torch.allclose(model(src, other)[:, 4:], logits[:, 4:])
    padded = torch.cat((src, torch.full((1, 5), PAD)), dim=1)
    torch.testing.assert_close(model(padded, tgt), logits)


def test_permutation_equivariance_without_positions() -> None:
    encoder = Encoder(N, D_MODEL, D_FF, H, 0.0).eval()
    x, order = torch.randn(2, 9, D_MODEL), torch.randperm(9)
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order])
    model = small_model()
    tokens = torch.arange(4, 13)[None]
    with_positions = model.encoder(model.embedding(tokens[:, order]))
    assert not torch.allclose(with_positions, model.encoder(model.embedding(tokens))[:, order], atol=1e-3)


def test_a_position_beyond_the_table_is_refused() -> None:
    encoding = PositionalEncoding(8, 10)
    assert encoding(torch.zeros(1, 3, 8), start=7).shape == (1, 3, 8)
    with pytest.raises(ValueError, match="11 posizioni, la tabella ne ha 10"):
        encoding(torch.zeros(1, 1, 8), start=10)


def test_far_positions_are_as_exact_as_near_ones() -> None:
    last = [f(4999 / 10000 ** (i / 8)) for i in range(0, 8, 2) for f in (math.sin, math.cos)]
    torch.testing.assert_close(sinusoids(5000, 8)[-1], torch.tensor(last), atol=1e-7, rtol=0)


def test_the_padding_is_the_piece_one_says() -> None:
    tokens = torch.tensor([[7, 3, 5], [9, 5, 5]])
    assert padding_mask(tokens, 5)[:, 0, 0].tolist() == [[True, True, False], [True, False, False]]


@pytest.mark.parametrize("shape", [{"d_model": 31, "h": 1}, {"dropout": 1.0}, {"dropout": -0.1}])
def test_an_impossible_shape_is_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(AnnotatedError, match=f"{next(iter(shape))} = "):
        Config(50, **shape)


def test_every_block_has_the_dropout_of_the_shape() -> None:
    model = Transformer(Config(50, D_MODEL, D_FF, H, N, N_decoder=1, dropout=0.3))
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.3] * (1 + 2 * N + 3)


def test_one_sentence_is_a_batch_of_one() -> None:
    look, x = MultiHeadAttention(D_MODEL, H), torch.randn(5, D_MODEL)
    alone, batch = (look(y, look.keys_values(y)) for y in (x, x[None]))
    torch.testing.assert_close(alone, batch[0])


def test_recorded_weights_are_those_that_mix_the_values() -> None:
    look = MultiHeadAttention(D_MODEL, H)
    x, y = torch.randn(2, 5, D_MODEL), torch.randn(2, 7, D_MODEL)
    mask = padding_mask(sentences(7, 4), PAD)
    with recorded_weights(look) as weights:
        outputs = [look(x, look.keys_values(y), mask=mask), look(x, look.keys_values(x))]
    for out, w, (_, V) in zip(outputs, weights, map(look.keys_values, (y, x)), strict=True):
        torch.testing.assert_close(look.W_o(merge_heads(w @ V)), out)
    assert (weights[0].masked_select(~mask.expand_as(weights[0])) == 0).all()


def test_recording_leaves_nothing_behind() -> None:
    model, src, tgt = small_model(), sentences(7), sentences(6)
    logits = model(src, tgt)
    with pytest.raises(RuntimeError), recorded_weights(model) as weights:
        torch.testing.assert_close(model(src, tgt), logits, atol=0, rtol=0)
        raise RuntimeError
    count = len(weights)
    model(src, tgt)
    assert len(weights) == count == 3 * N


def test_each_thread_records_its_own_weights() -> None:
    model, (src, tgt) = small_model(), (sentences(7), sentences(6))
    others = [(sentences(n), sentences(n + 1)) for n in range(4, 12)] * 4
    alone = attention_weights(model, src, tgt)
    with ThreadPoolExecutor(2) as pool:
        noise = pool.map(lambda pair: attention_weights(model, *pair), others)
        again = list(pool.map(lambda _: attention_weights(model, src, tgt), range(32)))
        assert len(list(noise)) == len(others)
    for found in again:
        for ours, theirs in zip(found, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_model_compiled_in_part_shows_the_same_weights() -> None:
    model, src, tgt = small_model(), sentences(7), sentences(6)
    plain = attention_weights(model, src, tgt)
    for layer in model.encoder.layers:
        layer.compile(backend="eager")
    with torch.inference_mode():
        model(src, tgt)
    for ours, theirs in zip(attention_weights(model, src, tgt), plain, strict=True):
        assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def test_attention_equals_torch() -> None:
    Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
    for mask in (None, padding_mask(sentences(7, 3), PAD)):
        out, weights = attention(Q, K, V, mask)
        torch.testing.assert_close(out, nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask))
        torch.testing.assert_close(out, fast_attention(Q, K, V, mask))
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))


def test_tied_embeddings() -> None:
    model = small_model()
    logits = model.embedding.logits(torch.eye(D_MODEL)[:1])
    torch.testing.assert_close(logits[0], model.embedding.weight[:, 0])
    x = model.embedding(torch.tensor([[9]])) - model.embedding.positional(torch.zeros(1, 1, D_MODEL))
    torch.testing.assert_close(x[0, 0], model.embedding.weight[9] * D_MODEL**0.5)
    assert sum(p.numel() == 50 * D_MODEL for p in model.parameters()) == 1


@torch.inference_mode()
def test_cache_equals_full_pass() -> None:
    model = small_model()
    src, tgt = sentences(7, 4), torch.randint(EOS + 1, 50, (2, 6))
    memory, mask = model.encode(src)
    caches = [KVCache() for _ in memory]
    steps = [model.step(tgt[:, i : i + 1], memory, mask, caches) for i in range(6)]
    torch.testing.assert_close(torch.stack(steps, dim=1), model(src, tgt), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_wide_beam_finds_the_true_maximum() -> None:
    "Con un vocabolario minuscolo e K grande la beam search trova il massimo vero."
    torch.manual_seed(3)
    model = Transformer(Config(7, 16, 32, 2, 1, max_len=8)).eval()
    src = torch.tensor([[4, 5, EOS]])
    found = beam_search(model, src, beam=40, alpha=0.0, extra=0)[0][0]
    pieces = range(EOS + 1, 7)
    every = [[], *([a] for a in pieces), *([a, b] for a in pieces for b in pieces)]
    scores = []
    for ids in every:
        tokens = torch.tensor([[BOS, *ids]])
        log_probs = model(src, tokens)[0].log_softmax(-1)
        scores.append(sum(float(log_probs[i, t]) for i, t in enumerate([*ids, EOS])))
    assert found.ids == every[max(range(len(every)), key=scores.__getitem__)]
    assert found.score == pytest.approx(max(scores), abs=1e-5)


def test_the_attention_of_cudnn_is_off() -> None:
    "Su una GPU preparerebbe un programma per ogni forma nuova, e ogni lotto ne ha una."
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_as_many_sentences_on_both_sides() -> None:
    model = Transformer(Config(20, d_model=8, d_ff=16, h=2, N=1)).eval()
    with pytest.raises(ValueError, match="src ha 2 frasi e tgt 1"):
        model(torch.ones(2, 4, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))


def test_a_mask_of_numbers_is_refused() -> None:
    Q = torch.randn(1, 12, 8, requires_grad=True)
    with pytest.raises(TypeError, match="booleani"):
        fast_attention(Q, Q, Q, causal_mask(12).float())
