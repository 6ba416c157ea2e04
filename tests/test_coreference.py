"""Le coppie minime per «it»: bilanciate, lette con i loro errori, misurate senza sbagliare nome."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from annotated import AnnotatedError, Config, Transformer, load_pretrained
from annotated.common import BOS, EOS
from annotated.data import Pair, encode_pairs
from annotated.decoding import piece_scores
from annotated.study.coreference import (
    PROBES,
    agreement,
    bootstrap,
    choose_and_report,
    gap,
    group_means,
    halves,
    microlingua_probes,
    noun_masses,
    piece_mask,
    read_probe,
    read_probes,
    search,
)
from annotated.study.heads import sentence_losses
from annotated.study.microlingua import generate
from annotated.study.patching import Stream, activations, margins, twins
from annotated.transformer import attention_weights

probes = read_probes()


def test_every_shortcut_is_exactly_half() -> None:
    assert len(probes) >= 200
    cells = Counter((p.antecedent, p.nouns[p.antecedent].gender) for p in probes)
    assert set(cells.values()) == {len(probes) // 4}
    clues = Counter((p.frame, p.clue, p.nouns[p.antecedent].gender) for p in probes)
    assert set(clues.values()) == {1} and len(clues) == len(probes)
    assert set(Counter(p.frame for p in probes).values()) == {4}


def test_pairs_differ_in_one_word() -> None:
    for a, b in zip(probes[::2], probes[1::2], strict=True):
        changed = [(x, y) for x, y in zip(a.en.split(), b.en.split(), strict=True) if x != y]
        assert changed == [(a.clue, b.clue)] or changed == [(f"{a.clue}.", f"{b.clue}.")]
        assert {a.antecedent, b.antecedent} == {0, 1}


def test_no_sentence_twice() -> None:
    assert len({p.en for p in probes}) == len({p.it for p in probes}) == len(probes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\tanimal\tanimale\tm\t", "\tanimal\tanimale\tf\t", "uno maschile"),
        ("\tanimal\tanimale\tm\t", "\tbeast\tanimale\tm\t", "«beast» deve comparire una volta"),
        ("troppo stanco.\t", "troppo stanca.\t", "solo nell'accordo"),
        ("\t1\ttired\t", "\t2\ttired\t", "solo nell'accordo"),
        ("\t1\ttired\t", "\tprimo\ttired\t", "l'antecedente 1 o 2"),
        ("\t2\twide\t", "\t2\twide\tlarge\t", "14 colonne invece di 13"),
        ("the street because it was too wide", "the street since it was too wide", "non fa coppia minima"),
        ("1\t1\tThe animal", "1\t2\tThe animal", "non fa coppia minima"),
        ("1\t1\tThe animal", "2\t1\tThe animal", "non fa coppia minima"),
        ("animal\tanimale\tm\tstreet\tstrada\tf", "street\tstrada\tf\tanimal\tanimale\tm", "ordine della frase"),
    ],
)
def test_mistakes_are_told_with_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = PROBES.read_text("utf-8")
    assert old in text
    path = tmp_path / "coppie.tsv"
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(AnnotatedError, match=rf"coppie\.tsv, riga \d+: .*{message}"):
        read_probes(path)


def test_half_a_pair_and_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "coppie.tsv"
    path.write_text("".join(PROBES.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")
    with pytest.raises(AnnotatedError, match="servono coppie"):
        read_probes(path)
    path.write_text("# niente\n", "utf-8")
    with pytest.raises(AnnotatedError, match="0 frasi"):
        read_probes(path)


def test_masses_one_by_one() -> None:
    "A lotti, con il riempitivo, come una frase alla volta con i pezzi contati a mano."
    model, tokenizer = load_pretrained("mini")
    some = probes[:6] + microlingua_probes(generate(3, seed=5, held_out=True))
    for offset in (0, 1):
        masses = noun_masses(model, tokenizer, some, offset, batch=5)
        for probe, got in zip(some, masses, strict=True):
            ids = [*tokenizer.encode([probe.en])[0], EOS]
            words = tokenizer.decode([ids])[0].lower().replace(".", "").split()
            starts = [piece.startswith("▁") for piece in tokenizer.pieces(ids)[:-2]]
            owner = [sum(starts[: i + 1]) - 1 for i in range(len(starts))]
            query = max(i for i, w in enumerate(owner) if words[w] == "it") + offset
            weights = attention_weights(model, torch.tensor([ids]), torch.tensor([[BOS]])).encoder
            for layer, matrix in enumerate(weights):
                for n, noun in enumerate(probe.nouns):
                    columns = [i for i, w in enumerate(owner) if words[w] == noun.en]
                    torch.testing.assert_close(got[layer, :, n], matrix[0, :, query][:, columns].sum(-1))


def test_gap_of_a_blind_head_is_zero() -> None:
    masses = torch.zeros(len(probes), 2, 1, 2)
    masses[:, 0, :, 0] = masses[:, 1, :, 1] = 0.7  # una testa guarda il primo nome, l'altra il secondo
    frames = group_means(gap(masses, probes), [p.frame for p in probes])
    assert frames.abs().max() < 1e-6


def test_group_means_and_bootstrap() -> None:
    values = torch.tensor([[1.0, 0.0], [3.0, 0.0], [10.0, 2.0]])
    assert group_means(values, ["b", "b", "a"]).tolist() == [[2.0, 0.0], [10.0, 2.0]]
    low, high = bootstrap(torch.randn(400, 3, generator=torch.Generator().manual_seed(0)))
    assert ((high - low - 2 * 1.96 / 20).abs() < 0.03).all()
    assert bootstrap(torch.ones(5)).tolist() == [1.0, 1.0]
    one, again, other = (bootstrap(torch.arange(9.0) ** 2, rounds=99, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)


def fake_heads(draws: int) -> Tensor:
    "Teste finte che non sanno nulla, con dispersioni diverse di quaranta volte: (draws, 73, 40)."
    return torch.logspace(-1.6, 0, 40) * torch.randn(draws, 73, 40, generator=torch.Generator().manual_seed(0))


def test_no_effect_gives_at_most_five_percent_of_alarms() -> None:
    alarms = sum(bool((search(x, 199, seed).p < 0.05).any()) for seed, x in enumerate(fake_heads(1000)))
    assert 20 <= alarms <= 70  # 5 % di 1.000, con tre deviazioni standard


def test_a_planted_effect_is_found_in_the_narrowest_head_as_in_the_widest() -> None:
    for head in (0, 39):
        found = 0
        for seed, x in enumerate(fake_heads(100)):
            x[:, head] += 0.55 * x[:, head].std()
            result = search(x, 199, seed)
            found += bool(result.p[head] < 0.05 and result.t.argmax() == head)
        assert found >= 80


def test_blind_heads_are_not_counted() -> None:
    [x] = fake_heads(1)
    x[:, 3] += 10.0
    blind = torch.zeros(40, dtype=torch.bool)
    blind[3] = True
    seen, unseen = search(x), search(x, blind=blind)
    assert seen.p[3] < 0.01 and unseen.p[3] == 1 and unseen.t[3] == 0 and unseen.blind.sum() == 1
    assert (search(x.view(73, 4, 10)).p.flatten() == seen.p).all()


def test_a_nan_or_a_single_frame_is_an_error_and_not_a_discovery() -> None:
    [x] = fake_heads(1)
    for wrong in (float("nan"), float("inf")):
        spoiled = x.clone()
        spoiled[3, 1] = wrong  # un valore solo falsava il p di tutte le teste
        with pytest.raises(AnnotatedError, match="73 cornici: .* finiti"):
            search(spoiled)
    for few in (x[:1], x[:0]):
        with pytest.raises(AnnotatedError, match=f"{len(few)} cornici: ne servono almeno due"):
            search(few)
    assert search(x[:2]).p.isfinite().all()


def test_choice_and_report_use_different_frames() -> None:
    choose, report = halves(73)
    assert torch.equal(choose, halves(73)[0]) and not torch.equal(choose, halves(73, seed=1)[0])
    assert sorted([*choose.tolist(), *report.tolist()]) == list(range(73))
    [x] = fake_heads(1)
    x[:, 6] += 3 * x[:, 6].std()
    best, (mean, low, high) = choose_and_report(x)
    assert best == 6 and low < mean < high and mean == pytest.approx(x[report, 6].mean().item())
    x[report, 6] -= 100.0
    assert choose_and_report(x)[0] == 6  # ciò che si riferisce non entra nella scelta
    blind = torch.arange(x.size(1)) == 6
    assert choose_and_report(x, blind=blind)[0] != 6  # chi non può saperne nulla non si sceglie


def test_pieces_of_a_word() -> None:
    pieces = "▁L ' anim ale ▁non ▁è ▁un ▁ani mal etto . </s>".split()
    assert piece_mask(pieces, ["animale", "è"]).T.tolist() == [[0, 0, 1, 1, *[0] * 8], [*[0] * 5, 1, *[0] * 6]]
    with pytest.raises(AnnotatedError, match="«gatto» non c'è"):
        piece_mask(pieces, ["gatto"])


def test_the_ending_is_where_the_two_translations_part() -> None:
    _, tokenizer = load_pretrained("small-en-it")
    for probe in probes[::13]:
        read = read_probe(tokenizer, probe)
        ids, wrong = tokenizer.encode([probe.it, probe.wrong])
        step = len(read.tgt) - 1
        assert read.tgt == [BOS, *ids[:step]] and ids[:step] == wrong[:step]
        assert (read.good, read.bad) == (ids[step], wrong[step]) and read.good != read.bad
    with pytest.raises(AnnotatedError, match="sono la stessa frase"):
        read_probe(tokenizer, probes[0]._replace(wrong=probes[0].it))


@pytest.mark.parametrize("articles", [False, True])
@pytest.mark.parametrize("start", ["indizio", "decoder", "cross"])
def test_masses_from_the_other_places(start: str, articles: bool) -> None:
    model, tokenizer = load_pretrained("small-en-it")
    found = noun_masses(model, tokenizer, probes[:5], start, batch=2, articles=articles)
    for probe, got in zip(probes[:5], found, strict=True):
        read = read_probe(tokenizer, probe)
        weights = attention_weights(model, torch.tensor([read.src]), torch.tensor([read.tgt]))
        keys = tokenizer.pieces(read.tgt if start == "decoder" else read.src)
        clue = int(piece_mask(tokenizer.pieces(read.src), [probe.clue]).nonzero()[:, 0].max())
        for n, noun in enumerate(probe.nouns):
            mine = piece_mask(keys, [noun.it if start == "decoder" else noun.en])[:, 0].bool()
            if articles:  # anche il pezzo prima del nome
                mine = mine | mine.roll(-1)
            for layer, w in enumerate(getattr(weights, "encoder" if start == "indizio" else start)):
                row = w[0, :, clue if start == "indizio" else -1]  # (h, S)
                torch.testing.assert_close(got[layer, :, n], row[:, mine].sum(-1))


def test_one_can_look_from_the_last_piece_and_not_beyond() -> None:
    model, tokenizer = load_pretrained("mini")
    pieces = tokenizer.pieces(read_probe(tokenizer, probes[0]).src)
    after = len(pieces) - 1 - int(piece_mask(pieces, ["it"]).nonzero()[:, 0].max())
    assert noun_masses(model, tokenizer, probes[:1], after).isfinite().all()
    for start in (after + 1, after - len(pieces)):  # una oltre l'ultima; una prima della prima
        with pytest.raises(AnnotatedError, match=f"da «{start}» non si può guardare"):
            noun_masses(model, tokenizer, probes[:1], start)


def test_studies_silence_the_dropout() -> None:
    model, tokenizer = load_pretrained("small-en-it")
    pairs = twins(tokenizer, read_probes()[:4])
    spot, [pair] = Stream("decoder", 0), [Pair(p.en, p.it) for p in read_probes()[:1]]
    corpus = encode_pairs([pair], tokenizer, 64)
    measures: list[Callable[[], Tensor]] = [
        lambda: torch.tensor(piece_scores(model, tokenizer, [pair.source], [pair.target])),
        lambda: torch.from_numpy(sentence_losses(model, corpus)),
        lambda: activations(model, pairs.source, pairs.target, [spot])[spot],
        lambda: margins(model, pairs),
    ]
    for measure in measures:
        expected = measure()
        model.train()
        torch.testing.assert_close(measure(), expected)
        assert model.training
        model.eval()


def test_agreement_of_a_model_that_solves_and_of_one_that_cannot() -> None:
    model, tokenizer = load_pretrained("mini")
    toy = microlingua_probes(generate(50, seed=9, held_out=True))
    assert (agreement(model, tokenizer, toy) > 0).float().mean() > 0.95
    torch.manual_seed(0)
    untrained = Transformer(Config.preset("mini", tokenizer.vocab_size)).eval()
    assert 0.3 < (agreement(untrained, tokenizer, toy) > 0).float().mean() < 0.7


def test_microlingua_pairs() -> None:
    examples = generate(100, seed=2, held_out=True)
    toy = microlingua_probes(examples)
    assert [p.en for p in toy[::2]] == [e.en for e in examples] and [p.it for p in toy[::2]] == [e.it for e in examples]
    names = {frozenset(noun.en for noun in p.nouns) for p in toy}  # fanno cornice in qualunque ordine
    assert len(names) == len({p.frame for p in toy}) < len({p.nouns for p in toy})
    assert microlingua_probes(examples) == toy != microlingua_probes(examples, seed=1)
    for a, b in zip(toy[::2], toy[1::2], strict=True):
        assert a.nouns == b.nouns and {a.antecedent, b.antecedent} == {0, 1}
        for p in (a, b):
            changed = [x for x, y in zip(p.it.split(), p.wrong.split(), strict=True) if x != y]
            assert len(changed) == 2 and changed[0] in ("esso", "essa")
