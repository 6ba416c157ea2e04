"""La decodifica: i punteggi sono quelli del modello, e stare in un lotto non cambia nulla."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annotated import Config, Transformer, decoding, load_pretrained, translate
from annotated.attention import attention, fast_attention
from annotated.cli import _chunks
from annotated.common import BOS, EOS, PAD, UNK, AnnotatedError
from annotated.decoder import KVCache
from annotated.decoding import (
    Hypothesis,
    beam_search,
    copy_unknown,
    encode_sources,
    n_best,
    piece_scores,
    with_precision,
)
from annotated.study.microlingua import generate

LENGTHS = (3, 9, 5, 9, 7)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    config = Config(vocab_size=30, d_model=32, d_ff=64, h=4, N=2, dropout=0.0, max_len=24)
    return Transformer(config).eval()


@pytest.fixture
def src() -> Tensor:
    torch.manual_seed(1)
    rows = [[*torch.randint(4, 30, (n - 1,)).tolist(), EOS] + [PAD] * (9 - n) for n in LENGTHS]
    return torch.tensor(rows)


@torch.inference_mode()
def teacher_forced(model: Transformer, source: Tensor, ids: list[int], alpha: float) -> float:
    "Il punteggio di una traduzione, ricalcolato con una sola passata."
    target = torch.tensor([[BOS, *ids, EOS]])
    log_probs = model(source[None], target[:, :-1]).log_softmax(-1)[0]
    total = log_probs.gather(1, target[0, 1:, None]).sum()
    return float(total) / ((5 + len(ids) + 1) / 6) ** alpha  # Wu 2016, eq. 14


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_scores_equal_teacher_forcing(model: Transformer, src: Tensor, beam: int, alpha: float) -> None:
    for source, hypotheses in zip(src, beam_search(model, src, beam, alpha, extra=6), strict=True):
        assert hypotheses == sorted(hypotheses, reverse=True)
        assert len(hypotheses) == beam == len({tuple(h.ids) for h in hypotheses})
        for score, ids in hypotheses:
            assert score == pytest.approx(teacher_forced(model, source, ids, alpha), abs=1e-4)
            assert not {PAD, BOS, EOS} & set(ids)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_batch_equals_one_by_one(model: Transformer, src: Tensor, beam: int) -> None:
    together = beam_search(model, src, beam, extra=6)
    for source, length, hypotheses in zip(src, LENGTHS, together, strict=True):
        alone: list[Hypothesis] = beam_search(model, source[None, :length], beam, extra=6)[0]
        assert [h.ids for h in hypotheses] == [h.ids for h in alone]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone], abs=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam": 0},
        {"beam": 1001},
        {"beam": 2.5},
        {"alpha": float("nan")},
        {"alpha": -1.0},
    ],
)
def test_bad_search(model: Transformer, src: Tensor, wrong: dict[str, Any]) -> None:
    with pytest.raises(AnnotatedError, match=next(iter(wrong))):
        beam_search(model, src, **wrong)


def test_no_sentences_no_hypotheses(model: Transformer, src: Tensor) -> None:
    assert beam_search(model, src[:0]) == []


def test_less_than_one_piece_is_one(model: Transformer, src: Tensor) -> None:
    assert [h[0].ids for h in beam_search(model, src, extra=-50)] == [[]] * len(src)  # resta il posto per la fine


def test_length_limit(model: Transformer, src: Tensor) -> None:
    for extra in (0, 3):
        for length, hypotheses in zip(LENGTHS, beam_search(model, src, 4, extra=extra), strict=True):
            assert all(len(h.ids) + 1 <= length + extra for h in hypotheses)
    assert inspect.signature(beam_search).parameters["extra"].default == 50  # §6.1
    for search in (beam_search, n_best, translate):
        defaults = inspect.signature(search).parameters
        assert (defaults["beam"].default, defaults["alpha"].default) == (4, 0.6)


class Table(nn.Module):
    "Un modello senza rete: il pezzo dopo dipende soltanto dall'ultimo."

    def __init__(self, table: dict[int, dict[int, float]]):
        super().__init__()
        self.config = SimpleNamespace(max_len=64)
        self.logits = torch.full((max(table) + 1, max(table) + 1), -30.0)
        for last, row in table.items():
            for piece, p in row.items():
                self.logits[last, piece] = torch.tensor(p).log()

    def encode(self, src: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        return [], torch.ones(len(src), 1, 1, 1, dtype=torch.bool)

    def step(self, tokens: Tensor, *_: object) -> Tensor:
        return self.logits[tokens[:, 0]]


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, [[], [4]]), (1.0, [[5, 6, 7, 8, 9, 10, 11], []])])
def test_an_open_hypothesis_is_waited_for_only_while_it_can_win(alpha: float, expected: list[list[int]]) -> None:
    "Con due ipotesi chiuse, quella aperta è meno probabile della migliore, e vince soltanto se conta la lunghezza."
    chain = {i: {i + 1: 1.0} for i in range(5, 11)}
    table = {BOS: {EOS: 0.40, 4: 0.33, 5: 0.27}, 4: {EOS: 0.5, 12: 0.5}, **chain, 11: {EOS: 1.0}, 12: {EOS: 1.0}}
    found = beam_search(Table(table), torch.tensor([[4, EOS]]), beam=2, alpha=alpha)  # type: ignore[arg-type]
    assert [h.ids for h in found[0]] == expected


def test_scores_of_a_model_of_sixteen_bits_are_added_in_thirty_two() -> None:
    table = Table({BOS: {4: 0.7, 5: 0.3}, 4: {5: 0.6, EOS: 0.4}, 5: {EOS: 1.0}})
    table.logits = table.logits.bfloat16()
    log_probs = table.logits.float().log_softmax(-1)
    [[only]] = beam_search(table, torch.tensor([[4, EOS]]), beam=1, alpha=0.0)  # type: ignore[arg-type]
    assert only.ids == [4, 5]
    assert only.score == pytest.approx(float(log_probs[[BOS, 4, 5], [4, 5, EOS]].sum()), abs=1e-6)


def test_finished_sentences_leave_the_batch(model: Transformer, src: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, step = [], Transformer.step

    def spy(self: Transformer, tokens: Tensor, *rest: object) -> Tensor:
        rows.append(len(tokens))
        return step(self, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Transformer, "step", spy)
    beam_search(model, src, 2, extra=0)  # ogni frase finisce al più alla propria lunghezza
    assert rows[0] == 2 * len(src) and rows[-1] < rows[0] and rows == sorted(rows, reverse=True)


def test_bfloat16_attention_is_close() -> None:
    torch.manual_seed(0)
    Q, K, V = (torch.randn(2, 4, 7, 16) for _ in range(3))
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    exact = attention(Q, K, V, mask)[0]
    rounded = fast_attention(Q.bfloat16(), K.bfloat16(), V.bfloat16(), mask)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("T", "grad", "dtype", "told"),
    [(8, False, torch.float32, True), (9, False, torch.float32, False), (8, True, torch.float32, False),
     (9, True, torch.bfloat16, True)],
)  # fmt: skip
def test_a_query_that_sees_nothing_is_nan_where_attention_works(
    T: int, grad: bool, dtype: torch.dtype, told: bool
) -> None:
    Q, mask = torch.ones(1, T, 4, dtype=dtype), torch.ones(T, T, dtype=torch.bool).tril(-1)  # la prima non vede nulla
    with torch.set_grad_enabled(grad):
        blind = fast_attention(Q, Q, Q, mask)[0, 0]
    assert blind.isnan().all() if told else (blind == 0).all()


@pytest.mark.parametrize("T", [1, 8, 9])
@torch.inference_mode()
def test_few_queries_give_the_same_attention(T: int) -> None:
    torch.manual_seed(0)
    Q, K, V = torch.randn(3, 4, T, 16), torch.randn(3, 4, 11, 16), torch.randn(3, 4, 11, 16)
    mask = torch.arange(11) < torch.tensor([11, 4, 7])[:, None, None, None]
    for m in (None, mask):
        torch.testing.assert_close(fast_attention(Q, K, V, m), F.scaled_dot_product_attention(Q, K, V, attn_mask=m))


def test_the_cache_keeps_its_rows() -> None:
    torch.manual_seed(0)
    pieces, rows = torch.randn(5, 6, 2, 1, 4), torch.tensor([5, 0, 0, 3])
    cache = KVCache()
    for x in pieces[:4]:
        cache.append(x, -x)
    cache.reorder(rows)
    K, V = cache.append(pieces[4, rows], -pieces[4, rows])
    assert torch.equal(K, torch.cat(list(pieces), dim=2)[rows]) and torch.equal(V, -K)
    assert K.is_contiguous() and V.is_contiguous() and cache.length == 5


@pytest.mark.parametrize("beam", [1, 4])
def test_every_step_reads_a_contiguous_memory(
    model: Transformer, src: Tensor, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, step = [], Transformer.step

    def spy(self: Transformer, tokens: Tensor, memory: list[tuple[Tensor, Tensor]], *rest: object) -> Tensor:
        seen.extend(x.is_contiguous() for pair in memory for x in pair)
        return step(self, tokens, memory, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Transformer, "step", spy)
    beam_search(model, src, beam, extra=2)
    assert seen and all(seen)


@torch.inference_mode()
def test_int8_rounds_every_linear_layer_and_mixes_no_rows(model: Transformer, src: Tensor) -> None:
    light = with_precision(model, "int8")
    assert not any(isinstance(module, nn.Linear) for module in light.modules())
    W_q = light.decoder.layers[0].self_attention.W_q
    assert W_q.weight.dtype == torch.int8
    x = torch.randn(6, 1, 32)
    assert torch.equal(W_q(x)[2:3], W_q(x[2:3]))  # l'arrotondamento di una riga non dipende dalle altre
    assert torch.equal(W_q(0 * x), W_q.bias.expand(6, 1, 32))
    with pytest.raises(AnnotatedError, match="«int8» si fa da un modello"):
        with_precision(light, "int8")
    with pytest.raises(AnnotatedError, match="«fp32» si fa da un modello"):
        with_precision(light, "fp32")
    with pytest.raises(AnnotatedError, match="«int8» si fa da un modello"):
        with_precision(with_precision(model, "fp16"), "int8")
    exact, rounded = model(src, src), light(src, src)
    assert 0 < (rounded - exact).norm() < 0.03 * exact.norm()


def test_a_precision_is_what_it_says_or_is_refused(model: Transformer) -> None:
    assert with_precision(model, "fp32") is model
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        assert {p.dtype for p in with_precision(model, precision).parameters()} == {dtype}
    with pytest.raises(AnnotatedError, match="«int4» sconosciuta. Scegli fra: fp32, bf16, fp16, int8"):
        with_precision(model, "int4")
    with pytest.raises(AnnotatedError, match="«int8» si fa su CPU"):
        with_precision(model.to("meta"), "int8")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_fewer_bits_translate_the_same(precision: str) -> None:
    mini, tokenizer = load_pretrained("mini")
    examples = generate(60, held_out=True)
    found = translate(with_precision(mini, precision), tokenizer, [e.en for e in examples], beam=1)
    assert sum(a == e.it for a, e in zip(found, examples, strict=True)) >= 58
    assert {p.dtype for p in mini.parameters()} == {torch.float32}  # l'originale non si tocca


def test_piece_scores_like_one_sentence_at_a_time() -> None:
    mini, tokenizer = load_pretrained("mini")
    examples = generate(6, seed=1, held_out=True)
    sources, targets = [e.en for e in examples], [e.it for e in examples]
    together = piece_scores(mini, tokenizer, sources, targets, max_tokens=60)
    for source, target, row in zip(sources, targets, together, strict=True):
        src, tgt = ([*ids, EOS] for ids in tokenizer.encode([source, target]))
        logits = mini(torch.tensor([src]), torch.tensor([[BOS, *tgt[:-1]]]))[0].log_softmax(-1)
        torch.testing.assert_close(torch.tensor(row), logits[range(len(tgt)), tgt], atol=1e-4, rtol=1e-4)
    assert piece_scores(mini, tokenizer, [], []) == []
    for told, *wrong in (
        ("^frasi: serve una lista", "abc", "xyz"),
        ("6 frasi e 5 traduzioni", sources, targets[:-1]),
        ("^traduzioni, riga 1: frase vuota", sources, ["", *targets[1:]]),
        ("^frasi, riga 1: frase di", ["a " * 90], ["il cane"]),
        ("^traduzioni, riga 1: frase di", ["the dog"], ["a " * 90]),
    ):
        with pytest.raises(AnnotatedError, match=told):
            piece_scores(mini, tokenizer, *wrong)


def test_the_longest_sentence_is_accepted() -> None:
    tokenizer = load_pretrained("mini")[1]
    [ids] = encode_sources(tokenizer, ["The dog."], 64)
    assert encode_sources(tokenizer, ["The dog."], len(ids)) == [ids]
    told = f"^testo, riga 7: frase di {len(ids)} pezzi, il limite del modello è {len(ids) - 1}"
    with pytest.raises(AnnotatedError, match=told):
        encode_sources(tokenizer, ["The dog."], len(ids) - 1, first=7)


@pytest.mark.parametrize("beam", [1, 4])
def test_no_batch_is_larger_than_asked(monkeypatch: pytest.MonkeyPatch, beam: int) -> None:
    "Né traducendo, dove le ipotesi sono righe, né dando un voto, dove conta la più lunga delle due frasi."
    mini, tokenizer = load_pretrained("mini")
    examples, sizes = generate(60, held_out=True), []
    short = ["The dog.", *(e.en for e in examples)]

    def search(model: Transformer, src: Tensor, asked: int, alpha: float) -> list[list[Hypothesis]]:
        assert (asked, alpha) == (beam, 0.3)  # e la ricerca è quella chiesta
        sizes.append(beam * src.numel())
        return beam_search(model, src, asked, alpha)

    monkeypatch.setattr(decoding, "beam_search", search)
    translate(mini, tokenizer, short, beam, alpha=0.3, max_tokens=300)
    forward = Transformer.forward

    def read(self: Transformer, src: Tensor, tgt: Tensor) -> Tensor:
        sizes.append(max(src.numel(), tgt.numel()))
        return forward(self, src, tgt)

    monkeypatch.setattr(Transformer, "forward", read)
    piece_scores(mini, tokenizer, [short[0]] * 60, [e.it for e in examples], max_tokens=300)
    assert max(sizes) <= 300 and len(sizes) < 30  # e nemmeno una frase per volta


def test_piece_scores_add_up_to_the_score_of_the_search() -> None:
    mini, tokenizer = load_pretrained("mini")
    sources = [example.en for example in generate(20, seed=2, held_out=True)]
    found = [hypotheses[0] for hypotheses in n_best(mini, tokenizer, sources, alpha=0.0)]
    rows = piece_scores(mini, tokenizer, sources, [text for _, text in found])
    assert [sum(row) for row in rows] == pytest.approx([score for score, _ in found], abs=1e-3)


def test_piece_scores_of_fewer_bits_and_of_ruined_weights() -> None:
    mini, tokenizer = load_pretrained("mini")
    [example] = generate(1, seed=1, held_out=True)
    pair = [example.en], [example.it]
    exact = sum(piece_scores(mini.train(), tokenizer, *pair)[0])
    assert mini.training  # torna com'era
    for precision in ("bf16", "int8"):
        light = with_precision(mini, precision).eval()
        [scores], ([src], [tgt]) = piece_scores(light, tokenizer, *pair), (tokenizer.encode(text) for text in pair)
        assert sum(scores) == pytest.approx(exact, abs=0.1)
        with torch.inference_mode():
            logits = light(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]]))[0].float()  # la softmax, a 32 bit
        assert scores == logits.log_softmax(-1)[range(len(tgt) + 1), [*tgt, EOS]].tolist()
    mini.embedding.weight.data[50] = float("nan")
    with pytest.raises(AnnotatedError, match="pesi sono rovinati"):
        piece_scores(mini, tokenizer, *pair)


def test_a_file_is_read_a_chunk_at_a_time() -> None:
    read = 0

    def lines():  # type: ignore[no-untyped-def]
        nonlocal read
        for read in range(1, 10**9):
            yield "una riga"

    chunks = _chunks(lines())
    assert [next(chunks)[0], next(chunks)[0]] == [1, 1001] and read == 2000


def test_unknown_is_written_only_where_it_can_be_copied(
    model: Transformer, src: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    "Una frase senza sconosciuti dà le stesse ipotesi, accanto a una che ne ha."
    step, eager = model.step, 9 * F.one_hot(torch.tensor(UNK), 30)
    monkeypatch.setattr(model, "step", lambda *args: step(*args) + eager)  # UNK è sempre il più probabile
    plain = beam_search(model, src, beam=1, extra=3)
    assert not any(UNK in one.ids for hypotheses in plain for one in hypotheses)
    strange = src.clone()
    strange[1, 0] = UNK
    mixed = beam_search(model, strange, beam=1, extra=3)
    assert [mixed[i] for i in (0, 2, 3, 4)] == [plain[i] for i in (0, 2, 3, 4)]
    assert set(mixed[1][0].ids) == {UNK}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_unknown_characters_are_copied(precision: str) -> None:
    model, tokenizer = load_pretrained("small-en-it")
    model = with_precision(model, precision)
    sentences = ["The dog is sleeping.", "Łukasz paid 5 € to Mr Müller.", "Where is 東京?"]
    together = translate(model, tokenizer, sentences)
    assert together == [translate(model, tokenizer, [sentence])[0] for sentence in sentences]
    assert all(sign in together[1] for sign in "Ł€ü") and "東京" in together[2]
    assert translate(model, tokenizer, iter(sentences)) == together
    for keep in (1, 2):
        found = n_best(model, tokenizer, sentences, keep=keep)
        assert [len(row) for row in found] == [keep] * 3 and [row[0][1] for row in found] == together


def test_the_unknown_that_is_looked_at_most_is_copied() -> None:
    "Fra due sconosciuti decide la cross-attention, e se si scambiano di posto si scambia anche la copia."
    model, tokenizer = load_pretrained("small-en-it")
    ids = beam_search(model, torch.tensor([[*tokenizer.encode(["Łukasz paid 5 €."])[0], EOS]]))[0][0].ids
    assert ids.count(UNK) == 2
    one = copy_unknown(model, tokenizer, "Łukasz paid 5 €.", ids)
    other = copy_unknown(model, tokenizer, "€ukasz paid 5 Ł.", ids)  # per il modello, la stessa frase
    assert [piece for piece, i in zip(one, ids, strict=True) if i == UNK] == ["Ł", "€"]
    assert [piece for piece, i in zip(other, ids, strict=True) if i == UNK] == ["€", "Ł"]
    assert copy_unknown(model, tokenizer, "The dog.", [8, 9]) == tokenizer.pieces([8, 9])
    [ids] = tokenizer.encode(["Costa 5 € a Zürich."])  # in un altro ordine che nella frase
    one = copy_unknown(model, tokenizer, "In Zürich it costs 5 €.", ids)
    assert [piece for piece, i in zip(one, ids, strict=True) if i == UNK] == ["€", "ü"]
    with pytest.raises(AnnotatedError, match="non ha caratteri sconosciuti"):
        copy_unknown(model, tokenizer, "The dog.", [8, UNK])


def test_every_layer_and_head_says_which_unknown_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_pretrained("small-en-it")
    src = tokenizer.encode(["Ł €"])[0]
    first, second = (i for i, piece in enumerate(src) if piece == UNK)
    cross = torch.zeros(3, 1, 2, 2, len(src) + 1)  # N, 1, h, T + 1, S
    cross[0, :, 0, :, first] = 1.0  # una testa sola, del primo strato
    cross[1:, :, :, :, second] = 0.2
    monkeypatch.setattr(decoding, "attention_weights", lambda *_: SimpleNamespace(cross=list(cross)))
    assert copy_unknown(model, tokenizer, "Ł €", [UNK]) == ["Ł"]
    cross[1:, :, :, :, second] = 0.3
    assert copy_unknown(model, tokenizer, "Ł €", [UNK]) == ["€"]
