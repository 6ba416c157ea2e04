"""Il libro costruito, aperto in un vero Chromium senza rete, su uno schermo largo e su uno da telefono."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

HTML = Path(__file__).resolve().parent.parent / "book" / "_build" / "html"
PAGES = sorted(path.name for path in HTML.glob("*.html") if path.name not in ("genindex.html", "search.html"))
SCREENS = {"largo": (1280, 900), "telefono": (390, 844)}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    executable = os.environ.get("CHROMIUM", executable)
    if executable is None:
        pytest.skip("nessun Chromium su questa macchina: le pagine non sono state provate")
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
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"chiede {request.url}")


@pytest.fixture(params=SCREENS)
def visit(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Visit]:
    width, height = SCREENS[request.param]
    phone = request.param == "telefono"
    context = browser.new_context(
        viewport={"width": width, "height": height}, is_mobile=phone, has_touch=phone, locale="it-IT", offline=True
    )
    yield Visit(context.new_page())
    context.close()


def test_book_is_built() -> None:
    assert "intro.html" in PAGES and len(PAGES) > 15, "manca il libro: costruiscilo con «make libro»"


@pytest.mark.parametrize("name", PAGES)
def test_page(visit: Visit, name: str) -> None:
    page = visit.page
    page.goto(f"file://{HTML / name}")
    formulas = page.locator(".math:not(script)").count()
    charts = page.locator(".vega-lite").count()
    page.wait_for_function(
        "([f, c]) => document.querySelectorAll('.math mjx-container').length >= f"
        " && document.querySelectorAll('.vega-lite.vega-embed svg.marks').length == c",
        arg=[formulas, charts],
        timeout=20_000,
    )
    assert page.locator("mjx-merror").count() == 0
    images = "[...document.querySelectorAll('article img')]"
    page.evaluate(f"{images}.forEach(i => i.loading = 'eager')")
    assert page.evaluate(f"Promise.all({images}.map(i => i.decode())).then(() => true)")
    assert page.evaluate(f"{images}.every(i => i.alt.trim())"), "una figura non ha testo alternativo"
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert visit.problems == []


def test_attention_map(visit: Visit) -> None:
    "Strato e testa si scelgono, e sotto il puntatore c'è il peso."
    page = visit.page
    page.goto(f"file://{HTML / '20_vedere.html'}")
    chart = page.locator(".vega-lite.vega-embed").first
    cells = chart.locator(".mark-rect.role-mark path")
    cells.first.wait_for()
    before = cells.evaluate_all("e => e.map(x => x.getAttribute('fill'))")
    for menu, index in ((0, 2), (1, 1)):
        chart.locator("select").nth(menu).select_option(index=index)
    page.wait_for_timeout(500)
    after = cells.evaluate_all("e => e.map(x => x.getAttribute('fill'))")
    assert len(after) == len(before) and after != before
    cells.nth(5).scroll_into_view_if_needed()
    cells.nth(5).hover()
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert re.search(r"peso\s*[01],\d\d", tooltip.inner_text())
    assert visit.problems == []
