"""Le figure che si muovono: nel libro costruito, ogni casella contro gli stessi conti fatti da PyTorch."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Locator, expect
from torch import Tensor, tensor

from annotated.attention import attention
from annotated.knn import attend
from annotated.masks import causal_mask
from annotated.study.figures import choice, live, moving, slider, switch
from conftest import Visit

HTML = Path(__file__).resolve().parent.parent / "book" / "_build" / "html"
FIGURES = {
    "temperatura": "02_attenzione.html",
    "passi": "02_attenzione.html",
    "maschere": "05_maschere.html",
    "staffetta": "07_encoder.html",
    "generazione": "09_transformer.html",
}
BOXES = "box => [...box.querySelectorAll('[data-n]')].map(cell => [cell.dataset.n, cell.textContent])"
CLOSE = {"atol": 0.00501, "rtol": 0.0}  # una casella ha due cifre
# `muovi.js` non chiede quanto è largo lo schermo: i conti si provano su uno, i comandi e la tabella su tutt'e due
one_screen = pytest.mark.parametrize("visit", ["largo"], indirect=True)


class Figure:
    def __init__(self, visit: Visit, kind: str):
        visit.page.goto(f"file://{HTML / FIGURES[kind]}")
        self.box: Locator = visit.page.locator(f"[data-muovi={kind}]")
        self.numbers: dict[str, Any] = json.loads(self.box.get_attribute("data-numeri") or "")

    def texts(self) -> dict[str, str]:
        return dict(self.box.evaluate(BOXES))

    def read(self, name: str) -> Tensor:
        "Le caselle `name.0`, `name.1`, … (o `name.0.0`, …) come tensore; quelle vietate sono zero."
        found = {key: text for key, text in self.texts().items() if key.rpartition(".")[0].partition(".")[0] == name}
        values = {
            tuple(map(int, key.split(".")[1:])): 0.0 if text == "×" else float(text.replace(",", ".").replace("−", "-"))
            for key, text in found.items()
        }
        shape = [1 + max(place[axis] for place in values) for axis in range(len(next(iter(values))))]
        table = torch.full(shape, float("nan"))
        for place, value in values.items():
            table[place] = value
        return table

    def set(self, name: str, value: float) -> None:
        control = self.box.locator(f"[name={name}]")
        if control.first.get_attribute("type") == "radio":
            self.box.locator(f"[name={name}][value='{value:g}']").check()
        else:
            control.fill(f"{value:g}")


@one_screen
def test_temperature(visit: Visit) -> None:
    figure = Figure(visit, "temperatura")
    scores = tensor(figure.numbers["scores"])
    for power in (3, 0, 1.5, 6):
        figure.set("p", power)
        _, weights = attend(scores / 2**power, torch.eye(5))
        slope = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=-1), scores / 2**power).diagonal()
        assert torch.allclose(figure.read("scalato"), scores / 2**power, **CLOSE)
        assert torch.allclose(figure.read("peso"), weights, **CLOSE)
        assert torch.allclose(figure.read("derivata"), slope, **CLOSE)
    figure.set("p", 0)
    assert figure.read("peso").max() > 0.99 and figure.read("derivata").max() < 0.01  # satura
    figure.set("p", 6)
    assert figure.read("peso").max() < 0.25


@one_screen
def test_six_steps(visit: Visit) -> None:
    figure = Figure(visit, "passi")
    X, *W = (tensor(figure.numbers[name]) for name in ("X", "W_q", "W_k", "W_v"))
    changes = figure.numbers["changes"]
    for asking, house in (
        (1, [1, 0, 0, 1]),
        (1, [1, 0, 0, 0]),
        (1, [0, 0, 0, 0]),
        (0, [0.5, 1, 0.5, 1]),
        (2, [1, 0.5, 0, 0.5]),
    ):
        figure.set("chi", asking)
        for i, value in enumerate(house):
            figure.set(f"x{i}", value)
        X[changes] = tensor(house).float()
        Q, K, V = (X @ matrix for matrix in W)
        output, weights = attention(Q, K, V)
        assert torch.allclose(figure.read("query"), Q[asking], **CLOSE)
        assert torch.allclose(figure.read("chiave"), K, **CLOSE)
        assert torch.allclose(figure.read("score"), K @ Q[asking], **CLOSE)
        assert torch.allclose(figure.read("scalato"), K @ Q[asking] / 2**0.5, **CLOSE)
        assert torch.allclose(figure.read("peso"), weights[asking], **CLOSE)
        assert torch.allclose(figure.read("parte"), weights[asking, :, None] * V, **CLOSE)
        assert torch.allclose(figure.read("uscita"), output[asking], **CLOSE)


@one_screen
def test_six_steps_say_what_the_page_says(visit: Visit) -> None:
    "Senza il femminile «red» cerca ancora «house», ma il genere non arriva; senza «cosa» i pesi sono uguali."
    figure = Figure(visit, "passi")
    assert figure.read("peso")[2] > 0.9 and figure.read("uscita")[0] > 0.9
    figure.set("x3", 0)
    assert figure.read("peso")[2] > 0.8 and figure.read("uscita")[0] == 0
    figure.set("x0", 0)
    assert torch.equal(figure.read("peso"), tensor([0.33, 0.33, 0.33]))


@one_screen
@pytest.mark.parametrize("late", [False, True])
def test_masks(visit: Visit, late: bool) -> None:
    figure = Figure(visit, "maschere")
    scores, pad = tensor(figure.numbers["scores"]), tensor(figure.numbers["pad"])
    figure.box.locator("[name=dopo]").set_checked(late)
    for padding, causal in (False, False), (True, False), (False, True), (True, True):
        figure.box.locator("[name=riempitivo]").set_checked(padding)
        figure.box.locator("[name=causale]").set_checked(causal)
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask &= ~pad if padding else True
        mask &= causal_mask(5)[0, 0] if causal else True
        before, _ = attend(scores.masked_fill(~mask, -torch.inf), torch.eye(5))
        weights = scores.softmax(dim=-1) * mask if late else before
        assert torch.allclose(figure.read("peso"), weights, **CLOSE)
        assert torch.allclose(figure.read("somma"), weights.sum(dim=-1), **CLOSE)
        crossed = {key for key, text in figure.texts().items() if text == "×"}
        assert crossed == {f"peso.{t}.{s}" for t, s in (~mask).nonzero().tolist()}


@one_screen
def test_relay(visit: Visit) -> None:
    figure = Figure(visit, "staffetta")
    value = tensor(figure.numbers["valore"])
    for pointers, blind in ([2, 3, 5, 0, 1, 3], 0), ([1, 2, 3, 4, 5, 0], 0), ([2, 3, 5, 0, 1, 3], 3):
        for i, to in enumerate(pointers):
            figure.set(f"p{i}", to)
        figure.set("cieca", blind)
        to = tensor(pointers)
        held = value.gather(0, to)
        if blind:
            held[blind - 1] = value[blind - 1]
        assert torch.equal(figure.read("punta"), to.float())
        assert torch.equal(figure.read("uno"), held.float())
        assert torch.equal(figure.read("due"), held.gather(0, to).float())


@one_screen
def test_generation(visit: Visit) -> None:
    "La storia che il modello racconta da sé finisce in «la casa rossa»; i numeri sono probabilità."
    figure = Figure(visit, "generazione")
    for first, story in enumerate(figure.numbers["stories"]):
        figure.set("prima", first)
        for step, page in enumerate(story):
            figure.set("passo", step)
            texts = figure.texts()
            assert texts["scritto"] == page["scritto"]
            assert [texts[f"nome.{i}"] for i in range(5)] == page["nome"]
            assert torch.allclose(figure.read("probabilità"), tensor(page["probabilità"]), **CLOSE)
            assert torch.allclose(figure.read("guarda"), tensor(page["guarda"]), **CLOSE)
            assert abs(figure.read("guarda").sum() - 1) < 0.03 and figure.read("probabilità").sum() < 1.03
            odds = tensor(page["logit"]).diff().exp(), tensor(page["probabilità"])
            assert torch.allclose(odds[0], odds[1][1:] / odds[1][:-1], rtol=0.2)  # softmax degli stessi logit
    assert figure.numbers["stories"][0][-1]["scritto"] == "la casa rossa"
    assert figure.numbers["stories"][0][-1]["nome"][0] == "</s>"


@pytest.mark.parametrize("kind", FIGURES)
def test_keyboard_and_finger(visit: Visit, kind: str) -> None:
    "Si usa da tastiera; un comando è alto quanto un dito, e ha un nome; la figura non esce dallo schermo."
    figure, page = Figure(visit, kind), visit.page
    labels = figure.box.locator("label")
    assert labels.count() == figure.box.locator("input").count() > 0
    assert all(text.strip() for text in labels.all_text_contents())
    assert min(labels.evaluate_all("all => all.map(label => label.getBoundingClientRect().height)")) >= 44
    before = figure.texts()
    control = figure.box.locator("input[type=range], input[type=checkbox]").first
    control.focus()
    page.keyboard.press("Space" if control.get_attribute("type") == "checkbox" else "ArrowRight")
    page.keyboard.press("Enter")
    if figure.texts() == before:  # il cursore era in fondo
        page.keyboard.press("ArrowLeft")
    assert figure.texts() != before
    said = "all => all.every(shown => shown.parentElement.querySelector('input').ariaValueText === shown.textContent)"
    assert figure.box.locator("label > output").evaluate_all(said), "un cursore dice un altro numero"
    expect(figure.box).to_be_visible()
    assert figure.box.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("kind", FIGURES)
def test_without_javascript_the_table_is_the_same(visit: Visit, browser: Browser, kind: str) -> None:
    "I numeri scritti dalla cella sono quelli con cui il programma comincia; i comandi non ci sono, né sulla carta."
    figure = Figure(visit, kind)
    context = browser.new_context(java_script_enabled=False, offline=True)
    still = context.new_page()
    still.goto(f"file://{HTML / FIGURES[kind]}")
    expect(still.locator(f"[data-muovi={kind}] .comandi")).to_be_hidden()
    rows = re.findall(r'data-n="([^"]+)"[^>]*>([^<]*)<', still.locator(f"[data-muovi={kind}]").inner_html())
    context.close()
    assert len(rows) > 5 and {name: unescape(text) for name, text in rows} == figure.texts()
    expect(figure.box.locator(".comandi")).to_be_visible()
    visit.page.emulate_media(media="print")
    expect(figure.box.locator(".comandi")).to_be_hidden()


def test_what_a_cell_writes() -> None:
    "Testi e attributi entrano come testo; lo zero non ha segno; la barra è lunga quanto il numero."
    rows = [["", "a<b"], ["x", live("x.0", -0.001, "#123456")], ["y", live("y", "<s>")]]
    controls = [slider("p", "τ & co", 0, 1, 0.5, 0.5), switch("m", "sì"), choice("c", "chi:", ["uno", "due"], 1)]
    html = moving("prova", controls, rows, "Una <figura>", testo='"<&').html
    assert "a&lt;b" in html and "Una &lt;figura&gt;" in html and "&lt;s&gt;" in html and "τ &amp; co" in html
    assert ">0,00</td>" in html and "−" not in html
    assert json.loads(unescape(re.search('data-numeri="([^"]*)"', html)[1])) == {"testo": '"<&'}
    assert 'value="1" checked' in html and 'scope="col"' in html and 'scope="row"' in html
    assert "#12345666 40.0%" in live("z", 0.4, "#123456")
