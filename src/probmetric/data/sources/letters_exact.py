"""Noisy letters whose P(class | image) is known exactly; zero-shot as `glyphs`.

Latin, Greek and Cyrillic letters of which no two look alike, in twelve faces and nine shifts, 16x16 pixels of ink or
paper, with Gaussian noise of one of four strengths: see `probmetric.data.exact`. Training classes have ten times the
images of the others, because networks memorise the noise of few images. Extra columns, in which the classes of the
image's split are the alternatives:

    noise              standard deviation of the noise, in units of ink
    true_probability   P(its class | image)
    bayes_probability  largest P(class | image); its mean is the highest accuracy that any model can reach
    entropy            entropy of P(class | image), in nats
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probmetric.data.exact import FACES, LEVELS, SIDE, Templates, drawn
from probmetric.data.manifest import OptionError
from probmetric.data.sources import RawFiles, Source, Table, _faces, options, register
from probmetric.data.sources.glyphs import distinct_letters
from probmetric.data.splits import hold_out_classes
from probmetric.registry import Draws, Share

SCRIPTS = ((0x41, 0x17F), (0x391, 0x3C9), (0x402, 0x45F))


@register
@dataclass(frozen=True, kw_only=True)
class LettersExact(Source):
    """Letters as classes, with their exact posterior."""

    view = options(name="small")

    letters: Draws = 110
    test_letters: Draws = 40
    per_class: Draws = 48
    train_per_class: Draws = 480
    val_fraction: Share = 0.25

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Draw the images; no files are needed."""
        letters = common_letters()[: self.letters]
        if self.test_letters > len(letters) - 2:
            of = f"{self.test_letters} of {len(letters)} letters"
            raise OptionError(f"test_letters is {of}; leave at least two, to train and to validate on.")
        test = np.round((np.arange(self.test_letters) + 0.5) * len(letters) / self.test_letters).astype(int) - 1
        seen = np.setdiff1d(np.arange(len(letters)), test)
        letters = [letters[c] for c in (*seen, *test)]
        split = np.repeat(["train", "test"], [len(seen), len(test)])
        split[hold_out_classes(np.arange(len(seen)), self.val_fraction, np.random.default_rng(seed))] = "val"
        columns = self._columns(letters, split)
        images = np.empty((len(columns["label"]), SIDE, SIDE, 1), dtype=np.uint8)
        for part in ("train", "val", "test"):
            classes = np.flatnonzero(split == part)
            templates = Templates.of([letters[c] for c in classes])
            rows = np.flatnonzero(columns["split"] == part)
            places = np.searchsorted(classes, columns["label"][rows])
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                rng = np.random.default_rng([seed, ord(letters[classes[place]]), columns["number"][row]])
                images[row] = drawn(templates, place, columns["noise"][row], rng)
            posterior = templates.posterior(images[rows])
            columns["true_probability"][rows] = posterior[np.arange(len(rows)), places]
            columns["bayes_probability"][rows] = posterior.max(axis=1)
            columns["entropy"][rows] = -(posterior * np.log(np.maximum(posterior, 1e-300))).sum(axis=1)
        del columns["number"]
        description = (
            f"letters, 16x16 pixels of ink or paper, Gaussian noise of {LEVELS} times the ink; exact posterior"
        )
        return Table(columns, images.__getitem__, "open_set", description)

    def _columns(self, letters: list[str], split: np.ndarray) -> dict[str, np.ndarray]:
        counts = np.where(split == "train", self.train_per_class, self.per_class)
        label = np.repeat(np.arange(len(letters)), counts)
        number = np.concatenate([np.arange(count) for count in counts])
        names = [f"U+{ord(letters[c]):04X}/{n:03d}.png" for c, n in zip(label.tolist(), number.tolist(), strict=True)]
        blank = {name: np.zeros(len(label)) for name in ("true_probability", "bayes_probability", "entropy")}
        return {
            "path": np.array(names),
            "label": label,
            "class_name": np.array([f"U+{ord(letters[c]):04X}" for c in label.tolist()]),
            "split": split[label],
            "character": np.array([letters[c] for c in label.tolist()]),
            "noise": np.array(LEVELS)[number % len(LEVELS)],
            "number": number,
            **blank,
        }


def common_letters() -> list[str]:
    """Return letters of the scripts that twelve text faces have and of which no two look alike, in code-point order."""
    kept, glyphs, _ = distinct_letters()
    faces = {c: sum((face, c) in glyphs for face in _faces.TEXT_FACES) for c in kept}
    return [c for c in kept if faces[c] >= FACES and any(a <= ord(c) <= b for a, b in SCRIPTS)]
