"""Images of characters: which face, which distortion, in which order; shared by `glyphs` and `symbols`."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from probmetric.data.sources._distort import STRENGTHS, Strengths, distort, draw_strengths
from probmetric.data.sources._faces import Glyph


def draw_images(
    glyphs: dict[tuple[str, str], Glyph], characters: Sequence[str], per_class: int, seed: int, worst: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draw `per_class` images of every character.

    The faces of a character take turns, starting at a random one, so every face appears equally often (to within
    one). Every image has its own generator, seeded by (seed, code point, number): adding a character or images
    changes no other image.

    Args:
        glyphs: (face, character) -> glyph.
        characters: the classes, in label order.
        per_class: images per class.
        seed: seed of the data set.
        worst: largest severity, in (0, 1].

    Returns:
        Images (N, 32, 32, 1) uint8 and the manifest columns (path, label, class_name, character, font, the four
        strengths, distortion), class by class.
    """
    faces: dict[str, list[str]] = {}
    for face, character in glyphs:
        faces.setdefault(character, []).append(face)
    images, rows = [], []
    for label, character in enumerate(characters):
        code = ord(character)
        start = int(np.random.default_rng([seed, code]).random() * len(faces[character]))
        for number in range(per_class):
            face = faces[character][(start + number) % len(faces[character])]
            rng = np.random.default_rng([seed, code, number])
            strengths = draw_strengths(rng, worst)
            images.append(distort(glyphs[face, character].mask, strengths, rng))
            rows.append((f"U+{code:04X}/{number:03d}-{face}.png", label, character, face, strengths))
    return np.stack(images)[..., None], _columns(rows)


def _columns(rows: list[tuple[str, int, str, str, Strengths]]) -> dict[str, np.ndarray]:
    paths, labels, characters, faces, strengths = zip(*rows, strict=True)
    columns = {
        "path": np.array(paths),
        "label": np.array(labels, dtype=np.int64),
        "class_name": np.array([unicodedata.name(character) for character in characters]),
        "character": np.array(characters),
        "font": np.array(faces),
    }
    columns |= {name: np.array([getattr(s, name) for s in strengths]) for name in STRENGTHS}
    columns["distortion"] = np.array([s.distortion for s in strengths])
    return columns
