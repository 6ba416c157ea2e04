"""Ciò che serve a pubblicare: indirizzi scritti in un posto solo, file per chi cita e contribuisce, il sito servito."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import nbformat
import pubblica
import pytest
import sito
import yaml
from playwright.sync_api import Browser, Response
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from annotated.decoding import translate
from annotated.pretrained import MODELS, load_pretrained

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "book" / "_build" / "html"
CONFIG = yaml.safe_load((ROOT / "book" / "_config.yml").read_text("utf-8"))
SOURCE, SITE = CONFIG["repository"]["url"], CONFIG["html"]["baseurl"]
FOLDERS = (".", "book", "book/_ext", "annotated", "tools", ".github/workflows", ".github/ISSUE_TEMPLATE")
TEXTS = {".md", ".ipynb", ".yml", ".cff", ".toml", ".py", ".js"}


def test_addresses_are_those_of_the_configuration() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).iterdir() if path.suffix in TEXTS]
    found = 0
    for path in files:
        text = path.read_text("utf-8")
        for address in re.findall(r"https://github\.com/[\w-]+/annotated\b(?!-)", text):
            assert address == SOURCE, path
            found += 1
        for address in re.findall(r"https://[\w-]+\.github\.io/[\w/-]*", text):
            assert address.startswith(SITE), path
            found += 1
    assert found > 30


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    changes = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert citation["version"] == project["version"] == changes[1][0] and changes[0] == ("Non pubblicato", "")
    assert str(citation["date-released"]) == changes[1][1]
    assert f"Versione {project['version']}" in (ROOT / "book" / "intro.md").read_text("utf-8")
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]


def test_workflow_uses_official_actions_by_their_commit() -> None:
    text = (ROOT / ".github" / "workflows" / "libro.yml").read_text("utf-8")
    actions = re.findall(r"uses: (.+)", text)
    assert len(actions) == 5
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in actions)
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["pubblica"]["needs"] == "prove" and any(
        step.get("run") == "make test" for step in jobs["prove"]["steps"]
    )


@pytest.mark.usefixtures("plain_git")
@pytest.mark.skipif(sys.platform != "linux", reason="il passo è di una macchina Linux, con il suo sed")
def test_workflow_rewrites_the_branch_that_colab_opens(tmp_path: Path) -> None:
    "Il suo passo, con un artefatto e un deposito finti, lascia sul ramo i soli quaderni, in un commit senza passato."
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "libro.yml").read_text("utf-8"))["jobs"]
    assert jobs["pubblica"]["if"] == "github.ref == 'refs/heads/main'" and "permissions" not in jobs["prove"]
    (tmp_path / "sito" / "quaderni").mkdir(parents=True)
    (tmp_path / "sito" / "intro.html").touch()
    store, git = tmp_path / "annotated.git", ["git", "--git-dir", str(tmp_path / "annotated.git")]
    subprocess.run(["git", "init", "-q", "--bare", store], check=True)
    redirect = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{tmp_path}/.insteadOf"}
    redirect |= {"GIT_CONFIG_VALUE_0": "https://x-access-token:segreto@github.com/chi/"}
    environment = (
        os.environ | redirect | {"TOKEN": "segreto", "GITHUB_SHA": "0" * 40, "GITHUB_REPOSITORY": "chi/annotated"}
    )
    for name in ("vecchio.ipynb", "nuovo.ipynb"):
        run = tmp_path / name
        run.mkdir()
        (tmp_path / "sito" / "quaderni" / name).write_text('"revision = \\"refs/heads/main\\""')
        subprocess.run(["tar", "-cf", run / "artifact.tar", "-C", tmp_path / "sito", "."], check=True)
        (tmp_path / "sito" / "quaderni" / name).unlink()
        subprocess.run(["bash", "-e", "-c", jobs["pubblica"]["steps"][-1]["run"]], cwd=run, env=environment, check=True)
        shown = subprocess.run([*git, "ls-tree", "--name-only", "quaderni"], capture_output=True, text=True, check=True)
        assert shown.stdout.split() == [name]
        content = subprocess.run([*git, "show", f"quaderni:{name}"], capture_output=True, text=True, check=True)
        assert content.stdout == f'"revision = \\"{"0" * 40}\\""'
    count = subprocess.run([*git, "rev-list", "--count", "quaderni"], capture_output=True, text=True, check=True)
    assert count.stdout.strip() == "1"


@pytest.mark.usefixtures("plain_git")
def test_colab_installs_the_commit_of_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "La cella d'installazione, con un deposito finto che dopo quel commit è andato avanti."
    cell = next(c for c in nbformat.read(ROOT / "book" / "01_knn.ipynb", 4).cells if "google.colab" in c.source)
    store, installed = tmp_path / "annotated.git", tmp_path / "content"
    git = ["git", "-C", str(store), "-c", "user.name=chi", "-c", "user.email=chi@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", store], check=True)
    for text in ("primo", "secondo"):
        (store / "pyproject.toml").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)
    first = subprocess.run([*git, "rev-parse", "HEAD~1"], capture_output=True, text=True, check=True).stdout.strip()
    source = cell.source.replace("refs/heads/main", first).replace(f"{SOURCE}.git", str(store))
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(sys, "executable", "true")  # al posto di pip
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(source.replace("/content/annotated", str(installed)), {})
    assert (installed / "pyproject.toml").read_text() == "primo"


@pytest.mark.parametrize("name", ["errore-nel-testo", "errore-nel-codice", "proposta"])
def test_issue_forms_are_well_formed(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text("utf-8"))
    assert form["name"] and form["description"]
    assert all(field["type"] in ("input", "textarea") and field["attributes"]["label"] for field in form["body"])
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


class Site(SimpleHTTPRequestHandler):
    "Le pagine come le serve chi le ospita: sotto il percorso di `baseurl`, con 404.html per ciò che non c'è."

    prefix = re.sub(r"https://[^/]+", "", SITE)

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix(self.prefix) if path.startswith(self.prefix) else "/manca")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        page = (HTML / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(HTML)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def visit(browser: Browser, address: str) -> tuple[str, list[Response], list[str]]:
    "Il testo dell'articolo, le risposte ricevute e gli indirizzi chiesti, anche quelli senza risposta."
    context = browser.new_context(locale="it-IT")
    page = context.new_page()
    responses: list[Response] = []
    asked: list[str] = []
    page.on("response", lambda response: responses.append(response))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address, wait_until="networkidle")
    text = page.locator("article").inner_text()
    context.close()
    return text, responses, asked


@pytest.mark.parametrize("page", ["intro.html", "04_posizioni.html", "20_vedere.html", "89_quiz.html"])
def test_served_pages_ask_only_their_own_host(browser: Browser, site: str, page: str) -> None:
    _, responses, asked = visit(browser, f"{site}{Site.prefix}{page}")
    assert any("tutto.js" in response.url for response in responses)
    assert not [url for url in asked if not url.startswith((site, "data:", "blob:"))]
    assert not [r.url for r in responses if r.status != 200]


def test_download_button_saves_the_notebook(browser: Browser, site: str) -> None:
    page = browser.new_page()
    page.goto(f"{site}{Site.prefix}02_attenzione.html")
    with page.expect_download() as download:
        page.locator("a[download]").evaluate("link => link.click()")
    assert download.value.suggested_filename == "02_attenzione.ipynb"
    page.close()


@pytest.mark.parametrize("path", ["non-c-e.html", "cartella/profonda/non-c-e.html"])
def test_missing_page_is_in_italian_and_whole(browser: Browser, site: str, path: str) -> None:
    text, [missing, *others], asked = visit(browser, f"{site}{Site.prefix}{path}")
    assert missing.status == 404 and "Questa pagina non c'è" in text
    assert any("tutto.js" in other.url for other in others)  # trovato anche da una cartella che non esiste
    assert not [r.url for r in others if r.status != 200]
    assert not [url for url in asked if not url.startswith((site, "data:"))]
    links = re.findall(r'href="([^"]+\.html)"', (HTML / "404.html").read_text("utf-8"))
    assert links
    for link in links:
        assert (HTML / link.removeprefix(Site.prefix)).exists() if link.startswith(Site.prefix) else link[:4] == "http"


def test_map_canonical_addresses_and_social_metadata() -> None:
    namespace = {"s": "http://www.sitemaps.org/schemas/sitemap/0.9"}
    tree = ElementTree.parse(HTML / "sitemap.xml")
    mapped = {node.text for node in tree.iterfind(".//s:loc", namespace)}
    hidden = {"index.html", "404.html", "genindex.html", "search.html"}  # index è il rinvio all'introduzione
    pages = [path for path in HTML.glob("*.html") if path.name not in hidden]
    assert mapped == {SITE + path.name for path in pages} and len(pages) > 20
    for path in pages:
        head = path.read_text("utf-8").split("</head>")[0]
        properties = dict(re.findall(r'<meta (?:property|name)="([\w:]+)" content="([^"]*)"', head))
        assert f'<link rel="canonical" href="{SITE}{path.name}"' in head
        assert properties["og:url"] == SITE + path.name and properties["og:title"]
        description = properties["og:description"]  # prosa: né codice né citazioni
        assert len(description) > 20 and not {"import", "annotated/"} & {*description.split()}
        assert "[" not in description
        assert properties["og:image"].startswith(SITE)
        assert (HTML / properties["og:image"].removeprefix(SITE)).read_bytes()[:4] == b"\x89PNG"
        assert "CC BY 4.0" in path.read_text("utf-8")


def test_built_again_without_changes(tmp_path: Path) -> None:
    "La seconda volta non c'è pagina da scrivere: va a buon fine, e le pagine restano quelle."
    (tmp_path / "index.rst").write_text("Titolo\n======\n\n::\n\n   x = 1\n", "utf-8")
    settings, pages = {"extensions": ["leggero"], "html_theme": "sphinx_book_theme"}, []
    for _ in range(2):
        with docutils_namespace():
            app = Sphinx(tmp_path, None, tmp_path / "html", tmp_path / "tree", "html", settings, status=None)
            app.build()
        assert app.statuscode == 0
        pages.append((tmp_path / "html" / "index.html").read_bytes())
    assert pages[0] == pages[1]


def test_a_removed_chapter_leaves_no_page(tmp_path: Path) -> None:
    "Sarebbe ancora nella ricerca; chi resta, se cambia, si riscrive."
    kept, removed, pages = tmp_path / "index.rst", tmp_path / "primo.rst", tmp_path / "html"
    removed.write_text(":orphan:\n\nPrimo\n=====\n", "utf-8")
    for title in ("Prima", "Dopo"):
        kept.write_text(f"{title}\n======\n", "utf-8")
        with docutils_namespace():
            app = Sphinx(tmp_path, None, pages, tmp_path / "tree", "html", {"extensions": []}, status=None)
            app.connect("env-purge-doc", sito.forget)
            app.build()
        assert (pages / "primo.html").exists() == (title == "Prima")
        assert title in (pages / "index.html").read_text("utf-8")
        removed.unlink(missing_ok=True)


def test_the_wheel_carries_weights_and_lexicons(tmp_path: Path) -> None:
    "Chi installa senza i sorgenti trova i pesi e ciò che i moduli leggono."
    source = tmp_path / "sorgenti"
    for name in ("annotated", "models"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    stored = "--config-setting=--build-option=--compression=stored"  # conta che cosa c'è, non quanto pesa
    subprocess.run([*command, stored], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.split("share/")[-1] for name in archive.namelist()}
    files = [path for path in (ROOT / "models").rglob("*") if path.is_file()]
    assert {f"annotated/models/{path.relative_to(ROOT / 'models').as_posix()}" for path in files} <= inside
    read = [path for path in (ROOT / "annotated").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in read} <= inside


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(MODELS.glob("*/metrics.json"))])
def test_a_card_is_what_its_measures_say(name: str) -> None:
    "Nessuna riga di una scheda è scritta a mano: chi ripubblica non perde nulla."
    metrics = json.loads((MODELS / name / "metrics.json").read_text("utf-8"))
    written = (MODELS / name / "README.md").read_text("utf-8")
    assert pubblica.card(name, metrics, load_pretrained(name)[0]) == written


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(MODELS.glob("*/metrics.json"))])
def test_the_measures_of_a_card_are_of_its_weights(name: str) -> None:
    "Pesi nuovi accanto a misure vecchie non traducono come le misure dicono."
    metrics = json.loads((MODELS / name / "metrics.json").read_text("utf-8"))
    model, tokenizer = load_pretrained(name)
    sentences, translations = zip(*metrics["examples"], strict=True)
    assert translate(model, tokenizer, list(sentences), metrics["beam"], metrics["alpha"]) == list(translations)
