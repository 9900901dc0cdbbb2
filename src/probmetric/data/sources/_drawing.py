"""Draw images of characters: seeded distortions of a glyph, whose strengths are stored in the manifest.

Every image draws a severity u ~ U(0, 1) and four shares v ~ U(0, 1)^4; its strengths are s = u v, in [0, 1]:

    warp       rotation and shear up to 25 degrees * s, stretch up to 25 % * s, and a smooth displacement field
               (cubic, 4x4 knots) of up to 3 px * s
    noise      Gaussian, standard deviation 0.25 * s of the grey range
    blur       Gaussian, standard deviation 1.6 px * s
    occlusion  a rectangle of uniform grey covering 30 % * s of the image

`distortion` = root mean square of the four strengths: 0 is a clean glyph, 1 the worst case. Pose (shift, size) and
contrast vary in every image, independently of the severity, and are no part of `distortion`.

Everything is computed in float64 from uniform draws of one generator per image and rounded to 8 bits at the end.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from probmetric.data.sources._faces import Glyphs

SIZE = 32
STRENGTHS = ("warp", "noise", "blur", "occlusion")
_KNOTS = 4


def draw_strengths(rng: np.random.Generator, worst: float = 1.0) -> np.ndarray:
    """Draw strengths u v (4,) of one image, in the order of `STRENGTHS`; `worst` caps the severity u."""
    severity, *shares = rng.random(5)
    return np.array([worst * severity * share for share in shares])


def distort(mask: np.ndarray, strengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Render one image.

    Args:
        mask: the glyph's ink, square (S, S) uint8.
        strengths: how much to distort it, in the order of `STRENGTHS` (4,).
        rng: the image's own generator.

    Returns:
        (32, 32) uint8, light ink on a dark ground.
    """
    warp, noise, blur, occlusion = strengths.tolist()
    image = _warp(mask / 255.0, warp, rng)
    image = _blur(image, 0.35 + 1.6 * blur)
    ground, ink = 0.25 * rng.random(), 0.55 + 0.45 * rng.random()
    image = ground + (ink - ground) * image
    image = _occlude(image, 0.3 * occlusion, rng)
    image = image + 0.25 * noise * _normal(rng, (SIZE, SIZE))
    return np.rint(255 * np.clip(image, 0.0, 1.0)).astype(np.uint8)


def _symmetric(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw uniformly on (-1, 1)."""
    return 2.0 * rng.random(shape) - 1.0


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw standard normal numbers by Box-Muller, so that they depend on the uniform numbers alone."""
    radius = np.sqrt(-2.0 * np.log1p(-rng.random(shape)))
    return radius * np.cos(2.0 * np.pi * rng.random(shape))


def _cubic_basis() -> np.ndarray:
    """Return Catmull-Rom weights (SIZE, KNOTS) of a coarse grid at every pixel, ends clamped."""
    weights = np.zeros((SIZE, _KNOTS))
    for pixel, position in enumerate(np.linspace(0.0, _KNOTS - 1.0, SIZE)):
        base = min(int(position), _KNOTS - 2)
        t = position - base
        cubic = (
            -0.5 * t + t**2 - 0.5 * t**3,
            1 - 2.5 * t**2 + 1.5 * t**3,
            0.5 * t + 2 * t**2 - 1.5 * t**3,
            -0.5 * t**2 + 0.5 * t**3,
        )
        for offset, value in zip((-1, 0, 1, 2), cubic, strict=True):
            weights[pixel, min(max(base + offset, 0), _KNOTS - 1)] += value
    return weights


_BASIS = _cubic_basis()


def _warp(mask: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Sample the mask (S, S) on a rotated, sheared, stretched and smoothly displaced 32x32 grid."""
    from scipy.ndimage import map_coordinates

    shift = 2.0 * _symmetric(rng, 2, 1, 1)
    side = 18.0 + 8.0 * rng.random()  # longer side of the glyph in pixels
    angle, shear = np.deg2rad(25.0) * strength * _symmetric(rng, 2)
    stretch = 1.0 + 0.25 * strength * _symmetric(rng, 2)
    field = np.einsum("yk,dkl,xl->dyx", _BASIS, 3.0 * strength * _symmetric(rng, 2, _KNOTS, _KNOTS), _BASIS)
    rotate = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    affine = rotate @ np.array([[1.0, 0.0], [np.tan(shear), 1.0]]) @ np.diag(stretch)
    centre = (SIZE - 1) / 2.0
    grid = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")) - centre - shift + field
    source = np.einsum("ij,jyx->iyx", affine, grid) * (len(mask) / side) + (len(mask) - 1) / 2.0
    return np.asarray(map_coordinates(mask, source, order=1, mode="constant"))


def _blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blur a (32, 32) image by a Gaussian, as two products with a banded matrix; the border is extended."""
    position = np.arange(SIZE)
    kernel = np.exp(-0.5 * ((position[:, None] - position[None]) / sigma) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    return kernel @ image @ kernel.T


def _occlude(image: np.ndarray, area: float, rng: np.random.Generator) -> np.ndarray:
    """Cover a share `area` of the image by a rectangle of uniform grey, aspect ratio 1/2 to 2."""
    ratio, top, left, grey = rng.random(4)
    aspect = 2.0 ** (2.0 * ratio - 1.0)
    height, width = (min(SIZE, round(SIZE * (area * r) ** 0.5)) for r in (aspect, 1.0 / aspect))
    y, x = (int(place * (SIZE - size + 1)) for place, size in ((top, height), (left, width)))
    covered = image.copy()
    covered[y : y + height, x : x + width] = grey
    return covered


def draw_images(
    glyphs: Glyphs, characters: Sequence[str], per_class: int, seed: int, worst: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draw `per_class` images of every character.

    The faces of a character take turns, starting at a random one, so the faces appear equally often (to within one).
    Every image has its own generator, seeded by (seed, code point, number), so an added character or image changes no
    other image.

    Args:
        glyphs: (face, character) -> ink.
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
    images, drawn, rows = [], [], []
    for label, character in enumerate(characters):
        code = ord(character)
        start = int(np.random.default_rng([seed, code]).random() * len(faces[character]))
        for number in range(per_class):
            face = faces[character][(start + number) % len(faces[character])]
            rng = np.random.default_rng([seed, code, number])
            drawn.append(draw_strengths(rng, worst))
            images.append(distort(glyphs[face, character], drawn[-1], rng))
            rows.append((f"U+{code:04X}/{number:03d}-{face}.png", label, unicodedata.name(character), character, face))
    names = ("path", "label", "class_name", "character", "font")
    columns = {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    strengths = np.stack(drawn)
    columns |= dict(zip(STRENGTHS, strengths.T, strict=True))
    columns["distortion"] = np.sqrt(np.mean(strengths**2, axis=1))
    return np.stack(images)[..., None], columns
