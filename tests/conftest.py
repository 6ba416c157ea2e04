"""Ciò che più prove usano: un corpus e un modello piccoli, e un vero Chromium senza rete."""

import errno
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, sync_playwright
from provenienza import chromium

from annotated import Config, Transformer
from annotated.checkpoint import save_model
from annotated.data import Batch, Corpus, Pair, encode_pairs
from annotated.study.microlingua import generate
from annotated.tokenizer import Tokenizer

TEXT = [example.en for example in generate(400)]
PAIRS = [f"prova\t{example.en}\t{example.it}" for example in generate(400)]
Setting = tuple[Tokenizer, Corpus, Corpus]
SHAPE: dict[str, Any] = {"d_model": 32, "d_ff": 64, "h": 2, "N": 1, "max_len": 64}
SCREENS = {"largo": (1280, 900), "telefono": (390, 844)}


def write_data(folder: Path, train: list[str] = PAIRS, valid: list[str] = PAIRS[:20]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.tsv").write_text("\n".join(train) + "\n", "utf-8")
    (folder / "valid.tsv").write_text("\n".join(valid) + "\n", "utf-8")
    return folder


class Stopped(Corpus):
    "Un corpus che al lotto numero `at` ferma con SIGTERM chi lo legge."

    def __init__(self, corpus: Corpus, at: int):
        super().__init__(corpus.tokens, corpus.offsets)
        self.left = at

    def batch(self, indices: np.ndarray) -> Batch:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(indices)


def fill_disk(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    "Dopo `after` scritture il disco è pieno."
    left = iter(range(after))

    def fsync(_: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


def assert_refused(code: int, error: str, message: str) -> None:
    "Un rifiuto è una riga sola, l'ultima, e non una traccia."
    told = [line for line in error.splitlines() if line.startswith("errore: ")]
    assert code in (1, 2) and "Traceback" not in error and told == error.splitlines()[-1:], error
    assert message in told[0] and told[0].endswith("."), error


@pytest.fixture(scope="session")
def setting() -> Setting:
    "Un vocabolario, un corpus e le frasi di validazione."
    torch.set_num_threads(1)
    pairs = [Pair(e.en, e.it) for e in generate(600)]
    tokenizer = Tokenizer.train((s for pair in pairs for s in pair), 400)
    return tokenizer, encode_pairs(pairs[:560], tokenizer, 64), encode_pairs(pairs[560:], tokenizer, 64)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    "Un modello non addestrato, ma intero: traduce a caso. Chi lo guasta ne fa una copia."
    folder = tmp_path_factory.mktemp("modello")
    tokenizer = Tokenizer.train((text for line in PAIRS for text in line.split("\t")[1:]), 400)
    torch.manual_seed(0)
    save_model(folder, Transformer(Config(400, d_model=32, d_ff=64, h=2, N=2, max_len=64)), tokenizer)
    return folder


@pytest.fixture
def plain_git(monkeypatch: pytest.MonkeyPatch) -> None:
    "git senza le impostazioni di chi prova, come la firma dei commit, né quelle di un hook, come GIT_DIR."
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = chromium("chromium-headless-shell")
    if executable is None:
        stop = pytest.fail if "GITHUB_ACTIONS" in os.environ else pytest.skip  # là Chrome c'è sempre
        stop("nessun Chromium su questa macchina: le pagine non sono state provate")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])


class Visit:
    "Una pagina aperta, con ciò che è andato storto."

    def __init__(self, page: Page):
        self.page, self.problems = page, []
        page.on("request", self.check_request)
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def check_request(self, request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            self.problems.append(f"chiede {request.url}")


def check_accessible(page: Page, but: Iterable[str] = (), **options: Any) -> None:
    "Fallisce se axe trova qualcosa di grave; `but` sono regole da saltare, `options` le sue."
    rules = {rule: {"enabled": False} for rule in ("region", *but)}  # «region», lenta, non è mai grave
    results = Axe().run(page, options={"resultTypes": ["violations"], "rules": rules, **options})
    findings = [f for f in results.response["violations"] if f["impact"] in ("serious", "critical")]
    assert not [(f["id"], node["html"]) for f in findings for node in f["nodes"]]


@pytest.fixture
def tab(browser: Browser) -> Iterator[Visit]:
    "Una pagina su uno schermo qualunque; la prova fallisce se qualcosa va storto o se la pagina chiede la rete."
    visit = Visit(browser.new_page())
    yield visit
    visit.page.close()
    assert visit.problems == []


@pytest.fixture(params=SCREENS)
def visit(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Visit]:
    """Una pagina su uno schermo largo, tema chiaro, e su uno da telefono, tema scuro.

    La prova fallisce se qualcosa va storto o se la pagina chiede la rete.
    """
    width, height = SCREENS[request.param]
    phone = request.param == "telefono"
    context = browser.new_context(
        viewport={"width": width, "height": height},
        is_mobile=phone,
        has_touch=phone,
        color_scheme="dark" if phone else "light",
        locale="it-IT",
        offline=True,
    )
    visit = Visit(context.new_page())
    yield visit
    context.close()
    assert visit.problems == []
