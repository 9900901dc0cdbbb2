"""Characters rendered from the fonts that ship inside matplotlib.

`glyphs` are Latin, Greek, Cyrillic, Armenian and Georgian letters without accents, every letter in all DejaVu and STIX
faces that have it (8 to 21 faces); `glyphs_closed`, `symbols` and `other_scripts` go with them. All are distorted as
`_drawing` says. Letters that look the same (across scripts, or upper and lower case at equal size) are one class, named
by the first code point; see `_faces`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np

from probmetric.data.sources import RawFiles, Source, Table, _faces, options, register
from probmetric.data.sources._drawing import draw_images
from probmetric.data.splits import hold_out_classes, stratified_splits
from probmetric.registry import Count, Draws, Fraction, Share

DESCRIPTION = "letters of five scripts in matplotlib's DejaVu, STIX and Computer Modern faces, 32x32 grey, distorted"
SCRIPTS = {
    "Latin": ((0x41, 0x5A), (0x61, 0x7A), (0xDF, 0x167)),
    "Greek": ((0x391, 0x3A9), (0x3B1, 0x3C9)),
    "Cyrillic": ((0x402, 0x45F),),
    "Armenian": ((0x531, 0x556), (0x561, 0x586)),
    "Georgian": ((0x10A0, 0x10C5), (0x10D0, 0x10F5)),
}
SYMBOLS = ((0x2190, 0x21FF), (0x2200, 0x22FF), (0x2300, 0x23FF), (0x25A0, 0x25FF))
OTHER_SCRIPTS = {
    "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x621, 0x6D3),
    "N'Ko": (0x7CA, 0x7EA),
    "Lao": (0xE81, 0xEAE),
    "Canadian syllabics": (0x1401, 0x1676),
    "Tifinagh": (0x2D30, 0x2D67),
}
SYMBOL_FACES, OTHER_FACES = 4, 2  # in which a character must be, at least


@register("glyphs")
@dataclass(frozen=True, kw_only=True)
class Glyphs(Source):
    """Letters of five scripts, zero-shot like CUB.

    Within each script the classes go alternately to the two halves, so both halves hold every script. The first half
    of the labels trains (15 % of those classes validate), the second half is the test set.
    """

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


@register("glyphs_closed")
@dataclass(frozen=True, kw_only=True)
class GlyphsClosed(Glyphs):
    """The letters of `glyphs`, closed-set: every class is in every split, no image in two.

    Test is a stratified 30 % of the images, validation a stratified 15 % of the rest. This dataset is harder than
    `digits` (validation recall@1 of 1.000 after a few epochs): it has 226 classes, and some letters become illegible.
    """

    closed_set = True

    test_fraction: Share = 0.3

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Render the letters; no files are needed."""
        kept, glyphs, note = distinct_letters()
        images, columns = draw_images(glyphs, kept, self.per_class, seed, self.worst)
        rng = np.random.default_rng(seed)
        columns["split"] = stratified_splits(columns["label"], self.test_fraction, self.val_fraction, rng)
        return Table(columns, images.__getitem__, "closed_set", DESCRIPTION, notes=[note])


@register("symbols")
@dataclass(frozen=True, kw_only=True)
class Symbols(Source):
    """Mathematical and technical symbols: out-of-distribution images for letters. All are test images.

    Arrows, mathematical operators, technical signs and geometric shapes that at least four faces have. A symbol that
    looks like any letter (of `glyphs`, or one left out there), or like an earlier symbol, is not used.
    """

    view = options(name="small")

    classes: Count = 120
    per_class: Draws = 16
    worst: Fraction = 1.0

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Render the symbols; no files are needed."""
        symbols, glyphs = symbol_glyphs()
        unlike = _unlike(symbols, glyphs, letter_glyphs())
        images, columns = draw_images(glyphs, _drawn(unlike, self.classes, seed), self.per_class, seed, self.worst)
        columns["split"] = np.full(len(images), "test")
        return Table(
            columns,
            images.__getitem__,
            "open_set",
            "mathematical and technical symbols in matplotlib's DejaVu and STIX faces, 32x32 grey, distorted",
            notes=[f"{len(symbols) - len(unlike)} of {len(symbols)} symbols look like a letter or another symbol"],
        )


@register("other_scripts")
@dataclass(frozen=True, kw_only=True)
class OtherScripts(Source):
    """Letters of scripts that `glyphs` does not have: networks are pretrained on them, then fine-tuned on letters.

    Hebrew, Arabic, N'Ko, Lao, Tifinagh and Canadian syllabics in the DejaVu faces that have them, at least two each. A
    letter that looks like one of `glyphs` (or one left out there), like a symbol of `symbols` or like an earlier letter
    is not used, so `glyphs` and `symbols` share no class with it. Closed-set: every class is in every split, no image
    in two.
    """

    closed_set = True
    view = options(name="small", shift=3, rotation=10.0, scale=0.12)

    classes: Count = 200
    per_class: Draws = 32
    worst: Fraction = 1.0
    test_fraction: Share = 0.2
    val_fraction: Share = 0.15

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """Render the letters; no files are needed."""
        glyphs = _faces.render(_faces.letters(OTHER_SCRIPTS.values()), _faces.TEXT_FACES)
        candidates = _faces.in_faces(glyphs, OTHER_FACES)
        unlike = _unlike(candidates, glyphs, letter_glyphs(), symbol_glyphs())
        images, columns = draw_images(glyphs, _drawn(unlike, self.classes, seed), self.per_class, seed, self.worst)
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


def symbol_glyphs() -> tuple[list[str], _faces.Glyphs]:
    """Return candidate symbols in code-point order, and the glyphs of all symbols of the blocks."""
    codes = [chr(code) for first, last in SYMBOLS for code in range(first, last + 1)]
    glyphs = _faces.render([c for c in codes if unicodedata.category(c)[0] == "S"], _faces.TEXT_FACES)
    return _faces.in_faces(glyphs, SYMBOL_FACES), glyphs


def _unlike(candidates: list[str], glyphs: _faces.Glyphs, *others: tuple[list[str], _faces.Glyphs]) -> list[str]:
    """Return the `candidates` that look like none of `others` and like no earlier candidate."""
    everything = [character for characters, _ in others for character in characters] + candidates
    for _, more in others:
        glyphs = more | glyphs
    kept = _faces.distinct(everything, _faces.alike(glyphs, everything))
    return [character for character in kept if character in set(candidates)]


def _drawn(characters: list[str], count: int, seed: int) -> list[str]:
    """Draw `count` of the characters, in their order."""
    order = np.random.default_rng(seed).permutation(len(characters))[:count]
    return [characters[i] for i in sorted(order)]
