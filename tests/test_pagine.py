"""Il libro costruito, aperto in un vero Chromium senza rete, su uno schermo largo e su uno da telefono."""

import re
from pathlib import Path

import pytest
from conftest import Visit
from playwright.sync_api import expect

HTML = Path(__file__).resolve().parent.parent / "book" / "_build" / "html"
OTHERS = ("404.html", "genindex.html", "search.html")  # la 404 vive soltanto servita: test_pubblicazione.py
PAGES = sorted(path.name for path in HTML.glob("*.html") if path.name not in OTHERS)


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


def test_attention_view(visit: Visit) -> None:
    "Il visore vive nella pagina: ogni vista pesa al più 300 kB, risponde, segue il tema e non esce dallo schermo."
    page = visit.page
    page.goto(f"file://{HTML / '20_vedere.html'}")
    views = page.locator("[data-vista]")
    expect(views).not_to_have_count(0)
    sizes = views.evaluate_all("e => e.map(x => new Blob([x.outerHTML, x.nextElementSibling.text]).size)")
    assert max(sizes) <= 300_000
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")  # anche quelle nelle soluzioni
    expect(page.locator("[data-vista] .disegno svg")).not_to_have_count(0)
    first = views.first
    first.get_by_text("matrice", exact=True).click()
    first.locator(".pezzo[data-query='1'] rect").click()
    expect(first.get_by_role("status")).to_contain_text(re.compile(r"guarda: \S+\s+[01],\d\d"))
    first.get_by_role("button", name="strato 1, testa 2", exact=True).click()
    expect(first.locator(".titolo")).to_contain_text("strato 1")
    ground = "e => getComputedStyle(e.shadowRoot.querySelector('.vista')).backgroundColor"
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        expect(first).to_have_attribute("data-theme", theme)
        assert (first.evaluate(ground) == "rgb(255, 255, 255)") == (theme == "light")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
