"""Le strade dall'aggettivo alla desinenza: chi non legge non porta nulla; le parole di una testa fanno la testa."""

import json
from functools import cache

import coppie
import numpy as np
import pytest
import torch
from provenienza import weights_sha256

from annotated import AnnotatedError, Config, Transformer, load_pretrained
from annotated.common import PAD
from annotated.pretrained import MODELS
from annotated.study.coreference import read_probes
from annotated.study.heads import Head
from annotated.study.patching import Inlet, Stream, activations, exchange, margins, replaced, twins

model, tokenizer = load_pretrained("small-en-it")
probes = read_probes()[:16]
pairs = twins(tokenizer, probes)
written = pairs.target != PAD
ending = coppie.italian_places(tokenizer, pairs, probes)["desinenza"]
query, top = Inlet("decoder", 2, "W_q"), Stream("decoder", 3)


@torch.inference_mode()
def test_nothing_is_heard_where_nobody_reads() -> None:
    nowhere = torch.zeros_like(ending)
    same = activations(model, pairs.source, pairs.target, [query, top])
    for spot, x in coppie.heard(model, tokenizer, pairs, nowhere, [query, top]).items():
        torch.testing.assert_close(x[written], same[spot][written], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_what_is_read_at_the_ending_stays_at_the_ending() -> None:
    same = activations(model, pairs.source, pairs.target, [top])[top]
    x = coppie.heard(model, tokenizer, pairs, ending, [top])[top]
    torch.testing.assert_close(x[written & ~ending], same[written & ~ending], atol=1e-4, rtol=0)
    assert (x - same)[ending].norm(dim=-1).min() > 0.01


@torch.inference_mode()
def test_the_words_of_a_head_add_up_to_the_head() -> None:
    x = coppie.heard(model, tokenizer, pairs, ending, [query])[query]
    said, change = coppie.shares(model, pairs, {query: (ending, x)}, 2)
    heads = [Head("decoder", 2, j) for j in range(model.config.h)]
    for swaps, total in (({}, said), ({query: (ending, x)}, said + change)):
        with replaced(model, swaps):
            heard = activations(model, pairs.source, pairs.target, heads)
        for head in heads:
            torch.testing.assert_close(heard[head][ending], total[:, head.head].sum(dim=1), atol=1e-4, rtol=0)


@torch.inference_mode()
def test_the_stem_is_that_of_the_other_sentence() -> None:
    x = coppie.stem(model, pairs, [top])[top]
    with replaced(model, {top: (ending, x)}):
        logits = margins(model, pairs)
    swapped = pairs._replace(target=pairs.target[torch.arange(len(probes)) ^ 1])
    torch.testing.assert_close(logits, margins(model, swapped), atol=1e-3, rtol=0)


@cache
def routes() -> dict[str, torch.Tensor]:
    return coppie.routes(model, tokenizer, pairs, probes)


def test_every_route_has_its_row() -> None:
    found = routes()
    assert {"inglese, diretta", "inglese, altri posti", "radice, query 3", "radice, 3.2, 2° articolo"} <= set(found)
    assert {len(row) for row in found.values()} == {len(probes)}
    parts = [found[f"radice, 3.2, {name}"] for name in ("1° articolo", "1° nome", "2° articolo", "2° nome", "altro")]
    base = margins(model, pairs)
    together = torch.stack([part - base for part in parts]).sum(dim=0)
    assert torch.corrcoef(torch.stack([together, found["radice, 3.2"] - base]))[0, 1] > 0.95  # quasi lineare


def test_the_file_has_the_routes() -> None:
    stored = np.load(coppie.FILE)
    assert stored["con/routed"].shape == (len(stored["con/routes"]), len(read_probes()))
    assert set(stored["con/routes"]) == set(routes())


@pytest.mark.parametrize(
    ("shape", "layers", "decoder", "cross"),
    [({"N": 6, "h": 8}, 6, 8, 8), ({"N": 2, "N_decoder": 3, "h": 4, "h_cross": 2}, 3, 4, 2)],
    ids=["6+6 strati, 8 teste", "2+3 strati, 4 teste e 2 incrociate"],
)
def test_a_model_of_any_shape_is_measured_whole(
    shape: dict[str, int], layers: int, decoder: int, cross: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, two = probes[:2], twins(tokenizer, probes[:2])
    torch.manual_seed(0)
    made = Transformer(Config(model.config.vocab_size, d_model=32, d_ff=32, max_len=64, **shape)).eval()
    tried = coppie.experiments(made, tokenizer, two, few)
    heads = [label.removesuffix("/desinenza") for label, _ in tried if label.startswith(("decoder ", "cross "))]
    kinds = (("decoder", decoder), ("cross", cross))
    assert heads == [f"{name} {i}.{j}" for name, h in kinds for i in range(1, layers + 1) for j in range(1, h + 1)]
    assert exchange(made, two, [swaps for _, swaps in tried]).isfinite().all()
    calls = []
    monkeypatch.setattr(coppie, "heard", lambda *args, heard=coppie.heard: calls.append(args) or heard(*args))
    found = coppie.routes(made, tokenizer, two, few)
    assert f"radice, {layers}.{decoder}, 2° articolo" in found and torch.stack(list(found.values())).isfinite().all()
    assert len(calls) == 2  # una per la desinenza, una per gli altri posti: non una per strato


def test_the_measures_are_of_the_published_weights() -> None:
    facts = json.loads(str(np.load(coppie.FILE)["provenance"]))
    assert facts["con"]["weights"] == weights_sha256(MODELS / "small-en-it"), "rifai con «tools/coppie.py»"
    with pytest.raises(AnnotatedError, match="qui non ci sono pesi"):
        weights_sha256(MODELS / "che-non-c-e")


def test_the_models_are_asked_the_same_sentences() -> None:
    "Con un altro lessico `generate` dà altre frasi: le colonne del capitolo 21 non si confronterebbero."
    stored = np.load(coppie.FILE)
    frames = [stored[f"{name}/unseen_frames"].tolist() for name in json.loads(str(stored["provenance"]))]
    assert len(frames) == 3 and all(some == frames[0] for some in frames)
