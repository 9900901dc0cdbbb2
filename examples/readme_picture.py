"""Draw the picture of the README: questions to a gallery of letters, their nearest images, and what may be believed.

    make demo && python examples/readme_picture.py results/glyphs/el_nivmf+training.epochs=10/seed0

Two thirds of the letters that the network was not trained on are the gallery and certify themselves at 5 %; the others
ask. Shown are the surest answer that is given, an answer that is withheld and would have been wrong, and the surest of
the symbols, which are no letters.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from probmetric import Gallery
from probmetric.data import load_columns, open_images
from probmetric.io import read_tensors
from probmetric.reporting.words import chance_words

OUTPUT = Path("docs/images/answers.png")
NEAREST, RISK = 5, 0.05


def main() -> None:
    """Ask, choose three answers and draw them."""
    run, prepared = Path(sys.argv[1]), Path("data/prepared")
    letters, symbols = (read_tensors(run / f"embeddings/{name}.safetensors")[0] for name in ("test", "ood"))
    columns, images = load_columns(prepared / "glyphs", ["split"]), open_images(prepared / "glyphs")
    rows = np.flatnonzero(columns["split"] == "test")
    asks = np.random.default_rng(0).random(len(rows)) < 1 / 3
    names = np.array([f"letter {label}" for label in letters["label"]])
    gallery = Gallery.from_vectors(letters["mean"][~asks], names[~asks], [str(row) for row in rows[~asks]])
    certificate = gallery.certify(risk=RISK)
    answers = gallery.search(letters["mean"][asks], k=NEAREST, risk=certificate)
    right = [answer.matches[0].class_name == name for answer, name in zip(answers, names[asks], strict=True)]
    answered = [k for k, answer in enumerate(answers) if not answer.withheld]
    withheld = [k for k, answer in enumerate(answers) if answer.withheld and not right[k]]
    strange = gallery.search(symbols["mean"], k=NEAREST, risk=certificate)
    refused = [k for k, answer in enumerate(strange) if answer.withheld]
    wrong = sum(not right[k] for k in answered)
    sure = max(answered, key=lambda k: answers[k].p_right)
    torn = max(withheld, key=lambda k: answers[k].p_right)
    alien = max(refused, key=lambda k: strange[k].p_right)
    others = open_images(prepared / "symbols")
    shown = [
        (images[int(rows[asks][sure])], answers[sure], "answered"),
        (images[int(rows[asks][torn])], answers[torn], "withheld, too unsure (and indeed wrong)"),
        (others[alien], strange[alien], "withheld, too unsure (a symbol, no letter)"),
    ]
    figure, axes = plt.subplots(
        len(shown), NEAREST + 2, figsize=(9, 3.9), layout="constrained", width_ratios=[1] * 6 + [3.4]
    )
    for line, (image, answer, verdict) in zip(axes, shown, strict=True):
        pictures = [image, *(images[int(match.path)] for match in answer.matches)]
        for cell, picture in zip(line, pictures, strict=False):
            cell.imshow(np.asarray(picture).squeeze(), cmap="gray", vmin=0, vmax=255)
            cell.set(xticks=[], yticks=[])
        line[0].spines[:].set(color="tab:blue", linewidth=3)
        line[-1].axis("off")
        text = f"{verdict}\nright with probability {chance_words(answer.p_right)}"
        line[-1].text(
            0, 0.5, text, va="center", color="tab:red" if answer.withheld else "tab:green", transform=line[-1].transAxes
        )
    axes[0, 0].set_title("asked", fontsize=10)
    axes[0, 3].set_title("nearest in the gallery", fontsize=10)
    figure.suptitle(
        f"{len(answered)} of {len(answers)} questions are answered, {wrong} of them wrongly "
        f"({wrong / len(answered):.1%}); certified: at most {RISK:.0%}",
        fontsize=11,
    )
    figure.savefig(OUTPUT, dpi=110)
    print(f"{len(refused)} of {len(strange)} symbols are refused; wrote {OUTPUT}")


if __name__ == "__main__":
    main()
