"""Estensione Sphinx: `italiano.po` precede i cataloghi di traduzione di Sphinx, del tema e delle estensioni.

I testi che un modello di pagina scrive in inglese senza passare da un catalogo li cambia l'estensione `quaderni`.
Nelle pagine il segno «%» non va a capo senza il suo numero.
"""

import io
import re
from gettext import GNUTranslations
from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.locale import translators

CATALOGS = ("sphinx", "booktheme", "exercise")


def put_first(app: Sphinx) -> None:
    compiled = io.BytesIO()
    with Path(__file__).with_suffix(".po").open("rb") as file:
        write_mo(compiled, read_po(file, locale="it"))
    for name in CATALOGS:
        compiled.seek(0)
        ours = GNUTranslations(compiled)
        ours.add_fallback(translators["general", name])
        translators["general", name] = ours


def keep_together(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for parent in list(doctree.findall(nodes.TextElement)):
        for i, text in enumerate(parent):
            if isinstance(text, nodes.Text) and not isinstance(parent, nodes.literal | nodes.literal_block):
                parent[i] = nodes.Text(re.sub(r"(?<=\d) (?=%)", "\u00a0", text))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", put_first)
    app.connect("doctree-resolved", keep_together)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
