"""Letters of scripts that `glyphs` has not: what networks are pretrained on here before they are fine-tuned on letters.

Hebrew, Arabic, N'Ko, Lao, Tifinagh and Canadian syllabics in the DejaVu faces that have them, at least two each,
distorted like the glyphs. A letter that looks like one of `glyphs` (or one left out there), like a symbol of `symbols`
or like an earlier letter is not used, so that no class is in anybody's training, validation, test or
out-of-distribution images. Closed-set: every class is in every split, no image in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probmetric.data.sources import RawFiles, Source, Table, _faces, options, register
from probmetric.data.sources._drawing import draw_images
from probmetric.data.sources.glyphs import letter_glyphs
from probmetric.data.sources.symbols import symbol_glyphs
from probmetric.data.splits import stratified_splits
from probmetric.registry import Count, Draws, Fraction, Share

SCRIPTS = {
    "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x621, 0x6D3),
    "N'Ko": (0x7CA, 0x7EA),
    "Lao": (0xE81, 0xEAE),
    "Canadian syllabics": (0x1401, 0x1676),
    "Tifinagh": (0x2D30, 0x2D67),
}
MIN_FACES = 2


@register
@dataclass(frozen=True, kw_only=True)
class OtherScripts(Source):
    """Letters of other scripts as classes, all of them seen in training."""

    closed_set = True
    view = options(name="small", shift=3, rotation=10.0, scale=0.12)

    classes: Count = 200
    per_class: Draws = 32
    worst: Fraction = 1.0
    test_fraction: Share = 0.2
    val_fraction: Share = 0.15

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Render the letters; no files are needed."""
        glyphs = _faces.render(_faces.letters(SCRIPTS.values()), _faces.TEXT_FACES)
        candidates = _faces.in_faces(glyphs, MIN_FACES)
        letters, letter_images = letter_glyphs()
        symbols, symbol_images = symbol_glyphs()
        everything = [*letters, *symbols, *candidates]
        kept = _faces.distinct(everything, _faces.alike(letter_images | symbol_images | glyphs, everything))
        unlike = [c for c in kept if c in set(candidates)]
        order = np.random.default_rng(seed).permutation(len(unlike))[: self.classes]
        images, columns = draw_images(glyphs, [unlike[i] for i in sorted(order)], self.per_class, seed, self.worst)
        rng = np.random.default_rng(seed)
        columns["split"] = stratified_splits(columns["label"], self.test_fraction, self.val_fraction, rng)
        return Table(
            columns,
            images.__getitem__,
            "closed_set",
            "letters of six scripts that glyphs has not, in matplotlib's DejaVu faces, 32x32 grey, distorted",
            notes=[
                f"{len(candidates) - len(unlike)} of {len(candidates)} letters look like one of glyphs, a symbol or "
                "another letter"
            ],
        )
