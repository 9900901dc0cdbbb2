"""Make images whose class posterior is a finite sum: templates plus Gaussian pixel noise, rounded to stored pixels.

A template is one letter in one face at one shift, ink (1) or paper (0) at every pixel of a square. An image is one
with noise: pixel = round(PAPER + INK t + INK sigma n), n standard normal, cut to 0..255. Class, face, shift and the
noise level sigma are drawn uniformly. Files hold pixels, so the likelihood is that of the rounded and cut value,
P(v | t, sigma) = Phi((v + 1/2 - m) / s) - Phi((v - 1/2 - m) / s), open at 0 and 255, with m = PAPER + INK t and
s = INK sigma. With binary templates one matrix product gives the log-likelihoods of all templates:

    log P(x | t, sigma) = sum_p log P(x_p | 0, sigma) + sum_p t_p [log P(x_p | 1, sigma) - log P(x_p | 0, sigma)]
    P(c | x) = sum_sigma sum_(t of c) P(x | t, sigma) / (same over all classes)
    P(same class | x, y) = sum_c P(c | x) P(c | y)

The sums are over the classes of the image's split only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray

from probmetric.data.manifest import load_columns
from probmetric.data.sources._faces import TEXT_FACES, fit, render
from probmetric.data.store import open_images
from probmetric.metrics.arrays import Bools, Doubles, Ints

SIDE, BOX, SHIFTS = 16, 12, (-1, 0, 1)
PAPER, INK = 112.0, 32.0
LEVELS = (0.5, 0.9, 1.2, 1.6)
ROWS = 512
FACES = 12


@dataclass(frozen=True)
class Templates:
    """Templates of C classes: `ink` (T, P) float64 zeros and ones, `owner` (T,) class 0..C-1 of each, ascending."""

    ink: Doubles
    owner: Ints

    @classmethod
    def of(cls, characters: Sequence[str]) -> Templates:
        """Make templates of letters, one class per letter, in every shift and in the first faces that have the letter.

        Raises:
            DataError: matplotlib, whose fonts are read, is not installed.
        """
        glyphs = render(characters, TEXT_FACES)
        ink, owner = [], []
        for number, character in enumerate(characters):
            masks = [glyphs[face, character] for face in TEXT_FACES if (face, character) in glyphs][:FACES]
            for mask in masks:
                small = fit(mask, BOX)
                assert small is not None  # the glyph has ink
                ink += [shifted(small > 127, down, right) for down in SHIFTS for right in SHIFTS]
                owner += [number] * len(SHIFTS) ** 2
        return cls(np.stack(ink).reshape(len(ink), -1).astype(np.float64), np.array(owner))

    def posterior(self, images: NDArray[np.uint8]) -> Doubles:
        """Return P(class | image) (N, C) of `images` (N, ...) of as many pixels; rows sum to 1."""
        flat = np.asarray(images).reshape(len(images), -1)
        if flat.dtype != np.uint8 or flat.shape[1] != self.ink.shape[1]:
            raise ValueError(
                f"images have shape {images.shape}, dtype {images.dtype}; expected (N, {SIDE}, {SIDE}, 1) uint8."
            )
        tables = [log_likelihoods(sigma) for sigma in LEVELS]
        parts = [self._posterior(flat[start : start + ROWS], tables) for start in range(0, len(flat), ROWS)]
        return np.concatenate(parts)

    def _posterior(self, flat: NDArray[np.uint8], tables: Sequence[Doubles]) -> Doubles:
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        size = np.diff(np.append(starts, len(self.owner)))
        joints = []
        for paper, ink in tables:
            each = paper[flat].sum(axis=1)[:, None] + (ink - paper)[flat] @ self.ink.T
            top = np.maximum.reduceat(each, starts, axis=1)
            sums = np.add.reduceat(np.exp(each - np.repeat(top, size, axis=1)), starts, axis=1)
            joints.append(top + np.log(sums / size))
        joint = np.logaddexp.reduce(joints, axis=0)
        return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))


def shifted(ink: Bools, down: int, right: int) -> Bools:
    """Return the box (BOX, BOX) in the middle of the square (SIDE, SIDE), moved."""
    margin = (SIDE - BOX) // 2
    return np.pad(ink, [(margin + moved, margin - moved) for moved in (down, right)])


def log_likelihoods(sigma: float) -> Doubles:
    """Return log P(v | t, sigma) (2, 256) of the pixel values v on paper and on ink."""
    edges = np.append(np.append(-np.inf, np.arange(255) + 0.5), np.inf)
    table = []
    for mean in (PAPER, PAPER + INK):
        z = (edges - mean) / (INK * sigma)
        upper = z[:-1] > 0  # the smaller tail keeps its digits
        high, low = np.where(upper, -z[:-1], z[1:]), np.where(upper, -z[1:], z[:-1])
        a, b = scipy.special.log_ndtr(high), scipy.special.log_ndtr(low)
        table.append(a + np.log1p(-np.exp(b - a)))
    return np.stack(table)


def drawn(templates: Templates, owner: int, sigma: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw an image (SIDE, SIDE, 1) of class `owner` at noise level `sigma`."""
    ink = templates.ink[rng.choice(np.flatnonzero(templates.owner == owner))]
    noisy = PAPER + INK * (ink + sigma * rng.standard_normal(len(ink)))
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8).reshape(SIDE, SIDE, 1)


def split_posterior(folder: str | Path, index: Ints) -> tuple[Doubles, Ints]:
    """Return P(class | image) (n, C) of the rows `index` (n,) in one split of `letters_exact`, and the labels (C,)."""
    columns = load_columns(folder, ["label", "split", "character"])
    same = columns["split"] == columns["split"][index[0]]
    labels, first = np.unique(columns["label"][same], return_index=True)
    templates = Templates.of(columns["character"][same][first].tolist())
    store = open_images(Path(folder))
    return templates.posterior(np.stack([store[int(row)] for row in index])), labels
