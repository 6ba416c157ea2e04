"""Disegna la copertina: dove guarda «it» quando cambia una parola. Scrive book/_static/copertina.svg.

La testa è quella con il maggior scarto fra antecedente e altro nome (capitolo «Vedere l'attenzione»).
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from annotated import Transformer, load_pretrained, translate
from annotated.common import BOS, EOS
from annotated.figures import COLORS
from annotated.microlingua import Example, generate
from annotated.tokenizer import Tokenizer

OUTPUT = Path(__file__).resolve().parent.parent / "book" / "_static" / "copertina.svg"
SENTENCE = "The animal didn't cross the street because it was too {}."


def from_it(model: Transformer, tokenizer: Tokenizer, sentence: str) -> tuple[list[str], torch.Tensor]:
    "I pezzi della frase e, per ogni strato e testa dell'encoder, i pesi da «it»: (N, h, S)."
    [ids] = tokenizer.encode([sentence])
    pieces = tokenizer.pieces([*ids, EOS])
    layers = model.attention_weights(torch.tensor([[*ids, EOS]]), torch.tensor([[BOS]])).encoder
    return pieces, torch.stack([w[0, :, pieces.index("▁it")] for w in layers])


def gap(model: Transformer, tokenizer: Tokenizer, example: Example) -> torch.Tensor:
    pieces, weights = from_it(model, tokenizer, example.en)
    right, wrong = (pieces.index(f"▁{noun.en}") for noun in (example.antecedent, example.distractor))
    return weights[..., right] - weights[..., wrong]


def main() -> None:
    model, tokenizer = load_pretrained("mini")
    gaps = torch.stack([gap(model, tokenizer, e) for e in generate(300, seed=3, held_out=True)]).mean(dim=0)
    layer, head = divmod(int(gaps.argmax()), model.config.h)
    plt.rcParams["svg.hashsalt"] = "annotated"
    fig, axes = plt.subplots(1, 2, figsize=(9, 4.6), constrained_layout=True)
    for ax, adjective in zip(axes, ("tired", "wide"), strict=True):
        sentence = SENTENCE.format(adjective)
        pieces, weights = from_it(model, tokenizer, sentence)
        it, row = pieces.index("▁it"), weights[layer, head]
        for i, (piece, weight) in enumerate(zip(pieces, row.tolist(), strict=True)):
            label = piece.replace("▁", "").replace("</s>", "⟨fine⟩")
            ax.text(-0.05, i, label, ha="right", va="center", weight="bold" if i == it else "normal")
            ax.text(1.05, i, label, ha="left", va="center", weight="bold" if weight > 0.2 else "normal")
            ax.plot([0, 1], [it, i], color=COLORS["arancio"], linewidth=1 + 7 * weight, alpha=weight**0.5)
        [translation] = translate(model, tokenizer, [sentence])
        ax.set_title(translation, fontsize=10)
        ax.set(xlim=(-0.5, 1.5), ylim=(len(pieces), -1))
        ax.axis("off")
    fig.savefig(OUTPUT, metadata={"Date": None})


if __name__ == "__main__":
    main()
