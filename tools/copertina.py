"""Disegna la copertina: quale parola inglese guarda il modello mentre scrive ciascuna parola italiana.

python tools/copertina.py        scrive in book/_static traduzione.svg, che apre il libro, copertina.svg, e sociale.png
                                 per chi condivide un indirizzo
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from provenienza import told_errors

from annotated import load_pretrained, translate
from annotated.common import BOS, EOS
from annotated.study.figures import COLORS
from annotated.tokenizer import Tokenizer
from annotated.transformer import Transformer, attention_weights

STATIC = Path(__file__).resolve().parent.parent / "book" / "_static"
OPENING = "The new economic policy is a great success."
SENTENCES = [f"The animal didn't cross the street because it was too {cue}." for cue in ("tired", "wide")]


def table(ax: Axes, model: Transformer, tokenizer: Tokenizer, sentence: str, highlighted: set[str]) -> None:
    "L'ultimo strato della cross-attention, in media sulle teste: una riga per pezzo scritto."
    [translation] = translate(model, tokenizer, [sentence])
    source, target = tokenizer.encode([sentence, translation])
    weights = attention_weights(model, torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target[:-1]]]))
    ax.imshow(weights.cross[-1][0].mean(dim=0)[:, :-1], cmap="Blues", vmin=0, vmax=1)
    english, italian = ([p.strip("▁") for p in tokenizer.pieces(ids)] for ids in (source, target))
    ax.set_xticks(range(len(english)), english, rotation=90)
    ax.set_yticks(range(len(italian)), italian)
    for label in ax.get_xticklabels() + ax.get_yticklabels():
        if label.get_text() in highlighted:
            label.set(color=COLORS["arancio"], fontweight="bold")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def draw(axes: np.ndarray) -> None:
    "Le due tabelle, una per frase."
    for ax, sentence in zip(axes, SENTENCES, strict=True):
        table(ax, *load_pretrained("mini"), sentence, {"tired", "wide", "esso", "essa", "stanco", "larga"})


def translation() -> None:
    "Una frase e la sua traduzione, nell'ordine delle due lingue."
    fig, ax = plt.subplots(figsize=(4.4, 4.4), constrained_layout=True)
    table(ax, *load_pretrained("small-en-it"), OPENING, {"economic", "policy", "politica", "economica"})
    fig.savefig(STATIC / "traduzione.svg", metadata={"Date": None})


def cover() -> None:
    fig, axes = plt.subplots(1, 2, figsize=(10, 4.9), constrained_layout=True)
    draw(axes)
    fig.savefig(STATIC / "copertina.svg", metadata={"Date": None})


def social() -> None:
    "1200 × 630 punti, la misura che le reti sociali ritagliano meno."
    fig, axes = plt.subplots(1, 2, figsize=(12, 6.3), dpi=100)
    fig.subplots_adjust(left=0.1, right=0.98, top=0.7, bottom=0.2, wspace=0.3)
    draw(axes)
    fig.text(0.04, 0.88, "annotated", fontsize=44, fontweight="bold")
    fig.text(0.04, 0.79, "Il Transformer, spiegato riga per riga in italiano", fontsize=24)
    fig.savefig(STATIC / "sociale.png", metadata={"Software": None})


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "annotated"
    translation()
    cover()
    social()


if __name__ == "__main__":
    with told_errors():
        main()
