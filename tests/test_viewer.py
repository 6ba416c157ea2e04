"""Il visore dell'attenzione: assi, etichette e numeri giusti, in Python e nel browser."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from playwright.sync_api import Locator, Page, expect

from annotated import AnnotatedError, load_pretrained
from annotated.common import EOS
from annotated.decoding import beam_search, with_precision
from annotated.study.viewer import (
    HEAD_COLORS,
    LEVELS,
    LIMIT,
    AttentionMap,
    Kind,
    View,
    align_pieces,
    attention_view,
    by_words,
    dequantize,
    merge_words,
    open_words,
    quantize,
    read_attention,
    word_index,
)
from conftest import Visit, check_accessible, fill_disk

ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "annotated" / "study"
SOURCE = ["▁The", "▁ani", "mal", "▁was", "▁tir", "ed", ".", "</s>"]
TARGET = ["▁L", "'", "animale", "▁era", "▁stanco", "</s>"]


def weights(*shape: int, seed: int = 0, scale: float = 2.0, causal: bool = False) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(0, scale, shape)
    if causal:
        scores = np.where(np.tri(*shape[-2:]) > 0, scores, -np.inf)
    e = np.exp(scores)
    return e / e.sum(axis=-1, keepdims=True)


def maps(source: list[str] = SOURCE, target: list[str] = TARGET, h: int = 4, seed: int = 0) -> list[AttentionMap]:
    S, T = len(source), len(target)
    return [
        AttentionMap("encoder", weights(3, h, S, S, seed=seed), source, source),
        AttentionMap("decoder", weights(2, h, T, T, seed=seed + 1, causal=True), target, ["<s>", *target[:-1]]),
        AttentionMap("cross", weights(2, 1, T, S, seed=seed + 2), target, source),
    ]


def with_vectors(
    kind: Kind = "self", N: int = 2, h: int = 3, d_k: int = 16, seed: int = 0, causal: bool = False, factor: float = 1.0
) -> AttentionMap:
    "Query e chiavi a caso, e i pesi che ne vengono; con `factor` diverso da 1 le chiavi sono di altri pesi."
    T = len(TARGET)
    Q, K = np.random.default_rng(seed).normal(0, 1.5, (2, N, h, T, d_k))
    scores = Q @ K.swapaxes(-1, -2) / d_k**0.5
    e = np.exp(np.where(np.tri(T) > 0, scores, -np.inf) if causal else scores)
    return AttentionMap(kind, e / e.sum(axis=-1, keepdims=True), TARGET, TARGET, Q, factor * K)


HOSTILE = ["</script><img src=http://x/y onerror=alert(1)>", "&amp;<b>", "'\"`${1}", "<!--", "\u202e\u0000è", "▁"]


# ---------------------------------------------------------------- le mappe


def test_numpy_and_torch_alike() -> None:
    w = weights(1, 2, 3, 5)
    one, two = (AttentionMap("cross", x, "abc", "vwxyz") for x in (w, torch.tensor(w, requires_grad=True)))
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-7)
    layer, head = np.unravel_index(w.max(axis=(2, 3)).argmax(), (1, 2))  # interi di NumPy
    chosen = attention_view([one], layer=layer + 1, heads=[head + 1])
    assert chosen.html == attention_view([one], layer=int(layer) + 1, heads=[int(head) + 1]).html


def test_weights_as_transformers_gives_them() -> None:
    w = weights(2, 3, 4, 4, causal=True)
    layers = tuple(torch.tensor(layer[None], requires_grad=True) for layer in w)  # (1, h, T, S) per strato
    np.testing.assert_allclose(AttentionMap("self", layers, "abcd", "abcd").weights, w, atol=1e-7)


BAD: list[tuple[str, Callable[[], object], str]] = [
    ("assi scambiati", lambda: AttentionMap("cross", weights(1, 2, 3, 5), "vwxyz", "abc"), "5 query e 3 chiavi"),
    ("tre dimensioni", lambda: AttentionMap("cross", weights(2, 3, 5), "abc", "vwxyz"), r"\(N, h, T, S\)"),
    ("due frasi insieme", lambda: AttentionMap("self", [weights(2, 2, 3, 3)], "abc", "abc"), r"\(N, h, T, S\)"),
    ("vuota", lambda: AttentionMap("cross", np.zeros((0, 2, 3, 5)), "abc", "vwxyz"), r"\(N, h, T, S\)"),
    ("non sommano", lambda: AttentionMap("cross", 2 * weights(1, 2, 3, 5), "abc", "vwxyz"), "distribuzione"),
    ("sommano a poco più", lambda: AttentionMap("cross", 1.02 * weights(1, 2, 3, 5), "abc", "vwxyz"), "distribuzione"),
    ("NaN", lambda: AttentionMap("cross", np.nan * weights(1, 2, 3, 5), "abc", "vwxyz"), "distribuzione"),
    ("altro nome", lambda: AttentionMap("altra", weights(1, 2, 3, 5), "abc", "vwxyz"), "«altra» sconosciuta"),  # type: ignore[arg-type]
    ("nessuna", lambda: attention_view([]), "attenzioni diverse"),
    ("altra forma", lambda: attention_view(maps(), maps(h=2)), "attenzioni diverse"),
    ("strato", lambda: attention_view(maps(), layer=4), "3 strati di 4 teste"),
    ("testa", lambda: attention_view(maps(), heads=[5]), "3 strati di 4 teste"),
    ("nessuna testa", lambda: attention_view(maps(), heads=[]), "3 strati di 4 teste"),
    ("attenzione", lambda: attention_view(maps()[:1], kind="cross"), "ci sono encoder"),
    ("strato zero", lambda: attention_view(maps(), layer=0), "3 strati di 4 teste"),
    ("riga", lambda: attention_view(maps(), focus=len(SOURCE)), "riga 8: ce ne sono 8"),
    ("nessuno strato", lambda: AttentionMap("self", (), "abc", "abc"), r"\(N, h, T, S\)"),
    ("senza attenzioni", lambda: AttentionMap("self", (None, None), "abc", "abc"), r"\(N, h, T, S\)"),
    ("seconda frase e confronto", lambda: attention_view(maps()[:1], maps()[:1], second=2), "second = 2"),
    ("seconda frase", lambda: attention_view(maps()[:1], second=8), "second = 8"),
    ("prima frase vuota", lambda: attention_view(maps()[:1], second=0), "second = 0"),
    ("due frasi, incrociata", lambda: attention_view(maps(), second=2), "second = 2"),
    ("riga, fra le parole", lambda: attention_view(maps(), words=True, focus=6), "riga 6: ce ne sono 6"),
    ("riga negativa", lambda: attention_view(maps(), focus=-1), "riga -1: ce ne sono 8"),
    ("testa zero", lambda: attention_view(maps(), heads=[0]), "3 strati di 4 teste"),
    ("strato, incrociata", lambda: attention_view(maps(), kind="cross", layer=3), "2 strati di 1 teste"),
    (
        "solo le query",
        lambda: AttentionMap("self", weights(1, 2, 3, 3), "abc", "abc", np.ones((1, 2, 3, 8))),
        r"di forma \(1, 2, 3, 8\) e \(\)",
    ),
    (
        "query di altra forma",
        lambda: AttentionMap("self", weights(1, 1, 2, 3), "ab", "abc", *np.ones((2, 1, 1, 2, 8))),
        r"\(1, 1, 2, 8\) e \(1, 1, 2, 8\), ne servono \(1, 1, 2, d_k\) e \(1, 1, 3, d_k\)",
    ),
    ("vettori di altri pesi", lambda: with_vectors(factor=2.0), r"softmax\(QKᵀ/√d_k\) si scosta dai pesi fino a 0\.\d"),
    ("vettori NaN", lambda: with_vectors(factor=np.nan), "si scosta dai pesi fino a nan"),
]


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_reads_with_the_right_axes() -> None:
    model, tokenizer = load_pretrained("small-en-it")  # che ha il dropout: `mini` non ne ha
    source, target = "The dog saw the car.", "Il cane vide la macchina rossa perché era stanco."
    src, tgt = (tokenizer.pieces([*ids, 3]) for ids in tokenizer.encode([source, target]))
    assert len(src) != len(tgt)
    model.train()
    encoder, decoder, cross = read_attention(model, tokenizer, source, target)
    assert model.training  # com'era
    assert (encoder.queries, encoder.keys) == (src, src)
    assert (decoder.queries, decoder.keys) == (tgt, ["<s>", *tgt[:-1]])
    assert (cross.queries, cross.keys) == (tgt, src)
    assert np.all(np.triu(decoder.weights, k=1) == 0)
    np.testing.assert_array_equal(read_attention(model.eval(), tokenizer, source, target)[2].weights, cross.weights)
    for empty in (("", None), (source, " ")):
        with pytest.raises(AnnotatedError, match="frase vuota"):
            read_attention(model, tokenizer, *empty)


def test_vectors_give_the_weights() -> None:
    model, tokenizer = load_pretrained("small-en-it")
    source, target = "The dog saw the car.", "Il cane vide la macchina rossa perché era stanco."
    plain = read_attention(model, tokenizer, source, target)
    model.train()  # che ha il dropout
    for m, without in zip(read_attention(model, tokenizer, source, target, vectors=True), plain, strict=True):
        np.testing.assert_array_equal(m.weights, without.weights)
        assert without.Q is None and without.K is None
        assert by_words(m).Q is None  # sono dei pezzi
        scores = torch.tensor(m.Q @ m.K.swapaxes(-1, -2) / m.Q.shape[-1] ** 0.5)
        if m.kind == "decoder":
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        np.testing.assert_allclose(scores.softmax(dim=-1), m.weights, atol=1e-5)
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_vectors_of_bfloat16_may_be_rougher_than_those_of_32_bits() -> None:
    model, tokenizer = load_pretrained("mini")
    text = "The animal didn't cross the street because it was too tired."
    read_attention(with_precision(model, "bf16"), tokenizer, text, vectors=True)  # scarto 0,02
    m = read_attention(model, tokenizer, text, vectors=True)[0]
    with pytest.raises(ValueError, match="non sono quelle di questi pesi"):
        AttentionMap(m.kind, m.weights, m.queries, m.keys, 1.1 * m.Q, m.K)  # uno scarto così, in 32 bit, no


def test_vectors_as_transformers_gives_them() -> None:
    m = with_vectors(causal=True)
    layers = [[torch.tensor(layer[None]) for layer in x] for x in (m.weights, m.Q, m.K)]  # (1, h, …) per strato
    again = AttentionMap("self", layers[0], TARGET, TARGET, *layers[1:])
    np.testing.assert_allclose(again.K, m.K, atol=1e-6)


def test_only_the_vectors_of_the_open_layer_travel() -> None:
    def weight(m: AttentionMap) -> int:
        without = AttentionMap(m.kind, m.weights, m.queries, m.keys)
        return attention_view([m]).size - attention_view([without]).size

    for N in (1, 4):
        m = with_vectors(N=N, d_k=64)
        assert weight(m) < 3 * (m.Q[0].size + m.K[0].size)
    assert attention_view([m], [AttentionMap(m.kind, m.weights, m.queries, m.keys)]).html.count('"vectors":[]') == 1


def test_shows_the_pieces_it_writes() -> None:
    "Non quelli in cui si ridividerebbe la traduzione: qui sono diversi."
    model, tokenizer = load_pretrained("small-en-it")
    source = "The commission withdrew the regulation because it was isolated."
    [src] = tokenizer.encode([source])
    [[best, *_]] = beam_search(model, torch.tensor([[*src, EOS]]))
    [again] = tokenizer.encode(tokenizer.decode([best.ids]))
    assert read_attention(model, tokenizer, source)[2].queries == tokenizer.pieces([*best.ids, EOS])
    assert again != best.ids


# ---------------------------------------------------------------- parole, corrispondenze, scalini


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (SOURCE, [0, 1, 1, 2, 3, 3, 4, 5]),
        (["▁didn", "'", "t"], [0, 0, 0]),
        (["<s>", "▁a", "b"], [0, 1, 1]),
        (["▁3", ",", "5", "▁%"], [0, 1, 2, 3]),
        (["a", "b", "."], [0, 1, 2]),  # senza «▁» ogni pezzo è una parola
        (["▁", "x", "▁y"], [0, 0, 1]),
        (["▁[CLS]", "▁a", "b", "▁[SEP]"], [0, 1, 1, 2]),
    ],
)
def test_word_index(pieces: list[str], words: list[int]) -> None:
    assert word_index(pieces) == words


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (SOURCE, SOURCE),
        (["[CLS]", "un", "##able", "[SEP]"], ["▁[CLS]", "▁un", "able", "▁[SEP]"]),
        (["The", "Ġcaff", "Ã¨", ".", "Ċ"], ["The", "▁caff", "è", ".", "↵"]),
        (["ĠÃ", "¨"], ["▁\ufffd", "\ufffd"]),  # mezza lettera per pezzo
    ],
)
def test_pieces_of_other_vocabularies(pieces: list[str], expected: list[str]) -> None:
    assert open_words(pieces) == expected


def test_merging_keeps_rows_distributions() -> None:
    for m in maps():
        merged = by_words(m)
        np.testing.assert_allclose(merged.weights.sum(axis=-1), 1)
        np.testing.assert_allclose(merged.weights, merge_words(m.weights, word_index(m.queries), word_index(m.keys)))
    encoder = maps()[0]
    expected = encoder.weights[0, 0, 1:3, 4:6].sum(axis=1).mean()  # «animal» guarda «tired»
    assert by_words(encoder).weights[0, 0, 1, 3] == pytest.approx(expected)
    assert by_words(encoder).keys == ["The", "animal", "was", "tired", ".", "</s>"]


def test_alignment() -> None:
    tired, wide = "it was too tired . </s>".split(), "it was too wide . </s>".split()
    assert align_pieces(tired, wide) == [(i, i) for i in range(6)]
    assert align_pieces("a b c".split(), "a x y c".split()) == [(0, 0), (2, 3)]
    assert align_pieces(["a"], ["b", "c"]) == []


@pytest.mark.parametrize("levels", [10_000, 1000, 200])
@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
def test_quantization(levels: int, scale: float) -> None:
    for causal in (False, True):
        w = weights(4, 5, 30, 30, scale=scale, causal=causal)
        again = dequantize(quantize(w, levels), levels)
        assert np.abs(again - w).max() < 1 / levels
        np.testing.assert_allclose(again.sum(axis=-1), 1, atol=1e-9)
        assert np.abs(again.round(2) - w).max() < 0.005 + 1e-6  # due decimali giusti
        assert np.array_equal(again == 0, w == 0)


def test_a_weight_that_is_not_zero_does_not_become_it() -> None:
    "Accanto a un peso che fa tutta la riga: la pagina lo direbbe mascherato."
    again = dequantize(quantize(np.array([1.0, 1e-12, 0.0]), 200), 200)
    assert again[0] > 0.99 and again[1] > 0 == again[2]


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
def test_weight_of_the_base_form(scale: float) -> None:
    "Sei strati di otto teste, trenta pezzi, tre attenzioni, due frasi: al più 300 kB, con due decimali giusti."
    pieces = [f"▁parola{i}" for i in range(29)] + ["</s>"]
    one, other = (
        [
            AttentionMap(
                kind, weights(6, 8, 30, 30, seed=seed + n, scale=scale, causal=kind == "decoder"), pieces, pieces
            )
            for n, kind in enumerate(("encoder", "decoder", "cross"))
        ]
        for seed in (0, 3)
    )
    view = attention_view(one, other)
    assert view.size <= LIMIT == 300_000 and view.levels >= 200
    assert len(view._repr_html_().encode()) == view.size


def test_the_finest_steps_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(levels: tuple[int, ...], limit: int) -> View:
        monkeypatch.setattr("annotated.study.viewer.LEVELS", levels)
        monkeypatch.setattr("annotated.study.viewer.LIMIT", limit)
        return attention_view(maps(h=12))

    sizes = {one: view((one,), 0).size for one in LEVELS}
    for limit in (*sizes.values(), 0):
        found = view(LEVELS, limit)
        assert found.levels == next((one for one in LEVELS if sizes[one] <= limit), LEVELS[-1])
        assert found.size == sizes[found.levels]


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(k * c for k, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colors_contrast_on_light_and_dark() -> None:
    css = (ROOT / "annotated" / "study" / "viewer.css").read_text("utf-8")
    grounds = re.findall(r"--fondo: (#\w{6}); --inchiostro: (#\w{6}); --tenue: (#\w{6})", css)
    assert len(grounds) >= 2  # chiaro, scuro (e la stampa)

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    for ground, *inks in grounds:
        assert all(contrast(ground, color) >= 3 for color in HEAD_COLORS)
        assert all(contrast(ground, ink) >= 4.5 for ink in inks)
    assert len(set(HEAD_COLORS)) >= 8


# ---------------------------------------------------------------- figura ferma, pagina, pacchetto


def test_still_figure() -> None:
    one, other = maps(), maps(seed=9)
    figure = attention_view(one, other, names=("a", "b"), kind="encoder", layer=2, heads=[1, 3]).figure()
    shown = [ax.images[0].get_array() for ax in figure.axes]
    assert len(shown) == 6  # due teste, due frasi e la differenza
    np.testing.assert_allclose(shown[3], one[0].weights[1, 2])
    np.testing.assert_allclose(shown[5], other[0].weights[1, 2] - one[0].weights[1, 2])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()][:3] == ["The", "ani", "·mal"]
    plt.close(figure)


def test_still_figure_by_words() -> None:
    "Se la vista si apre sulle parole, anche la figura è di parole; dove due sono diverse si leggono tutte e due."
    wide = [*SOURCE[:4], "▁wide", *SOURCE[6:]]
    one, other = maps(), maps(wide, seed=9)
    figure = attention_view(one, other, words=True).figure()
    names = [[t.get_text() for t in ax.get_yticklabels()] for ax in figure.axes]
    assert names[0] == by_words(one[0]).queries and names[2] == ["The", "animal", "was", "tired | wide", ".", "</s>"]
    before, after, change = (ax.images[0].get_array() for ax in figure.axes)
    np.testing.assert_allclose(before, by_words(one[0]).weights[2, 0])
    np.testing.assert_allclose(change, after - before)
    signs = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in figure.axes[2].texts}
    assert signs == {(i, j): "+" if x > 0 else "−" for (i, j), x in np.ndenumerate(change) if abs(x) >= 0.1} != {}
    plt.close(figure)


def test_still_figure_of_two_sentences_with_nothing_in_common() -> None:
    "Due riquadri: una differenza non c'è."
    rows = ["Hello", "Ġworld"], ["C", "iao", "Ġamici"]
    one, other = (AttentionMap("self", weights(1, 2, len(row), len(row)), row, row) for row in rows)
    assert len(attention_view([one], [other]).figure().axes) == 2
    assert not plt.get_fignums()  # chi la riceve la mostra: nessuna resta aperta


def test_saved_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = attention_view(maps())
    view.save(tmp_path / "vista.html", "A < B")
    page = (tmp_path / "vista.html").read_text("utf-8")
    assert '<html lang="it">' in page and "<title>A &lt; B</title>" in page and view.html in page
    assert [p.name for p in tmp_path.iterdir()] == ["vista.html"]
    with pytest.raises(AnnotatedError, match="finisca in .html"):
        view.save(tmp_path / "vista.pdf")
    with pytest.raises(AnnotatedError, match="la cartella non esiste"):
        view.save(tmp_path / "manca" / "vista.html")
    view.save(tmp_path / "ALTRA.HTML")
    fill_disk(monkeypatch)
    with pytest.raises(AnnotatedError, match="spazio su disco esaurito"):
        view.save(tmp_path / "vista.html", "Un altro titolo")
    assert (tmp_path / "vista.html").read_text("utf-8") == page  # quella di prima resta


PROGRAMS = ("web/transformer.js", "viewer.js", "web/live.js")  # nell'ordine in cui stanno in una pagina


def test_functions_of_the_programs_are_short_and_have_their_own_name() -> None:
    "Stanno nella stessa pagina: due funzioni con un nome solo si coprirebbero. E si leggono, come in Python."
    names: list[str] = []
    for name in PROGRAMS:
        text = (STUDY / name).read_text("utf-8")
        names += re.findall(r"^(?:async )?(?:function\*?|class|const) (\w+)", text, re.MULTILINE)
        bodies = re.findall(
            r"^( *)((?:async )?(?:function\*? )?\*?\w+\(.*\{(?: //.*)?\n(?:.*\n)*?)\1\}$", text, re.MULTILINE
        )
        assert len(bodies) > 15
        assert not [body.partition("\n")[0] for _, body in bodies if body.count("\n") > 40]
    assert len(names) > 90 and len(names) == len(set(names))


# ---------------------------------------------------------------- nel browser


def opened(visit: Visit, view: View, folder: Path) -> Page:
    view.save(folder / "vista.html")
    visit.page.goto((folder / "vista.html").as_uri())
    visit.page.locator(".disegno svg").first.wait_for()
    return visit.page


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("–", "0").replace(",", "."))


def texts(elements: Locator) -> list[str]:
    return elements.evaluate_all("e => e.map(x => x.textContent)")


def labels(page: Page, side: str) -> list[str]:
    return texts(page.locator(f".pezzo[data-{side}] title"))


def numbers(where: Page | Locator) -> list[float]:
    return [number(t) for t in texts(where.locator("svg .numero"))]


def choose(page: Page, side: str, index: int, panel: int = 0) -> None:
    "Indica un pezzo, con un clic o con un tocco."
    page.locator(".disegno svg").nth(panel).locator(f".pezzo[data-{side}='{index}'] rect").click()


def thumbnail(page: Page, layer: int, head: int) -> Locator:
    return page.get_by_role("button", name=f"strato {layer}, testa {head}", exact=True)


def chip(page: Page, head: int) -> Locator:
    return page.locator(".testa").nth(head - 1)


def test_every_head_at_a_glance_then_one(visit: Visit, tmp_path: Path) -> None:
    encoder = maps()[0]
    page = opened(visit, attention_view(maps()), tmp_path)
    assert page.locator(".miniatura").count() == 3 * 4
    for layer, head in ((1, 2), (3, 4)):
        thumbnail(page, layer, head).click()
        assert thumbnail(page, layer, head).get_attribute("aria-pressed") == "true"
        assert f"strato {layer} · testa {head}" in re.sub(r"\s+", " ", page.locator(".titolo").inner_text()).lower()
        for i in range(len(SOURCE)):
            choose(page, "query", i)
            np.testing.assert_allclose(numbers(page), encoder.weights[layer - 1, head - 1, i], atol=0.005 + 1e-9)
        choose(page, "key", 2)
        np.testing.assert_allclose(numbers(page), encoder.weights[layer - 1, head - 1, :, 2], atol=0.005 + 1e-9)


def test_roles_and_axes_of_the_three_attentions(visit: Visit, tmp_path: Path) -> None:
    page = opened(visit, attention_view(maps()), tmp_path)
    axes = {
        "encoder": (["The", "ani", "·mal", "was", "tir", "·ed", ".", "</s>"],) * 2,
        "decoder": (["L", "·'", "·animale", "era", "stanco", "</s>"], ["<s>", "L", "·'", "·animale", "era", "stanco"]),
    }
    axes["incrociata"] = (axes["decoder"][0], axes["encoder"][0])
    roles = {"encoder": "(partenza)", "decoder": "(pezzo da scrivere)", "incrociata": "(pezzo da scrivere)"}
    for view, (name, expected) in itertools.product(("linee", "matrice"), axes.items()):
        page.get_by_text(view, exact=True).click()
        page.get_by_text(name, exact=True).click()
        assert (labels(page, "query"), labels(page, "key")) == expected
        assert f"chi guarda {roles[name]}" in page.locator(".assi").inner_text()
        assert "chi è guardato" in page.locator(".assi").inner_text()
    page.get_by_text("linee", exact=True).click()
    page.get_by_text("decoder", exact=True).click()
    choose(page, "query", 1)  # scrivendo il secondo pezzo si guardano «<s>» e il primo; il resto è vietato
    shown = texts(page.locator("svg .numero"))
    assert "–" not in shown[:2] and shown[2:] == ["–"] * 4
    np.testing.assert_allclose(numbers(page), maps()[1].weights[1, 0, 1], atol=0.005 + 1e-9)


def test_heads_on_and_off(visit: Visit, tmp_path: Path) -> None:
    encoder = maps()[0]
    page = opened(visit, attention_view(maps(), layer=2, heads=[1]), tmp_path)
    chip(page, 3).click()
    choose(page, "query", 4)
    strips = page.locator("svg .striscia")
    assert strips.count() == 2 * len(SOURCE)
    fills = strips.evaluate_all("e => e.map(x => [x.getAttribute('fill'), Number(x.getAttribute('fill-opacity'))])")
    for n, h in enumerate((0, 2)):  # i colori sono quelli delle teste, e coprono secondo il peso
        colors, opacity = zip(*fills[n * len(SOURCE) : (n + 1) * len(SOURCE)], strict=True)
        assert set(colors) == {HEAD_COLORS[h]}
        np.testing.assert_allclose(opacity, encoder.weights[1, h, 4] ** 0.6, atol=0.01)
    lines = [line for line in page.locator(".riquadro p").all_inner_texts() if "guarda:" in line]
    for line, h in zip(lines, (0, 2), strict=True):  # il riquadro dice, per ogni testa, il pezzo più guardato
        best = encoder.weights[1, h, 4].argmax()
        piece, value = re.search(r"guarda:\s+(\S+)\s+(\d,\d\d)", line).groups()  # type: ignore[union-attr]
        assert piece == labels(page, "key")[best] and number(value) == pytest.approx(
            encoder.weights[1, h, 4, best], abs=0.005
        )
    page.get_by_text("media", exact=True).click()
    np.testing.assert_allclose(numbers(page), encoder.weights[1, [0, 2], 4].mean(axis=0), atol=0.006)
    page.get_by_text("tutte le teste").click()
    np.testing.assert_allclose(numbers(page), encoder.weights[1, :, 4].mean(axis=0), atol=0.006)
    chip(page, 2).dblclick()  # isola
    assert [chip(page, h).get_attribute("aria-pressed") for h in (1, 2, 3, 4)] == ["false", "true", "false", "false"]
    np.testing.assert_allclose(numbers(page), encoder.weights[1, 1, 4], atol=0.005 + 1e-9)
    chip(page, 2).click()  # l'ultima accesa non si spegne
    assert chip(page, 2).get_attribute("aria-pressed") == "true"


def test_matrix(visit: Visit, tmp_path: Path) -> None:
    encoder = maps()[0]
    page = opened(visit, attention_view(maps(), layer=1, heads=[2], matrix=True), tmp_path)
    field = page.locator(".campo").bounding_box()
    assert field is not None
    cell = field["width"] / len(SOURCE)
    for i, j in ((0, 0), (3, 5), (7, 1)):
        page.locator(".campo").click(position={"x": cell * (j + 0.5), "y": cell * (i + 0.5)})
        text = page.locator(".riquadro").inner_text()
        assert f"«{labels(page, 'query')[i]}» guarda «{labels(page, 'key')[j]}»" in text
        assert number(text.split()[-1]) == pytest.approx(encoder.weights[0, 1, i, j], abs=0.005)
    cells = page.locator(f"svg rect[fill='{HEAD_COLORS[1]}']")
    opacity = cells.evaluate_all("e => e.map(x => Number(x.getAttribute('fill-opacity')))")
    expected = encoder.weights[0, 1].ravel()
    np.testing.assert_allclose(sorted(opacity), sorted(expected[expected >= 0.002] ** 0.6), atol=0.02)
    choose(page, "query", 5)
    assert "«·ed» guarda" in page.locator(".riquadro").inner_text()


def test_whole_words(visit: Visit, tmp_path: Path) -> None:
    page = opened(visit, attention_view(maps(), layer=2, heads=[3]), tmp_path)
    page.get_by_text("parole intere", exact=True).click()
    assert labels(page, "query") == ["The", "animal", "was", "tired", ".", "</s>"]
    for i in range(6):
        choose(page, "query", i)
        np.testing.assert_allclose(numbers(page), by_words(maps()[0]).weights[1, 2, i], atol=0.006)
        assert sum(numbers(page)) == pytest.approx(1, abs=0.03)


def test_two_sentences_and_their_difference(visit: Visit, tmp_path: Path) -> None:
    changed = ["▁The", "▁ani", "mal", "▁was", "▁not", "▁wide", ".", "</s>"]  # due pezzi sostituiti uno per uno
    one, other = maps(), maps(changed, ["▁L", "'", "animale", "▁non", "▁era", "▁largo", "</s>"], seed=7)
    page = opened(visit, attention_view(one, other, names=("prima", "dopo"), layer=2, heads=[1]), tmp_path)
    assert page.locator("figure").count() == (1 if page.evaluate("innerWidth < 560") else 2)
    choose(page, "query", 3)
    a, b = (m[0].weights[1, 0, 3] for m in (one, other))
    for name, expected, error in (("prima", a, 0.005), ("dopo", b, 0.005), ("differenza", b - a, 0.006)):
        page.locator("fieldset").get_by_text(name, exact=True).click()
        assert page.locator("figure").count() == 1
        np.testing.assert_allclose(numbers(page), expected, atol=error + 1e-9)
    assert "tir | not" in labels(page, "key")
    page.get_by_text("incrociata", exact=True).click()  # la seconda traduzione ha un pezzo in più
    pairs = align_pieces([*one[2].queries], [*other[2].queries])
    assert page.locator("figure").count() == 1 and len(labels(page, "query")) == len(pairs)
    assert re.search(r"fuori:.*«non»", page.locator("figure .nota").inner_text())
    choose(page, "query", 0)
    i, m = pairs[0]
    np.testing.assert_allclose(numbers(page), other[2].weights[1, 0, m] - one[2].weights[1, 0, i], atol=0.006)
    dashes = page.locator("svg path[stroke-dasharray]").count()
    assert 0 < dashes < page.locator("svg path").count()  # il segno non sta nel solo colore


def test_keyboard(tab: Visit, tmp_path: Path) -> None:
    encoder = maps()[0]
    page = opened(tab, attention_view(maps(), layer=3, heads=[1]), tmp_path)
    keys = page.keyboard.press
    for _ in range(20):  # Tab porta alle miniature: un passo solo per tutte
        keys("Tab")
        name = page.evaluate(
            "document.querySelector('[data-vista]').shadowRoot.activeElement.getAttribute('aria-label')"
        )
        if name == "strato 3, testa 1":
            break
    for key in ("ArrowUp", "ArrowRight", "ArrowRight", "Enter"):
        keys(key)
    assert thumbnail(page, 2, 3).get_attribute("aria-pressed") == "true"
    page.locator(".disegno svg").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        keys(key)
    np.testing.assert_allclose(numbers(page), encoder.weights[1, 2, 2], atol=0.005 + 1e-9)
    assert "«·mal» guarda" in page.get_by_role("status").inner_text()
    for key in ("Control+End", "Alt+ArrowRight", "Meta+ArrowLeft"):  # sono del browser
        keys(key)
    assert "«·mal» guarda" in page.get_by_role("status").inner_text()
    keys("ArrowRight")  # lo stesso pezzo, guardato
    np.testing.assert_allclose(numbers(page), encoder.weights[1, 2, :, 2], atol=0.005 + 1e-9)
    keys("Escape")
    assert page.locator("svg .numero").count() == 0
    page.get_by_text("matrice", exact=True).click()
    page.locator(".disegno svg").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        keys(key)
    assert (
        f"guarda «·mal»: {encoder.weights[1, 2, 1, 2]:.2f}".replace(".", ",") in page.get_by_role("status").inner_text()
    )


def test_named_for_screen_readers(tab: Visit, tmp_path: Path) -> None:
    page = opened(tab, attention_view(maps(), maps(seed=5)), tmp_path)
    buttons = page.locator(".modello button")
    assert buttons.count() == 4 * 4 + 1
    assert all(buttons.nth(n).get_attribute("aria-pressed") is not None for n in range(buttons.count()))
    assert page.get_by_role("group", name="Attenzione", exact=True).get_by_role("radio").count() == 3
    assert page.get_by_role("checkbox", name="media").count() == 1
    pictures = page.get_by_role("application")
    assert pictures.count() == 2 and "strato 3, testa 1: 8 pezzi guardano" in (
        pictures.first.get_attribute("aria-label") or ""
    )
    assert page.get_by_role("status").get_attribute("aria-live") == "polite"
    page.get_by_text("Tabella dei numeri").click()
    table = page.locator("table").first
    table.wait_for()
    assert table.locator("th[scope=col]").count() == table.locator("th[scope=row]").count() == len(SOURCE)
    rows = [[number(x) for x in row.split("\t")[1:]] for row in table.locator("tr").all_inner_texts()[1:]]
    np.testing.assert_allclose(rows, maps()[0].weights[2, 0], atol=0.005 + 1e-9)


def test_fits_the_screen(visit: Visit, tmp_path: Path) -> None:
    pieces = [f"▁parola-lunghissima-{i}" for i in range(30)]
    long = [AttentionMap("encoder", weights(6, 16, 30, 30), pieces, pieces)]
    page = opened(visit, attention_view(long, long, heads=range(1, 17)), tmp_path)
    for name in ("linee", "matrice"):
        page.get_by_text(name, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_pointing_and_choosing(tab: Visit, tmp_path: Path) -> None:
    "Passando si guarda un altro pezzo, andandosene si torna a quello scelto; un secondo clic lo lascia."
    encoder = maps()[0]
    page = opened(tab, attention_view(maps(), layer=2, heads=[3], focus=5), tmp_path)

    def row(i: int) -> None:
        np.testing.assert_allclose(numbers(page), encoder.weights[1, 2, i], atol=0.005 + 1e-9)

    row(5)
    page.locator(".pezzo[data-query='2'] rect").hover()
    row(2)
    page.locator(".titolo").hover()
    row(5)
    choose(page, "query", 5)
    assert numbers(page) == []


@pytest.mark.parametrize("visit", ["telefono"], indirect=True)
def test_touch(visit: Visit, tmp_path: Path) -> None:
    encoder = maps()[0]
    page = opened(visit, attention_view(maps(), layer=2, heads=[3]), tmp_path)
    piece = page.locator(".pezzo[data-query='4'] rect")
    piece.tap()
    np.testing.assert_allclose(numbers(page), encoder.weights[1, 2, 4], atol=0.005 + 1e-9)
    assert page.locator(".riquadro").is_visible()
    thumbnail(page, 1, 2).tap()
    np.testing.assert_allclose(numbers(page), encoder.weights[0, 1, 4], atol=0.005 + 1e-9)
    piece.tap()
    assert numbers(page) == []
    chip(page, 4).tap()
    assert "testa 2 testa 4" in re.sub(r"\s+", " ", page.locator(".titolo").inner_text())
    page.get_by_text("matrice", exact=True).tap()
    page.locator(".campo").tap(position={"x": 3, "y": 3})
    assert "«The» guarda «The»" in page.locator(".riquadro").inner_text()
    targets = page.locator("button, fieldset span, summary, .spunta").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().height)"
    )
    assert len(targets) > 20 and min(targets) > 43.9


@pytest.mark.parametrize("visit", ["telefono"], indirect=True)
def test_a_piece_at_the_bottom_of_the_screen_can_be_pinned(visit: Visit, tmp_path: Path) -> None:
    "Appena si indica un pezzo in fondo allo schermo il riquadro gli compare sopra: il clic arriva lo stesso."
    page = opened(visit, attention_view(maps()), tmp_path)
    piece = page.locator(".pezzo[data-query='4'] rect")
    page.evaluate("document.body.style.paddingTop = '1000px'")
    piece.evaluate("e => scrollBy(0, e.getBoundingClientRect().bottom + 6 - innerHeight)")
    box = piece.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.locator(".riquadro:not(.vuoto)").wait_for()
    over = page.locator(".riquadro").bounding_box()
    assert over is not None and over["y"] < y < over["y"] + over["height"]
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(1, 1)
    assert page.locator(".pezzo.scelto").count() > 0


def saved(page: Page, name: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_saves_the_drawing(visit: Visit, tmp_path: Path) -> None:
    "Un disegno che si apre ovunque: ciò che si vede, con i numeri, su fondo chiaro, senza variabili né richieste."
    one, other = maps(), maps(["▁The", "▁a\x01n&<i", *SOURCE[2:]], seed=5)
    view = attention_view(one, other, names=("tired", "<wide>"), layer=2, heads=[1, 3], average=True, focus=3)
    page = opened(visit, view, tmp_path)
    path = saved(page, "Salva SVG", tmp_path)
    assert path.name == "attenzione-encoder-2.1-3.svg"
    text = path.read_text("utf-8")
    tree = ElementTree.fromstring(text)
    words = ["".join(e.itertext()) for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "Encoder · strato 2 · media delle teste 1, 3"
    mean = one[0].weights[1, [0, 2], 3].mean(axis=0)
    shown = [number(word) for word in words if re.fullmatch(r"\d,\d\d", word)][: len(SOURCE)]
    np.testing.assert_allclose(shown, mean, atol=0.006)
    assert "var(" not in text and "http" not in text.replace("http://www.w3.org", "")
    assert 'fill="#ffffff"' in text and re.search(r"text \{[^}]*fill: rgb\(28, 36, 48\)|text \{[^}]*#1c2430", text)
    image = plt.imread(saved(page, "Salva PNG", tmp_path))
    assert image.shape[:2] == (2 * int(tree.attrib["height"]), 2 * int(tree.attrib["width"]))
    assert (image[2, 2, :3] == 1).all() and image[..., :3].min() < 0.3


@pytest.mark.parametrize(("pair", "anchor"), [(False, "vista-1"), (True, "perché due frasi")])
def test_state_in_the_address(visit: Visit, tmp_path: Path, pair: bool, anchor: str) -> None:
    view = attention_view(maps(), maps(seed=4) if pair else None, anchor=anchor)
    page = opened(visit, view, tmp_path)
    thumbnail(page, 2, 3).click()
    chip(page, 1).click()
    page.get_by_text("matrice", exact=True).click()
    page.get_by_text("parole intere", exact=True).click()
    if pair:
        page.locator("fieldset").get_by_text("differenza", exact=True).click()
        assert "media delle teste 1, 3" in page.locator(".titolo").inner_text()  # la differenza è della media
        assert "sommano a 0" in page.locator(".legenda").inner_text()
    choose(page, "query", 3)
    page.mouse.move(1, 1)
    before = [page.locator(part).inner_text() for part in (".titolo", ".riquadro")]
    page.get_by_role("button", name="Copia il collegamento").click()
    page.get_by_text(re.compile("Collegamento copiato|copialo da lì")).wait_for()
    address = page.url
    asked = f"#{quote(anchor)}?guarda=encoder&strato=2&teste=1_3&parole=1&vista=matrice"
    assert address.endswith("&riga=4") and asked in address
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(".disegno svg").first).to_be_focused()  # da tastiera si prosegue da lì
    assert [page.locator(part).inner_text() for part in (".titolo", ".riquadro")] == before
    page.evaluate(
        f"location.hash = '#{anchor}?guarda=constructor&strato=99&teste=-1_77&riga=1e9&colonna=40&su=x&frasi=9'"
    )
    page.wait_for_function(
        "document.querySelector('[data-vista]').shadowRoot.querySelector('.titolo').textContent.includes('strato 3')"
    )
    assert numbers(page) == [] and page.locator(".disegno svg .pezzo").count() > 0


@pytest.mark.parametrize("field", ["riga=0", "colonna=0", "riga=0&colonna=3&vista=matrice"])
def test_nothing_comes_before_the_first_row(tab: Visit, tmp_path: Path, field: str) -> None:
    "Righe e colonne, nell'indirizzo, si contano da 1: lo 0 non sceglie nulla, e non rompe nulla."
    attention_view(maps(), anchor="vista-1").save(tmp_path / "vista.html")
    tab.page.goto(f"{(tmp_path / 'vista.html').as_uri()}#vista-1?{field}")
    tab.page.locator(".disegno svg").first.wait_for()
    assert "Passa su un pezzo" in tab.page.locator(".riquadro").inner_text() and numbers(tab.page) == []


def test_accessible(visit: Visit, tmp_path: Path) -> None:
    page = opened(visit, attention_view(maps(), maps(seed=4), words=True, focus=2), tmp_path)
    for name in ("linee", "matrice"):
        page.get_by_text(name, exact=True).click()
        for fold in ("Tabella dei numeri", "Come si usa"):
            if page.locator("details", has_text=fold).get_attribute("open") is None:
                page.locator("summary", has_text=fold).click()
        page.locator("table").first.wait_for()
        check_accessible(page)


def test_same_words_as_python(tab: Visit) -> None:
    "Il visore riunisce i pezzi da sé, perché un modello vivo gli dà frasi nuove."
    tab.page.add_script_tag(content=(STUDY / "viewer.js").read_text("utf-8"))
    tokenizer = load_pretrained("mini")[1]
    sentences = tokenizer.encode(["The dog's car, wasn't it? 3,5 %", "L'animale è lì — «qui»!", "x\u0301y ½ 日本 ²"])
    for pieces in [
        *map(tokenizer.pieces, sentences),
        SOURCE,
        HOSTILE,
        ["a", "b", "."],
        ["▁", "x", "▁y"],
        ["▁<b>", "c"],
        ["▁The", "▁", "<unk>", "▁cat"],
    ]:
        square = [AttentionMap("encoder", np.eye(len(pieces))[None, None], pieces, pieces)]
        axis = tab.page.evaluate("pieces => axis(pieces)", pieces)
        assert axis["index"] == word_index(pieces)
        assert axis["words"] == by_words(square[0]).keys
        still = attention_view(square).figure()
        whole = attention_view(square, words=True).figure()
        shown = [[t.get_text() for t in figure.axes[0].get_yticklabels()] for figure in (still, whole)]
        assert shown == [axis["pieces"], axis["words"]]
        plt.close("all")


def test_light_dark_still_and_print(tab: Visit, tmp_path: Path) -> None:
    tab.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page = opened(tab, attention_view(maps(), focus=1), tmp_path)
    ground = (
        "getComputedStyle(document.querySelector('[data-vista]').shadowRoot.querySelector('.vista')).backgroundColor"
    )
    dark = page.evaluate(ground)
    page.evaluate("document.documentElement.dataset.theme = 'light'")  # come fa il libro
    page.wait_for_function(f"{ground} === 'rgb(255, 255, 255)'")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(f"{ground} === '{dark}'")
    assert dark != "rgb(255, 255, 255)"
    assert page.locator(".sfondo").evaluate("e => getComputedStyle(e).transitionDuration") == "0s"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.locator(".disegno svg").is_visible() and page.locator(".riquadro").is_visible()
    assert not page.locator(".comandi").first.is_visible()


def test_hostile_pieces(visit: Visit, tmp_path: Path) -> None:
    n = len(HOSTILE)
    hostile = [AttentionMap("encoder", weights(1, 1, n, n), HOSTILE, HOSTILE)]
    view = attention_view(hostile, hostile, names=("<i>a</i>", "</script>"))
    assert view.html.count("</script>") == 1 and "<!--" not in view.html
    visit.page.on("dialog", lambda dialog: visit.problems.append(dialog.message))
    page = opened(visit, view, tmp_path)
    choose(page, "query", 0)
    assert HOSTILE[0] in page.locator(".riquadro").inner_text()
    shadow = page.locator("[data-vista]")
    assert shadow.evaluate("e => e.shadowRoot.querySelectorAll('img, script, b + img, i > i').length") == 0
    assert [text.lstrip("·") for text in labels(page, "query")[:4]] == HOSTILE[:4]


def test_many_views_in_one_page(visit: Visit, tmp_path: Path) -> None:
    "Nella stessa pagina, due volte la stessa, in un iframe come in Colab, inserita dopo come in JupyterLab."
    one, other = attention_view(maps(), heads=[1]), attention_view(maps(seed=3), heads=[2])
    frame = one.html.replace("&", "&amp;").replace('"', "&quot;")
    (tmp_path / "pagina.html").write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body>{one.html}{other.html}<section>{one.html}</section>'
        f'<iframe sandbox="allow-scripts" srcdoc="{frame}"></iframe><div id="lab"></div>',
        "utf-8",
    )
    page = visit.page
    page.goto((tmp_path / "pagina.html").as_uri())
    page.evaluate(
        """html => {
            const lab = document.getElementById('lab');
            lab.innerHTML = html;
            for (const old of lab.querySelectorAll('script')) {
                const script = document.createElement('script');
                script.textContent = old.textContent;
                old.replaceWith(script);
            }
        }""",
        attention_view(maps(seed=8)).html,
    )
    page.locator("iframe").scroll_into_view_if_needed()  # Chromium non disegna un iframe isolato finché è fuori vista
    page.frame_locator("iframe").locator(".disegno svg").wait_for(state="attached")
    page.locator("#lab .disegno svg").wait_for()
    assert page.locator(".disegno svg").count() == 4
    views = page.locator("[data-vista]")
    chip_of = [views.nth(n).locator(".testa") for n in range(3)]
    chip_of[0].nth(2).click()
    pressed = [[c.nth(h).get_attribute("aria-pressed") for h in range(4)] for c in chip_of]
    assert pressed == [
        ["true", "false", "true", "false"],
        ["false", "true", "false", "false"],
        ["true"] + ["false"] * 3,
    ]


# ---------------------------------------------------------------- dentro un peso


def inside(page: Page) -> tuple[list[str], list[float], list[float]]:
    "I pezzi, le somme e i pesi che si leggono sotto «Dentro un peso»."
    rows = page.locator(".dentro tr:has(td)").all()[2:]  # prima ci sono l'intestazione e la query
    read = [row.locator("th, td").all_text_contents() for row in rows]
    return [row[0] for row in read], [number(row[-2]) for row in read], [number(row[-1]) for row in read]


def assert_inside(page: Page, m: AttentionMap, layer: int, head: int, row: int) -> None:
    q, K, w = m.Q[layer, head, row], m.K[layer, head], m.weights[layer, head, row]
    seen, d_k = np.flatnonzero(w), len(q)
    pieces, sums, shown = inside(page)
    assert pieces == [labels(page, "key")[n] for n in seen]
    np.testing.assert_allclose(sums, K[seen] @ q / d_k**0.5, atol=0.01)
    np.testing.assert_allclose(shown, w[seen], atol=0.005 + 1e-6)


def test_inside_a_weight(visit: Visit, tmp_path: Path) -> None:
    "I numeri sono quelli di PyTorch, per ogni riga e testa dello strato che la pagina porta."
    maps = read_attention(*load_pretrained("small-en-it"), "The animal was too tired.", vectors=True)
    for n, m in enumerate(maps):
        page = opened(visit, attention_view(maps, kind=m.kind, layer=2, heads=[4], focus=3), tmp_path)
        assert_inside(page, m, 1, 3, 3)
        choose(page, "query", 2)
        assert_inside(page, m, 1, 3, 2)
        thumbnail(page, 2, 1).click()
        assert_inside(page, m, 1, 0, 2)
        who = page.locator(".dentro p").first
        expect(who).to_contain_text("quanto «" if n == 0 else "quanto chi scrive «")
    page.get_by_text("parole intere", exact=True).click()
    expect(who).to_contain_text("Lascia in vista una testa sola, i pezzi divisi")
    page.get_by_text("parole intere", exact=True).click()
    chip(page, 2).click()
    expect(who).to_contain_text("Lascia in vista una testa sola")


def test_inside_a_weight_from_the_keyboard(tab: Visit, tmp_path: Path) -> None:
    one = with_vectors("encoder", causal=True)
    page = opened(tab, attention_view([one, maps()[2]], layer=1, heads=[2], matrix=True), tmp_path)
    expect(page.locator(".dentro")).to_contain_text("scegli un pezzo che guarda")
    page.locator(".disegno svg").focus()
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    assert_inside(page, one, 0, 1, 3)  # la maschera lascia quattro chiavi
    note, last = page.locator(".dentro .nota"), labels(page, "key")[3]
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(note).to_contain_text(f"dall'addendo più grande di «{last}»")  # i posti si ordinano sulla colonna scelta
    page.keyboard.press("ArrowRight")  # la quinta è mascherata: si torna al pezzo più guardato
    best = labels(page, "key")[one.weights[0, 1, 3].argmax()]
    expect(note).to_contain_text(f"dall'addendo più grande di «{best}»")
    check_accessible(page)
    for away in (lambda: thumbnail(page, 2, 3).click(), lambda: page.get_by_text("incrociata", exact=True).click()):
        away()
        expect(page.locator(".dentro")).to_contain_text("uno strato solo: encoder, strato 1.")
        check_accessible(page)
        page.get_by_role("button", name="Apri quello strato").press("Enter")
        expect(page.get_by_role("region", name="Dentro un peso")).to_be_focused()
        assert thumbnail(page, 1, 3).get_attribute("aria-pressed") == "true"
    page.locator("summary", has_text="Dentro un peso").press("Enter")  # si chiude
    expect(page.get_by_role("region", name="Dentro un peso")).to_have_count(0)


def test_inside_a_weight_of_two_sentences(visit: Visit, tmp_path: Path) -> None:
    one, other = with_vectors("encoder"), with_vectors("encoder", seed=1)
    view = attention_view([one], [other], names=("prima", "dopo"), layer=2, heads=[3], focus=1)
    page = opened(visit, view, tmp_path)
    wide = page.locator(".disegno svg").count() == 2
    expect(page.locator(".dentro")).to_contain_text("prima · Strato 2, testa 3")
    page.locator("fieldset").get_by_text("dopo", exact=True).click()
    expect(page.locator(".dentro")).to_contain_text("dopo · Strato 2, testa 3")
    assert_inside(page, other, 1, 2, 1)  # la riga corrispondente
    page.locator("fieldset").get_by_text("differenza", exact=True).click()
    expect(page.locator(".dentro")).to_contain_text("scegli un pezzo che guarda in una delle due frasi")
    if wide:
        page.get_by_text("affiancate", exact=True).click()
        choose(page, "query", 4, panel=1)
        q, K = other.Q[1, 2, 4], other.K[1, 2]
        np.testing.assert_allclose(inside(page)[1], K @ q / len(q) ** 0.5, atol=0.01)


def test_a_view_without_vectors_has_nothing_inside(tab: Visit, tmp_path: Path) -> None:
    assert opened(tab, attention_view(maps()), tmp_path).get_by_text("Dentro un peso").count() == 0


# ---------------------------------------------------------------- modelli grandi e di altri


def many() -> AttentionMap:
    "Teste che guardano il pezzo precedente, fra 102 pezzi: una linea sottile, in una miniatura."
    previous = np.eye(102, k=-1)
    previous[0, 0] = 1
    pieces = [f"▁parola{i}" for i in range(102)]
    return AttentionMap("self", np.broadcast_to(previous, (2, 12, 102, 102)), pieces, pieces)


def test_many_heads_and_pieces_still_show_in_the_thumbnails(visit: Visit, tmp_path: Path) -> None:
    page = opened(visit, attention_view([many()]), tmp_path)
    box = page.locator(".miniatura").first.bounding_box()
    assert box and box["width"] >= 24
    ink = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((_, n) => n % 4 === 3)"
    for canvas in page.locator(".miniatura canvas").all():
        cover = np.array(canvas.evaluate(ink))
        side = int(len(cover) ** 0.5)
        assert side <= 46 and np.all(np.diag(cover.reshape(side, side)) == 255)  # ridotta, la diagonale resta


def test_the_numbers_do_not_move_the_page(visit: Visit, tmp_path: Path) -> None:
    page = opened(visit, attention_view([many()], heads=range(1, 13)), tmp_path)
    height = "document.documentElement.scrollHeight"
    before = page.evaluate(height)
    choose(page, "query", 0)
    assert page.locator(".riquadro p").count() == 12  # una riga per testa: chi guarda, non chi è guardato
    assert page.evaluate(height) - before < 100  # tanti numeri scorrono nel loro riquadro


@pytest.mark.parametrize("matrix", [False, True])
def test_the_arrows_keep_the_piece_in_sight(visit: Visit, tmp_path: Path, matrix: bool) -> None:
    page = opened(visit, attention_view([many()], matrix=matrix), tmp_path)
    page.locator(".disegno svg").focus()
    for key in ["ArrowDown", *["ArrowRight"] * (101 if matrix else 0), *["ArrowDown"] * 80]:
        page.keyboard.press(key)
    shown = page.locator(".casella" if matrix else ".pezzo.scelto rect")
    inside = """e => {
        const box = e.getBoundingClientRect(), frame = e.closest(".disegno").getBoundingClientRect();
        const numbers = e.closest("[data-forma=stretto]")?.querySelector(".riquadro").getBoundingClientRect();
        return box.top >= 0 && box.bottom <= (numbers?.top ?? innerHeight)
            && box.left >= frame.left && box.right <= frame.right + 1;
    }"""
    assert shown.evaluate(inside)


@pytest.mark.parametrize("visit", ["telefono"], indirect=True)
def test_the_numbers_do_not_cover_what_has_the_focus(visit: Visit, tmp_path: Path) -> None:
    page = opened(visit, attention_view(maps(), focus=2), tmp_path)
    page.set_viewport_size({"width": 320, "height": 256})  # ingrandito quattro volte
    covered = """view => {
        const focus = view.getRootNode().activeElement, numbers = view.querySelector(".riquadro");
        const [box, over] = [focus.closest("label") ?? focus, numbers].map((e) => e.getBoundingClientRect());
        return focus !== numbers && box.top >= over.top && box.bottom <= over.bottom ? focus.dataset.chiave : null;
    }"""
    found = []
    for _ in range(12):
        page.keyboard.press("Tab")
        found.append(page.locator(".vista").evaluate(covered))
    assert set(found) == {None}
    over = page.locator(".riquadro").bounding_box()
    assert over and over["height"] < 0.41 * 256


def test_a_model_of_others(visit: Visit, tmp_path: Path) -> None:
    pieces = ["The", "Ġcat", "Ġs", "at", "."]
    page = opened(
        visit, attention_view([AttentionMap("self", weights(2, 3, 5, 5, causal=True), pieces, pieces)]), tmp_path
    )
    assert labels(page, "query") == labels(page, "key") == ["The", "cat", "s", "·at", "."]
    assert page.locator(".assi").inner_text().split("\n") == ["chi guarda", "→", "chi è guardato"]
    choose(page, "query", 1)
    assert texts(page.locator("svg .numero"))[2:] == ["–"] * 3  # ciò che viene dopo non si vede
    page.get_by_text("parole intere").click()
    assert labels(page, "query") == ["The", "cat", "sat", "."]


def test_two_sentences_read_together(visit: Visit, tmp_path: Path) -> None:
    pieces = ["[CLS]", "a", "cat", "[SEP]", "it", "sl", "##eps", "[SEP]"]
    w = weights(1, 1, 8, 8, scale=0.3)  # ogni peso è più di 0,02
    page = opened(visit, attention_view([AttentionMap("self", w, pieces, pieces)], second=4), tmp_path)
    lines = page.locator(".insieme path")
    assert lines.count() == 64
    for block, n in (("A → A", 16), ("A → B", 16), ("tutto", 64), ("B → B", 16)):
        page.get_by_text(block, exact=True).click()
        assert lines.count() == n
    page.get_by_text("parole intere").click()
    assert lines.count() == 9  # «it», «sleeps» e la fine
    choose(page, "query", 5)
    np.testing.assert_allclose(
        numbers(page),
        by_words(AttentionMap("self", w, open_words(pieces), open_words(pieces))).weights[0, 0, 5, 4:],
        atol=0.006,
    )
    page.reload()
    expect(lines).to_have_count(64)  # l'indirizzo cambia soltanto se lo si chiede


def test_spread_weights_are_drawn(visit: Visit, tmp_path: Path) -> None:
    uniform = np.full((1, 1, 80, 80), 1 / 80)
    page = opened(visit, attention_view([AttentionMap("self", uniform, *[["a"] * 80] * 2)]), tmp_path)
    assert page.locator(".insieme path").count() == 80 * 80
    assert "sotto 0,006 non è disegnata" in page.locator(".nota").inner_text()
