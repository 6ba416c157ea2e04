"""Le due macchine del capitolo 23: RNNsearch con le GRU di PyTorch è quella del capitolo, e le misure sono giuste."""

import json
import sys
from pathlib import Path

import pytest
import ricorrenti
import torch
from torch import nn
from torch.nn import functional as F

from annotated.common import BOS, EOS, PAD
from annotated.data import Pair, encode_pairs, pad
from annotated.study.recurrent import (
    AdditiveScore,
    Attention,
    GaussianWindow,
    GRUCell,
    RNNEncoder,
    Seq2Seq,
    greedy,
    torch_rnnsearch,
)


def copy_gru(ours: GRUCell, theirs: nn.Module, suffix: str = "") -> None:
    for name, layer in (("ih", ours.W), ("hh", ours.U)):
        layer.weight.data = getattr(theirs, f"weight_{name}{suffix}").data
        layer.bias.data = getattr(theirs, f"bias_{name}{suffix}").data


def by_hand(fast: Seq2Seq) -> Seq2Seq:
    "La stessa macchina con i pezzi scritti nel capitolo: GRU a mano, embedding separati, logit in un prodotto solo."
    d, V, d_model = 6, 20, 4
    slow = Seq2Seq(V, V, d_model, d, Attention(AdditiveScore(d, 2 * d, d)), bidirectional=True)
    words, (narrow, write) = fast.decoder.embedding.weight.data, fast.decoder.read
    assert isinstance(slow.encoder, RNNEncoder) and slow.encoder.leftward is not None
    for embedding in (slow.encoder.embedding, slow.decoder.embedding):
        embedding.weight.data = words * d_model**0.5
    copy_gru(slow.encoder.rightward.cell, fast.encoder.gru, "_l0")
    copy_gru(slow.encoder.leftward.cell, fast.encoder.gru, "_l0_reverse")
    copy_gru(slow.decoder.cell, fast.decoder.cell)
    slow.decoder.context, slow.decoder.bridge = fast.decoder.context, fast.decoder.bridge
    slow.decoder.read.weight.data = write.weight.data @ narrow.weight.data
    slow.decoder.read.bias.data = write.weight.data @ narrow.bias.data
    return slow


def test_the_fast_rnnsearch_is_the_one_of_the_chapter() -> None:
    "Anche con il riempitivo in mezzo al lotto, e anche nella traduzione greedy."
    torch.manual_seed(0)
    fast = torch_rnnsearch(20, 4, 6)
    slow = by_hand(fast)
    src = torch.tensor([[5, 6, EOS, PAD, PAD], [7, 8, 9, 10, EOS], [11, 12, 13, EOS, PAD]])
    tgt = torch.tensor([[BOS, 5, 6, 7], [BOS, 8, 9, 10], [BOS, 11, 12, 13]])
    for read in (src, F.pad(src, (0, 3), value=PAD)):  # con riempitivo anche accanto alla più lunga
        with torch.no_grad():
            for ours, theirs in zip(slow(read, tgt), fast(read, tgt), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-6)
        assert torch.equal(greedy(slow, read, 7), greedy(fast, read, 7))


def test_the_predicted_place_is_within_the_sentence() -> None:
    "p = (S − 1)·σ(...), con S la lunghezza della frase: il riempitivo del lotto non sposta la campana."
    window, real = GaussianWindow(4), torch.arange(8)[None] < 5
    window.position[-1].bias.data.fill_(100)  # σ = 1: l'ultimo posto della frase
    bell = window(torch.zeros(1, 1, 4), real, t=0)
    assert bell.argmax() == 4 and bell.max() == 0


def test_the_two_machines_are_of_one_size() -> None:
    sizes = [sum(p.numel() for p in make().parameters()) for make in ricorrenti.MACHINES.values()]
    assert abs(sizes[0] / sizes[1] - 1) < 0.05


def test_identical_sentences_are_those_of_greedy() -> None:
    "Si contano senza tradurre: dev'essere lo stesso conto."
    torch.manual_seed(0)
    rows = ricorrenti.SETS["prova"][:16]
    corpus = encode_pairs((Pair(en, it) for en, it, _ in rows), ricorrenti.tokenizer, 64)
    batch, model = corpus.batch(range(16)), ricorrenti.MACHINES["RNNsearch"]()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    src, shares = pad([*ids, EOS] for ids in ricorrenti.tokenizer.encode([en for en, _, _ in rows])), []
    for step in range(1, 121):
        loss = nn.functional.cross_entropy(ricorrenti.logits(model, batch).flatten(0, 1), batch.tgt_out.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            ended = [[i for i in row if i > EOS] for row in greedy(model, src, 64).tolist()]
            texts = ricorrenti.tokenizer.decode(ended)
            share = sum(text == it for text, (_, it, _) in zip(texts, rows, strict=True)) / len(rows)
            assert ricorrenti.judge(model, rows)["identiche"] == share
            shares.append(share)
    assert len({*shares}) > 2  # da nessuna a molte, passando per alcune


def test_the_wrong_agreement_is_another_sentence_of_the_same_words() -> None:
    for name in ("prova", "due, la prima", "due, la seconda"):
        for _, right, wrong in ricorrenti.SETS[name]:
            changed = [(a, b) for a, b in zip(right.split(), wrong.split(), strict=True) if a != b]
            assert len(changed) == 2 and {one[:3] for one in changed[0]} == {"ess"}


def test_the_published_measures_are_of_these_machines() -> None:
    found = json.loads(ricorrenti.OUT.read_text("utf-8"))
    sizes = {name: sum(p.numel() for p in make().parameters()) for name, make in ricorrenti.MACHINES.items()}
    assert {run["macchina"]: run["parametri"] for run in found["corse"]} == sizes
    for name in ricorrenti.MACHINES:
        tried = {run["learning rate"]: run for run in found["corse"] if run["macchina"] == name and run["seme"] == 0}
        assert {*tried} == {*ricorrenti.RATES}
        above = {rate: sum(loss >= ricorrenti.SOLVED for loss in run["perdita"]) for rate, run in tried.items()}
        chosen = {run["learning rate"] for run in found["corse"] if run["macchina"] == name and run["seme"]}
        assert len(chosen) == 1 and above[chosen.pop()] == min(above.values())


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--steps", "1"]])
def test_nothing_to_train_is_refused(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ricorrenti.py", *wrong])
    with pytest.raises(SystemExit):
        ricorrenti.main()
    assert " ".join(wrong) in capsys.readouterr().err


def test_a_short_run_writes_what_the_chapter_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OUT", tmp_path / "trovato.json"), ("PAIRS", 300), ("EVERY", 2)):
        monkeypatch.setattr(ricorrenti, name, value)
    monkeypatch.setattr(ricorrenti, "SETS", {name: rows[:8] for name, rows in ricorrenti.SETS.items()})
    ricorrenti.corpus.cache_clear()
    found = ricorrenti.learn("RNNsearch", 0.01, 1, steps=4)
    ricorrenti.corpus.cache_clear()
    published = json.loads((Path(ricorrenti.ROOT) / "book/dati/ricorrenti.json").read_text("utf-8"))["corse"][0]
    assert [*found] == [*published] and found["passi"] == [2, 4] and len(found["accordo"]) == 2
