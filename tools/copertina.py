"""Disegna la copertina: quale parola inglese guarda il modello mentre scrive ciascuna parola italiana.

    python tools/copertina.py        scrive book/_static/copertina.svg
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from annotated import load_pretrained, translate
from annotated.common import BOS, EOS
from annotated.figures import COLORS
from annotated.transformer import attention_weights

OUTPUT = Path(__file__).resolve().parent.parent / "book" / "_static" / "copertina.svg"
SENTENCES = [f"The animal didn't cross the street because it was too {cue}." for cue in ("tired", "wide")]


def main() -> None:
    model, tokenizer = load_pretrained("mini")
    plt.rcParams["svg.hashsalt"] = "annotated"
    fig, axes = plt.subplots(1, 2, figsize=(10, 4.9), constrained_layout=True)
    for ax, sentence in zip(axes, SENTENCES, strict=True):
        [translation] = translate(model, tokenizer, [sentence])
        source, target = tokenizer.encode([sentence, translation])
        weights = attention_weights(model, torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target[:-1]]]))
        ax.imshow(weights.cross[-1][0].mean(dim=0)[:, :-1], cmap="Blues", vmin=0, vmax=1)
        english, italian = ([p.strip("▁") for p in tokenizer.pieces(ids)] for ids in (source, target))
        ax.set_xticks(range(len(english)), english, rotation=90)
        ax.set_yticks(range(len(italian)), italian)
        for label in ax.get_xticklabels() + ax.get_yticklabels():
            if label.get_text() in ("tired", "wide", "esso", "essa", "stanco", "larga"):
                label.set(color=COLORS["arancio"], fontweight="bold")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    fig.savefig(OUTPUT, metadata={"Date": None})


if __name__ == "__main__":
    main()
