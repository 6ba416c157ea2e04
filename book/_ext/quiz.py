"""Estensione Sphinx: le domande di `dati/quiz.yml` diventano la pagina «Mettiti alla prova».

Tre direttive: `{quiz} I` mette le domande di una parte, `{quiz-punteggio}` la tabella dei punti, `{quiz-risposte}` le
spiegazioni, in un riquadro che si apre anche senza JavaScript e che la stampa mostra in fondo. Il testo passa da MyST:
formule e rimandi sono quelli del libro.
"""

import re
import shutil
from html import escape
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

LETTERS = "ABCD"
SCRIPT = "quiz.js"


class element(nodes.TextElement):
    "Un elemento HTML qualunque: `tag` e i suoi attributi; dentro, nodi di Sphinx."


def make(tag: str, *children: nodes.Node | str, **attributes: Any) -> element:
    "Un nodo `element`; `class_` diventa `class`, `data_x` `data-x`; un attributo `True` non ha valore."
    node = element("", "", tag=tag, html={k.rstrip("_").replace("_", "-"): v for k, v in attributes.items()})
    node += [nodes.Text(child) if isinstance(child, str) else child for child in children]
    return node


def visit_html(self: Any, node: element) -> None:
    html = "".join(f" {k}" if v is True else f' {k}="{escape(str(v))}"' for k, v in node["html"].items())
    self.body.append(f"<{node['tag']}{html}>")


def depart_html(self: Any, node: element) -> None:
    if node["tag"] != "input":
        self.body.append(f"</{node['tag']}>\n")


class Quiz(SphinxDirective):
    "Le domande di una parte."

    required_arguments = 1

    def read(self) -> list[dict[str, Any]]:
        path = Path(self.env.srcdir, "dati", "quiz.yml")
        self.env.note_dependency(str(path))
        parts = yaml.safe_load(path.read_text("utf-8"))
        for number, question in enumerate((q for part in parts for q in part["domande"]), start=1):
            question["numero"] = number
        return parts

    def inline(self, text: str) -> list[nodes.Node]:
        children, messages = self.parse_inline(str(text).strip(), lineno=self.lineno)
        if messages:
            raise self.error(f"quiz: {text}")
        return children

    def run(self) -> list[nodes.Node]:
        part = next(part for part in self.read() if part["parte"] == self.arguments[0])
        score = make("p", class_="quiz-punti", data_parte=part["parte"], hidden=True)
        return [*map(self.question, part["domande"]), score]

    def question(self, question: dict[str, Any]) -> nodes.Node:
        number, name = question["numero"], question["nome"]
        text = self.inline(question["domanda"])
        chapters = sorted({int(section[:2]) for section in question["vedi"]})
        place = make("span", f"cap. {', '.join(map(str, chapters))}", class_="quiz-capitoli")
        legend = make("legend", make("span", f"{number}.", class_="quiz-numero"), " ", place, " ", *text)
        attributes = {"id": f"domanda-{number}", "data_nome": name, "data_capitoli": " ".join(map(str, chapters))}
        box = make("fieldset", legend, class_="quiz-domanda", **attributes)
        if code := question.get("codice"):
            box += nodes.literal_block(code, code.rstrip(), language="python")
        for letter, option in zip(LETTERS, question["opzioni"], strict=True):
            button = make("input", type="radio", name=name, value=letter)
            label = make("span", f"{letter}.", class_="quiz-lettera")
            box += make("label", button, label, make("span", *self.inline(option["testo"])))
        box += make("div", class_="quiz-esito", role="status", aria_live="polite")
        box += make("p", make("a", "La risposta, in fondo alla pagina", href=f"#risposta-{number}"), class_="quiz-vai")
        return box


class QuizScore(Quiz):
    "La tabella dei punti: la riempie `quiz.js`, e senza JavaScript non si vede."

    required_arguments = 0

    def run(self) -> list[nodes.Node]:
        rows = [(part["parte"], f"{part['parte']} · {part['titolo']}") for part in self.read()] + [("", "In tutto")]
        body = [make("tr", make("th", title, scope="row"), make("td", "–", data_parte=part)) for part, title in rows]
        head = make("tr", make("th", "Parte", scope="col"), make("th", "Punteggio", scope="col"))
        table = make("table", make("thead", head), make("tbody", *body), class_="quiz-tabella table", hidden=True)
        message = "Il punteggio lo tiene JavaScript, che qui è spento: le risposte, con le spiegazioni, sono qui sotto."
        return [table, make("noscript", make("p", message))]


class QuizAnswers(Quiz):
    "Tutte le risposte, opzione per opzione, con il rimando alle sezioni."

    required_arguments = 0

    def run(self) -> list[nodes.Node]:
        answers = [self.answer(question) for part in self.read() for question in part["domande"]]
        return [make("details", make("summary", "Mostra tutte le risposte"), *answers, class_="quiz-risposte")]

    def answer(self, question: dict[str, Any]) -> nodes.Node:
        number, right = question["numero"], question["giusta"]
        title = make("strong", f"{number}. Risposta {right}.")
        head = make("p", title, " ", *self.see(question["vedi"]), class_="quiz-vedi")
        reasons = []
        for letter, option in zip(LETTERS, question["opzioni"], strict=True):
            verdict = make("strong", f"{letter}, {'giusta' if letter == right else 'sbagliata'}.")
            reason = make("span", *self.inline(option["perche"]), class_="quiz-perche")
            reasons.append(make("li", verdict, " ", reason, data_opzione=letter))
        attributes = {"id": f"risposta-{number}", "class_": "quiz-risposta", "data_giusta": right}
        return make("div", head, make("ul", *reasons), **attributes)

    def see(self, sections: list[str]) -> list[nodes.Node]:
        links = []
        for section in sections:
            page, title = section.split(":", 1)
            source = next(Path(self.env.srcdir).glob(f"{page}.*")).read_text("utf-8")
            label = re.search(r"\((cap-[\w-]+)\)=", source)
            assert label, f"{page} non ha un'etichetta cap-…"
            links.append(f"{{ref}}`{title} <{page}:{title}>` (cap. {{numref}}`{label[1]}`)")
        return self.inline("Vedi " + "; ".join(links) + ".")


def write_script(app: Sphinx) -> None:
    "Il programma sta fuori da `_static`, perché Jupyter Book ne mette ogni file in tutte le pagine."
    if app.builder.format == "html":
        static = Path(app.outdir) / "_static"
        static.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name(SCRIPT), static)


def add_script(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is not None and next(doctree.findall(element), None):
        app.add_js_file(SCRIPT, defer="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(element, html=(visit_html, depart_html))
    app.add_directive("quiz", Quiz)
    app.add_directive("quiz-punteggio", QuizScore)
    app.add_directive("quiz-risposte", QuizAnswers)
    app.connect("builder-inited", write_script)
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
