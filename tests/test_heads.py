"""Le teste: chi si spegne, che cosa torna com'era, e misure che non dipendono dal lotto."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from provenienza import sha256, weights_sha256
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from annotated import Config, Transformer
from annotated.common import BOS, EOS
from annotated.data import Corpus, read_pairs
from annotated.multihead import MultiHeadAttention
from annotated.optim import translation_loss
from annotated.pretrained import MODELS
from annotated.study.efficient import linear_attention, random_directions, reached
from annotated.study.heads import (
    ADJECTIVES,
    AUXILIARIES,
    DETERMINERS,
    NOUNS,
    PREPOSITIONS,
    VERBS,
    Estimate,
    Head,
    ablation,
    all_heads,
    attention_of,
    bleu_difference,
    bleu_of,
    bleu_statistics,
    bootstrap,
    hits,
    mass,
    parsed_sentences,
    positional_targets,
    sentence_losses,
    sentence_weights,
    spearman,
    without_heads,
    word_weights,
)
from annotated.transformer import attention_weights

DATA = Path(__file__).resolve().parent.parent / "book" / "dati"


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(Config(50, d_model=16, d_ff=32, h=4, N=2, N_decoder=1, h_cross=2, max_len=40)).eval()


@pytest.fixture
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 12, 20)
    sentences = [np.append(rng.integers(4, 50, n - 1), EOS) for n in lengths]
    return Corpus(np.concatenate(sentences), np.concatenate(([0], lengths.cumsum())))


def silenced_by_hook(attention: MultiHeadAttention, head: int):
    "Azzera l'uscita della testa prima di W_o, senza toccare i pesi."

    def zero(_: torch.nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        heads = arguments[0].clone().unflatten(-1, (attention.h, -1))
        heads[..., head, :] = 0.0
        return (heads.flatten(-2),)

    return attention.W_o.register_forward_pre_hook(zero)


def test_every_head_is_listed_once(model: Transformer) -> None:
    heads = all_heads(model)
    assert Counter(head.attention for head in heads) == {"encoder": 8, "decoder": 4, "cross": 2}
    assert len(set(heads)) == len(heads) and str(heads[0]) == "encoder 1.1"


def test_silencing_columns_is_silencing_the_output(model: Transformer, corpus: Corpus) -> None:
    intact = sentence_losses(model, corpus)
    for head in all_heads(model):
        with without_heads(model, [head]):
            columns = sentence_losses(model, corpus)
        handle = silenced_by_hook(attention_of(model, head), head.head)
        output = sentence_losses(model, corpus)
        handle.remove()
        np.testing.assert_allclose(columns, output, rtol=1e-5)
        assert not np.allclose(columns, intact, rtol=1e-6), head


def test_weights_come_back_bit_for_bit(model: Transformer) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    a, b = all_heads(model)[0], all_heads(model)[-1]
    with pytest.raises(ZeroDivisionError), without_heads(model, [a, b, a]), without_heads(model, all_heads(model)):
        assert attention_of(model, a).W_o.weight.count_nonzero() == 0
        raise ZeroDivisionError
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


ABSENT = [Head("encoder", 2, 0), Head("cross", 0, 2), Head("decoder", 0, -1), Head("altro", 0, 0)]


@pytest.mark.parametrize("wrong", ABSENT)
def test_refuses_a_head_that_is_not_there(model: Transformer, wrong: Head) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match="non c'è"), without_heads(model, [all_heads(model)[0], wrong]):
        pass
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_without_cross_heads_the_source_is_unseen(model: Transformer) -> None:
    tgt = torch.tensor([[BOS, 7, 8, 9]])
    with torch.no_grad(), without_heads(model, [head for head in all_heads(model) if head.attention == "cross"]):
        assert torch.equal(model(torch.tensor([[5, 6, EOS]]), tgt), model(torch.tensor([[9, EOS]]), tgt))


def test_sentence_losses(model: Transformer, corpus: Corpus) -> None:
    "Sommano alla perdita dell'addestramento e non dipendono dal lotto."
    together, alone = (sentence_losses(model, corpus, max_tokens) for max_tokens in (1000, 1))
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    batch = corpus.batch(np.arange(len(corpus)))
    with torch.no_grad():
        whole = translation_loss(model(batch.src, batch.tgt_in), batch.tgt_out).item()
    assert together.sum() == pytest.approx(whole, rel=1e-5)


def test_ablation_of_nothing_costs_nothing(model: Transformer, corpus: Corpus) -> None:
    rows = ablation(model, corpus, [[], all_heads(model)[:3]])
    assert rows.shape == (2, len(corpus)) and not rows[0].any() and rows[1].any()


def test_sentence_weights_have_no_padding(model: Transformer, corpus: Corpus) -> None:
    seen = []
    for i, weights in sentence_weights(model, corpus, max_tokens=60):
        seen.append(i)
        batch = corpus.batch(np.array([i]))
        for own, alone in zip(weights.values(), attention_weights(model, batch.src, batch.tgt_in), strict=True):
            torch.testing.assert_close(own, torch.cat(alone))
            torch.testing.assert_close(own.sum(-1), torch.ones(own.shape[:-1]))
    assert sorted(seen) == list(range(len(corpus)))


@pytest.mark.parametrize("attention", ["encoder", "decoder", "cross"])
def test_positional_targets(attention: str) -> None:
    T, S = (7, 7) if attention != "cross" else (9, 6)
    targets = torch.stack(list(positional_targets(attention, T, S).values()))  # (4, T, S)
    assert targets.shape == (4, T, S) and targets.sum(dim=0).max() == 1
    assert targets.sum(dim=-1).max() == 1  # un bersaglio per query e per ruolo
    for role in targets[:2]:
        torch.testing.assert_close(mass(role.float(), role), torch.tensor(1.0))
    if attention == "decoder":
        assert not (targets & ~torch.ones(T, S).tril().bool())[[0, 1, 3]].any()  # nessuno guarda il futuro


def test_positional_targets_by_name() -> None:
    "Nel decoder la riga è spostata di uno: chi scrive il pezzo t legge il t − 1."
    places = {name: role.nonzero().tolist() for name, role in positional_targets("decoder", 3, 3).items()}
    assert places == {
        "precedente": [[2, 1]],
        "stesso": [[1, 1], [2, 2]],
        "successivo": [[1, 2]],
        "estremo": [[1, 0], [2, 0]],
    }


def test_hits_and_mass() -> None:
    targets = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 1]]).bool()
    weights = torch.tensor([[[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.3, 0.4, 0.3]]])
    assert hits(weights, targets).tolist() == [1]
    torch.testing.assert_close(mass(weights, targets), torch.tensor([(0.5 + 0.6) / 2]))
    assert mass(weights, torch.zeros(3, 3).bool()).isnan().all()
    assert hits(torch.zeros(3, 3), targets) == 0  # una riga di zeri non guarda nessuno, nemmeno la prima chiave


def test_word_weights() -> None:
    owners = torch.tensor([0, 1, 1, 2])
    weights = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    words = word_weights(weights, owners)
    torch.testing.assert_close(words.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(words[:, 1, 1], weights[:, 1:3, 1:3].sum(-1).mean(-1))
    torch.testing.assert_close(word_weights(weights, torch.arange(4)), weights)


def test_intervals_read_together_are_wider() -> None:
    ones, values = np.ones(300), np.random.default_rng(0).normal(size=300)
    alone, twelve = (bootstrap(values, ones, draws=20_000, tests=n) for n in (1, 12))
    assert twelve.low < alone.low < alone.value < alone.high < twelve.high
    z = np.std(values) / 300**0.5 * np.array([1.96, 2.865])  # i quantili della normale a 0,025 e 0,025/12
    np.testing.assert_allclose([(x.high - x.low) / 2 for x in (alone, twelve)], z, rtol=0.06)


def test_parsed_sentences_know_their_words() -> None:
    sentences = parsed_sentences(500, seed=5)
    forms = {form for verb in VERBS for form in verb.split("/")}
    kinds = dict.fromkeys(("nome", "soggetto", "oggetto"), NOUNS) | {"verbo": forms, "aggettivo": ADJECTIVES}
    kinds |= {"determinante": DETERMINERS, "ausiliare": AUXILIARIES, "preposizione": PREPOSITIONS}
    assert len({str(s) for s in sentences}) == 500
    assert [str(s) for s in sentences] == [str(s) for s in parsed_sentences(500, seed=5)]
    assert [str(s) for s in sentences] != [str(s) for s in parsed_sentences(500, seed=6)]
    for s in sentences:
        for (head, dependent), pairs in s.relations.items():
            for i, j in pairs:
                assert s.words[i].lower() in kinds[head], str(s)
                assert s.words[j].lower() in kinds[dependent], str(s)
        verbs = [i for i, word in enumerate(s.words) if word in forms]
        assert [i for i, _ in sorted(s.relations["verbo", "soggetto"])] == verbs  # ogni verbo ha un soggetto…
        assert [i for i, _ in sorted(s.relations["verbo", "oggetto"])] == verbs  # …e un oggetto


def test_parsed_distances_vary() -> None:
    for relation in (("verbo", "soggetto"), ("verbo", "oggetto"), ("nome", "determinante")):
        distances = Counter(j - i for s in parsed_sentences(500) for i, j in s.relations[relation])
        assert max(distances.values()) < 0.6 * distances.total(), relation


def test_bootstrap_covers_the_truth() -> None:
    rng, covered = np.random.default_rng(0), 0
    for seed in range(200):
        estimate = bootstrap(rng.normal(1.0, 1.0, 60), np.ones(60), draws=300, seed=seed)
        covered += estimate.low <= 1.0 <= estimate.high
    assert 0.88 < covered / 200 <= 1
    assert f"{bootstrap(np.ones(5), np.full(5, 2.0)):.2f}" == "0.50 [0.50; 0.50]"
    values = rng.normal(size=60)
    one, again, other = (bootstrap(values, np.ones(60), seed=seed) for seed in (3, 3, 4))
    assert one == again and one.value == other.value and one[1:] != other[1:]


def test_spearman() -> None:
    x = np.array([1.0, 2.0, 2.0, 3.0, 10.0, 4.0])
    assert spearman(x, x**3).value == pytest.approx(1)
    assert spearman(x, -x).value == pytest.approx(-1)
    y = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])  # a mano: posti 1 2,5 2,5 4 6 5 e 3 1,5 4 1,5 5 6
    a, b = np.array([1, 2.5, 2.5, 4, 6, 5]), np.array([3, 1.5, 4, 1.5, 5, 6])
    estimate = spearman(x, y)
    assert estimate.value == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1


@pytest.mark.parametrize("measure", [bootstrap, spearman])
@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 2.0]), ([1.0, 2.0], [1.0, np.inf])]
)
def test_an_interval_needs_pairs_of_numbers(measure: Callable[..., Estimate], x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match=f"{len(x)} e {len(y)} valori"):
        measure(np.array(x), np.array(y))


def test_an_interval_is_never_nan() -> None:
    rare = bootstrap(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, 2.0]))  # molte estrazioni senza denominatore
    assert rare == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="sommano a zero"):
        bootstrap(np.ones(3), np.zeros(3))
    with pytest.raises(ValueError, match="servono 4000 estrazioni"):
        bootstrap(np.ones(3), np.ones(3), tests=100)
    assert bootstrap(np.ones(3), np.ones(3), tests=25) == (1, 1, 1)  # mille estrazioni: quaranta l'uno bastano
    assert spearman(np.ones(4), np.arange(4.0)) == (0.0, 0.0, 0.0)  # tutti uguali: nessuna classifica
    assert np.isfinite(spearman(np.array([0.0, 1.0]), np.arange(2.0))).all()


def test_bleu_from_counts() -> None:
    ours = ["il gatto nero dorme sul divano rosso", "la strada era molto larga ieri sera", "sì"]
    theirs = ["il gatto nero dorme sul letto", "la strada era larga", "no"]
    references = ["il gatto nero dorme sul divano", "la strada era molto larga", "sì"]
    a, b = bleu_statistics(ours, references), bleu_statistics(theirs, references)
    assert bleu_of(a) == pytest.approx(BLEU().corpus_score(ours, [references]).score)
    with pytest.raises(ValueError, match="3 e 2 frasi"):
        bleu_difference(a, b[:2])
    assert bleu_difference(a, a, draws=20) == (0, 0, 0)
    assert bleu_difference(a, b, draws=20).value == pytest.approx(bleu_of(a) - bleu_of(b))


def test_the_sentences_of_the_chapter() -> None:
    pairs = list(read_pairs(DATA / "teste.tsv.xz"))
    assert len(pairs) >= 1000 and len({pair.source for pair in pairs}) == len(pairs)
    assert (DATA / "teste.tsv.xz").stat().st_size < 200_000


def test_the_measures_are_of_these_sentences_and_weights() -> None:
    stored = np.load(DATA / "teste.npz", allow_pickle=False)
    provenance = json.loads(str(stored["provenance"]))
    n = len(list(read_pairs(DATA / "teste.tsv.xz")))
    assert provenance["sentences"] == sha256(DATA / "teste.tsv.xz")
    assert stored["effects"].shape == (len(provenance["heads"]), n)
    assert stored["curve"].shape[::2] == (len(provenance["kept"]), n - n // 2)
    assert stored["bleu"].shape == (len(provenance["bleu"]), n - n // 2, 10)
    assert provenance["weights"] == weights_sha256(MODELS / provenance["model"]), "rifai con «python tools/teste.py»"


def test_random_directions_have_no_favourite_side() -> None:
    "Le direzioni ortogonali, posto per posto nel gruppo, hanno media zero, come se fossero indipendenti."
    generator = torch.Generator().manual_seed(0)
    groups = torch.stack([random_directions(10, 4, generator=generator) for _ in range(4000)])  # 4 + 4 + 2
    assert torch.equal(groups[0], random_directions(10, 4, generator=generator.manual_seed(0)))
    assert groups.mean(dim=0).abs().max() < 0.08  # cinque errori standard; con i segni di `qr` era 0,8
    inside = groups[:, :4] @ groups[:, :4].mT
    assert (inside - torch.diag_embed(inside.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4
    torch.testing.assert_close(groups.pow(2).sum(-1).mean(0), torch.full((10,), 4.0), atol=0.25, rtol=0)


def test_who_depends_on_whom_follows_the_order_of_the_layers() -> None:
    to_first, to_second = torch.zeros(2, 3, 3, dtype=torch.bool)
    to_first[1, 0] = to_second[2, 1] = True  # uno strato porta 0 in 1, l'altro porta 1 in 2
    assert reached(to_first, to_second).nonzero().tolist() == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert not reached(to_second, to_first)[2, 0]  # 1 arriva in 2 prima di aver sentito 0


def test_linear_attention_to_nothing_is_nan() -> None:
    "Come in `attention`: una media di nessuno non è zero."
    Q, K, V = torch.randn(3, 4, 8)
    none = torch.zeros(1, 4, dtype=torch.bool)
    assert linear_attention(Q, K, V, none).isnan().all() and linear_attention(Q, K, V, none, causal=True).isnan().all()
