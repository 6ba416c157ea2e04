"""Il libro costruito, aperto in un vero Chromium senza rete, su uno schermo largo e su uno da telefono."""

import gzip
import json
import re
import tomllib
from html import unescape
from pathlib import Path
from statistics import median
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import pytest
import yaml
from playwright.sync_api import expect

from conftest import Visit, check_accessible

HTML = Path(__file__).resolve().parent.parent / "book" / "_build" / "html"
BASE = yaml.safe_load((HTML.parent.parent / "_config.yml").read_text("utf-8"))["html"]["baseurl"]
OTHERS = ("404.html", "genindex.html", "index.html", "search.html")  # la 404 vive soltanto servita, index rinvia
PAGES = sorted(path.name for path in HTML.glob("*.html") if path.name not in OTHERS)
COLUMN = 110  # i segni di codice che stanno in una riga a 1280 pixel, con i caratteri comuni più larghi
CUT = """([cells, limit]) => [...document.querySelectorAll(cells)].filter(pre =>
    [pre, pre.parentElement].some(box => box.scrollWidth > box.clientWidth)
    && pre.textContent.split('\\n').every(line => [...line.trimEnd()].length <= limit)).map(pre => pre.textContent)"""
OPEN = """() => {
    document.querySelectorAll('article details').forEach(details => details.open = true);
    document.querySelectorAll('.toggle-hidden').forEach(box => box.classList.remove('toggle-hidden'));
}"""
SAMPLE = """() => {  // una copia della pagina, senza script, con tre testi per aspetto, loro e di chi li contiene
    const behind = new Map(), seen = new Map(), kept = new Set(), looks = new Map();
    const boxes = document.body.querySelectorAll('*');  // ognuno dopo chi lo contiene
    const copy = document.documentElement.cloneNode(true);
    const copies = copy.querySelector('body').querySelectorAll('*');
    for (const box of boxes) {
        const style = getComputedStyle(box), { backgroundColor, backgroundImage, opacity } = style;
        const own = [backgroundColor, backgroundImage, opacity].join(' ');
        const under = (behind.get(box.parentElement) ?? '') + (own === 'rgba(0, 0, 0, 0) none 1' ? '' : own);
        behind.set(box, under);
        looks.set(box, ['color', 'fontSize', 'fontWeight', 'fontStyle', 'textDecorationLine', 'borderBottom']
            .map(name => style[name]).join());
        const text = [...box.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.data.trim());
        if (!text || !box.checkVisibility({ visibilityProperty: true })) continue;
        const look = [looks.get(box), looks.get(box.parentElement), under].join();
        seen.set(look, (seen.get(look) ?? 0) + 1);
        if (seen.get(look) <= 3) for (let up = box; up; up = up.parentElement) kept.add(up);
    }
    boxes.forEach((box, i) => kept.has(box) || copies[i].remove());
    copy.querySelectorAll('script').forEach(script => script.remove());
    return copy.outerHTML;
}"""
COLORS = ["color-contrast", "link-in-text-block"]  # le regole di axe che guardano i colori
FAMILIES = ("Liberation Sans", "DejaVu Sans")  # uno stretto, e uno largo un buon decimo di più
DARK = re.compile(r'srcset="(_images/[0-9a-f]{64}-scuro\.svg)"')
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
ENGLISH = re.compile(r"\b(the|this|your|to|toggle|source|launch|search|open|issue|page|main|click|logo)\b", re.I)


def test_book_is_built() -> None:
    assert "intro.html" in PAGES and len(PAGES) > 15, "manca il libro: costruiscilo con «make libro»"


def test_formulas_keep_the_spaces_of_tex(visit: Visit) -> None:
    "Dopo una radice non avanza spazio, prima di un nome di funzione c'è, e l'apice non vola via."
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    right = "box => box.getBoundingClientRect().right"
    # in un riquadro chiuso non ci sono misure
    page.evaluate("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    roots = page.locator("msqrt")
    assert roots.count() > 3
    for root in roots.all():
        assert abs(root.evaluate(right) - root.locator("> :last-child").evaluate(right)) < 0.5
    page.goto(f"file://{HTML / '13_ottimizzazione.html'}")
    names = page.locator("msub + mspace + mrow > mi:first-child")
    assert "log" in names.all_text_contents() and page.locator("msub + mrow > mi + mo").count() == 0
    prime = page.locator(".tml-prime").first
    assert prime.evaluate("sign => getComputedStyle(sign).transform") != "none"


def test_no_page_names_the_folder_it_was_built_in() -> None:
    root = re.compile(rf"(?<![\w.-]){re.escape(str(HTML.parents[2]))}")  # non la fine di un indirizzo
    assert [page.name for page in HTML.rglob("*.html") if root.search(page.read_text("utf-8"))] == []


def test_the_root_leads_to_the_introduction(visit: Visit) -> None:
    visit.page.goto(f"file://{HTML / 'index.html'}")
    visit.page.wait_for_url("**/intro.html")


def test_introduction_opens_where_the_adjective_is_written(visit: Visit) -> None:
    "La testa scelta guarda l'aggettivo inglese, e se cambia la frase guarda l'altro."
    page = visit.page
    page.goto(f"file://{HTML / 'intro.html'}")
    looked = page.get_by_role("group", name="La frase, in pezzi").locator("button:has(small)")
    share = "all => all.map(b => [b.firstChild.data, parseInt(b.querySelector('small').textContent)])"
    expect(looked.filter(has_text="·ired")).to_have_count(1)
    tired = dict(looked.evaluate_all(share))
    assert tired["t"] + tired["·ired"] > 50
    page.get_by_role("button", name="Metti wide al posto di tired").click()
    expect(looked.filter(has_text="wide")).to_have_count(1)
    assert dict(looked.evaluate_all(share))["wide"] > 50


@pytest.mark.parametrize("name", PAGES)
def test_page(visit: Visit, name: str) -> None:
    page = visit.page
    page.goto(f"file://{HTML / name}")
    for chart in page.locator(".vega-lite").all():
        expect(chart.locator("svg")).to_have_count(1)  # il disegno fermo
        chart.scroll_into_view_if_needed()
        expect(chart).to_have_class(re.compile("vega-embed"), timeout=20_000)
    formulas = page.locator(".math:not(script)")
    assert formulas.evaluate_all("all => all.every(f => f.querySelector('math') && !f.querySelector('merror'))")
    images = "[...document.querySelectorAll('article img')]"
    page.wait_for_load_state()  # poi la pagina chiede da sé anche quelle che non si vedono ancora
    assert page.evaluate(f"{images}.every(i => i.loading !== 'lazy')")
    assert page.evaluate(f"Promise.all({images}.map(i => i.decode())).then(() => true)")
    assert page.evaluate(f"{images}.every(i => i.alt.trim())"), "una figura non ha testo alternativo"
    assert page.evaluate(FITS)
    phone = page.viewport_size["width"] < 500
    if phone:  # ingrandita quattro volte
        page.set_viewport_size({"width": 320, "height": 256})
        assert page.evaluate(FITS)
        page.set_viewport_size({"width": 390, "height": 844})
    assert not [text for text in page.locator("td code").all_text_contents() if "span>" in text]
    check_accessible(page, but=COLORS, preload=False)
    page.add_style_tag(content="* { animation: none !important; }")  # un riquadro che si apre è a mezza tinta
    page.evaluate(OPEN)
    if not phone:  # la barra di scorrimento, che un browser senza finestra non disegna
        page.set_viewport_size({"width": 1280 - 15, "height": 900})
    cells = ("article pre:not(.colonne pre)", 10_000) if phone else ("article pre", COLUMN)  # le tabelle scorrono
    assert not page.evaluate(CUT, cells), "una cella di codice o un'uscita scorre"
    for family in FAMILIES if phone else ():
        page.add_style_tag(content=f"* {{ font-family: '{family}' !important; }}")
        assert page.evaluate(FITS), f"con {family} la pagina scorre di lato"
    sample = page.evaluate(SAMPLE)  # i colori axe li guarda un testo alla volta, e migliaia sono uguali
    page.goto("about:blank")  # la pagina di prima, con i suoi script, non c'è più
    page.set_content(sample)
    check_accessible(page, preload=False, runOnly=COLORS)


def test_no_cell_is_wider_than_the_column() -> None:
    "Il limite lo impone ruff (book/ruff.toml); qui, che sia quello della colonna e che nessuna cella se ne esenti."
    book = HTML.parent.parent
    assert tomllib.loads((book / "ruff.toml").read_text("utf-8"))["line-length"] == COLUMN
    notebooks = [json.loads(path.read_text("utf-8")) for path in book.glob("*.ipynb")]
    cells = ["".join(c["source"]) for notebook in notebooks for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) > 1000
    assert not [line for cell in cells for line in cell.splitlines() if len(line.rstrip()) > COLUMN]


def test_links() -> None:
    "I collegamenti interni portano a una pagina e a un'àncora che esistono; gli esterni sono indirizzi interi."
    scripts = re.compile(r"<script.*?</script>", re.DOTALL)
    html = {name: scripts.sub("", (HTML / name).read_text("utf-8")) for name in PAGES}
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in html.items()}
    broken = []
    for name, text in html.items():
        for link in map(unescape, re.findall(r'<(?:a|link|img)\b[^>]*\b(?:href|src)="([^"]*)"', text)):
            url = urlsplit(link)
            target = unquote(url.path) or name
            if url.scheme in ("data", "mailto"):
                continue
            if url.scheme:
                sound = url.scheme == "https" and "." in url.netloc and " " not in link
            else:
                found = not url.fragment or unquote(url.fragment) in anchors.get(target, ())
                sound = found and (HTML / target).exists()
            if not sound:
                broken.append((name, link))
    assert not broken


def test_weight() -> None:
    "Quanto scarica una prima visita, con gzip: la pagina, le sue figure, lo script, il carattere delle formule."
    sizes: dict[Path, int] = {}

    def packed(path: Path) -> int:
        return sizes.setdefault(path, len(gzip.compress(path.read_bytes())))

    weights = {}
    for name in PAGES:
        text = (HTML / name).read_text("utf-8")
        assert "mathjax/" not in text and not re.search(r'<link[^>]*rel="stylesheet"', text)
        files = {HTML / unquote(source) for source in re.findall(r'<(?:img|script)\b[^>]*\bsrc="(_[^"?]+)', text)}
        weights[name] = sum(map(packed, files | {HTML / name, HTML / "_static" / "stix-two-math.woff"}))
    assert median(weights.values()) < 160e3 and max(weights.values()) < 400e3, weights


def test_names_of_pieces_are_not_tags() -> None:
    "«</s>» scritto senza apici in un titolo diventerebbe HTML, e non si vedrebbe."
    tags = re.compile(r"</?(?:s|unk|pad|mask)>")
    assert not [name for name in PAGES if tags.search((HTML / name).read_text("utf-8"))]


def test_a_percent_sign_stays_with_its_number() -> None:
    for name in PAGES:
        text = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", (HTML / name).read_text("utf-8"), flags=re.DOTALL)
        assert not re.findall(r".{,40}\d %", re.sub(r"<[^>]*>", "", text)), name


def test_controls_speak_italian(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    expect(page.locator(".toggle-button")).not_to_have_count(0)
    labels = page.evaluate("""['title', 'aria-label', 'placeholder', 'alt', 'data-bs-original-title'].flatMap(name =>
        [...document.querySelectorAll(`[${name}]`)].filter(e => !e.matches('article a.reference'))
        .map(e => e.getAttribute(name)))""")
    labels += page.locator(".bd-header-article, .prev-next-footer, .bd-footer-content").all_text_contents()
    assert len(labels) > 20 and not [label for label in labels if ENGLISH.search(label)]
    assert page.locator("[class*='fa-']:not([aria-hidden='true'])").count() == 0, "un'icona è anche un nome"
    assert page.locator("dialog:not([aria-label])").count() == 0
    named = "all => all.every(button => button.ariaLabel === button.dataset.toggleHint)"
    assert page.locator(".toggle-button").evaluate_all(named)
    page.locator(".toggle-button").first.click()
    expect(page.get_by_role("button", name="Nascondi la soluzione")).to_have_count(1)
    assert page.locator(".toggle-button").evaluate_all(named)
    issue = page.get_by_text("Segnala un errore").locator("xpath=ancestor::a").get_attribute("href") or ""
    assert issue.endswith("?template=errore-nel-testo.yml&dove=" + quote(f"{BASE}02_attenzione.html", safe=""))
    assert page.locator(".search-button__button:visible").count() == 1, "una casella o una lente, non due"


def test_menus_open(visit: Visit) -> None:
    """Gli indici del libro e della pagina: si aprono sopra il testo; su uno schermo largo il primo si chiude.

    Chi li lascia torna al loro pulsante.
    """
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    phone = page.evaluate("innerWidth") < 500
    for menu in ("primary", "secondary"):
        toggle = page.locator(f".{menu}-toggle:visible")
        toggle.click()
        if phone or menu == "secondary":
            expect(page.locator(f"#pst-{menu}-sidebar-modal")).to_have_attribute("open", "")
            page.keyboard.press("Escape")
        else:
            expect(page.locator(".bd-sidebar-primary")).to_be_hidden()
        expect(toggle).to_be_focused()


def test_the_page_contents_close_once_chosen(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    page.locator(".secondary-toggle:visible").click()
    panel = page.locator("#pst-secondary-sidebar-modal")
    panel.locator("a").nth(2).click()
    expect(panel).not_to_have_attribute("open", "")
    assert page.evaluate("scrollY") > 0


def test_buttons_above_open(visit: Visit) -> None:
    "Un tocco apre, un altro chiude: anche dove non c'è un puntatore da tenervi sopra."
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    for name in ("Colab", "Segnala un errore"):
        menu = page.locator(".article-header-buttons .dropdown", has=page.locator("a", has_text=name))
        button = menu.locator("button")
        button.click()
        entry = menu.get_by_text(name)
        expect(entry).to_be_visible()
        box = entry.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= page.viewport_size["width"]  # dentro lo schermo
        expect(button).to_have_attribute("aria-expanded", "true")
        button.click()
        expect(button).to_have_attribute("aria-expanded", "false")


def test_chapter_on_paper(visit: Visit) -> None:
    "Su un A4 niente esce né si taglia; ci sono le domande e gli esercizi senza soluzioni, e in fondo la provenienza."
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    signature = page.locator(".firma")
    expect(signature).to_be_hidden()
    solution = page.locator(".solution").first
    expect(solution).to_be_visible()
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1047})  # 19 × 27,7 cm
    expect(page.locator("h1:visible")).to_have_text("2. Self-attention")
    expect(signature).to_have_text(f"Da annotated, «2. Self-attention», CC BY 4.0, {BASE}02_attenzione.html")
    expect(solution).to_be_hidden()
    question = page.locator("details.sd-dropdown").first
    question.evaluate("question => question.open = true")
    expect(question.locator("summary")).to_be_visible()
    expect(question.locator(".sd-card-text").first).to_be_hidden()
    clipped = """() => [...document.querySelectorAll('article *')].filter(e =>
        e.checkVisibility() && !e.closest('.math') && (e.getBoundingClientRect().right > innerWidth
            || e.scrollWidth > e.clientWidth && getComputedStyle(e).overflowX != 'visible')).map(e => e.outerHTML)"""
    assert not page.evaluate(clipped)


HEIGHTS = "all => all.map(e => e.offsetHeight)"


def test_places_are_kept(visit: Visit) -> None:
    "Una figura o, su uno schermo largo, un riquadro di codice occupa prima di vedersi il posto che occuperà."
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    if page.viewport_size["width"] > 1000:
        boxes = page.locator("div.highlight")
        before = boxes.evaluate_all(HEIGHTS)
        page.add_style_tag(content="div.highlight { content-visibility: visible !important }")
        assert boxes.evaluate_all(HEIGHTS) == before
    images = page.locator("picture img")
    before = images.evaluate_all(HEIGHTS)
    images.evaluate_all("all => Promise.all(all.map(image => { image.loading = 'eager'; return image.decode(); }))")
    assert 0 not in before and images.evaluate_all(HEIGHTS) == pytest.approx(before, abs=1)


@pytest.mark.parametrize("visit", ["largo"], indirect=True)  # un attributo: lo schermo non c'entra
def test_saved_charts_have_a_name(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{HTML / '04_posizioni.html'}")
    page.locator(".vega-lite").first.scroll_into_view_if_needed()
    name = page.locator(".vega-actions a").first
    expect(name).to_have_attribute("download", "le-lancette.svg")
    assert page.locator(".vega-lite [aria-label*='x2:']").count() == 0, "una lancetta dice le sue dodici cifre"


SEARCHES = {  # che cosa si cerca, e una sezione che dev'essere fra le prime quattro
    "cross-attention": "08_decoder.html#la-cross-attention",
    "beam search": "16_decodifica.html#beam-search-a-mano",
    "maschera causale": "05_maschere.html#la-maschera-causale",
    "BLEU": "17_valutazione.html#bleu-a-mano",
    "layer normalization": "06_blocchi.html#layer-normalization",
    "positional encoding": "04_posizioni.html",
    "heads": "03_multihead.html#una-testa-sola",  # anche al plurale
    "queries": "01_knn.html#query-chiavi-valori",
    "inferenza": "05_maschere.html#controlla-di-aver-capito",
}


def test_figures_follow_the_theme(visit: Visit) -> None:
    "Si vede la versione del tema, senza un fondo suo."
    page = visit.page
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    page.evaluate("document.querySelectorAll('article img').forEach(i => i.loading = 'eager')")
    assert page.locator("article picture img").count() > 2
    for theme in ("dark", "light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        page.wait_for_function(
            """dark => [...document.querySelectorAll('article picture img')]
                .every(i => i.complete && i.currentSrc.includes('-scuro') === dark)""",
            arg=theme == "dark",
        )
    ground = "i => [i, i.parentElement].map(e => getComputedStyle(e).backgroundColor)"
    assert set(page.locator("article picture img").first.evaluate(ground)) == {"rgba(0, 0, 0, 0)"}


def test_dark_figures_have_no_white_sheet() -> None:
    names = {name for page in PAGES for name in DARK.findall((HTML / page).read_text("utf-8"))}
    sheet = re.compile(r'<g id="patch_1">\s*<path[^>]*fill: #ffffff')
    assert len(names) > 100 and not [name for name in names if sheet.search((HTML / name).read_text("utf-8"))]


def test_charts_follow_the_theme(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{HTML / '01_knn.html'}")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    chart = page.locator(".vega-lite").first
    colours = "c => ['svg', 'text', '[stroke=\"#0072B2\"]'].map(s => getComputedStyle(c.querySelector(s)))"
    seen = f"c => (([ground, ink, line]) => [ground.backgroundColor, ink.fill, line.stroke])(({colours})(c))"
    expected = ["rgba(0, 0, 0, 0)", "rgb(213, 218, 225)", "rgb(95, 176, 232)"]
    assert chart.evaluate(seen) == expected  # il disegno fermo
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_class(re.compile("vega-embed"), timeout=20_000)
    assert chart.evaluate(seen) == expected
    expect(chart.locator(".vega-actions a")).not_to_have_count(0)  # è quello che si muove
    assert chart.locator("[aria-label*='axis']").count() == 0, "gli assi parlano inglese"


def test_small_print_is_readable_on_a_phone(visit: Visit) -> None:
    "Una figura con scritte piccole non si restringe oltre: scorre nella sua cornice, la pagina no."
    page = visit.page
    page.goto(f"file://{HTML / '22_teste.html'}")
    wide = page.locator("picture.ampia")
    scrolls = "all => all.map(e => e.scrollWidth > e.clientWidth)"
    assert set(wide.evaluate_all(scrolls)) == {page.evaluate("innerWidth < 500")}
    stops = "all => all.map(e => e.tabIndex === 0)"  # il Tab vi si ferma
    assert wide.evaluate_all(stops) == wide.evaluate_all(scrolls)
    assert page.evaluate(FITS)


def test_terms_lead_to_the_glossary() -> None:
    "La prima volta che un capitolo dà un termine in corsivo porta al glossario, una volta per voce."
    term = re.compile(r'class="voce[^"]*" href="92_glossario\.html#([^"]+)"')
    links = {name: term.findall((HTML / name).read_text("utf-8")) for name in PAGES}
    assert all(len(found) == len(set(found)) for found in links.values())
    assert len(links["05_maschere.html"]) > 5 and sum(map(len, links.values())) > 80


def test_search(visit: Visit) -> None:
    "La ricerca vale senza rete né server: in cima la voce del glossario, poi la sezione giusta; il clic vi porta."
    page = visit.page
    page.goto(f"file://{HTML / 'search.html'}?q=cross-attention")
    box = page.locator("article form.bd-search input")
    results = page.locator("article .trovati li")
    for query, section in SEARCHES.items():
        box.fill(query)
        expect(results.first.locator("a")).to_have_attribute(
            "href", re.compile(rf"92_glossario\.html\?highlight={quote(query)}#term-")
        )
        links = results.locator("a").evaluate_all(
            "all => all.slice(0, 4).map(a => a.getAttribute('href').replace(/\\?[^#]*/, ''))"
        )
        assert any(section in link for link in links), links
        text = " ".join(results.locator("p").all_text_contents())
        assert not re.search(r"\\\(|\\[a-z]+\{|\$", text), "un estratto contiene TeX"
    box.fill("cross-attention")
    results.locator("a").nth(1).click()
    expect(page).to_have_url(re.compile(r"08_decoder\.html#la-cross-attention"))
    assert page.evaluate("scrollY") > 0 and page.locator(".highlighted").count()


def test_search_from_a_page(visit: Visit) -> None:
    "Da una pagina si cerca nel riquadro, e l'indice si carica soltanto allora; Invio porta alla pagina dei risultati."
    page = visit.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    assert not any("ricerca-indice" in url for url in asked)
    lens, dialog = page.locator(".search-button__button:visible"), page.locator("#pst-search-dialog")
    lens.click()
    box = page.locator("#pst-search-dialog input")
    box.fill("softmax")
    expect(page.locator("#pst-search-dialog .trovati li")).to_have_count(8)
    page.locator("#pst-search-dialog .trovati a").nth(1).focus()
    page.keyboard.press("Escape")  # chiude anche da un risultato
    expect(dialog).to_be_hidden()
    expect(lens).to_be_focused()
    lens.click()
    icon, start = page.locator("#pst-search-dialog i").bounding_box(), box.bounding_box()
    padding = float(box.evaluate("box => parseFloat(getComputedStyle(box).paddingLeft)"))
    assert icon and start and icon["x"] + icon["width"] <= start["x"] + padding, "l'icona copre ciò che si scrive"
    box.press("Enter")
    expect(page.locator("article .trovati li")).not_to_have_count(0)


def test_index_leads_to_sections() -> None:
    "Ogni voce del glossario è nell'indice analitico; i suoi numeri sono àncore che esistono."
    html = {path.name: path.read_text("utf-8") for path in HTML.glob("*.html")}
    index = html["98_indice.html"].partition('<ul class="indice')[2].partition("</ul>")[0]
    terms = re.findall(r'<dt id="(term-[^"]+)">', html["92_glossario.html"])
    assert len(terms) > 120 and terms == re.findall(r'href="92_glossario\.html#([^"]+)"', index)
    places = re.findall(r'href="(?!92_)([^"#]+)(?:#([^"]+))?" title=', index)
    assert len(places) > 2 * len(terms)
    assert not [f"{page}#{anchor}" for page, anchor in places if anchor and f'id="{anchor}"' not in html[page]]


def test_map_says_where_we_are() -> None:
    "La mappa del modello è nell'introduzione e nei capitoli 1–9, che vi accendono le proprie caselle."
    maps = {
        name: (HTML / name).read_text("utf-8").partition('class="mappa')[2].partition("</svg>")[0] for name in PAGES
    }
    chapters = {name for name in PAGES if re.match(r"0[1-9]_", name)}
    assert len(chapters) == 9 and {name for name, drawing in maps.items() if drawing} == chapters | {"intro.html"}
    lit = {name: re.findall(r'href="([^"]*)"[^>]*aria-current="page"', drawing) for name, drawing in maps.items()}
    assert {name for name, links in lit.items() if links} == chapters
    assert all(drawing.count(' qui"') >= len(lit[name]) > 0 for name, drawing in maps.items() if name in chapters)


@pytest.mark.parametrize("visit", ["telefono"], indirect=True)  # il tema scuro
def test_map_on_paper(visit: Visit) -> None:
    visit.page.goto(f"file://{HTML / 'intro.html'}")
    visit.page.emulate_media(media="print")
    fills = "all => [...new Set(all.map(shape => getComputedStyle(shape).fill))]"
    assert visit.page.locator(".mappa :is(rect, circle)").evaluate_all(fills) == ["rgb(255, 255, 255)"]
    assert visit.page.locator(".mappa text").evaluate_all(fills) == ["rgb(0, 0, 0)"]


def test_english_is_marked() -> None:
    "Chi ascolta sente in inglese il nome inglese di ogni voce del glossario, e la bibliografia."
    glossary = (HTML / "92_glossario.html").read_text("utf-8")
    starts = re.findall(r"<dd><p><em([^>]*)>", glossary) + re.findall(r"<tr[^>]*>\s*<td([^>]*)>", glossary)
    assert len(starts) > 300 and set(starts) == {' lang="en"'}
    assert 'class="citation-list" lang="en"' in (HTML / "bibliografia.html").read_text("utf-8")


def test_long_formulas_are_reached_from_the_keyboard(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{HTML / '13_ottimizzazione.html'}")
    page.set_viewport_size({"width": 320, "height": 600})
    formula = page.locator("#equation-eq-kl")
    formula.scroll_into_view_if_needed()
    expect(formula).to_have_attribute("tabindex", "0")


def test_code_is_copied(visit: Visit) -> None:
    "Il bottone è già nella pagina, tiene il fuoco, dice d'aver copiato; senza script non si vede, e nemmeno gli altri."
    page, context = visit.page, visit.page.context
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"file://{HTML / '02_attenzione.html'}")
    box = page.locator("div.highlight").filter(visible=True).first
    box.hover()
    box.get_by_role("button", name="Copia il codice").click()
    expect(box.locator(".copybtn")).to_have_attribute("data-tooltip", "Copiato!")
    expect(box.locator(".copybtn")).to_be_focused()
    expect(page.get_by_role("status").filter(has_text="Copiato!")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()").strip() == box.locator("pre").inner_text().strip()
    with context.browser.new_page(java_script_enabled=False) as still:  # type: ignore[union-attr]
        still.goto(page.url)
        assert still.locator(".copybtn").count() > 20
        expect(still.locator("button").filter(visible=True)).to_have_count(0)
        expect(still.locator(".mappa circle").first).to_have_css("fill", "rgb(255, 255, 255)")  # i colori ci sono
        expect(still.locator(".bd-header-article a", has_text="Indice analitico")).to_be_visible()
    page.emulate_media(forced_colors="active")
    visible = "b => getComputedStyle(b, '::before').backgroundColor !== getComputedStyle(b).backgroundColor"
    assert page.locator(".copybtn:empty").first.evaluate(visible), "con i colori forzati il bottone è un quadrato vuoto"


@pytest.mark.parametrize("visit", ["largo"], indirect=True)  # il tema del sistema lo dice la prova
@pytest.mark.parametrize("system", ["light", "dark"])
def test_theme_is_chosen_before_the_page_is_drawn(visit: Visit, system: Literal["light", "dark"]) -> None:
    "La prima volta il tema è quello del sistema, e lo script che arriva dopo non ricolora la pagina."
    page = visit.page
    page.emulate_media(color_scheme=system)
    page.route("**/tutto.js*", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(f"file://{HTML / 'intro.html'}")
    expect(page.locator("html")).to_have_attribute("data-theme", system)
    page.add_init_script("localStorage.setItem('mode', 'light')")  # nel documento nuovo, prima dei suoi script
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.emulate_media(forced_colors="active")  # il sistema non li forza nei disegni
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", system)


@pytest.mark.parametrize("visit", ["largo"], indirect=True)
def test_theme_button_says_which_one(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{HTML / 'intro.html'}")
    button = page.locator(".theme-switch-button:visible")
    button.focus()
    for name in ("scuro", "chiaro", "come il sistema"):
        page.keyboard.press("Enter")  # tiene il fuoco
        expect(button).to_have_attribute("title", f"Tema: {name}")


def test_what_was_never_seen_is_printed(visit: Visit) -> None:
    "Prima di stampare si disegna ogni visore, anche quello dentro una casella che non s'era ancora vista."
    page = visit.page
    page.goto(f"file://{HTML / '20_vedere.html'}")
    hosts = page.locator("[data-vivo], [data-vista]")
    expect(page.locator("[data-attesa='dati']")).to_have_count(0)
    name = page.locator("[data-vista][data-attesa='vista']").last.get_attribute("data-vista")
    page.pdf()
    assert page.locator(f"[data-vista='{name}'] .disegno svg").count() > 0  # già sulla carta, non dopo
    for host in hosts.all():
        expect(host.locator(".disegno svg")).not_to_have_count(0)


def test_attention_view(visit: Visit) -> None:
    "Il visore vive nella pagina: ogni vista pesa al più 300 kB, risponde, segue il tema e non esce dallo schermo."
    page = visit.page
    page.goto(f"file://{HTML / '20_vedere.html'}")
    views = page.locator("[data-vista]")
    expect(views).not_to_have_count(0)
    sizes = views.evaluate_all("e => e.map(x => new Blob([x.outerHTML, x.nextElementSibling.text]).size)")
    assert max(sizes) <= 300_000
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")  # anche quelle nelle soluzioni
    expect(page.locator("[data-vista][data-attesa='vista']")).to_have_count(views.count())
    drawn = page.locator("[data-vista] .disegno svg")
    expect(drawn).to_have_count(0)  # finché non si vedono
    first = views.first
    first.scroll_into_view_if_needed()
    expect(drawn).not_to_have_count(0)
    assert views.evaluate_all("e => e.filter(x => x.shadowRoot).length") < views.count()
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
    assert page.evaluate(FITS)
