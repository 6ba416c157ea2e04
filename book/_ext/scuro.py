"""Estensione Sphinx: di ogni figura disegnata, la versione per il tema scuro e quanto spazio vuole.

Si carica quando sta per vedersi: la pagina ne conosce le misure, e il testo intorno non si sposta.

Il fondo diventa trasparente, il bianco prende il colore della pagina e l'inchiostro quello del testo. Una scala di
colore resta com'è, con la sua legenda; sopra, un numero tiene l'inchiostro che sul suo fondo si legge. Sul telefono,
dove la figura si restringe, una scritta non scende sotto gli otto pixel: se non basta, la figura scorre nella cornice.
"""

import io
import re
from functools import partial
from math import cos, radians, sin
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import vl_convert
from lxml import etree
from sphinx.application import Sphinx

INK, GROUND = "#d5dae1", "#14181e"  # quelli del tema
ON_DARK = {"#000000": INK, "#0072b2": "#5fb0e8", "#d55e00": "#f08a45", "#009e73": "#3cc49a", "#767676": "#a5abb3"}
SMALLEST, PHONE, SLACK = 8, 342, 1.07  # pixel di una scritta, della colonna; fin qui non vale la pena di scorrere
SVG = {"svg": "http://www.w3.org/2000/svg"}
PLACE = re.compile(r"translate\((\S+) (\S+)\)(?: rotate\((\S+)\))?")
SIZE = re.compile(r'viewBox="0 0 (\S+) (\S+)"')  # in punti: un pixel ne è tre quarti
IMAGE = re.compile(r'(<source[^>]*>)?<img\b[^>]*\bsrc="(_images/(?:[0-9a-f]{64}|traduzione))\.svg"[^>]*>')


def invert_drawing(root: etree._Element) -> None:
    "Tutto tranne il testo."
    for node in root.xpath(
        "//svg:g[starts-with(@id, 'figure')]//*[self::svg:path or self::svg:use]"
        "[not(ancestor::svg:defs or ancestor::svg:g[starts-with(@id, 'text_')])]",
        namespaces=SVG,
    ):  # matplotlib non scrive il riempimento nero
        if "fill:" not in node.get("style", ""):
            node.set("style", "fill: #000000; " + node.get("style", ""))
    for ground in root.xpath("//svg:g[starts-with(@id, 'figure')]/svg:g[1]/svg:path", namespaces=SVG) + root.xpath(
        "//svg:g[starts-with(@id, 'axes')]/svg:g[1][starts-with(@id, 'patch')]/svg:path", namespaces=SVG
    ):
        ground.set("style", ground.get("style", "").replace("fill: #ffffff", "fill: none"))
    for node in root.xpath("//*[@style]"):
        node.set("style", node.get("style").replace("#ffffff", GROUND).replace("#000000", INK))


def brightness(picture: np.ndarray, scale: float, x: float, y: float, angle: float, reach: float) -> float:
    "Quanto è chiaro il fondo dove comincia una scritta: la mediana di alcuni punti, fino a `reach` da lì."
    right, up = (cos(angle), sin(angle)), (sin(angle), -cos(angle))
    points = [
        (x + a * right[0] + b * up[0], y + a * right[1] + b * up[1])
        for a in np.linspace(reach / 5, reach, 4)
        for b in (2, 4.5, 7)
    ]
    height, width = picture.shape[:2]
    rows = [picture[min(max(int(v * scale), 0), height - 1), min(max(int(u * scale), 0), width - 1)] for u, v in points]
    return float(np.median(np.stack(rows) @ (0.299, 0.587, 0.114)))


def dark(svg: str) -> str:
    root = etree.fromstring(svg.encode())
    texts = root.xpath("//svg:g[starts-with(@id, 'text_')]/svg:g[@transform]", namespaces=SVG)
    styles = [text.attrib.pop("style", "fill: #000000") for text in texts]
    invert_drawing(root)
    for text in texts:
        text.set("display", "none")
    pixels = matplotlib.image.imread(io.BytesIO(vl_convert.svg_to_png(etree.tostring(root, encoding="unicode"))))
    ground = np.array([int(GROUND[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    picture = pixels[..., :3] * pixels[..., 3:] + ground * (1 - pixels[..., 3:])
    scale = picture.shape[1] / float(root.get("viewBox").split()[2])
    for text, style in zip(texts, styles, strict=True):
        x, y, angle = PLACE.match(text.get("transform")).groups()
        reach = 5.5 if len(text.findall("svg:use", SVG)) > 1 else 2.5  # una lettera sola è stretta
        # sotto 0,42 un testo chiaro si legge meglio di uno scuro
        if brightness(picture, scale, float(x), float(y), radians(float(angle or 0)), reach) < 0.42:
            for old, new in ON_DARK.items():
                style = style.replace(old, new)
        text.set("style", style)
        del text.attrib["display"]
    return etree.tostring(root, encoding="unicode")


def readable_width(svg: str) -> int:
    "I pixel con cui la scritta più piccola ne misura `SMALLEST`."
    size = min((float(scale) * 100 for scale in re.findall(r"scale\(([\d.]+) -", svg)), default=SMALLEST)
    return round(SMALLEST * float(SIZE.search(svg)[1]) / size)


def layout(svg: str) -> tuple[str, str]:
    "Gli attributi della cornice, se sul telefono scorre, e quelli della figura."
    least, (width, height) = readable_width(svg), (round(float(points) / 0.75) for points in SIZE.search(svg).groups())
    wide = f' class="ampia" tabindex="0" style="--ampia: {least}px"' if least > PHONE * SLACK else ""
    return wide, f'loading="lazy" width="{width}" height="{height}"'


def with_dark_version(match: re.Match[str], layouts: dict[str, tuple[str, str]]) -> str:
    if match[1]:  # una pagina non riscritta
        return match[0]
    wide, attributes = layouts[match[2]]
    dark_one = f'<source srcset="{match[2]}-scuro.svg" media="not all">'
    return f"<picture{wide}>{dark_one}{match[0].replace('<img', f'<img {attributes}', 1)}</picture>"


def add_dark_figures(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    for page in Path(app.outdir).glob("*.html"):
        text = page.read_text("utf-8")
        layouts: dict[str, tuple[str, str]] = {}
        for _, name in set(IMAGE.findall(text)):
            drawing, dark_one = (Path(app.outdir) / f"{name}{end}.svg" for end in ("", "-scuro"))
            svg = drawing.read_text("utf-8")
            layouts[name] = layout(svg)
            newest = max(path.stat().st_mtime for path in (drawing, Path(__file__)))
            if not dark_one.exists() or dark_one.stat().st_mtime < newest:
                dark_one.write_text(dark(svg), "utf-8")
        page.write_text(IMAGE.sub(partial(with_dark_version, layouts=layouts), text), "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", add_dark_figures)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
