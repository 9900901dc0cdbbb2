"""Mathematical and technical symbols, rendered as the glyphs are: out-of-distribution images for them.

Arrows, mathematical operators, technical signs and geometric shapes that at least four faces have. A symbol that
looks like any letter (of `glyphs`, or one left out there), or like an earlier symbol, is not used. All images are
test images.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np

from probmetric.data.sources import RawFiles, Source, Table, _faces, options, register
from probmetric.data.sources._drawing import draw_images
from probmetric.data.sources.glyphs import letter_glyphs
from probmetric.registry import Count, Draws, Fraction

BLOCKS = ((0x2190, 0x21FF), (0x2200, 0x22FF), (0x2300, 0x23FF), (0x25A0, 0x25FF))
MIN_FACES = 4


@register
@dataclass(frozen=True, kw_only=True)
class Symbols(Source):
    """Symbols, test split only."""

    view = options(name="small")

    classes: Count = 120
    per_class: Draws = 16
    worst: Fraction = 1.0

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Render the symbols; no files are needed."""
        letters, letter_images = letter_glyphs()
        symbols, glyphs = symbol_glyphs()
        everything = letters + symbols
        kept = _faces.distinct(everything, _faces.alike(letter_images | glyphs, everything))
        unlike = [c for c in kept if c not in set(letters)]
        order = np.random.default_rng(seed).permutation(len(unlike))[: self.classes]
        chosen = [unlike[i] for i in sorted(order)]
        images, columns = draw_images(glyphs, chosen, self.per_class, seed, self.worst)
        columns["split"] = np.full(len(images), "test")
        return Table(
            columns,
            images.__getitem__,
            "open_set",
            "mathematical and technical symbols in matplotlib's DejaVu and STIX faces, 32x32 grey, distorted",
            notes=[f"{len(symbols) - len(unlike)} of {len(symbols)} symbols look like a letter or another symbol"],
        )


def symbol_glyphs() -> tuple[list[str], _faces.Glyphs]:
    """Return candidate symbols in code-point order, and the glyphs of all symbols of the blocks."""
    codes = [chr(code) for first, last in BLOCKS for code in range(first, last + 1)]
    glyphs = _faces.render([c for c in codes if unicodedata.category(c)[0] == "S"], _faces.TEXT_FACES)
    return _faces.in_faces(glyphs, MIN_FACES), glyphs
