"""Le frasi che insegnano «it»: lessico coerente, prova mai generata, nessuna scorciatoia."""

import re
from collections import Counter
from pathlib import Path

import pytest

from annotated import AnnotatedError
from annotated.data import read_pairs
from annotated.study import pronouns
from annotated.study.coreference import read_probes
from annotated.study.pronouns import (
    ADJECTIVES,
    FRAMES,
    HELD_OUT,
    NOUNS,
    article,
    capacity,
    choices,
    content,
    generate,
    is_held_out,
    stem,
    stem_it,
    unseen_frames,
    vocabulary,
    write_pronouns,
)

sample = generate(30_000, seed=11)
opposite = [p for p in sample if p.nouns[0].gender != p.nouns[1].gender]
probes = read_probes()
nouns = [noun for genders in NOUNS.values() for gender in "mf" for noun in genders[gender]]
adjectives = {a.en: a for row in ADJECTIVES.values() for a in row}


def test_the_lexicon_is_wide_and_each_noun_is_there_once() -> None:
    assert len(nouns) == len({noun.en for noun in nouns}) >= 600
    assert len(adjectives) >= 300 and len(FRAMES) >= 80
    assert sum(a.m != a.f for a in adjectives.values()) >= 0.85 * len(adjectives)


def test_genders_are_similar_within_each_kind() -> None:
    for kind, genders in NOUNS.items():
        assert min(map(len, genders.values())) >= max(map(len, genders.values())) / 2, kind


def test_frames_name_only_kinds_and_roles_that_exist() -> None:
    kinds = {kind for frame in FRAMES for side in frame.types for kind in side} - {"="}
    roles = {role for frame in FRAMES for side in frame.roles for role in side}
    assert kinds == set(NOUNS) and roles == {role for role, _ in ADJECTIVES}
    assert {kind for _, kind in ADJECTIVES} <= set(NOUNS)
    assert {choice.frame for choice in choices()} == set(range(len(FRAMES)))  # nessuna cornice resta senza indizi
    usable = {a.en for choice in choices() for side in choice.clues for a in side}
    assert usable == set(adjectives)


def test_a_clue_points_to_one_noun_only() -> None:
    for choice in choices():
        first, second = ({word for a in side for word in (a.en, a.m)} for side in choice.clues)
        assert first and second and not first & second
        main = content(re.sub("{.*?}", "", FRAMES[choice.frame].en))
        assert not any(content(a.en) & main for side in choice.clues for a in side)  # «blocked… because it was blocked»


ARTICLES = """il cane, la capra, nell'armadio, dall'aquila, nello zaino, lo gnomo, allo psicologo, sullo xilofono,
dello yacht, dallo specchio, lo sci, nel sacco, sulla scala, nell'hangar, la iena, sull'isola, dell'uovo, allo tsunami,
lo pneumatico, nel wok, all'ape, del pesce, dalla zucca, sul gatto, l'ora, lo iato, il whisky"""


@pytest.mark.parametrize("phrase", re.split(r",\s", ARTICLES))
def test_articles(phrase: str) -> None:
    head, word = re.fullmatch(r"(.+?[ '])(\w+)", phrase).groups()
    starts = {"i": "", "l": "", "n": "in", "da": "da", "d": "di", "a": "a", "s": "su"}
    preposition = next(preposition for start, preposition in starts.items() if head.startswith(start))
    feminine = word in {"capra", "aquila", "scala", "iena", "isola", "ape", "zucca", "ora"}
    assert article(word, "f" if feminine else "m", preposition) == head


def test_nothing_is_left_to_fill_in_and_it_occurs_once() -> None:
    for probe in sample:
        assert not re.search(r"[\[\]{}_=*^!]|  | [.,]", probe.en + probe.it), probe
        words = re.findall(r"[\w-]+", probe.en.lower())
        assert words.count("it") == 1 and all(noun.en.lower() in words for noun in probe.nouns), probe
        assert probe.en[0].isupper() and probe.it[0].isupper() and probe.en[-1] == probe.it[-1] == "."


def test_articles_in_sentences_are_those_of_the_nouns() -> None:
    "Ogni nome italiano è preceduto da una delle sue forme: «lo zaino», «nello zaino», mai «il zaino»."
    for probe in sample[:5_000]:
        text = probe.it[0].lower() + probe.it[1:]
        for noun in probe.nouns:
            forms = [article(noun.it, noun.gender, preposition) for preposition in ("", "a", "da", "di", "in", "su")]
            assert any(re.search(rf"(?<!\w){form}{noun.it}\b", text) for form in forms), probe


def test_the_twin_is_wrong_in_agreement_only() -> None:
    invariable = {a.en for row in ADJECTIVES.values() for a in row if a.m == a.f}
    for probe in sample[:5_000]:
        right, wrong = probe.it.rstrip(".").split(), probe.wrong.rstrip(".").split()
        changed = [(a, b) for a, b in zip(right, wrong, strict=True) if a != b]
        good, bad = "oa" if probe.nouns[probe.antecedent].gender == "m" else "ao"
        assert all(a[:-1] == b[:-1] and (a[-1], b[-1]) == (good, bad) for a, b in changed), probe
        assert changed or probe.clue in invariable, probe


def test_a_noun_is_not_its_own_clue() -> None:
    "Mai «la scialuppa si è arenata nello stretto. Era stretto»: non direbbe nulla."
    adjectives = {(a.en, a.m) for row in ADJECTIVES.values() for a in row}
    assert not [probe.it for probe in sample for noun in probe.nouns if (probe.clue, noun.it) in adjectives]


def test_the_tail_has_the_tense_of_its_frame() -> None:
    for probe in sample[:5_000]:
        now = re.search(r"\b[Ii]t (is|has|looks|seems)\b|somebody has", probe.en)
        assert bool(now) != (FRAMES[probe.frame].tense in ("past", "imp")), probe


def test_nothing_of_the_probes_is_generated() -> None:
    assert not {p.en for p in probes} & {p.en for p in sample} and not {p.it for p in probes} & {p.it for p in sample}
    pairs = {(frozenset(n.en for n in p.nouns), p.clue) for p in probes}
    assert not pairs & {(frozenset(n.en for n in p.nouns), p.clue) for p in sample}
    verbs = {
        (verb, p.clue) for p in probes for verb in content(p.en) - content(f"{p.nouns[0].en} {p.nouns[1].en} {p.clue}")
    }
    for choice in choices():
        main = content(re.sub("{.*?}", "", FRAMES[choice.frame].en))
        clues = {a.en for side in choice.clues for a in side}
        assert not verbs & {(verb, clue) for verb in main for clue in clues}, FRAMES[choice.frame].en


def test_the_famous_sentence_is_out_of_reach() -> None:
    crossing = [p for p in sample if "cross" in content(p.en)]
    assert crossing and not {"tired", "wide"} & {p.clue for p in crossing}
    assert {"tired", "wide"} <= {p.clue for p in sample} and {"animal", "street"} <= {
        n.en for p in sample for n in p.nouns
    }


def test_a_pair_of_the_probes_is_refused_with_its_clue_only(monkeypatch: pytest.MonkeyPatch) -> None:
    "Una coppia di nomi vietata con il suo indizio può uscire con altri: il divieto non è più largo del dovuto."
    barred = {frozenset((p.nouns[0].en, p.nouns[1].en)): {p.clue} for p in sample[:200]}
    monkeypatch.setattr(pronouns, "_banned", lambda: ({}, barred))
    again = [(frozenset((p.nouns[0].en, p.nouns[1].en)), p.clue) for p in generate(30_000, seed=11)]
    assert not {(names, clue) for names, clue in again if clue in barred.get(names, ())}
    assert any(names in barred for names, _ in again)


def test_at_least_25_frames_share_no_word() -> None:
    unseen = set(unseen_frames())
    assert len(unseen) >= 25
    english = set().union(*(content(p.en) for p in sample))
    italian = {stem_it(noun.it) for noun in nouns} | {stem_it(a.m) for a in adjectives.values()}
    for probe in probes:
        if probe.frame in unseen:
            assert not content(probe.en) & english, probe.en  # contate nelle frasi generate, non nel lessico
            assert not {stem_it(noun.it) for noun in probe.nouns} & italian, probe.it


def test_a_frame_is_seen_as_soon_as_one_of_its_words_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = unseen_frames()
    english, italian = vocabulary()
    monkeypatch.setattr(pronouns, "vocabulary", lambda: (english | {"wolf"}, italian))
    assert 17 in before and 17 not in unseen_frames()
    monkeypatch.setattr(pronouns, "vocabulary", lambda: (english, italian | {"bottigli"}))
    assert 51 in before and 51 not in unseen_frames()


def test_stems() -> None:
    assert stem("stopped") == stem("stop") and stem("carried") == stem("carry") and stem("left") == stem("leave")
    assert stem("reaches") == stem("reach") and stem("glass") == "glass" and stem_it("stanca") == stem_it("stanco")
    assert content("The truck didn't leave the factory because it was broken.") == {"truck", "leav", "factory", "break"}


def test_no_shortcut() -> None:
    assert 0.85 <= len(opposite) / len(sample) <= 0.90
    assert abs(sum(p.antecedent == 0 for p in sample) / len(sample) - 0.5) < 0.02
    by_subject = Counter((p.nouns[0].gender, p.antecedent) for p in opposite)
    for gender in "mf":  # chi scommette sapendo soltanto il genere del primo nome
        assert abs(by_subject[gender, 0] / (by_subject[gender, 0] + by_subject[gender, 1]) - 0.5) < 0.03
    masculine = sum(p.nouns[p.antecedent].gender == "m" for p in opposite) / len(opposite)
    assert abs(masculine - 0.5) < 0.03


def test_every_frame_has_all_four_crossings() -> None:
    crossings = {(p.frame, p.antecedent, p.nouns[p.antecedent].gender) for p in opposite}
    assert len(crossings) == 4 * len(FRAMES)


def test_same_seed_same_sentences_and_all_distinct() -> None:
    assert generate(500, seed=3) == generate(500, seed=3)
    assert {p.en for p in generate(500, seed=3)} != {p.en for p in generate(500, seed=4)}
    assert len({p.en for p in sample}) == len(sample)


def test_held_out_pairs_are_never_in_training() -> None:
    aside = generate(3_000, seed=1, held_out=True)
    pairs = {frozenset(n.en for n in p.nouns) for p in aside}
    assert not pairs & {frozenset(n.en for n in p.nouns) for p in sample}
    assert all(is_held_out(*p.nouns) and is_held_out(*p.nouns[::-1]) for p in aside)
    assert len({p.en for p in aside}) == 3_000 and HELD_OUT == 50


def test_corpus_in_three_columns(tmp_path: Path) -> None:
    path = tmp_path / "nuova" / "pronomi.tsv"
    write_pronouns(path, 200, seed=7, held_out=True)
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    expected = [["pronomi", p.en, p.it] for p in generate(200, seed=7, held_out=True)]
    assert rows == expected and [pair.source for pair in read_pairs(path)] == [row[1] for row in expected]


def test_a_bad_number_writes_nothing(tmp_path: Path) -> None:
    for n in (0, -3, capacity() + 1):
        with pytest.raises(AnnotatedError, match=rf"n = {n}: .*da 1 a {capacity()}"):
            write_pronouns(tmp_path / "pronomi.tsv", n)
    with pytest.raises(AnnotatedError, match=f"da 1 a {capacity(held_out=True)}"):
        generate(capacity(held_out=True) + 1, held_out=True)
    assert not list(tmp_path.iterdir())


def test_a_broken_row_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pronouns_nouns.tsv").write_text("# titolo\ntype\tgender\tnouns\nanimal\tm\n", "utf-8")
    monkeypatch.setattr(pronouns, "FOLDER", tmp_path)
    with pytest.raises(AnnotatedError, match=r"pronouns_nouns\.tsv, riga 3: 2 colonne invece di 3"):
        list(pronouns._rows("nouns", 3))
