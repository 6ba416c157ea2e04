"""Un vero Chromium, senza rete, per le prove delle pagine e del visore."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

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
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            self.problems.append(f"chiede {request.url}")


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
