"""Il modello nel browser: gli stessi numeri di PyTorch con gli stessi pesi, da disco e da un server, senza rete."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple
from unicodedata import normalize
from unittest.mock import Mock

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect
from test_viewer import inside, numbers

from annotated.checkpoint import save_model
from annotated.cli import main
from annotated.common import BOS, EOS, PAD, UNK, AnnotatedError
from annotated.data import pad, read_pairs
from annotated.decoding import beam_search, looked_unknown
from annotated.decoding import translate as translate_in_python
from annotated.multihead import split_heads
from annotated.pretrained import load_pretrained
from annotated.study.heads import Head, without_heads
from annotated.study.microlingua import generate
from annotated.tokenizer import Tokenizer
from annotated.transformer import Config, Transformer, attention_weights
from annotated.web import SENTENCES, _live_data, export_web, in_bytes, live_model, ready_answer
from conftest import Visit, check_accessible

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "annotated" / "study" / "web" / "transformer.js"
SHORT = [pair.source for pair in read_pairs(ROOT / "book/dati/teste.tsv.xz") if len(pair.source) < 70]
ENGLISH = SHORT[1::9][:60]  # nessuna con una lettera ignota: la pagina, rileggendo, non la scrive
ODD = [
    "  spazi   in  più\t, e\u00a0uno\u2003largo ", "ﬁne ½ ² Ⅷ ﬀ ㎞", "cafe\u0301 n\u0303 a\u0308\u0323",
    "日本語 и кириллица 🙂🙃 fine", "▁sotto ▁ lineette", "e\x01\u0301 zero\u200blargo \ufeff\ufffd",
    "～ ~ ‐ – — … “virgolette” ‘semplici’", "<s> </s> <unk> <pad>", "CAPS LOCK È ATTIVO", "3,5 %;100€",
    "ca\x02t do\x7fg", "sssss eeee ..... !!!", "supercalifragilistichespiralidoso" * 5, "\u1e9b\u0323 \u212b \u00c5",
]  # fmt: skip


class Web(NamedTuple):
    "Un modello esportato, il suo gemello in PyTorch e una pagina in cui è caricato."

    model: Transformer
    tokenizer: Tokenizer
    page: Page
    sentences: list[str]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("web")
    for name in ("mini", "small-en-it"):
        export_web(name, folder / name)
    return {name: folder / name for name in ("mini", "small-en-it")}


@pytest.fixture(scope="module", params=["mini", "small-en-it"])
def web(request: pytest.FixtureRequest, browser: Browser, folders: dict[str, Path]) -> Iterator[Web]:
    folder, name = folders[request.param], request.param
    (folder / "prova.html").write_text(f"<meta charset=utf-8><script>{PROGRAM.read_text('utf-8')}</script>", "utf-8")
    page = browser.new_page()
    page.goto(f"file://{folder / 'prova.html'}")
    page.evaluate("async () => { Object.assign(globalThis, await loadModel('.')) }")
    sentences = [example.en for example in generate(60, held_out=True)] if name == "mini" else ENGLISH
    model, tokenizer = load_pretrained(name)
    yield Web(in_bytes(model), tokenizer, page, sentences)
    page.close()


def sources(web: Web, n: int) -> list[list[int]]:
    return [[*ids, EOS] for ids in web.tokenizer.encode(web.sentences[:n])]


def composed(lists: list[list[str]]) -> list[list[str]]:
    return [[normalize("NFKC", piece) for piece in pieces] for pieces in lists]


def test_same_pieces(web: Web) -> None:
    texts = [*ENGLISH, *ODD, *(example.it for example in generate(60))]
    pieces = web.page.evaluate("texts => texts.map(text => tokenizer.encode(text))", texts)
    assert pieces == [[*ids, EOS] for ids in web.tokenizer.encode(texts)]
    divided = web.page.evaluate("texts => texts.map(text => tokenizer.split(text))", texts)
    # dei segni che il vocabolario non ha JavaScript riordina gli accenti; la lettera è quella
    assert composed(divided) == composed([web.tokenizer.split(text) for text in texts])
    joined = web.page.evaluate("lists => lists.map(pieces => tokenizer.join(pieces))", divided)
    assert joined == [web.tokenizer.join(pieces) for pieces in divided]


def test_the_same_unknown_is_looked_at(web: Web) -> None:
    "Di due sconosciuti, a ogni passo, la pagina sceglierebbe quello che sceglie Python."
    text = "Łukasz paid 5 €."
    [source] = [[*ids, EOS] for ids in web.tokenizer.encode([text])]
    steps = web.page.evaluate("ids => [...model.write(ids)].map(({ id, from }) => [id, from])", source)
    ids = [i for i, _ in steps if i != EOS]
    read = web.tokenizer.split(text)
    assert source.count(UNK) >= 2
    assert [read[place] for _, place in steps] == looked_unknown(web.model, web.tokenizer, text, ids)


def test_a_ready_answer_names_what_it_copies() -> None:
    model, tokenizer = load_pretrained("small-en-it")
    ready = ready_answer(model, tokenizer, "Łukasz paid 5 €.")
    assert "<unk>" not in str(ready["candidates"]) + str(ready["sentences"])
    assert all(sign in ready["translation"] for sign in "Ł€")


def test_the_candidates_are_what_could_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tokenizer = load_pretrained("mini")
    monkeypatch.setattr("annotated.web.CANDIDATES", tokenizer.vocab_size)
    torch.manual_seed(0)
    model = Transformer(Config.preset("mini", tokenizer.vocab_size)).eval()  # chi non sa nulla non esclude nulla
    for step in ready_answer(model, tokenizer, SENTENCES[0])["candidates"]:
        chances = dict(step)
        assert len(chances) == tokenizer.vocab_size
        assert [chances[name] for name in (*tokenizer.pieces([PAD, BOS]), "")] == [0, 0, 0]  # «»: non c'è che copiare


@pytest.mark.parametrize("extra", [50, -3])  # con -3 si arriva al limite, e la frase si chiude per forza
def test_same_greedy(web: Web, extra: int) -> None:
    wanted = 60 if extra > 0 else 12
    lists = sources(web, wanted)
    assert len(lists) == wanted
    program = "([lists, extra]) => lists.map(ids => [...model.write(ids, { extra })].map(({ id }) => id))"
    written = [[id for id in ids if id != EOS] for ids in web.page.evaluate(program, [lists, extra])]
    assert written == [best.ids for [best] in beam_search(web.model, pad(lists), beam=1, extra=extra)]


def follow(web: Web, source: list[int], target: list[int]) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    "I logit (T, V) e i pesi della pagina, disposti come quelli di `attention_weights`, mentre scrive `target`."
    text = web.page.evaluate(
        """([source, target]) => {
            const { memory, attention } = model.encode(source), cache = model.emptyCache();
            const steps = [2, ...target.slice(0, -1)].map((id) => model.step(id, memory, cache)); // 2 è BOS
            const weights = (blocks) => blocks.map((one) => one.weights);
            const plain = (x) => (typeof x === "number" ? x : Array.from(x, plain));
            return JSON.stringify({ logits: plain(steps.map(s => s.logits)), encoder: plain(weights(attention)),
                     decoder: plain(steps.map(s => weights(s.attention.decoder))),
                     cross: plain(steps.map(s => weights(s.attention.cross))) });
        }""",
        [source, target],
    )  # un testo solo: Playwright traduce un numero alla volta, e sono centinaia di migliaia
    result, T = json.loads(text), len(target)
    decoder = [[[row + [0] * (T - len(row)) for row in layer] for layer in step] for step in result["decoder"]]
    by_layer = [torch.tensor(x).permute(1, 2, 0, 3) for x in (decoder, result["cross"])]  # (T, N, h, S) → (N, h, T, S)
    return torch.tensor(result["logits"]), [list(torch.tensor(result["encoder"])), *map(list, by_layer)]


def reference(web: Web, source: list[int], target: list[int]) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    src, tgt = torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]])
    w = attention_weights(web.model, src, tgt)
    with torch.inference_mode():
        return web.model(src, tgt)[0], [[layer[0] for layer in kind] for kind in (w.encoder, w.decoder, w.cross)]


def test_same_logits_and_attention(web: Web) -> None:
    for source in sources(web, 8):
        target = [*beam_search(web.model, torch.tensor([source]), beam=1)[0][0].ids, EOS]
        logits, kinds = follow(web, source, target)
        expected, weights = reference(web, source, target)
        assert (logits - expected).abs().max() < 1e-3
        for mine, theirs in zip(kinds, weights, strict=True):
            assert len(mine) == len(theirs)
            for a, b in zip(mine, theirs, strict=True):
                assert a.shape == b.shape and (a - b).abs().max() < 1e-3


@pytest.mark.parametrize("head", [Head("encoder", 1, 2), Head("decoder", 0, 3), Head("cross", 0, 0)], ids=str)
def test_same_logits_without_a_head(web: Web, head: Head) -> None:
    [source] = sources(web, 1)
    target = [*beam_search(web.model, torch.tensor([source]), beam=1)[0][0].ids, EOS]
    whole, _ = follow(web, source, target)
    web.page.evaluate("name => model.off.add(name)", f"{head.attention}.{head.layer}.{head.head}")
    without, _ = follow(web, source, target)
    web.page.evaluate("model.off.clear()")
    with without_heads(web.model, [head]):
        expected, _ = reference(web, source, target)
    assert (without - expected).abs().max() < 1e-3 < (without - whole).abs().max()


def test_the_page_learns_the_languages_from_the_name(tab: Visit, tmp_path: Path) -> None:
    page = tab.page
    cases = (("azienda-en-es", "Una frase in inglese", "en", "es"), ("mio", "Una frase da tradurre", None, None))
    for name, label, read, written in cases:
        save_model(tmp_path / name, *load_pretrained("mini"))
        export_web(str(tmp_path / name), tmp_path / "pagine" / name, ["The dog was tired."])
        page.goto(f"file://{tmp_path / 'pagine' / name / 'index.html'}")
        assert page.get_by_label(label).get_attribute("lang") == read
        assert page.locator(".traduzione").get_attribute("lang") == written


def test_pre_norm_too(browser: Browser, tmp_path: Path) -> None:
    "Pre-LN, con dimensioni che non sono multiple di quattro."
    _, tokenizer = load_pretrained("mini")
    torch.manual_seed(0)
    model = Transformer(Config(700, d_model=30, d_ff=50, h=3, N=2, N_decoder=3, norm_first=True, max_len=20))
    save_model(tmp_path / "modello", model, tokenizer)
    export_web(str(tmp_path / "modello"), tmp_path)
    (tmp_path / "prova.html").write_text(f"<meta charset=utf-8><script>{PROGRAM.read_text('utf-8')}</script>", "utf-8")
    page = browser.new_page()
    page.goto(f"file://{tmp_path / 'prova.html'}")
    page.evaluate("async () => { Object.assign(globalThis, await loadModel('.')) }")
    web = Web(in_bytes(model).eval(), tokenizer, page, [])
    logits, _ = follow(web, [8, 9, 10, EOS], [20, 30, EOS])
    assert (logits - reference(web, [8, 9, 10, EOS], [20, 30, EOS])[0]).abs().max() < 1e-3
    page.close()


# ---------------------------------------------------------------- i file


def test_bytes_are_close_and_small(folders: dict[str, Path]) -> None:
    for name, limit in (("mini", 1.1e6), ("small-en-it", 8e6)):
        model, _ = load_pretrained(name)
        rounded = in_bytes(model).state_dict()
        for key, tensor in model.state_dict().items():
            step = tensor.abs().amax(dim=-1, keepdim=True) / 127 if tensor.dim() == 2 else 0
            assert ((rounded[key] - tensor).abs() <= step * 0.501).all(), key
        index = json.loads((folders[name] / "modello.js").read_text("utf-8").partition("=")[2].rstrip(";\n"))
        assert index["bytes"] == _live_data(name, SENTENCES[:1], None)["bytes"] < limit


def test_writing_again_leaves_no_old_part(folders: dict[str, Path], tmp_path: Path) -> None:
    fingerprint = export_web("mini", tmp_path, part_bytes=100_000)
    assert len(list(tmp_path.glob("pesi-*.js"))) > 5
    (tmp_path / "pesi-miei.js").write_text("miei", "utf-8")
    assert export_web("mini", tmp_path) == fingerprint
    assert sorted(path.name for path in tmp_path.glob("pesi-*.js")) == ["pesi-0.js", "pesi-miei.js"]
    assert (tmp_path / "pesi-0.js").read_bytes() == (folders["mini"] / "pesi-0.js").read_bytes()


def test_a_killed_export_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["export", "--to", "web", "--model", "mini", str(tmp_path / "sito")]
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", Mock(side_effect=[None, KeyboardInterrupt]))  # modello.js sì, i pesi no
        assert main(command) == 130
    assert [path.name for path in (tmp_path / "sito").iterdir()] == ["modello.js"]
    assert main(command) == 0 and (tmp_path / "sito" / "index.html").exists()


def test_ready_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--model", "mini", str(tmp_path / "sito"), "--sentence", "The cat sleeps."]
    assert main(command) == 1 and "Aggiungi --to web" in capsys.readouterr().err
    assert main([*command, "--to", "web", "--sentence", " "]) == 1 and not (tmp_path / "sito").exists()
    assert main([*command, "--to", "web"]) == 0
    page = (tmp_path / "sito" / "index.html").read_text("utf-8")
    assert "The cat sleeps." in page and SENTENCES[0] not in page


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--to", "web", "--model", "mini"]
    for _ in range(2):  # la propria cartella si riscrive
        assert main([*command, str(tmp_path / "sito")]) == 0
    assert {path.name for path in (tmp_path / "sito").iterdir()} == {"index.html", "modello.js", "pesi-0.js"}
    (tmp_path / "index.html").write_text("il mio sito")  # quella di un altro sito no
    assert main([*command, str(tmp_path)]) == 1 and "non è una cartella vuota" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "sito"}


# ---------------------------------------------------------------- la pagina


@cache
def loaded(name: str) -> tuple[Transformer, Tokenizer]:
    "Il modello con i pesi di un byte, come nella pagina, e il suo vocabolario."
    model, tokenizer = load_pretrained(name)
    return in_bytes(model), tokenizer


@cache
def greedy_text(name: str, text: str) -> str:
    return translate_in_python(*loaded(name), [text], beam=1)[0]


def answer(name: str, text: str) -> tuple[Transformer, torch.Tensor, torch.Tensor]:
    "Il modello della pagina, la frase in pezzi, e ciò che scrive: il decoder lo legge da BOS."
    model, tokenizer = loaded(name)
    src = torch.tensor([[*tokenizer.encode([text])[0], EOS]])
    return model, src, torch.tensor([[BOS, *beam_search(model, src, beam=1)[0][0].ids]])


def english(page: Page) -> Locator:
    return page.get_by_role("group", name="La frase, in pezzi").get_by_role("button")


def italian(page: Page) -> Locator:
    return page.get_by_role("group", name="La traduzione, un pezzo alla volta").get_by_role("button")


def assert_shown(page: Page, layer: torch.Tensor, query: int, head: int = 0) -> None:  # layer (1, h, T, S)
    assert numbers(page) == pytest.approx(layer[0, head, query].tolist(), abs=0.0051)


def translate(page: Page, text: str) -> None:
    page.get_by_label("Una frase in inglese").fill(text)
    page.get_by_role("button", name="Traduci", exact=True).click()


def test_ready_sentences_need_nothing(visit: Visit, folders: dict[str, Path]) -> None:
    page, folder = visit.page, folders["mini"]
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{folder / 'index.html'}")
    for text in SENTENCES:
        page.get_by_role("button", name=text).click()
        expect(page.locator(".traduzione")).to_have_text(greedy_text("mini", text))
    assert len(requests) == 1
    translate(page, SENTENCES[0].replace("'", "’").replace(" ", "  "))  # come la scrive un telefono
    expect(page.locator(".traduzione")).to_have_text(greedy_text("mini", SENTENCES[0]))
    expect(page.locator(".offerta")).to_be_hidden()
    expect(page.locator(".risposta .titolo")).to_have_count(0)  # è la frase che si è scritta
    page.get_by_role("button", name="Metti wide al posto di tired").click()
    expect(page.locator(".traduzione")).to_have_text(greedy_text("mini", SENTENCES[1]))
    expect(page.get_by_label("Una frase in inglese")).to_have_value(SENTENCES[1])


def test_page_shows_the_weights_of_the_model(visit: Visit, folders: dict[str, Path]) -> None:
    page, folder = visit.page, folders["mini"]
    page.goto(f"file://{folder / 'index.html'}")
    model, src, tgt = answer("mini", SENTENCES[0])
    weights = attention_weights(model, src, tgt)

    italian(page).nth(3).click()
    assert_shown(page, weights.cross[-1], 3)
    page.get_by_text("decoder", exact=True).click()
    assert_shown(page, weights.decoder[-1], 3)
    english(page).nth(5).click()
    page.get_by_role("button", name="strato 2, testa 3", exact=True).click()
    assert_shown(page, weights.encoder[1], 5, head=2)
    shown = english(page).evaluate_all("pieces => pieces.map(p => p.querySelector('small')?.textContent ?? '')")
    looked = weights.encoder[1][0, 2, 5].tolist()
    assert all(shown[i] == f"{round(100 * x)} %" for i, x in enumerate(looked) if x >= 0.0075)
    with torch.inference_mode():
        best = model(src, tgt)[0, 3].softmax(dim=-1)[EOS:].topk(5).values
    bars = page.locator("li .cifra").all_text_contents()
    assert bars == [f"{100 * p:.1f} %".replace(".", ",") for p in best.tolist()]


def test_loads_translates_and_switches_a_head_off(visit: Visit, folders: dict[str, Path]) -> None:
    page, folder, text = visit.page, folders["small-en-it"], "The door was open and the house was empty."
    page.goto(f"file://{folder / 'index.html'}")
    translate(page, text)
    expect(page.get_by_text("Con una rete a consumo")).to_have_count(int(page.evaluate("innerWidth < 500")))
    page.get_by_role("button", name="No, grazie").click()
    expect(page.get_by_role("button", name="Carica il modello")).to_have_count(0)
    translate(page, text)
    page.get_by_role("button", name="Carica il modello (circa 8 MB)").click()
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    expected = greedy_text("small-en-it", text)
    expect(page.locator(".traduzione")).to_have_text(expected)
    expect(page.locator(".detto")).to_have_text(f"Traduzione: {expected}")  # per chi ascolta la pagina
    page.get_by_role("button", name="spegni la testa 3.1").click()
    expect(page.locator(".stato")).to_contain_text(f"Con tutte le teste accese: «{expected}»")
    model, tokenizer = loaded("small-en-it")
    with without_heads(model, [Head("cross", 2, 0)]):
        _, src, tgt = answer("small-en-it", text)
        weights = attention_weights(model, src, tgt)
    [changed] = tokenizer.decode([tgt[0, 1:].tolist()])
    expect(page.locator(".traduzione")).to_have_text(changed)
    address = page.url
    for query in range(1, tgt.size(1)):
        italian(page).nth(query).click()
        assert_shown(page, weights.cross[2], query)
    italian(page).first.click()
    page.get_by_role("button", name="Riaccendi tutte le teste").click()
    expect(page.locator(".traduzione")).to_have_text(expected)
    expect(page.locator(".risposta")).to_be_focused()  # il bottone non c'è più
    page.goto("about:blank")
    page.goto(address)  # un'altra visita: la frase c'è, la testa è spenta, il modello si carica se si vuole
    expect(page.get_by_label("Una frase in inglese")).to_have_value(text)
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".traduzione")).to_have_text(changed)
    expect(page.get_by_role("button", name="riaccendi la testa 3.1")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="strato 3, testa 1, spenta")).to_have_count(1)


def continued(name: str, text: str, prefix: list[str]) -> list[str]:
    "I pezzi che Python scrive, con greedy, se i primi sono già decisi; EOS compreso."
    tokenizer, (model, src, _) = loaded(name)[1], answer(name, text)
    pieces = tokenizer.pieces(list(range(tokenizer.vocab_size)))
    ids = [pieces.index(piece) for piece in prefix]
    while not ids or ids[-1] != EOS:
        with torch.inference_mode():
            ids.append(EOS + int(model(src, torch.tensor([[BOS, *ids]]))[0, -1, EOS:].argmax()))
    return tokenizer.pieces(ids)


def read(pieces: list[str]) -> str:
    return "".join(pieces).removesuffix("</s>").replace("▁", " ").strip()


def candidate(page: Page, piece: str, written: str) -> Locator:
    return page.get_by_role("button", name=f"scrivi «{piece}» al posto di «{written}»: ")


def assert_written(page: Page, pieces: list[str], told: str) -> None:
    "La traduzione finita, pezzo per pezzo, e ciò che la pagina dice di avervi imposto."
    expect(page.locator(".imposto")).to_have_text(told)
    expect(page.locator(".traduzione")).to_have_text(read(pieces))
    expect(page.locator(".stato")).not_to_have_text("Traduco…")
    shown = [rf"^·?{re.escape(piece.removeprefix('▁'))}(\d+ %)?$" for piece in pieces]  # il peso, sotto il pezzo
    expect(italian(page)).to_have_text([re.compile(label) for label in shown])
    expect(page.get_by_role("button", name="Lascia fare al modello")).to_have_count(int(told != ""))


def test_reader_imposes_pieces(visit: Visit, folders: dict[str, Path]) -> None:
    "Su una risposta pronta e poi su quelle vive: il seguito è ciò che Python scrive dallo stesso inizio."
    page, name, text = visit.page, "small-en-it", SENTENCES[0]
    free, plural = continued(name, text, []), continued(name, text, ["▁Gli"])
    assert plural[1] == "▁animali" and "▁hanno" in plural  # l'accordo viene dietro: lo dice il libro
    page.goto(f"file://{folders[name] / 'index.html'}")
    for at, piece, button in ((10, "via", "No, grazie"), (0, "Gli", "Carica il modello (circa 8 MB)")):
        italian(page).nth(4).click()
        candidate(page, "ha", "non").click()
        italian(page).nth(at).click()
        candidate(page, piece, free[at].removeprefix("▁")).click()  # si è cambiata idea prima che il modello arrivi
        expect(page.locator(".offerta")).to_contain_text("Per scegliere un pezzo il modello deve arrivare")
        expect(page.locator(".imposto")).to_have_text(f"Imposto: «{piece}».")
        page.get_by_role("button", name=button).click()
        assert_written(page, *((free, "") if at else (plural, "Imposto: «Gli».")))
    expect(page.locator(".traduzione")).to_be_in_viewport()
    expect(page.locator(".candidati .titolo")).to_have_text("Passo 1: che cosa poteva scrivere")
    at = plural.index("▁era")
    italian(page).nth(at).click()
    candidate(page, "erano", "era").click()  # un altro, più avanti: il primo resta
    assert_written(page, continued(name, text, [*plural[:at], "▁erano"]), "Imposto: «Gli» e «erano».")
    expect(page.locator(".traduzione")).to_be_in_viewport()
    page.get_by_role("button", name="Lascia fare al modello").click()
    assert_written(page, free, "")
    expect(page.locator(".risposta")).to_be_focused()  # il bottone non c'è più
    italian(page).nth(len(free) - 2).click()
    candidate(page, "</s>", ".").click()  # la traduzione finisce lì
    assert_written(page, [*free[:-2], "</s>"], "Imposto: «</s>».")
    italian(page).first.click()
    candidate(page, "Gli", "L").click()  # più indietro: ciò che veniva dopo cade
    assert_written(page, plural, "Imposto: «Gli».")
    page.get_by_role("button", name="Traduci", exact=True).click()
    assert_written(page, free, "")


def test_reader_imposes_a_piece_on_a_model_without_a_head(tab: Visit, folders: dict[str, Path]) -> None:
    "Imporre non riaccende, spegnere non libera; e le due traduzioni, con la testa e senza, cominciano uguali."
    page, name, text, prefix = tab.page, "small-en-it", SENTENCES[0], continued("small-en-it", SENTENCES[0], ["▁Gli"])
    at = prefix.index("▁era")
    prefix[at:] = ["▁erano"]
    whole, whole_other = (continued(name, text, [*prefix, *more]) for more in ([], ["▁davvero"]))
    with without_heads(loaded(name)[0], [Head("cross", 2, 0)]):
        off, other = (continued(name, text, [*prefix, *more]) for more in ([], ["▁davvero"]))
        free = continued(name, text, [])
    assert off != whole and other != whole_other
    page.goto(f"file://{folders[name] / 'index.html'}")
    italian(page).first.click()
    candidate(page, "Gli", "L").click()
    page.get_by_role("button", name="Carica il modello").click()
    italian(page).nth(at).click()
    candidate(page, "erano", "era").click()
    assert_written(page, whole, "Imposto: «Gli» e «erano».")
    page.get_by_role("button", name="spegni la testa 3.1").click()
    assert_written(page, off, "Imposto: «Gli» e «erano».")
    expect(page.locator(".stato")).to_contain_text(f"Con tutte le teste accese: «{read(whole)}»")
    italian(page).nth(at + 1).click()
    candidate(page, "davvero", "troppo").click()
    assert_written(page, other, "Imposto: «Gli», «erano» e «davvero».")
    expect(page.locator(".stato")).to_contain_text(f"Con tutte le teste accese: «{read(whole_other)}»")
    page.get_by_role("button", name="Lascia fare al modello").click()
    assert_written(page, free, "")
    expect(page.locator(".stato")).to_contain_text(f"Con tutte le teste accese: «{greedy_text(name, text)}»")


def test_a_piece_is_imposed_with_the_keyboard(tab: Visit, folders: dict[str, Path]) -> None:
    page, text, free = tab.page, SENTENCES[1], continued("mini", SENTENCES[1], [])
    at = free.index("▁essa")
    changed = continued("mini", text, [*free[:at], "▁esso"])
    assert (free[-3], changed[-3]) == ("▁larga", "▁largo")  # l'aggettivo segue il pronome imposto

    def reach(button: Locator) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if button.evaluate("button => button === button.getRootNode().activeElement"):
                return page.keyboard.press("Enter")
        pytest.fail("con Tab non ci si arriva")

    page.goto(f"file://{folders['mini'] / 'index.html'}")
    page.get_by_text("encoder", exact=True).click()  # dove si guarda la frase, il passo è quello che la decide
    reach(page.get_by_role("button", name=text))
    reach(candidate(page, "esso", "essa"))
    expect(page.get_by_role("button", name="Carica il modello")).to_be_focused()
    page.keyboard.press("Enter")
    assert_written(page, changed, "Imposto: «esso».")
    expect(page.locator(".candidati .titolo")).to_contain_text(f"Passo {at + 1}:")  # e resta quello
    reach(page.get_by_role("button", name="Lascia fare al modello"))
    assert_written(page, free, "")
    reach(candidate(page, "esso", "essa"))  # i candidati vengono subito dopo la risposta
    assert_written(page, changed, "Imposto: «esso».")


def test_inside_a_weight(visit: Visit, folders: dict[str, Path]) -> None:
    page, folder, (N, h, row) = visit.page, folders["small-en-it"], (2, 1, 4)
    page.goto(f"file://{folder / 'index.html'}")
    page.get_by_text("Dentro un peso", exact=True).click()
    page.get_by_role("button", name="Carica il modello (circa 8 MB)").click()  # una risposta pronta ha soltanto i pesi
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    model, src, tgt = answer("small-en-it", SENTENCES[0])
    for name, look, keys in (
        ("incrociata", model.decoder.layers[N].cross_attention, src.size(1)),
        ("decoder", model.decoder.layers[N].self_attention, row + 1),  # il futuro non c'è
        ("encoder", model.encoder.layers[N].self_attention, src.size(1)),
    ):
        received: list[tuple] = []
        hook = look.register_forward_pre_hook(lambda _, inputs, received=received: received.append(inputs))
        weights = attention_weights(model, src, tgt)
        hook.remove()
        x, (K, _), _ = received[0]
        kind = {"incrociata": weights.cross, "decoder": weights.decoder, "encoder": weights.encoder}[name]
        with torch.inference_mode():
            q = split_heads(look.W_q(x), look.h)[0, h, row]
            scores = (K[0, h, :keys] @ q / len(q) ** 0.5).tolist()
        page.get_by_text(name, exact=True).click()
        (english if name == "encoder" else italian)(page).nth(row).click()
        page.get_by_role("button", name=f"strato {N + 1}, testa {h + 1}", exact=True).click()
        _, sums, shown = inside(page)
        assert sums == pytest.approx(scores, abs=0.006)
        assert shown == pytest.approx(kind[N][0, h, row, :keys].tolist(), abs=0.006)
    expect(page.locator(".dentro")).to_contain_text("quanto «")
    page.get_by_text("incrociata", exact=True).click()
    italian(page).nth(row).click()
    sums = inside(page)
    english(page).first.hover()  # chi indica un pezzo guardato tiene la riga fissata
    expect(page.locator(".dentro")).to_contain_text("quanto chi scrive «")
    assert inside(page) == sums
    page.get_by_role("button", name="tutte le teste", exact=True).click()
    expect(page.locator(".dentro")).to_contain_text("Lascia in vista una testa sola")


def test_link_to_a_ready_sentence(visit: Visit, folders: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"file://{folders['mini'] / 'index.html'}")
    page.get_by_role("button", name=SENTENCES[2]).click()
    english(page).nth(4).click()
    page.get_by_role("button", name="strato 2, testa 3", exact=True).click()
    expect(page.locator(".titolo", has_text="strato 2")).to_contain_text("testa 3")
    shown, address = page.locator(".riquadro").inner_text(), page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_role("button", name="strato 2, testa 3", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(english(page).nth(4)).to_have_attribute("aria-pressed", "true")
    assert page.locator(".riquadro").inner_text() == shown
    page.goto("about:blank")
    page.goto(
        re.sub(
            r"#.*",
            "#traduttore?frase=<b>x</b>&guarda=constructor&strato=99&teste=-1&riga=x&spente=..&modello=<i>",
            address,
        )
    )
    expect(page.get_by_role("button", name="Carica il modello")).to_be_visible()
    page.goto("about:blank")
    page.goto(re.sub(r"#.*", "#traduttore?frase=Was it tired?&guarda=encoder", address))  # un «?» scritto a mano
    expect(page.get_by_label("Una frase in inglese")).to_have_value("Was it tired?")


def test_bad_sentences_and_missing_weights(visit: Visit, folders: dict[str, Path], tmp_path: Path) -> None:
    page, folder = visit.page, shutil.copytree(folders["mini"], tmp_path / "mini")
    page.goto(f"file://{folder / 'index.html'}")
    translate(page, "   ")
    expect(page.locator(".stato")).to_contain_text("Scrivi una frase")
    translate(page, "The cat.")
    shutil.copy(folders["small-en-it"] / "pesi-0.js", folder)
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("è di un altro modello")
    (folder / "pesi-0.js").write_bytes(b"")  # interrotto prima di cominciare; a metà, la pagina segnala anche l'errore
    translate(page, "The cat.")
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("il file è incompleto")
    shutil.copy(folders["mini"] / "pesi-0.js", folder)
    translate(page, "The cat " * 60)
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("il modello ne legge al più 64")
    expect(page.locator(".risposta .titolo")).to_have_text(f"Traduzione di «{SENTENCES[0]}»:")  # quella di prima
    page.get_by_label("Una frase in inglese").fill("")
    page.keyboard.insert_text("The cat " * 100)
    expect(page.locator(".stato")).to_contain_text("il resto non entra")
    translate(page, "\u200b\x01")  # segni invisibili: per il modello non c'è nulla
    expect(page.locator(".stato")).to_contain_text("Scrivi una frase")


def test_a_link_cannot_switch_off_a_head_that_is_not_there(visit: Visit, folders: dict[str, Path]) -> None:
    page = visit.page
    off = "cross.0.3_encoder.9.9_encoder.0.00"  # nel decoder `mini` ha una testa incrociata sola
    page.goto(f"file://{folders['mini'] / 'index.html'}#traduttore?frase={SENTENCES[0]}&spente={off}")
    expect(page.locator(".traduzione")).to_have_text(greedy_text("mini", SENTENCES[0]))
    expect(page.get_by_role("button", name="Carica il modello")).to_have_count(0)
    expect(page.get_by_role("button", name="Riaccendi tutte le teste")).to_have_count(0)


HOLD = """() => { // i file arrivano quando lo dice la prova
    const append = Element.prototype.append, come = new Promise((resolve) => { globalThis.arrive = resolve; });
    document.head.append = (script) => come.then(() => append.call(document.head, script));
}"""


def test_impatient_reader(tab: Visit, folders: dict[str, Path], tmp_path: Path) -> None:
    "Cambia modello mentre ne arriva uno, tiene premuto Invio, traduce in due caselle con teste spente diverse."
    shutil.copytree(folders["mini"].parent, tmp_path / "_static" / "vivo")
    boxes = "".join(live_model(["mini", "small-en-it"], SENTENCES[:1], anchor=anchor).html for anchor in "ab")
    (tmp_path / "pagina.html").write_text(f"<!doctype html><meta charset=utf-8><main>{boxes}</main>", "utf-8")
    page, text = tab.page, generate(1, held_out=True)[0].en
    a, b = (page.locator(f"#{anchor}") for anchor in "ab")
    page.goto(f"file://{tmp_path / 'pagina.html'}")
    page.evaluate(HOLD)
    for one in (a, b):
        one.get_by_label("Una frase in inglese").fill(text)
    a.get_by_role("button", name="Traduci", exact=True).click()
    a.get_by_role("button", name="Carica il modello").click()
    a.get_by_role("radio", name="small-en-it").click()
    page.evaluate("arrive()")
    a.get_by_role("button", name="Carica il modello (circa 8 MB)").wait_for()  # era arrivato l'altro
    expect(a.locator(".traduzione")).to_have_text(greedy_text("mini", SENTENCES[0]))

    a.get_by_role("radio", name="mini").click()
    expected = greedy_text("mini", text)
    expect(a.locator(".traduzione")).to_have_text(expected)
    reads = page.evaluate(
        """async () => {
            const { model } = await [...annotatedModels.values()][0], reading = model.reading.bind(model);
            const box = document.querySelector("#a").shadowRoot.querySelector("textarea");
            let reads = 0;
            model.reading = (ids) => { reads++; return reading(ids); };
            for (let n = 0; n < 20; n++) box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
            await new Promise((resolve) => setTimeout(resolve, 500));
            return reads;
        }"""
    )
    assert reads == 1
    expect(a.locator(".stato")).to_contain_text("qui nel tuo browser")

    a.get_by_role("button", name="spegni la testa 1.1").click()
    expect(a.locator(".stato")).to_contain_text(f"Con tutte le teste accese: «{expected}»")
    changed = a.locator(".traduzione").inner_text()
    assert changed != expected
    b.get_by_role("button", name="Traduci", exact=True).click()
    b.get_by_role("button", name="Carica il modello").click()
    expect(b.locator(".traduzione")).to_have_text(expected)
    for order in ("ab", "ba"):
        page.evaluate(
            "anchors => anchors.forEach((x) => document.getElementById(x).shadowRoot.querySelector('.forte').click())",
            list(order),
        )
        for box in (a, b):
            expect(box.locator(".stato")).to_contain_text("qui nel tuo browser")
        expect(a.locator(".traduzione")).to_have_text(changed)
        expect(b.locator(".traduzione")).to_have_text(expected)


def test_reader_does_not_wait_for_another_model(tab: Visit, folders: dict[str, Path], tmp_path: Path) -> None:
    "Mentre un modello arriva rispondono le frasi pronte e l'altro modello; chi torna a quello che arriva lo vede."
    shutil.copytree(folders["mini"].parent, tmp_path / "_static" / "vivo")
    live_model(["mini", "small-en-it"], SENTENCES[:1]).save(tmp_path / "pagina.html")
    page, text = tab.page, "The fox saw the street because it was hungry."
    page.goto(f"file://{tmp_path / 'pagina.html'}")
    translate(page, text)
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    page.evaluate(HOLD)
    page.get_by_role("radio", name="small-en-it").click()
    page.get_by_role("button", name="Carica il modello").click()
    page.get_by_role("button", name=SENTENCES[0]).click()
    expect(page.locator(".traduzione")).to_have_text(greedy_text("small-en-it", SENTENCES[0]))
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("radio", name="mini").click()
    translate(page, "The cat was tired.")
    expect(page.locator(".traduzione")).to_have_text(greedy_text("mini", "The cat was tired."))
    expect(page.get_by_role("progressbar")).to_be_hidden()
    page.get_by_role("radio", name="small-en-it").click()
    expect(page.locator(".stato")).to_have_text("Il modello sta arrivando: poi traduco.")
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.evaluate("arrive()")
    expected = greedy_text("small-en-it", "The cat was tired.")
    expect(page.locator(".traduzione")).to_have_text(expected)
    page.locator(".candidati").get_by_role("button").first.click()
    expect(page.locator(".imposto")).to_contain_text("Imposto: «")
    page.get_by_label("Una frase in inglese").fill("")
    page.get_by_role("radio", name="mini").click()
    expect(page.locator(".imposto")).to_have_text("")  # era un pezzo dell'altro modello


def test_a_newer_request_stops_the_reading(tab: Visit, folders: dict[str, Path]) -> None:
    "Fra uno strato e l'altro la pagina risponde. Una richiesta vuota, invece, lascia finire ciò che si sta scrivendo."
    folder, page = folders["small-en-it"], tab.page
    long, short = "The door was open. " * 4, "The house was empty."
    page.goto(f"file://{folder / 'index.html'}#traduttore?frase=The door was open.")
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    page.evaluate(
        """async ([long, short]) => {
            const { model } = await [...annotatedModels.values()][0], reading = model.reading.bind(model);
            globalThis.root = document.querySelector("[data-vivo]").shadowRoot;
            globalThis.ask = (text) => {
                const box = root.querySelector("textarea");
                box.value = text;
                box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
            };
            globalThis.finished = 0;
            model.reading = function* (ids) {
                if (!globalThis.asked) setTimeout(ask, 0, short); // appena la pagina può rispondere
                globalThis.asked = true;
                for (const read of reading(ids)) {
                    if (read) finished++; // uno strato solo non rende nulla
                    yield read;
                }
            };
            ask(long);
        }""",
        [long, short],
    )
    expect(page.locator(".traduzione")).to_have_text(greedy_text("small-en-it", short))
    assert page.evaluate("finished") == 1  # la lunga non è stata letta fino in fondo
    page.evaluate(
        """(long) => new Promise(async (resolve) => {
            const { model } = await [...annotatedModels.values()][0], step = model.step.bind(model);
            model.step = (...piece) => { // adagio: su una macchina svelta non si vedrebbe scrivere
                for (const start = performance.now(); performance.now() < start + 20;);
                return step(...piece);
            };
            new MutationObserver((_, observer) => {
                if (!root.querySelector(".traduzione").textContent.endsWith("…")) return;
                observer.disconnect();
                ask("");
                resolve();
            }).observe(root, { childList: true, subtree: true });
            ask(long);
        })""",
        long,
    )
    expect(page.locator(".traduzione")).to_have_text(greedy_text("small-en-it", long))


def test_accessible_and_within_the_screen(visit: Visit, folders: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"file://{folders['small-en-it'] / 'index.html'}")
    rectangles = "bs => bs.filter(b => b.checkVisibility()).map(b => b.getBoundingClientRect())"
    for _ in range(2):  # prima con una frase pronta, poi con l'offerta di caricare il modello
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        check_accessible(page)
        targets = page.locator("[data-vivo] button, [data-vivo] fieldset span").evaluate_all(rectangles)
        finger = 44 if page.evaluate("innerWidth < 500") else 26  # nel visore; intorno, sempre da dito
        assert len(targets) > 40 and min(min(t["width"], t["height"]) for t in targets) > finger - 0.1
        translate(page, "Good morning.")
        expect(page.get_by_role("button", name="Carica il modello")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # «No, grazie»
    expect(page.get_by_label("Una frase in inglese")).to_be_focused()
    italian(page).nth(2).focus()
    page.keyboard.press("Enter")
    expect(italian(page).nth(2)).to_be_focused()


def test_served_asks_only_its_own_server(browser: Browser, folders: dict[str, Path]) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folders["mini"])))
    Thread(target=server.serve_forever, daemon=True).start()
    address, requests = f"http://127.0.0.1:{server.server_port}/", list[str]()
    page = browser.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address + "index.html")
    text = generate(1, held_out=True)[0].en
    translate(page, text)
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".traduzione")).to_have_text(greedy_text("mini", text))
    page.close()
    server.shutdown()
    asked = [request.removeprefix(address).partition("?")[0] for request in requests if "favicon" not in request]
    assert asked == ["index.html", "modello.js", "pesi-0.js"]


def test_where_a_box_cannot_open() -> None:
    for wrong in ({"kind": "self"}, {"head": 0}, {"layer": 0}, {"layer": 2}, {"kind": "encoder", "head": 5}):
        with pytest.raises(AnnotatedError, match="il visore non si apre lì"):
            live_model("mini", SENTENCES[:1], **wrong)  # type: ignore[arg-type]
    with pytest.raises(AnnotatedError, match="una lista di frasi"):
        live_model("mini", SENTENCES[0])
    for names, url in (([], None), (["mini", "small-en-it"], "vivo")):
        with pytest.raises(AnnotatedError, match="serve un modello"):
            live_model(names, SENTENCES[:1], url=url)


def test_where_a_box_opens() -> None:
    "Si conta da 1, la pagina da 0; senza strato è l'ultimo, che dipende dal modello scelto."
    for asked, found in ((2, "1"), (None, "null")):
        page = live_model("mini", SENTENCES[:1], kind="encoder", layer=asked, head=3, focus=4).html
        assert f'"start":{{"k":0,"l":{found},"heads":[2],"focus":4,' in page


def test_two_boxes_in_a_page(visit: Visit, tmp_path: Path) -> None:
    one, two = (live_model("mini", [text], anchor=anchor).html for anchor, text in zip("ab", SENTENCES, strict=False))
    (tmp_path / "due.html").write_text(
        f"<!doctype html><html lang=it><meta charset=utf-8><title>due</title><main>{one}{two}</main>", "utf-8"
    )
    visit.page.goto(f"file://{tmp_path / 'due.html'}")
    expect(visit.page.locator(".traduzione")).to_have_count(2)
    assert len(set(visit.page.locator(".traduzione").all_text_contents())) == 2


def test_two_models_in_a_box(visit: Visit, folders: dict[str, Path], tmp_path: Path) -> None:
    "Ogni modello ha le sue risposte pronte e i suoi pesi, che due caselle della stessa pagina caricano una volta sola."
    page, names = visit.page, ["mini", "small-en-it"]
    shutil.copytree(folders["mini"].parent, tmp_path / "_static" / "vivo")
    boxes = [live_model(names, SENTENCES[:1], anchor=anchor).html for anchor in "ab"]
    assert all(
        re.findall(r'data-modello="([\w-]+)"', box) == names for box in boxes
    )  # chi costruisce il libro li scrive
    (tmp_path / "pagina.html").write_text(
        f"<!doctype html><html lang=it><meta charset=utf-8><title>due</title><main>{''.join(boxes)}</main>", "utf-8"
    )
    files: list[str] = []
    page.on("request", lambda request: files.append(request.url.rpartition("/")[2].partition("?")[0]))
    page.goto(f"file://{tmp_path / 'pagina.html'}")
    for anchor in "ab":
        box = page.locator(f"#{anchor}")
        for name in (names[1], names[0]):
            box.get_by_role("radio", name=name).click()
            expect(box.locator(".traduzione")).to_have_text(greedy_text(name, SENTENCES[0]))
        box.get_by_label("Una frase in inglese").fill("The dog was tired.")
        box.get_by_role("button", name="Traduci", exact=True).click()
        if anchor == "a":
            box.get_by_role("button", name="Carica il modello").click()  # la seconda casella lo trova già
        expect(box.locator(".traduzione")).to_have_text(greedy_text("mini", "The dog was tired."))
        expect(box.locator(".stato")).to_contain_text("pezzi in")  # ha finito, e la pagina non scorre più
    assert sorted(name for name in files if name.endswith(".js")) == ["modello.js", "pesi-0.js"]
    page.locator("#b").get_by_role("radio", name=names[0]).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#b").get_by_role("button", name="Carica il modello (circa 8 MB)")).to_be_visible()
    expect(page.locator("#b").get_by_role("radio", name=names[1])).to_be_focused()  # chi usa le frecce resta lì
    page.locator("#b .pezzo").first.click()
    assert "modello=small-en-it" not in page.url  # finché non traduce, l'indirizzo resta quello di ciò che si vede
    expect(page.locator("#b .risposta")).to_contain_text("Traduzione di «The dog was tired.» (mini):")
    expect(page.locator("#b").get_by_role("button", name="scrivi «")).to_have_count(0)  # erano dell'altro modello
    page.locator("#b").get_by_role("button", name="No, grazie").click()  # si torna al modello di ciò che si vede
    expect(page.locator("#b").get_by_role("radio", name=names[0])).to_be_checked()
    page.goto("about:blank")
    page.goto(f"file://{tmp_path / 'pagina.html'}#b?frase={SENTENCES[0]}&modello=small-en-it&guarda=encoder&riga=2")
    expect(page.locator("#b .traduzione")).to_have_text(greedy_text(names[1], SENTENCES[0]))
    expect(page.locator("#b .modelli").get_by_role("radio", name=names[1])).to_be_checked()


def test_pointing_at_a_word(tab: Visit, folders: dict[str, Path]) -> None:
    "Passando su una parola si vede dove guardano le teste; da tastiera si fa lo stesso."
    page, folder = tab.page, folders["mini"]
    page.set_viewport_size({"width": 1100, "height": 1400})
    page.goto(f"file://{folder / 'index.html'}")
    cross = attention_weights(*answer("mini", SENTENCES[0])).cross[-1]
    page.locator(".traduzione").click(click_count=3)
    selected = "() => String(document.querySelector('[data-vivo]').shadowRoot.getSelection())"
    italian(page).nth(4).hover()
    assert page.evaluate(selected).strip() == page.locator(".traduzione").inner_text()  # si può ancora copiare
    assert_shown(page, cross, 4)
    expect(page.get_by_text("Passo 5: che cosa poteva scrivere")).to_be_visible()
    english(page).nth(1).hover()  # una chiave: chi la guarda
    assert numbers(page) == pytest.approx(cross[0, 0, :, 1].tolist(), abs=0.0051)
    page.get_by_label("Una frase in inglese").hover()
    italian(page).nth(2).focus()
    page.keyboard.press("Enter")
    assert_shown(page, cross, 2)
    expect(italian(page).nth(2)).to_be_focused()


def test_unknown_signs_are_copied(visit: Visit, folders: dict[str, Path]) -> None:
    "Con un vocabolario aperto si dicono i segni che non ha, e la traduzione li copia: la stessa che in Python."
    page, folder, text = visit.page, folders["small-en-it"], "Łukasz paid 5 € to Mr Müller."
    page.goto(f"file://{folder / 'index.html'}")
    translate(page, text)
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    expected = greedy_text("small-en-it", text)
    assert all(sign in expected for sign in "Ł€ü")
    expect(page.locator(".traduzione")).to_have_text(expected)
    assert "Ł" in english(page).all_inner_texts()[0] + english(page).all_inner_texts()[1]
    expect(page.locator(".avviso")).to_contain_text("la traduzione può soltanto copiarne i segni")


def test_unknown_words_are_told(visit: Visit, folders: dict[str, Path]) -> None:
    "Le parole fuori della microlingua si dicono prima di caricare e con la traduzione; le altre no."
    page = visit.page
    page.goto(f"file://{folders['mini'] / 'index.html'}")
    warning = page.locator(".avviso")
    translate(page, "The elephant didn't see the cat, because it was tired.")
    expect(warning).to_contain_text("mini non ha mai visto «elephant»")
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    expect(warning).to_contain_text("«elephant» e «,»")
    translate(page, "The cat was tired 👨‍👩‍👧.")  # un'emoji composta è una sola
    expect(warning).to_contain_text("«👨‍👩‍👧»")
    translate(page, "The cat didn´t see the street because it was narrow.")  # l'accento al posto dell'apostrofo
    expect(page.locator(".stato")).to_contain_text("qui nel tuo browser")
    expect(warning).to_be_hidden()


def test_opens_and_returns_where_the_answer_is_decided(visit: Visit, folders: dict[str, Path]) -> None:
    "I candidati sono quelli del passo in cui le frasi gemelle si separano, anche dopo una traduzione dal vivo."
    page, step = visit.page, "Passo 9: che cosa poteva scrivere"
    page.goto(f"file://{folders['mini'] / 'index.html'}")
    page.get_by_text("encoder", exact=True).click()
    page.get_by_role("button", name=SENTENCES[1]).click()
    expect(page.locator(".candidati .titolo")).to_have_text(step)
    translate(page, "The fox saw the street because it was hungry.")
    page.get_by_role("button", name="Carica il modello").click()
    expect(page.locator(".stato")).to_contain_text(re.compile(r"pezzi in [\d,]+ (milli)?secondi"))
    last = page.get_by_role("group", name="La traduzione, un pezzo alla volta").get_by_role("button").count()
    expect(page.locator(".candidati .titolo")).not_to_have_text(f"Passo {last}: che cosa poteva scrivere")
    translate(page, SENTENCES[0])
    expect(page.locator(".traduzione")).to_contain_text("stanco")
    expect(page.locator(".candidati .titolo")).to_have_text(step)
    expect(page.locator(".traduzione")).to_be_in_viewport()
    page.get_by_text("encoder", exact=True).click()
    page.get_by_role("button", name=SENTENCES[1]).click()
    page.get_by_role("button", name="strato 3, testa 4", exact=True).click()
    page.get_by_role("button", name="spegni la testa 3.4").click()
    expect(page.locator(".traduzione")).to_contain_text("largo")
    expect(page.locator(".candidati .titolo")).to_have_text(step)  # «esso», dove la frase intera ha «essa»
