"""Estensione Sphinx: le formule diventano MathML mentre si costruisce il libro, e la pagina non ha più da comporle.

Le traduce Temml (temml/, licenza MIT) dentro QuickJS. Il carattere è STIX Two Math (licenza OFL), ridotto ai segni che
le pagine usano; le tabelle con cui un carattere matematico compone frazioni e radici restano.
"""

import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import quickjs
from docutils import nodes
from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent / "temml"
FONT = "stix-two-math.woff"
JOINER = "\u2060"
RADICAL = {0x221A, 0x210E}  # il segno di <msqrt> e la h corsiva, che nelle pagine non si leggono
OPERAND = r"(</(?:mi|mn|msub|msup|msubsup|mrow)>)"
FUNCTION = r"<mrow><mi>\w+</mi><mo>\u2061</mo>"  # «log» e il segno invisibile di applicazione
NAMED = re.compile(f"{OPERAND}(?={FUNCTION})")  # «p log q»: c'è uno spazio
MATH = re.compile(r"<math\b.*?</math>", re.DOTALL)
ITALIC = {
    ord("A"): 0x1D434,
    ord("a"): 0x1D44E,
    ord("Α"): 0x1D6E2,
    ord("α"): 0x1D6FC,
}  # le variabili si scrivono in corsivo


@cache
def temml() -> Any:
    context = quickjs.Context()
    context.eval((HERE / "temml.min.js").read_text("utf-8"))
    # JSON.stringify unisce in una stringa sola i pezzi che Temml concatena: QuickJS non sa rendere gli altri a Python
    return context.eval(
        "(tex, displayMode) =>"
        " JSON.parse(JSON.stringify(temml.renderToString(tex, { displayMode, throwOnError: true })))"
    )


@cache
def mathml(tex: str, display: bool) -> str:
    if display and r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    spaced = NAMED.sub(r'\1<mspace width="0.1667em"></mspace>', str(temml()(tex, display)))
    return spaced.replace("<mo>⊙</mo>", '<mo largeop="false">⊙</mo>')  # Firefox lo farebbe grande come una sommatoria


def render(translator: HTML5Translator, node: nodes.math | nodes.math_block, display: bool) -> None:
    try:
        translator.body.append(mathml(node.astext().strip(), display))
    except quickjs.JSException as error:
        logging.getLogger(__name__).warning("formula: %s", str(error).partition("\n")[0], location=node)
        translator.body.append(translator.encode(node.astext()))


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    "Accanto alla punteggiatura che la tocca mette un segno che vieta di andare a capo lì."
    place = node.parent.index(node)
    before = node.parent[place - 1].astext() if place else ""
    after = node.parent[place + 1].astext() if place + 1 < len(node.parent) else ""
    translator.body.append(translator.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    translator.body.append(JOINER if before.endswith(("(", "[", "«")) else "")
    render(translator, node, display=False)
    translator.body.append((JOINER if re.match(r"[^\w\s]", after) else "") + "</span>")
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node.get("number"):
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})')
        translator.add_permalink_ref(node, "Collegamento a questa formula")
        translator.body.append("</span>")
    render(translator, node, display=True)
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def signs(pages: list[str]) -> set[int]:
    "I segni delle formule, e il corsivo matematico che il browser mette al posto delle lettere."
    used = {
        ord(sign)
        for page in pages
        for formula in MATH.findall(page)
        for sign in unescape(re.sub("<[^>]*>", "", formula))
    }
    return (
        used
        | RADICAL
        | {italic + code - first for code in used for first, italic in ITALIC.items() if 0 <= code - first < 26}
    )


def mend_radicals(font: TTFont) -> None:
    """Ogni misura del segno di radice larga come la prima, perché Chromium riserva a tutte il posto della più larga.

    La lineetta sta un poco più in alto di come vuole STIX: in Chromium toccherebbe le cifre.
    """
    math = font["MATH"].table
    math.MathConstants.RadicalVerticalGap.Value = 150
    variants = math.MathVariants
    root = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(font.getBestCmap()[0x221A])]
    first, *others = [record.VariantGlyph for record in root.MathGlyphVariantRecord]
    width = font["hmtx"][first][0]
    for name in [*others, *(part.glyph for part in root.GlyphAssembly.PartRecords)]:
        advance, left = font["hmtx"][name]
        font["glyf"][name].coordinates.scale((width / advance, 1))
        font["glyf"][name].recalcBounds(font["glyf"])
        font["hmtx"][name] = (width, round(left * width / advance))


def write_font(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    out = Path(app.outdir)
    font = TTFont(HERE / FONT, recalcTimestamp=False)
    mend_radicals(font)
    options = subset.Options(hinting=False, layout_features=["ssty", "ccmp", "dtls", "flac", "mark", "mkmk"])
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=signs([page.read_text("utf-8") for page in out.glob("*.html")]))
    subsetter.subset(font)
    font.flavor = "woff"
    font.save(out / "_static" / FONT)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("temml", (visit_inline, None), (visit_block, None))
    app.connect("build-finished", write_font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
