"""Estensione Sphinx: per ogni «figura 3.2» Sphinx rilegge da capo la pagina che la contiene; qui, una volta sola."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain


class NumberedDomain(StandardDomain):
    @cached_property
    def doctree(self) -> Callable[[str], nodes.document]:
        return cache(self.env.get_doctree)

    def _resolve_numref_xref(self, env: Any, *reference: Any) -> nodes.Element | None:
        with patch.object(env, "get_doctree", self.doctree):
            return super()._resolve_numref_xref(env, *reference)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_domain(NumberedDomain, override=True)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
