"""Render characters in the font faces of matplotlib, and find characters that look alike in them.

Glyphs are rasterised unhinted with matplotlib's FreeType at 64 px, cropped to their ink and scaled so that the
longer side fits a square. Position and size carry no information then; the aspect ratio still does.

Two characters are *alike in a face* if at most 3 % of the ink of either lies further than 1.5/24 of the square's
side from the other's ink (a partial Hausdorff distance), and *alike* if that holds in at least a quarter of the
faces that have both. For example, Latin A, Greek Alpha and Cyrillic A are alike, also o and O, s and S, v and V. Only
the first code point of every group is kept.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from probmetric.data.manifest import DataError

_STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
TEXT_FACES = tuple(family + style for family, styles in _STYLES.items() for style in styles)
LATIN_FACES = ("cmr10", "cmss10", "cmtt10", "cmti10", "cmb10")
PIXELS = 64
BOX = 24
REACH, STRAY, SHARE = 1.5, 0.03, 0.25


Glyphs = dict[tuple[str, str], np.ndarray]
"""(face, character) -> its ink (PIXELS, PIXELS) uint8, centred and scaled to the square."""


def render(characters: Iterable[str], faces: Sequence[str]) -> Glyphs:
    """Rasterise every character in every face that has it: (face, character) -> ink.

    A face has a character if its character map leads to a glyph other than `.notdef` that has ink.
    """
    try:
        import matplotlib
        from matplotlib.ft2font import FT2Font, LoadFlags
    except ImportError as error:
        fix = "install it: pip install 'probmetric[all]' 'matplotlib>=3.10'"
        raise DataError(f"glyphs and symbols are rendered from matplotlib's font files; {fix}.") from error
    glyphs: Glyphs = {}
    wanted = sorted(characters)
    for face in faces:
        font = FT2Font(f"{matplotlib.get_data_path()}/fonts/ttf/{face}.ttf")
        font.set_size(PIXELS, 72)
        codes = font.get_charmap()
        for character in wanted:
            if codes.get(ord(character), 0) == 0 or (face in LATIN_FACES and not character.isascii()):
                continue
            font.set_text(character, 0.0, flags=LoadFlags.NO_HINTING)
            font.draw_glyphs_to_bitmap(antialiased=True)
            mask = fit(np.array(font.get_image()), PIXELS)
            if mask is not None:
                glyphs[face, character] = mask
    return glyphs


def fit(ink: np.ndarray, side: int) -> np.ndarray | None:
    """Crop an ink map (h, w) uint8 and scale it to fit (side, side); None if it is empty."""
    from PIL import Image

    rows, columns = np.flatnonzero(ink.max(axis=1) > 63), np.flatnonzero(ink.max(axis=0) > 63)
    if not len(rows):
        return None
    crop = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = side / max(crop.shape)
    height, width = (max(1, round(size * scale)) for size in crop.shape)
    small = np.asarray(Image.fromarray(crop).resize((width, height), Image.Resampling.BILINEAR))
    square = np.zeros((side, side), dtype=np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = small
    return square


def letters(blocks: Iterable[tuple[int, int]]) -> list[str]:
    """Return letters of the code-point ranges (ends included), without those that carry an accent."""
    every = [chr(code) for first, last in blocks for code in range(first, last + 1)]
    kept = {c for c in every if unicodedata.category(c) in ("Lu", "Ll", "Lo") and not unicodedata.decomposition(c)}
    return sorted(kept)


def in_faces(glyphs: Iterable[tuple[str, str]], fewest: int) -> list[str]:
    """Return the characters that at least `fewest` faces have, in code-point order; `glyphs` are (face, character)."""
    faces = Counter(character for _, character in glyphs)
    return sorted(character for character, count in faces.items() if count >= fewest)


def alike(glyphs: Glyphs, characters: Sequence[str]) -> np.ndarray:
    """Say which characters are visually identical, by the rule in the module docstring.

    Args:
        glyphs: (face, character) -> ink.
        characters: the n characters to compare.

    Returns:
        Symmetric (n, n) bool; the diagonal is True.
    """
    from scipy.ndimage import distance_transform_edt

    same = np.zeros((len(characters), len(characters)))
    shared = np.zeros_like(same)
    for face in sorted({face for face, _ in glyphs}):
        rows = np.array([i for i, c in enumerate(characters) if (face, c) in glyphs])
        if not len(rows):
            continue
        ink = np.stack([_small(glyphs[face, characters[i]]) for i in rows])
        far = np.stack([distance_transform_edt(~mask) > REACH for mask in ink]).reshape(len(rows), -1)
        flat = ink.reshape(len(rows), -1)
        stray = flat.astype(np.float64) @ far.astype(np.float64).T / flat.sum(axis=1, keepdims=True)
        same[np.ix_(rows, rows)] += np.maximum(stray, stray.T) <= STRAY
        shared[np.ix_(rows, rows)] += 1
    return (same >= SHARE * shared) & (shared > 0)


def _small(mask: np.ndarray) -> np.ndarray:
    """Return the ink (BOX, BOX) bool of a glyph's square; at least one pixel is set."""
    from PIL import Image

    values = np.asarray(Image.fromarray(mask).resize((BOX, BOX), Image.Resampling.BOX))
    return values >= max(1, min(128, int(values.max())))


def distinct(characters: Sequence[str], same: np.ndarray) -> list[str]:
    """Return the first character, in the order given, of every group that looks alike.

    Args:
        characters: n characters.
        same: (n, n) bool from `alike`.
    """
    kept: list[int] = []
    for i in range(len(characters)):
        if not same[i, kept].any():
            kept.append(i)
    return [characters[i] for i in kept]
