"""Che cosa sa il corpus di chi si dice ogni indizio: vettori di parole contati su `train.tsv` (capitolo 19).

    python tools/vettori.py --data CARTELLA

Conta quali parole inglesi stanno vicine (entro tre posti), ne fa vettori (informazione mutua positiva, poi una SVD) e
misura, per ogni coppia di «it», quanto l'indizio somiglia al nome giusto più che all'altro. Lo stesso con i pezzi di
`base-en-it` al posto delle parole: il vettore di una parola è allora la somma di quelli dei suoi pezzi. Poi cerca
quei saperi in `base-en-it`: una sonda bilineare, dai vettori di un aggettivo e di due nomi, deve dire quale dei due
nel corpus l'aggettivo accompagna; è misurata su aggettivi che non ha visto. Scrive `book/dati/vettori.json`.
"""

import argparse
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from provenienza import ROOT, origin, sha256, told_errors, weights_sha256, write_json
from torch import Tensor
from tqdm import tqdm

from annotated import Tokenizer, Transformer, load_pretrained
from annotated.common import EOS
from annotated.data import read_pairs
from annotated.study.coreference import Probe, read_probes
from annotated.study.pronouns import ADJECTIVES

LEXICON = ROOT / "annotated" / "study" / "pronouns_adjectives.tsv"
OUT = ROOT / "book" / "dati" / "vettori.json"
WINDOW, SIZE, WORDS = 3, 300, 30_000
FOLDS, RANK, STEPS, DECAY = 5, 32, 400, 0.03  # della sonda


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'t)?", text.lower())


def neighbours(ids: list[list[int]], n: int) -> Tensor:  # (n, n), sparsa
    "Quante volte due unità, numerate da 1, stanno a non più di `WINDOW` posti; lo 0 non conta."
    line = np.concatenate([np.array([*sentence, *[0] * WINDOW]) for sentence in ids])
    counts = torch.sparse_coo_tensor(size=(n, n))
    for distance in range(1, WINDOW + 1):
        one, other = line[:-distance], line[distance:]
        both = (one > 0) & (other > 0)
        found, times = map(torch.from_numpy, np.unique(one[both] * n + other[both], return_counts=True))
        counts = counts + torch.sparse_coo_tensor(torch.stack((found // n, found % n)), times.float(), (n, n))
    return (counts + counts.T).coalesce()


def vectors(counts: Tensor) -> Tensor:  # (n, SIZE), righe di norma 1
    "Informazione mutua positiva (Levy e Goldberg 2014), ridotta da una SVD troncata."
    (rows, columns), times = counts.indices(), counts.values()
    totals = torch.sparse.sum(counts, dim=1).to_dense()
    contexts = totals**0.75
    pmi = (times / totals[rows] / (contexts / contexts.sum())[columns]).log().clamp(min=0)
    torch.manual_seed(0)
    U, S, _ = torch.svd_lowrank(torch.sparse_coo_tensor(counts.indices(), pmi, counts.shape), q=SIZE, niter=6)
    return torch.nn.functional.normalize(U * S.sqrt())


def counted_words(split: list[list[str]]) -> tuple[Counter[str], dict[str, int], Tensor]:
    "Quante volte c'è ogni parola; le `WORDS` più frequenti, almeno cinque volte, numerate da 1; i loro vettori."
    times = Counter(word for sentence in split for word in sentence)
    number = {word: i for i, (word, n) in enumerate(times.most_common(WORDS), 1) if n >= 5}
    ids = [[number.get(word, 0) for word in sentence] for sentence in split]
    return times, number, vectors(neighbours(ids, len(number) + 1))


def margin(probe: Probe, table: Tensor, units: dict[str, list[int]]) -> float | None:
    "Coseno fra indizio e nome giusto, meno quello con l'altro nome; `None` se una parola non c'è."
    ids = [units[text] for text in (probe.clue, *(noun.en for noun in probe.nouns))]
    if not all(ids):
        return None
    clue, *nouns = (torch.nn.functional.normalize(table[some].sum(dim=0), dim=0) for some in ids)
    right, other = nouns[probe.antecedent], nouns[1 - probe.antecedent]
    return round((clue @ right - clue @ other).item(), 4)


def company(split: list[list[str]], times: Counter[str], banned: set[str]) -> dict[tuple[str, str], float]:
    "Gli aggettivi del generatore, senza `banned`, con i nomi che precedono: la radice di quante volte, se almeno tre."
    adjectives = {a.en for some in ADJECTIVES.values() for a in some if times[a.en] >= 30} - banned
    pairs = Counter(pair for sentence in split for pair in pairwise(sentence))
    articled = Counter[str]()
    for (one, other), n in pairs.items():
        articled[other] += n * (one in ("a", "an", "the"))
    nouns = {w for w, n in articled.items() if times[w] >= 100 and n >= 0.15 * times[w]} - adjectives
    return {(a, b): n**0.5 for (a, b), n in pairs.items() if a in adjectives and b in nouns and n >= 3}


def drawn(pairs: dict[tuple[str, str], float], kept: set[str], rng: random.Random, n: int) -> list[tuple[str, ...]]:
    "Aggettivo di `kept`, un nome di una sua coppia, un nome d'altre; i due nomi hanno le stesse frequenze."
    mine = {pair: weight for pair, weight in pairs.items() if pair[0] in kept}
    others = rng.choices([noun for _, noun in pairs], weights=list(pairs.values()), k=n)
    found = zip(rng.choices(list(mine), weights=list(mine.values()), k=n), others, strict=True)
    return [(a, b, other) for (a, b), other in found if (a, other) not in pairs]


def margins(rows: Tensor, maps: list[Tensor]) -> Tensor:  # (n, 3, d), due (d, RANK) → (n,)
    "Di quanto l'aggettivo sta meglio al primo nome che al secondo."
    adjective, one, other = rows.unbind(dim=1)
    return (adjective @ maps[0] * ((one - other) @ maps[1])).sum(dim=1)


def trained(rows: Tensor, seed: int, decay: float = DECAY) -> list[Tensor]:  # (n, 3, d) → le due matrici, (d, RANK)
    "La sonda bilineare: ogni aggettivo deve stare meglio al primo nome che al secondo."
    torch.manual_seed(seed)
    size = rows.size(-1)
    maps = [torch.randn(size, RANK).mul(2 * size**-0.5).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(maps, lr=0.01)
    for _ in range(STEPS):
        loss = torch.nn.functional.softplus(-margins(rows[torch.randint(len(rows), (512,))], maps)).mean()
        loss = loss + decay / RANK * sum(m.square().sum() for m in maps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return maps


def readable(pairs: dict[tuple[str, str], float], vector: dict[str, Tensor]) -> list[float]:
    "Le risposte giuste su ogni quinto degli aggettivi, con la sonda addestrata sugli altri quattro."
    adjectives, shares = sorted({a for a, _ in pairs}), []
    number = {word: i for i, word in enumerate(vector)}
    table = torch.stack(list(vector.values()))
    table = table - table.mean(dim=0)
    table = table / table.norm(dim=1).mean()
    for fold in tqdm(range(FOLDS), desc="quinti"):
        rng = random.Random(fold)
        held = set(rng.sample(adjectives, len(adjectives) // FOLDS))
        train, test = (
            table[torch.tensor([[number[word] for word in row] for row in drawn(pairs, kept, rng, n)])]
            for kept, n in ((set(adjectives) - held, 30_000), (held, 3_000))
        )
        shares.append(round((margins(test, trained(train, fold)) > 0).float().mean().item(), 4))
    return shares


@torch.no_grad()
def states(model: Transformer, tokenizer: Tokenizer, before: str, word: str, after: str) -> Tensor:  # (d,)
    "Ciò che esce dall'encoder sui pezzi di `word`, in media, dentro una frase breve."
    start, end = (len(ids) for ids in tokenizer.encode([before.strip(), before + word]))
    src = torch.tensor([[*tokenizer.encode([before + word + after])[0], EOS]])
    return model.encoder(model.embedding(src))[0, start:end].mean(dim=0)


def searched(
    pairs: dict[tuple[str, str], float],
    counted: dict[str, Tensor],
    pieces: Tensor,  # (V, SIZE), i vettori contati dei pezzi
    model: Transformer,
    tokenizer: Tokenizer,
) -> dict[str, dict]:
    "La sonda sui vettori contati, di parole e di pezzi, su tre fatti dai pezzi del modello, e quante parole ha visto."
    pairs = {pair: weight for pair, weight in pairs.items() if all(word in counted for word in pair)}
    adjectives, nouns = ({pair[i] for pair in pairs} for i in range(2))
    embedding = model.embedding.weight.detach()
    torch.manual_seed(0)
    chance = torch.randn_like(embedding)

    def summed(table: Tensor) -> dict[str, Tensor]:
        return {w: table[tokenizer.encode([w])[0]].mean(dim=0) for w in sorted(adjectives | nouns)}

    read = {w: states(model, tokenizer, "The ", w, " was here.") for w in sorted(nouns)}
    read |= {w: states(model, tokenizer, "It was ", w, ".") for w in sorted(adjectives)}
    tables = {"contati": {w: counted[w] for w in read}, "pezzi contati": summed(pieces)}
    tables |= {"embedding": summed(embedding), "encoder": read, "caso": summed(chance)}
    shares = {name: readable(pairs, table) for name, table in tables.items()}
    return {"aggettivi": len(adjectives), "nomi": len(nouns), "coppie": len(pairs), "quote": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    sentences = [pair.source for pair in read_pairs(args.data / "train.tsv")]
    probes = read_probes()
    wanted = sorted({text for p in probes for text in (p.clue, *(noun.en for noun in p.nouns))})

    split = [words(sentence) for sentence in sentences]
    times, number, table = counted_words(split)
    by_word = {text: [number[word] for word in words(text) if word in number] for text in wanted}
    whole = [margin(probe, table, by_word) for probe in probes]

    folder = ROOT / "models" / "base-en-it"
    model, tokenizer = load_pretrained(folder)
    pairs = company(split, times, {word for probe in probes for word in words(probe.clue)})
    counted = {word: table[i] for word, i in number.items()}

    table = vectors(neighbours(tokenizer.encode(sentences), tokenizer.vocab_size))
    by_piece = dict(zip(wanted, tokenizer.encode(wanted), strict=True))
    pieces = [margin(probe, table, by_piece) for probe in probes]
    found = searched(pairs, counted, table, model, tokenizer)

    hashes = {"pesi": weights_sha256(folder), "train.tsv": sha256(args.data / "train.tsv")}
    hashes["aggettivi"] = sha256(LEXICON)
    facts = origin("python tools/vettori.py --data CARTELLA", **hashes)
    lengths = {probe.clue: len(by_piece[probe.clue]) for probe in probes}
    results = {"provenienza": facts, "pezzi per indizio": lengths, "parole": whole, "pezzi": pieces, "sonda": found}
    write_json(OUT, results)


if __name__ == "__main__":
    with told_errors():
        main()
