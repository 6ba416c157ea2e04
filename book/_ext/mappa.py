"""Estensione Sphinx: la mappa del modello, con i numeri dei capitoli nelle caselle.

La direttiva `{mappa}` la disegna dove si vuole; i capitoli delle parti I–III la portano accanto al riquadro
d'apertura, con le proprie caselle accese. Numeri e titoli vengono dall'indice del libro.
"""

import re
from html import escape
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PLACE = '<div class="mappa"></div>'  # dove la direttiva vuole la mappa
OPENING = '<div class="tip admonition">'  # il riquadro «In questo capitolo»
CHAPTERS = re.compile(r"0[1-9]_")
WIDTH, HEIGHT, BOX, CHIP = 360, 492, 38, 26  # la misura è quella di un telefono: lì un punto è un pixel
LEFT, RIGHT, COLUMN = 10, 194, 156
DESCRIPTION = (
    "Mappa del modello, dal basso. A sinistra la frase inglese diventa pezzi, vettori con la posizione, e attraversa "
    "l'encoder: attenzione, poi feed-forward. A destra ciò che è già scritto attraversa il decoder: attenzione con "
    "maschera, attenzione incrociata sull'uscita dell'encoder, feed-forward; ne viene un punteggio per ogni parola, e "
    "se ne sceglie una. Ogni casella porta ai suoi capitoli."
)


class Box(NamedTuple):
    x: int
    y: int
    label: str  # una riga o due
    pages: tuple[str, ...]
    width: int = COLUMN
    height: int = BOX
    kind: str = "casella"


BOXES = [
    Box(RIGHT - 6, 138, "decoder × N", ("08_decoder",), COLUMN + 12, 174, "cornice"),
    Box(LEFT - 6, 184, "encoder × N", ("07_encoder",), COLUMN + 12, 128, "cornice"),
    Box(RIGHT, 38, "scegliere\nla parola", ("16_decodifica",)),
    Box(RIGHT, 88, "un punteggio\nper parola", ("09_transformer",)),
    Box(RIGHT, 172, "feed-forward\ne residui", ("06_blocchi",)),
    Box(RIGHT, 218, "attenzione\nincrociata", ("08_decoder",)),
    Box(RIGHT, 264, "attenzione\ncon maschera", ("05_maschere",)),
    Box(LEFT, 218, "feed-forward\ne residui", ("06_blocchi",)),
    Box(LEFT, 264, "attenzione", ("01_knn", "02_attenzione", "03_multihead")),
    Box(LEFT, 326, "vettori\ne posizioni", ("04_posizioni", "09_transformer")),
    Box(RIGHT, 326, "vettori\ne posizioni", ("04_posizioni", "09_transformer")),
    Box(LEFT, 376, "pezzi\ndi parola", ("11_tokenizzazione",)),
    Box(RIGHT, 376, "pezzi\ndi parola", ("11_tokenizzazione",)),
    Box(LEFT, 8, "imparare", ("13_ottimizzazione", "14_passo", "15_addestramento"), kind="intorno"),
    Box(LEFT, 58, "misurare", ("17_valutazione", "19_risultati"), kind="intorno"),
    Box(LEFT, 108, "guardare\ndentro", ("20_vedere", "21_it_animal", "22_teste"), kind="intorno"),
    Box(LEFT, 448, "le fondamenta: tensori e gradiente", ("00_tensori",), RIGHT + COLUMN - LEFT, kind="intorno"),
]
WORDS = [(LEFT, 436, "the red house"), (RIGHT, 436, "la casa …"), (RIGHT, 18, "la casa rossa")]
ARROWS = [
    *(f"M{x + COLUMN // 2} {y}v-{length}" for x in (LEFT, RIGHT) for y, length in ((424, 8), (376, 10), (326, 12))),
    *(f"M{x + COLUMN // 2} {y}v-6" for x, y in ((LEFT, 264), (RIGHT, 264), (RIGHT, 218))),
    *(f"M{RIGHT + COLUMN // 2} {y}v-{length}" for y, length in ((138, 10), (88, 10), (38, 12))),
    f"M{LEFT + COLUMN // 2} 184v-16h92v69h{RIGHT - LEFT - COLUMN // 2 - 94}",  # la memoria, alla cross-attention
]


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>'


class Map:
    "La mappa vista da una pagina: collegamenti relativi a quella, e le sue caselle accese."

    def __init__(self, app: Sphinx, here: str):
        self.env, self.here = app.env, here
        self.relative = app.builder.get_relative_uri

    def chip(self, x: float, y: float, page: str) -> str:
        [number] = self.env.toc_secnumbers.get(page, {}).get("", [0])  # il capitolo sui tensori non è numerato
        title = escape(f"Capitolo {number}: {self.env.titles[page].astext()}")
        current = ' aria-current="page"' if page == self.here else ""
        return (
            f'<a href="{self.relative(self.here, page)}" aria-label="{title}"{current}><title>{title}</title>'
            f'<circle cx="{x}" cy="{y}" r="12.7"/>{text(x, y + 4.5, str(number), "numero")}</a>'
        )

    def box(self, box: Box) -> str:
        lit = " qui" if self.here in box.pages else ""
        top = box.y + BOX / 2 if box.kind != "cornice" else box.y + 17  # della cornice si scrive in cima
        lines = box.label.split("\n")
        parts = [f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>']
        for i, line in enumerate(lines):
            parts.append(text(box.x + 7, top + 4.5 + 15 * (i - (len(lines) - 1) / 2), line, "nome"))
        for i, page in enumerate(reversed(box.pages)):
            parts.append(self.chip(box.x + box.width - 15 - CHIP * i, top, page))
        return f'<g class="{box.kind}{lit}">{"".join(parts)}</g>'

    def svg(self) -> str:
        tip = '<marker id="punta" viewBox="0 0 6 6" refX="4" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{DESCRIPTION}">'
            f'<defs>{tip}<path d="M0 0L6 3L0 6z"/></marker></defs>'
            + "".join(map(self.box, BOXES))
            + "".join(f'<path class="freccia" d="{arrow}" marker-end="url(#punta)"/>' for arrow in ARROWS)
            + "".join(text(x + COLUMN / 2, y, words, "frase") for x, y, words in WORDS)
            + "</svg>"
        )


class MapHere(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", PLACE, format="html")]


def draw(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is None:
        return
    body = context["body"]
    if PLACE in body:
        body = body.replace(PLACE, f'<div class="mappa">{Map(app, page).svg()}</div>')
    elif CHAPTERS.match(page):
        caption = "<figcaption>Sei qui: le caselle accese.</figcaption>"
        figure = f'<figure class="mappa sei-qui">{Map(app, page).svg()}{caption}</figure>'
        body = body.replace(OPENING, figure + OPENING, 1)
    context["body"] = body


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mappa", MapHere)
    app.connect("html-page-context", draw, priority=850)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
