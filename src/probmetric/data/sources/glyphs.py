"""Letters of five scripts rendered from the fonts that ship inside matplotlib; zero-shot like CUB.

Latin, Greek, Cyrillic, Armenian and Georgian letters without accents, every letter in all DejaVu and STIX faces that
have it (8 to 21 faces), distorted as `_drawing` says. Letters that look the same (across scripts, or upper and lower
case once size is normalised) are one class, named by the first code point; see `_faces`. The classes are dealt
alternately to the two halves within each script, so both halves hold every script: the first half of the labels
trains (15 % of those classes validate), the second half is the test set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probmetric.data.sources import RawFiles, Source, Table, _faces, options, register
from probmetric.data.sources._drawing import draw_images
from probmetric.data.splits import hold_out_classes
from probmetric.registry import Draws, Fraction, Share

DESCRIPTION = "letters of five scripts in matplotlib's DejaVu, STIX and Computer Modern faces, 32x32 grey, distorted"
SCRIPTS = {
    "Latin": ((0x41, 0x5A), (0x61, 0x7A), (0xDF, 0x167)),
    "Greek": ((0x391, 0x3A9), (0x3B1, 0x3C9)),
    "Cyrillic": ((0x402, 0x45F),),
    "Armenian": ((0x531, 0x556), (0x561, 0x586)),
    "Georgian": ((0x10A0, 0x10C5), (0x10D0, 0x10F5)),
}


@register
@dataclass(frozen=True, kw_only=True)
class Glyphs(Source):
    """Letters as classes."""

    view = options(name="small", shift=3, rotation=10.0, scale=0.12)

    per_class: Draws = 48
    worst: Fraction = 1.0
    val_fraction: Share = 0.15

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Render the letters; no files are needed."""
        kept, glyphs, note = distinct_letters()
        half = [letter for script in by_script(kept) for letter in script[0::2]]
        rest = [letter for script in by_script(kept) for letter in script[1::2]]
        images, columns = draw_images(glyphs, half + rest, self.per_class, seed, self.worst)
        train = np.arange(len(half))
        val = hold_out_classes(train, self.val_fraction, np.random.default_rng(seed))
        label = columns["label"]
        columns["split"] = np.where(np.isin(label, val), "val", np.where(label < len(half), "train", "test"))
        return Table(columns, images.__getitem__, "open_set", DESCRIPTION, notes=[note])


def distinct_letters() -> tuple[list[str], _faces.Glyphs, str]:
    """Return letters of which no two look alike, all glyphs, and a note on what was left out."""
    candidates, glyphs = letter_glyphs()
    kept = _faces.distinct(candidates, _faces.alike(glyphs, candidates))
    dropped = len(candidates) - len(kept)
    return kept, glyphs, f"{dropped} of {len(candidates)} letters look like another one and were left out"


def letter_glyphs() -> tuple[list[str], _faces.Glyphs]:
    """Return candidate letters in code-point order, and all their glyphs."""
    wanted = _faces.letters([block for blocks in SCRIPTS.values() for block in blocks])
    glyphs = _faces.render(wanted, _faces.TEXT_FACES + _faces.LATIN_FACES)
    return sorted({character for _, character in glyphs}), glyphs


def by_script(letters: list[str]) -> list[list[str]]:
    """Return the letters of each script, in code-point order."""
    return [[c for c in letters if any(a <= ord(c) <= b for a, b in blocks)] for blocks in SCRIPTS.values()]
