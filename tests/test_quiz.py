"""Le domande di «Mettiti alla prova»: una risposta giusta, opzioni spiegate, rimandi veri; e la pagina in Chromium."""

import re
from collections import Counter
from itertools import groupby
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect
from test_appendici import BOOK, titles

from conftest import Visit

PARTS: list[dict[str, Any]] = yaml.safe_load((BOOK / "dati" / "quiz.yml").read_text("utf-8"))
QUESTIONS = [question for part in PARTS for question in part["domande"]]
LETTERS = "ABCD"
PAGE = BOOK / "_build" / "html" / "89_quiz.html"


def test_thirty_six_questions_with_one_right_answer() -> None:
    assert len(QUESTIONS) == 36 == len({question["nome"] for question in QUESTIONS})
    for question in QUESTIONS:
        texts = [str(option["testo"]) for option in question["opzioni"]]
        assert len(texts) == len(set(texts)) == 4 and question["giusta"] in LETTERS
        assert set(question) <= {"nome", "domanda", "codice", "opzioni", "giusta", "vedi"}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["nome"])
def test_every_option_says_why(question: dict[str, Any]) -> None:
    reasons = [option["perche"] for option in question["opzioni"]]
    assert len(set(reasons)) == 4 and all(len(reason) > 50 and reason.endswith(".") for reason in reasons)


def test_right_answer_cannot_be_guessed_from_its_place_or_length() -> None:
    right = [question["giusta"] for question in QUESTIONS]
    assert all(6 <= Counter(right)[letter] <= 12 for letter in LETTERS)
    assert max(len(list(run)) for _, run in groupby(right)) <= 2
    longest = 0
    for question in QUESTIONS:
        *others, last = sorted(question["opzioni"], key=lambda option: len(str(option["testo"])))
        longest += last is question["opzioni"][LETTERS.index(question["giusta"])]
    assert longest <= len(QUESTIONS) // 3


def test_references_exist_and_cover_every_chapter() -> None:
    cited = [reference.split(":", 1) for question in QUESTIONS for reference in question["vedi"]]
    assert not [f"{page}:{title}" for page, title in cited if title not in titles(page)]
    chapters = {path.stem for path in BOOK.glob("[012]*.ipynb")} - {"00_tensori"}
    assert {f"{number:02}" for number in range(1, 28)} <= {page[:2] for page, _ in cited}
    assert {page for page, _ in cited} <= chapters


def test_parts_have_the_titles_of_the_book() -> None:
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text("utf-8"))
    captions = [part.get("caption") for part in toc["parts"]]
    parts = {f"{part['parte']} · {part['titolo']}": part["parte"] for part in PARTS}
    assert list(parts) == [c for c in captions if c and " · " in c]
    written = re.findall(r"^## (.+)\n\n```\{quiz\} (\w+)$", (BOOK / "89_quiz.md").read_text("utf-8"), re.MULTILINE)
    assert written == list(parts.items())


def box(visit: Visit, number: int) -> Locator:
    return visit.page.locator(f"#domanda-{number}")


def reload(page: Page) -> None:
    "Ricarica con la memoria che la pagina ha scritto: Chromium, carico, a volte ne dà una vuota al documento nuovo."
    page.add_init_script(f"Object.assign(localStorage, {page.evaluate('JSON.stringify(localStorage)')})")
    page.reload()


def test_page_checks_counts_and_starts_again(visit: Visit) -> None:
    page = visit.page
    page.goto(f"file://{PAGE}")
    expect(page.locator("fieldset.quiz-domanda")).to_have_count(36)
    part, total = page.locator("p.quiz-punti").first, page.locator(".quiz-tabella td").last
    expect(part).to_have_text("0 su 4 al primo tentativo (risposte date: 0)")

    first = box(visit, 1)
    first.get_by_role("button", name="Controlla").click()  # senza aver scelto
    expect(first.get_by_role("status")).to_contain_text("Scegli prima")
    right = QUESTIONS[0]["giusta"]
    wrong = "A" if right != "A" else "B"
    first.get_by_role("radio").nth(LETTERS.index(wrong)).check()
    first.get_by_role("button", name="Controlla").click()
    expect(first.get_by_role("status")).to_contain_text("Non è questa.")
    expect(first.get_by_role("status")).not_to_contain_text(f"Risposta {right}")
    expect(first.get_by_role("status").locator("a")).not_to_have_count(0)  # il rimando alla sezione
    first.get_by_role("radio").nth(LETTERS.index(right)).check()
    expect(first.get_by_role("status")).to_be_empty()
    first.get_by_role("button", name="Controlla").click()
    expect(first.get_by_role("status")).to_contain_text("Giusto.")

    radio = box(visit, 2).get_by_role("radio").nth(LETTERS.index(QUESTIONS[1]["giusta"]))  # con la tastiera
    radio.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(box(visit, 2).get_by_role("status")).to_contain_text("Giusto.")
    expect(part).to_have_text("1 su 4 al primo tentativo (risposte date: 2)")  # conta il primo tentativo
    expect(total).to_have_text("1 su 36 al primo tentativo (risposte date: 2)")

    reload(page)
    expect(total).to_have_text("1 su 36 al primo tentativo (risposte date: 2)")
    page.get_by_role("button", name="Ricomincia da capo").click()
    expect(total).to_have_text("0 su 36 al primo tentativo (risposte date: 0)")
    for number, question in enumerate(QUESTIONS, start=1):
        box(visit, number).get_by_role("radio").nth(LETTERS.index(question["giusta"])).check()
        box(visit, number).get_by_role("button", name="Controlla").click()
        expect(box(visit, number).get_by_role("status")).to_contain_text("Giusto.")
    expect(total).to_have_text("36 su 36 al primo tentativo")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_first_question_is_close(visit: Visit) -> None:
    "La scelta dei capitoli è ripiegata: fra l'introduzione e la prima domanda non ci sono caselle."
    page = visit.page
    page.goto(f"file://{PAGE}")
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.get_by_text("Soltanto alcuni capitoli", exact=True).click()
    expect(page.get_by_role("checkbox")).not_to_have_count(0)


def test_chapters_can_be_chosen(visit: Visit) -> None:
    "Le domande sui soli capitoli scelti: sulla pagina, nei punti, nelle risposte; con le caselle o dall'indirizzo."
    chapters = [{int(section[:2]) for section in question["vedi"]} for question in QUESTIONS]
    page = visit.page
    page.goto(f"file://{PAGE}?capitoli=1,2")
    questions, answers = page.locator(".quiz-domanda:visible"), page.locator(".quiz-risposta")
    some = sum(own <= {1, 2} for own in chapters)
    expect(questions).to_have_count(some)
    expect(box(visit, 2).locator("legend")).to_contain_text("2. cap. 1, 2")
    page.locator(".quiz-risposte summary").click()
    expect(answers.locator("visible=true")).to_have_count(some)
    expect(page.locator(".quiz-tabella td:visible").last).to_contain_text(f"0 su {some} ")
    expect(page.locator("article").get_by_role("heading", name="VI · ")).to_be_hidden()

    told = page.locator(".quiz-scelta [role=status]")
    expect(told).to_have_text(f"Domande che chiedono soltanto questi capitoli: {some} su 36.")
    page.get_by_role("group", name="Solo le domande sui capitoli").get_by_label("3", exact=True).check()
    more = sum(own <= {1, 2, 3} for own in chapters)
    assert more > some
    expect(questions).to_have_count(more)
    assert page.url.endswith("?capitoli=1,2,3")
    copied = page.get_by_role("link", name="Collegamento a questa scelta")
    assert copied.evaluate("link => link.href") == page.url
    box(visit, 1).get_by_role("radio").first.check()
    box(visit, 1).get_by_role("button", name="Controlla").click()
    reload(page)
    expect(questions).to_have_count(more)
    expect(box(visit, 1).get_by_role("radio").first).to_be_checked()  # ciò che si era risposto si rivede
    expect(box(visit, 1).get_by_role("status")).not_to_be_empty()
    page.emulate_media(media="print")
    expect(questions).to_have_count(more)
    expect(answers.locator("visible=true")).to_have_count(more)
    none = next(n for n in range(1, 28) if {n} not in chapters)
    page.goto(f"file://{PAGE}?capitoli={none}")
    expect(told).to_have_text(re.compile(r": 0 su 36\. Aggiungi un capitolo\."))


def test_answers_are_there_without_javascript_and_in_print(browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(f"file://{PAGE}")
    answer = page.locator("#risposta-7")
    expect(answer).to_be_hidden()
    box7 = page.locator("#domanda-7")
    expect(box7.get_by_role("button")).to_have_count(0)
    box7.get_by_role("link").click()  # l'ancora apre il riquadro che la contiene
    expect(answer).to_be_visible()
    expect(answer).to_contain_text(f"Risposta {QUESTIONS[6]['giusta']}")
    page.locator(".quiz-risposte summary").click()
    expect(answer).to_be_hidden()
    page.emulate_media(media="print")
    expect(answer).to_be_visible()
    context.close()


def test_buttons_are_dressed(visit: Visit) -> None:
    "Li fa `quiz.js`: lo stile deve restare nella pagina."
    visit.page.goto(f"file://{PAGE}")
    button = visit.page.locator(".quiz-tasto").first
    assert button.evaluate("e => getComputedStyle(e).borderRadius") != "0px"
    visit.page.locator(".quiz-scelta summary").click()
    box = visit.page.locator(".quiz-scelta label").first.bounding_box()
    assert box and box["width"] > 44  # la casella e il suo numero, e uno spazio prima della prossima
