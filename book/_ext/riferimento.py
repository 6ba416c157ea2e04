"""Estensione Sphinx: la direttiva `{riferimento} MODULO` scrive ciò che un modulo offre, letto dal suo codice.

Di ogni nome pubblico: la firma com'è nel sorgente, che cosa fa e quali errori solleva (la docstring), forme e valori
dei parametri (il commento accanto a ciascuno), un esempio se `dati/esempi.txt` ne ha uno, la sezione che lo scrive.
"""

import ast
import importlib
import inspect
import json
import re
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from fastcore.docments import docments
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = re.compile(r"File to edit: (?:\.\./)+book/(\w+)\.ipynb")
EXAMPLE = re.compile(r"^(annotated[\w.]+)\n((?:.+\n?)+)", re.MULTILINE)
HEADING = re.compile(r"^#{2,4} ([^`$\n{}]+)$", re.MULTILINE)
SHOWN = 100  # lettere del valore di una costante


def signature(obj: Any) -> str:
    "La firma di una funzione, com'è scritta: `(model: Transformer, src: Tensor) -> Tensor`."
    node = ast.parse(dedent(inspect.getsource(obj))).body[0]
    assert isinstance(node, ast.FunctionDef)
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    return f"({arguments})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def fields(cls: type) -> str:
    "Gli argomenti con cui si costruisce una classe: quelli del suo `__init__`, o i campi, suoi ed ereditati."
    if "__init__" in vars(cls) and not is_dataclass(cls):
        return signature(cls.__init__).removesuffix(" -> None")
    written = [text for base in reversed(cls.__mro__) if base.__module__.startswith("annotated") for text in own(base)]
    return f"({', '.join(written)})" if written else ""


def own(cls: type) -> list[str]:
    "I campi che una classe dichiara, com'è scritto; ciò che è della classe (`ClassVar`) non si dà."
    [node] = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    names = [child for child in node.body if isinstance(child, ast.AnnAssign)]
    return [ast.unparse(name) for name in names if not ast.unparse(name.annotation).startswith("ClassVar")]


def parameters(obj: Any) -> list[str]:
    "Una riga per parametro commentato, e una per ciò che rende."
    rows = []
    for name, entry in docments(obj, full=True).items():
        if entry["docment"]:
            rows.append(f"- {'rende' if name == 'return' else f'`{name}`'}: {' '.join(entry['docment'].split())}")
    return rows


@cache
def examples(book: Path) -> dict[str, str]:
    "Gli esempi, per nome: li eseguono le prove."
    return dict(EXAMPLE.findall((book / "dati" / "esempi.txt").read_text("utf-8")))


@cache
def sections(notebook: Path) -> dict[str, str]:
    "Di ogni nome che un capitolo esporta, la sezione in cui lo scrive."
    found, heading = {}, ""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = (HEADING.findall(source) or [heading])[-1]
        elif re.match(r"#\| export", source) and heading:
            found.update(dict.fromkeys(re.findall(r"^(?:def|class) (\w+)", source, re.MULTILINE), heading))
    return found


def entry(kind: str, heading: str, body: list[str]) -> list[str]:
    return [f":::{{py:{kind}}} {heading}", "", *body, ":::", ""]


def assigned(module: ModuleType, name: str) -> str:
    "Ciò che il sorgente assegna a una costante: nel suo valore può esserci una cartella di chi costruisce il libro."
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                return ast.unparse(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=True):
                    if ast.unparse(target) == name:
                        return ast.unparse(value)
    raise LookupError(f"{module.__name__}: {name} non è assegnato")


def described(module: ModuleType, name: str) -> list[str]:
    "Il Markdown di un nome pubblico."
    obj = getattr(module, name)
    if inspect.isclass(obj):
        methods = [
            f"- `{method}{signature(function)}`: {' '.join(inspect.getdoc(function).split())}"
            for method, function in vars(obj).items()
            if inspect.isfunction(function) and not method.startswith("_") and function.__doc__
        ]
        return entry("class", name + fields(obj), [inspect.getdoc(obj) or "", "", *parameters(obj), *methods, ""])
    if inspect.isfunction(function := inspect.unwrap(obj)):
        return entry(
            "function", name + signature(function), [inspect.getdoc(function) or "", "", *parameters(function), ""]
        )
    value = assigned(module, name)
    return entry(
        "data", name, [f"`{value}`" if len(value) <= SHOWN else f"Un valore di tipo `{type(obj).__name__}`.", ""]
    )


class Riferimento(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        module = importlib.import_module(name)
        path = str(inspect.getsourcefile(module))
        self.env.note_dependency(path)
        [chapter] = SOURCE.findall(inspect.getsource(module))
        lines = [
            f"{inspect.getdoc(module)} Lo spiega {{doc}}`{chapter}`.",
            "",
            f"```{{py:currentmodule}} {name}",
            "```",
            "",
        ]
        book = Path(self.env.srcdir)
        self.env.note_dependency(str(book / "dati" / "esempi.txt"))
        self.env.note_dependency(str(book / f"{chapter}.ipynb"))  # i titoli delle sezioni
        for symbol in module.__all__:
            *body, end, empty = described(module, symbol)
            if heading := sections(book / f"{chapter}.ipynb").get(symbol):
                body += [f"In «{{ref}}`{chapter}:{heading}`».", ""]
            if example := examples(book).get(f"{name}.{symbol}"):
                body += ["```pycon", *example.splitlines(), "```", ""]
            lines += [*body, end, empty]
        node = nodes.container(classes=["riferimento"])
        self.state.nested_parse(StringList("\n".join(lines).splitlines(), path), 0, node)
        return [node]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("riferimento", Riferimento)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
