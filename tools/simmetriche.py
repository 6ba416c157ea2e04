"""Frasi con «it» senza posto solito: bastano a capire chi può essere affamato? (capitolo 19)

    python tools/simmetriche.py --data CARTELLA

Continua `small-en-it` su sole frasi in cui lo stesso indizio parla ora del primo ora del secondo nome, e decide
soltanto di che tipo di cosa si dice. La perdita guarda soprattutto il pezzo che la traduzione giusta e quella sbagliata
hanno diverso. Di tanto in tanto misura l'accordo: su frasi simmetriche con coppie di nomi mai viste, su altre in cui
anche l'indizio è stato tenuto da parte, su altre ancora, così, ma di parole che `train.tsv` ha spesso, e sulle coppie
scritte a mano. Alle stesse domande risponde, senza reti, chi conta: i vettori di `tools/vettori.py`, e una sonda
bilineare addestrata sulle stesse frasi.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from provenienza import ROOT, origin, sha256, told_errors, weights_sha256, write_json
from torch import Tensor
from tqdm import tqdm
from vettori import LEXICON, counted_words, margins, trained, words

from annotated import Tokenizer, Transformer, load_pretrained
from annotated.common import BOS, EOS, PAD
from annotated.data import pad, read_pairs
from annotated.study.coreference import Probe, agreement, read_probes
from annotated.study.pronouns import ADJECTIVES, NOUNS, Adjective, _forms, is_held_out

MODEL = ROOT / "models" / "small-en-it"
OUT = ROOT / "book" / "dati" / "simmetriche.json"
SENTENCES, HELD_CLUES = 100, 8  # frasi sorteggiate per ogni passo; un aggettivo su HELD_CLUES sta da parte
OFTEN = 100  # volte in `train.tsv`: da qui una parola inglese è frequente
READ, DECAY = 30_000, 0.01  # frasi della sonda; con meno decadimento, su indizi tolti da quelli letti, non cambia nulla
MOST = 4  # un indizio che si dice di più gruppi, dei dodici, non distingue abbastanza
B, RATE, WARMUP, COOLDOWN, OTHER = 64, 5e-4, 200, 0.3, 0.1  # OTHER: il peso dei pezzi che non decidono

# tipi che si somigliano: ciò che si dice di uno spesso si dice dell'altro, e insieme non entrano in una frase
GROUPS = [
    "animal critter bird reptile bug", "fruit berry veg dish slab", "land green way passage water pond source",
    "room home building premises venue store stop gate window fence eave monument",
    "text literature bill data artwork culture event", "clothes garment inner textile cover bag jewel",
    "vehicle bike cart vessel rail works", "appliance device gadget media white heating stove light",
    "plant tree garden", "tool utensil blade weapon cookware glassware container basin closet furniture seat instrument"
    " grand object trinket cord", "force disaster", "team body",
]  # fmt: skip
GROUP = {kind: i for i, kinds in enumerate(GROUPS) for kind in kinds.split()}  # tipo → gruppo
# principali che di chi si parla non dicono nulla: i due nomi si possono scambiare
MAINS = [line.split(" | ") for line in """\
I looked at the {0[en]} and at the {1[en]} | ho guardato {0[il]} e {1[il]}
the {0[en]} was next to the {1[en]} | {0[il]} era accanto {1[a]}
we found the {0[en]} behind the {1[en]} | abbiamo trovato {0[il]} dietro {1[il]}
they photographed the {0[en]} and the {1[en]} | hanno fotografato {0[il]} e {1[il]}
Marta drew the {0[en]} and then the {1[en]} | Marta ha disegnato {0[il]} e poi {1[il]}
nobody noticed the {0[en]} near the {1[en]} | nessuno ha notato {0[il]} vicino {1[a]}
the {0[en]} was far from the {1[en]} | {0[il]} era lontan{0[o]} {1[da]}
I remember the {0[en]} and the {1[en]} | ricordo {0[il]} e {1[il]}
they talked about the {0[en]} and about the {1[en]} | hanno parlato {0[di]} e {1[di]}
the {0[en]} was in front of the {1[en]} | {0[il]} era davanti {1[a]}
we observed the {0[en]} together with the {1[en]} | abbiamo osservato {0[il]} insieme {1[a]}
she described the {0[en]} and the {1[en]} | ha descritto {0[il]} e {1[il]}
the {0[en]} and the {1[en]} were in the picture | {0[il]} e {1[il]} erano nella foto
Paolo thought of the {0[en]} and of the {1[en]} | Paolo ha pensato {0[a]} e {1[a]}
they compared the {0[en]} with the {1[en]} | hanno confrontato {0[il]} con {1[il]}
he pointed at the {0[en]} and at the {1[en]} | ha indicato {0[il]} e {1[il]}
we discovered the {0[en]} not far from the {1[en]} | abbiamo scoperto {0[il]} non lontano {1[da]}
I imagined the {0[en]} and the {1[en]} | ho immaginato {0[il]} e {1[il]}""".splitlines()]  # fmt: skip
TAILS = [
    (". It was {}.", ". Era {}."), (". It looked {}.", ". Sembrava {}."), (", but it was {}.", ", ma era {}."),
    (", and it was {}.", ", ed era {}."), (" although it was {}.", " anche se era {}."),
    (" even though it was {}.", " benché fosse {}."), (" because it was {}.", " perché era {}."),
    (" when it was {}.", " quando era {}."),
]  # fmt: skip


class Example(NamedTuple):
    en: str
    it: str
    wrong: str  # con l'altro accordo
    clue: str
    antecedent: int  # di quale dei due nomi si parla, 0 o 1
    nouns: tuple[str, str]  # i due nomi inglesi, nell'ordine della frase


def clues() -> dict[str, list[tuple[Adjective, set[int]]]]:
    "Di ogni tipo gli aggettivi che si dicono di pochi gruppi, con i gruppi; non quelli uguali nei due generi."
    said = defaultdict(set)  # di ogni parola inglese, in tutte le sue traduzioni
    for (_, kind), some in ADJECTIVES.items():
        for a in some:
            said[a.en].add(GROUP.get(kind, -1))
    found: dict[str, dict[Adjective, set[int]]] = defaultdict(dict)
    for (_, kind), some in ADJECTIVES.items():
        for a in some:
            if kind in GROUP and kind in NOUNS and a.m != a.f and a.mark != "+" and len(said[a.en]) <= MOST:
                found[kind][a] = said[a.en]
    return {kind: [*some.items()] for kind, some in found.items()}


def divided() -> tuple[set[str], set[str]]:
    """Gli indizi inglesi su cui ci si addestra, e gli aggettivi italiani tenuti da parte.

    Un indizio che abbia una traduzione da parte non si legge: di ciò che è da parte non si legge né l'inglese né
    l'italiano.
    """
    known = {(a.en, a.m) for some in clues().values() for a, _ in some}
    italian = sorted({it for _, it in known})
    aside = set(random.Random(0).sample(italian, len(italian) // HELD_CLUES))
    return {en for en, _ in known} - {en for en, it in known if it in aside}, aside


def sentences(
    seed: int, held_pairs: bool = False, held_clues: bool = False, among: set[str] | None = None
) -> Iterator[Example]:
    """Frasi sorteggiate, senza fine. Da parte stanno le coppie di nomi di `is_held_out`, e gli indizi di `divided`.

    Con `among` i nomi e l'indizio sono fatti di quelle sole parole.
    """
    rng, by_kind, (read, aside) = random.Random(seed), clues(), divided()
    tested = {(frozenset(noun.en for noun in probe.nouns), probe.clue) for probe in read_probes()}
    while True:
        kind, other = rng.sample(sorted(by_kind), 2)
        apart = [a for a, groups in by_kind[kind] if GROUP[other] not in groups]
        fit = [a for a in apart if (a.m in aside if held_clues else a.en in read)]
        gender = rng.choice(("mf", "fm"))
        mine, rival = (rng.choice(NOUNS[k][g]) for k, g in zip((kind, other), gender, strict=True))
        if not fit or is_held_out(mine, rival) != held_pairs:
            continue
        clue = rng.choice(fit)
        if (frozenset((mine.en, rival.en)), clue.en) in tested:
            continue
        if among is not None and not among.issuperset(words(f"{clue.en} {mine.en} {rival.en}")):
            continue
        order = rng.sample((mine, rival), 2)
        nouns = [_forms(noun) for noun in order]
        (en, it), (en_tail, it_tail) = rng.choice(MAINS), rng.choice(TAILS)
        right, wrong = (clue.m, clue.f) if mine.gender == "m" else (clue.f, clue.m)
        starts = [text.format(*nouns) for text in (en, it)]
        english, italian = (start[0].upper() + start[1:] for start in starts)
        translations = (italian + it_tail.format(x) for x in (right, wrong))
        names = (order[0].en, order[1].en)
        yield Example(english + en_tail.format(clue.en), *translations, clue.en, order.index(mine), names)


def some(n: int, seed: int, **which: Any) -> list[Example]:
    "Le prime `n` frasi diverse di `sentences`."
    found: dict[str, Example] = {}
    for example in sentences(seed, **which):
        found.setdefault(example.en, example)
        if len(found) == n:
            return list(found.values())


Sets = dict[str, Sequence[Example] | Sequence[Probe]]
COMMON = "indizi nuovi e frequenti"


def asked(common: set[str]) -> Sets:
    "Le frasi su cui si misura."
    new = {"held_pairs": True, "held_clues": True}
    return {
        "coppie nuove": some(600, seed=99, held_pairs=True),
        "indizi nuovi": some(600, seed=99, **new),
        COMMON: some(600, seed=99, **new, among=common),
        "scritte a mano": read_probes(),
    }


def by_clue(examples: Sequence[Example], margins: Tensor) -> dict[str, float]:
    "Di ogni indizio la quota di risposte giuste."
    right = defaultdict(list)
    for example, good in zip(examples, (margins > 0).tolist(), strict=True):
        right[example.clue].append(good)
    return {clue: round(sum(goods) / len(goods), 4) for clue, goods in sorted(right.items())}


def share(margins: Tensor) -> float:
    return round((margins > 0).float().mean().item(), 4)


def loss(model: Transformer, src: Tensor, tgt_in: Tensor, tgt_out: Tensor, at: Tensor, rng: torch.Generator) -> Tensor:
    "La perdita del pezzo che decide, il numero `at` (B,), e un poco quella di altri, sorteggiati."
    states, row = model.states(src, tgt_in), torch.arange(len(at))
    others = (torch.rand(tgt_out.shape, generator=rng) < 0.15) & (tgt_out != PAD)
    deciding, rest = (
        F.cross_entropy(model.embedding.logits(states[which]), tgt_out[which]) for which in ((row, at), others)
    )
    return deciding + OTHER * rest


def learn(seed: int, steps: int, sets: Sets) -> dict[str, Any]:
    "Un addestramento, e le sue misure."
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, tokenizer = load_pretrained(MODEL)
    examples = some(SENTENCES * steps, seed)
    rng, draws = random.Random(seed), torch.Generator().manual_seed(seed)
    sides = (tokenizer.encode([getattr(e, side) for e in examples]) for side in Example._fields[:3])
    src, tgt, wrong = ([[*ids, EOS] for ids in side] for side in sides)
    at = [
        next(i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b) for both in zip(tgt, wrong, strict=True)
    ]
    order = sorted(range(len(src)), key=lambda i: (len(src[i]) + len(tgt[i]), rng.random()))
    batches = [order[i : i + B] for i in range(0, len(order), B)]
    rng.shuffle(batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    rows = [measured(model, tokenizer, 0, sets)]
    for step, chosen in enumerate(tqdm(batches[:steps], desc=f"seme {seed}", position=seed, unit="passo"), 1):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, step / WARMUP, (steps - step + 1) / (COOLDOWN * steps))
        tensors = [pad(side[i] for i in chosen) for side in (src, tgt)]
        shifted = pad([BOS, *tgt[i][:-1]] for i in chosen)
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(model, tensors[0], shifted, tensors[1], torch.tensor([at[i] for i in chosen]), draws)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 6) == 0:
            rows.append(measured(model, tokenizer, step, sets))
            tqdm.write(f"seme {seed}: {rows[-1]}")
    margins = agreement(model, tokenizer, read_probes())
    per_clue = by_clue(sets[COMMON], agreement(model, tokenizer, sets[COMMON]))
    return {"seme": seed, "misure": rows, "margini": [round(x, 3) for x in margins.tolist()], "per indizio": per_clue}


def measured(model: Transformer, tokenizer: Tokenizer, step: int, sets: Sets) -> dict[str, float]:
    return {"passo": step, **{name: share(agreement(model, tokenizer, one)) for name, one in sets.items()}}


def embedded(
    examples: Sequence[Example] | Sequence[Probe], number: dict[str, int], table: Tensor
) -> tuple[Tensor, Tensor]:
    "Di ogni frase i vettori di indizio, nome giusto e altro nome, (n, 3, d), e se ci sono tutti e tre, (n,)."
    rows = torch.zeros(len(examples), 3, table.size(1))
    for row, e in zip(rows, examples, strict=True):
        nouns = [noun if isinstance(noun, str) else noun.en for noun in e.nouns]
        for place, text in enumerate((e.clue, nouns[e.antecedent], nouns[1 - e.antecedent])):
            row[place] = table[[number[word] for word in words(text) if word in number]].sum(dim=0)
    return F.normalize(rows, dim=-1), rows.any(dim=-1).all(dim=-1)


def counting(number: dict[str, int], table: Tensor, sets: Sets, seeds: int) -> dict[str, Any]:
    "La sonda sui vettori contati: di ogni insieme quante frasi hanno le tre parole, e le giuste fra quelle, per seme."
    rows_of = {name: embedded(some, number, table) for name, some in sets.items()}
    found: dict[str, Any] = {name: {"frasi": int(there.sum()), "giuste": []} for name, (_, there) in rows_of.items()}
    for seed in range(seeds):
        rows, there = embedded(some(READ, seed), number, table)
        rows, middle = rows[there], rows[there].flatten(0, 1).mean(dim=0)
        maps = trained(rows - middle, seed, DECAY)
        for name, (asked_rows, known) in rows_of.items():
            found[name]["giuste"].append(share(margins(asked_rows[known] - middle, maps)))
        found[COMMON].setdefault("per indizio", []).append(
            by_clue(sets[COMMON], margins(rows_of[COMMON][0] - middle, maps))
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    for name in ("seeds", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: serve un intero positivo")
    times, number, table = counted_words([words(pair.source) for pair in read_pairs(args.data / "train.tsv")])
    sets = asked({word for word, n in times.items() if n >= OFTEN})
    counted = counting(number, table, sets, args.seeds)
    with ProcessPoolExecutor(args.seeds) as pool:
        runs = list(pool.map(partial(learn, steps=args.steps, sets=sets), range(args.seeds)))
    model, tokenizer = load_pretrained(MODEL)
    before = [round(x, 3) for x in agreement(model, tokenizer, read_probes()).tolist()]
    clues_before = by_clue(sets[COMMON], agreement(model, tokenizer, sets[COMMON]))
    examples = [list(e[:3]) for e in some(6, 99, held_pairs=True)]
    command = f"python tools/simmetriche.py --data CARTELLA --seeds {args.seeds} --steps {args.steps}"
    hashes = {"pesi": weights_sha256(MODEL), "aggettivi": sha256(LEXICON)}
    facts = origin(command, **hashes, **{"train.tsv": sha256(args.data / "train.tsv")})
    found = {"prima": before, "corse": runs, "esempi": examples, "indizi": sorted(divided()[0])}
    found |= {"contati": counted, "prima, per indizio": clues_before}
    write_json(OUT, {"provenienza": facts, **found})


if __name__ == "__main__":
    with told_errors():
        main()
