"""Estensione Sphinx: `italiano.po` precede i cataloghi di traduzione di Sphinx, del tema e delle estensioni.

I testi che un modello di pagina scrive in inglese senza passare da un catalogo li cambia l'estensione `quaderni`.
"""

import io
from gettext import GNUTranslations
from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
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


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", put_first)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
