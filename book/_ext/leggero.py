"""Estensione Sphinx: a pagine scritte, toglie ciò che non usano.

I fogli di stile diventano uno, con le sole regole di cui una pagina ha le classi, e sta nella pagina; i caratteri delle
icone si riducono alle icone usate e stanno nel foglio; gli script comuni a tutte le pagine diventano un file solo.
Nel codice si colora solo ciò che ha un colore suo, e un riquadro si dispone quando sta per vedersi; il bottone che lo
copia è già nella pagina. Ciò che il tema misura, o ricolora, appena la pagina si apre, aspetta o si toglie.
"""

import base64
import io
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import unescape
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from docutils import nodes
from fontTools import subset
from fontTools.ttLib import TTFont
from jinja2.ext import Extension
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
NAME = re.compile(r"[.#]((?:\\.|[\w-])+)")
NEGATED = re.compile(r":not\((?:[^()]|\([^()]*\))*\)")
FACE = re.compile(r"@font-face\{[^}]*?url\(\.\./vendor/fontawesome/webfonts/([\w-]+)\.woff2\)[^}]*\}")
VARIABLE = re.compile(r"""(--[\w-]+):(?:"[^"]*"|'[^']*'|\([^)]*\)|[^;{}"'(])*(?:;|(?=\}))""")
SIGN = re.compile(r'"\\(f[0-9a-f]{3})"')
SHEET = re.compile(r'<style id="foglio">.*?</style>', re.DOTALL)
WIDEST = 110  # i segni di una riga di codice che a 1280 pixel non scorre
NARROW = 40  # quelli di una riga sul telefono, dove va a capo: un poco meno di quanti ce ne stanno
PLAIN = re.compile(r'<span class="(?:n|nn|p|w)">([^<]*)</span>')  # nomi, segni, spazi: del colore del testo
CODE = re.compile(r'((?:\bcolonne [^>]*>)?)<div class="highlight"><pre>(.*?)</pre>', re.DOTALL)
CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
WORD = re.compile(r'(?<=<span class="pre">)[^<]+')
MEASURES = {  # ciò che il tema fa di troppo, quasi sempre appena la pagina si apre; che cosa mettere al suo posto
    # se un riquadro di codice scorre: lo fa menu.js, quando si vede
    r"\w+\.tabIndex=\w+\.scrollWidth>\w+\.clientWidth\|\|\w+\.scrollHeight>\w+\.clientHeight\?0:-1": "0",
    # dov'è, nell'indice, la pagina aperta: sul telefono l'indice è chiuso
    r'(if\()(!document\.querySelector\("\.bd-docs-nav"\)\))': r'\1matchMedia("(max-width:959.98px)").matches||\2',
    # toglie il fuoco ai pulsanti premuti, e chi usa la tastiera perde il posto; all'indice della pagina resta tolto,
    # perché scelta una voce si prosegue da lì (se lo si lascia con Esc, il fuoco glielo rende menu.js)
    r'(\[)"\.theme-switch-button","\.search-button","\.primary-toggle",(?="\.secondary-toggle"\])': r"\1",
    # in quale sezione si è: finché non si scorre, si è in cima
    r"(\w+\((\w+),300\)\)),\2\(\)": r'\1,window.addEventListener("scroll",\2,{once:!0})',
}
COPY = """<button class="copybtn o-tooltip--left" aria-label="Copia il codice" data-tooltip="Copiare"\
 data-clipboard-target="#{}"></button>"""
PROGRAM = re.compile(r'(<script defer src="[^"]*_static/tutto\.js)[^"]*"')
THEME_SHEETS = ("_static/basic.css", "_static/styles/pydata-sphinx-theme.css")
THEME_SCRIPTS = ("_static/scripts/pydata-sphinx-theme.js",)
# thebe è spento, e dichiara due volte la stessa costante; di schede il libro non ne ha; i menu li apre menu.js
LEFT_OUT = re.compile(r"thebe|design-tabs|DOCUMENTATION_OPTIONS\.\w+ =")
HEAD = {  # i modelli del tema: al posto di fogli e script
    "{{ _webpack.head_pre_assets() }}": "",
    "{{- css() }}": """<style>
    @font-face {
      font-family: "STIX Two Math";
      src: url("{{ pathto('_static/stix-two-math.woff', 1) }}") format("woff");
      font-display: swap;
    }
  </style>
  <style id="foglio"></style>""",
    "{{ _webpack.head_js_preload() }}": """<script defer src="{{ pathto('_static/tutto.js', 1) }}"></script>""",
    "{{ _webpack.body_post() }}": "",
    'data-theme="{{ default_mode }}"': 'data-theme="light"',  # senza script i colori del tema ci sono lo stesso
    # il tema «auto» è chiaro o scuro già prima che la pagina si disegni: cambiarlo dopo la ricolora tutta; con i colori
    # forzati è sempre «auto», ché il sistema non li forza nei disegni
    """dataset.theme = localStorage.getItem("theme") || "{{ default_mode }}";""": """dataset.mode =
      matchMedia("(forced-colors: active)").matches ? "auto" : document.documentElement.dataset.mode;
    document.documentElement.dataset.theme =
      document.documentElement.dataset.mode.replace("auto",
        matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");""",
    """{% include "sections/announcement.html" %}""": "",  # un avviso vuoto, che il tema misura
}


def blocks(css: str) -> Iterator[tuple[str, str]]:
    "Le regole di un foglio: ciò che sta prima della graffa, e ciò che sta dentro."
    start = 0
    while (brace := css.find("{", start)) >= 0:
        prelude, depth, end, quote = css[start:brace].strip(), 1, brace + 1, ""
        if prelude.startswith("@") and ";" in prelude:  # @charset, @import
            prelude = prelude.rpartition(";")[2].strip()
        while depth:
            sign = css[end]
            if quote:
                quote = "" if sign == quote else quote
                end += sign == "\\"
            elif sign in "\"'":
                quote = sign
            else:
                depth += (sign == "{") - (sign == "}")
            end += 1
        yield prelude, css[brace + 1 : end - 1]
        start = end


def selectors(prelude: str) -> list[str]:
    "I selettori separati da virgole, non quelle fra parentesi."
    parts, depth = [""], 0
    for sign in prelude:
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def matches(selector: str, used: set[str]) -> bool:
    "Le classi e gli identificatori che chiede esistono; di `:is(a, b)` ne basta uno."
    selector = NEGATED.sub("", selector)
    while (inner := re.search(r":(?:is|where|has)\(([^()]*)\)", selector)) is not None:
        if not any(matches(option, used) for option in inner[1].split(",")):
            return False
        selector = selector.replace(inner[0], "", 1)
    return all(name.replace("\\", "") in used for name in NAME.findall(re.sub(r"\[[^\]]*\]", "", selector)))


def prune(css: str, used: set[str]) -> str:
    kept = []
    for prelude, body in blocks(css):
        if prelude.startswith(("@media", "@supports", "@layer", "@container")):
            if inner := prune(body, used):
                kept.append(f"{prelude}{{{inner}}}")
        elif prelude.startswith("@"):
            kept.append(f"{prelude}{{{body}}}")
        elif wanted := [selector for selector in selectors(prelude) if matches(selector, used)]:
            kept.append(f"{','.join(wanted)}{{{body}}}")
    return "".join(kept)


def squeeze(css: str) -> str:
    css = re.sub(r"\s+", " ", COMMENT.sub("", css))
    return re.sub(r" ?([{};,>]) ?", r"\1", css).replace(";}", "}")


def drop_unused_animations(css: str) -> str:
    for prelude, body in list(blocks(css)):
        if prelude.startswith(("@keyframes", "@-webkit-keyframes")) and css.count(prelude.split()[1]) == 1:
            css = css.replace(f"{prelude}{{{body}}}", "")
    return css


def drop_unused_variables(css: str, program: str) -> str:
    "Il tema e Bootstrap definiscono centinaia di variabili; toglierne una può renderne inutile un'altra."
    before = ""
    while css != before:
        before, wanted = css, set(re.findall(r"--[\w-]+(?=[\s,)])", css + program))
        css = "".join(kept_variables(css, wanted))
    return css


def kept_variables(css: str, wanted: set[str]) -> Iterator[str]:
    end = 0
    for match in VARIABLE.finditer(css):
        yield css[end : match.start()]
        if match[1] in wanted:
            yield match[0]
        end = match.end()
    yield css[end:]


def icon_font(path: Path, signs: set[int]) -> str:
    "Il carattere con le sole icone usate, scritto nel foglio; vuoto se non ne usa."
    font = TTFont(path, recalcTimestamp=False)
    wanted = signs & font.getBestCmap().keys()
    if not wanted:
        return ""
    subsetter = subset.Subsetter(subset.Options(hinting=False, layout_features=[], name_IDs=[0, 13, 14]))
    subsetter.populate(unicodes=wanted)
    subsetter.subset(font)
    font.flavor, written = "woff", io.BytesIO()
    font.save(written)
    return base64.b64encode(written.getvalue()).decode()


def with_icons(css: str, fonts: Path) -> str:
    signs = {int(code, 16) for code in SIGN.findall(css)}

    def face(match: re.Match[str]) -> str:
        data = icon_font(fonts / f"{match[1]}.ttf", signs)
        return re.sub(r"src:[^}]*", f'src:url(data:font/woff;base64,{data}) format("woff")', match[0]) if data else ""

    return FACE.sub(face, css)


def names_used(pages: Iterable[str], program: str) -> set[str]:
    "Classi e identificatori delle pagine, e ogni parola degli script, che ne aggiungono."
    used = set(re.findall(r"[\w-]+", program))
    for page in pages:
        for value in re.findall(r'\b(?:class|id)="([^"]*)"', page):
            used.update(value.split())
        for script in re.findall(r"<script\b[^>]*>([^<]{20,})</script>", page):
            used.update(re.findall(r"[\w-]+", script))
    return used


def one_program(app: Sphinx, static: Path) -> str:
    "Prima le costanti, che gli script leggono appena partono: con `defer` la pagina è già lì."
    scripts = sorted(app.builder._js_files, key=lambda script: script.priority)  # type: ignore[attr-defined]
    constants = [script.attributes.get("body", "") for script in scripts if not script.filename]
    names = [str(script.filename) for script in scripts if script.filename] + list(THEME_SCRIPTS)
    programs = [(static.parent / name).read_text("utf-8") for name in names if not LEFT_OUT.search(name)]
    parts = [body for body in dict.fromkeys(constants) if not LEFT_OUT.search(body)] + programs
    program = "\n;\n".join(parts)
    for measure, instead in MEASURES.items():
        program, found = re.subn(measure, instead, program)
        if found != 1:
            raise ExtensionError(f"Lo script del tema è cambiato: leggero.py non vi trova più «{measure}».")
    return re.sub(r"//# sourceMappingURL=.*", "", program)


def one_sheet(app: Sphinx, static: Path, used: set[str], program: str) -> str:
    own = [sheet.filename for sheet in sorted(app.builder._css_files, key=lambda sheet: sheet.priority)]  # type: ignore[attr-defined]
    names = [*THEME_SHEETS, *dict.fromkeys(map(str, own))]
    text = "".join((static.parent / name).read_text("utf-8") for name in names if not LEFT_OUT.search(name))
    css = drop_unused_variables(prune(squeeze(text), used), program)
    return with_icons(drop_unused_animations(css), static / "vendor" / "fontawesome" / "webfonts")


def framed(match: re.Match[str], name: str) -> str:
    "Un riquadro di codice: le righe, con cui il foglio di stile gli tiene il posto, se di lato scorre, il bottone."
    columns, text = match.groups()
    lengths = [len(line) for line in unescape(re.sub("<[^>]*>", "", text)).rstrip("\n").split("\n")]
    narrow = len(lengths) if columns else sum(max(1, ceil(length / NARROW)) for length in lengths)
    reached = ' tabindex="0"' if max(lengths) > (NARROW if columns else WIDEST) else ""
    style = f"--righe:{len(lengths)};--strette:{narrow}"
    return f'{columns}<div class="highlight" style="{style}"><pre id="{name}"{reached}>{text}</pre>{COPY.format(name)}'


def light_code(page: str) -> str:
    names = map("codice{}".format, count(1))
    return CODE.sub(lambda match: framed(match, next(names)), PLAIN.sub(r"\1", page))


def breakable(cell: re.Match[str]) -> str:
    "In una tabella stretta un nome lungo va a capo dove finisce una sua parola, non a metà."
    return WORD.sub(lambda word: re.sub(r"(?<=[._(/=,])(?=\w)", "<wbr>", word[0]), cell[0])


def lighten(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    for old in OneSheet.missing:
        raise ExtensionError(f"I modelli del tema sono cambiati: leggero.py non vi trova più «{old}».")
    static = Path(app.outdir) / "_static"
    program = one_program(app, static)
    (static / "tutto.js").write_text(program, "utf-8")
    version = sha256(program.encode()).hexdigest()[:8]
    pages = {path: CELL.sub(breakable, light_code(path.read_text("utf-8"))) for path in Path(app.outdir).glob("*.html")}
    loaded = {name for page in pages.values() for name in re.findall(r'<script[^>]* src="_static/([^"?]+)', page)}
    programs = program + "".join((static / name).read_text("utf-8") for name in sorted(loaded))
    used = names_used((SHEET.sub("", page) for page in pages.values()), programs)
    sheet = f'<style id="foglio">{one_sheet(app, static, used, program)}</style>'
    for path, page in pages.items():
        page = SHEET.sub(lambda _: sheet, page)
        path.write_text(PROGRAM.sub(rf'\1?v={version}"', page), "utf-8")


def only_own_scripts(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    "Di una pagina restano gli script che le altre non hanno; gli altri sono in `tutto.js`."
    common = app.builder._orig_js_files  # type: ignore[attr-defined]
    context["script_files"] = [
        script
        for script in context.get("script_files", ())
        if script not in common
        and not LEFT_OUT.search(f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', '')}")
    ]


class OneSheet(Extension):
    "Cambia i modelli di pagina mentre Jinja li legge."

    missing = set(HEAD)  # ciò che in nessun modello s'è ancora trovato

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        for old, new in HEAD.items():
            if old in source:
                self.missing.discard(old)
                source = source.replace(old, new)
        return source


def prepare(app: Sphinx) -> None:
    if app.builder.format == "html":
        app.builder.templates.environment.add_extension(OneSheet)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", prepare)
    app.connect("html-page-context", only_own_scripts, priority=980)
    # se non c'è niente da scrivere, le pagine sono leggere dall'altra volta
    app.connect("write-started", lambda app, _: app.connect("build-finished", lighten, priority=900))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
