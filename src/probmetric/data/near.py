"""Find images that look the same: copies at another size, saved again, or slightly brighter.

The mark of an image has 256 bits: each says for one of 16 x 16 places whether the image gets brighter to the right
(Krawetz's difference hash). Two images look the same if their marks differ in at most `DIFFERENT` bits. At least one
32-bit piece of the two marks is then equal, so candidates are found by equal pieces. Images with hardly any structure
have no mark. Pieces that very many images share (empty margins) are not used.
"""

from __future__ import annotations

import numpy as np
import scipy

from probmetric.metrics.arrays import products

SIDE, DIFFERENT, PIECES = 16, 6, 8
PLAIN, CROWD = 24, 400


def mark_of(pixels: np.ndarray) -> bytes:
    """Return the mark, 32 bytes, of an image (H, W, C) uint8; zeros where there is too little structure."""
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("L")
    small = np.asarray(image.resize((SIDE + 1, SIDE), Image.Resampling.BOX), dtype=np.int16)
    brighter = small[:, 1:] > small[:, :-1] + 1
    count = int(brighter.sum())
    return np.packbits(brighter).tobytes() if PLAIN <= count <= brighter.size - PLAIN else bytes(32)


def alike(marks: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return a number (N,) for each image; images that are the same or look the same have one number.

    If a looks like b, and b like c, all three have one number.

    Args:
        marks: marks of the images (N, 32) uint8; zeros where there is none.
        keys: key of each image (N,); equal images have equal keys.
    """
    order = np.argsort(keys, kind="stable")
    equal = keys[order[1:]] == keys[order[:-1]]
    pairs = [np.stack([order[:-1][equal], order[1:][equal]], axis=1)]
    marked = np.flatnonzero(marks.any(axis=1))
    whole = np.ascontiguousarray(marks[marked]).view(f"S{marks.shape[1]}").reshape(-1)
    _, first, same = np.unique(whole, return_index=True, return_inverse=True)
    pairs.append(np.stack([marked[first][same], marked], axis=1))
    marked = marked[first]  # only one of several equal marks is compared: there may be very many
    for piece in range(PIECES):
        parts = np.ascontiguousarray(marks[marked, 4 * piece : 4 * piece + 4]).view(np.uint32).reshape(-1)
        order = np.argsort(parts, kind="stable")
        for members in np.split(marked[order], np.flatnonzero(np.diff(parts[order])) + 1):
            if 2 <= len(members) <= CROWD:
                pairs.append(_near(members, marks))
    first, second = np.concatenate(pairs).T
    graph = scipy.sparse.coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(len(keys), len(keys)))
    return np.asarray(scipy.sparse.csgraph.connected_components(graph, directed=False)[1])


def _near(members: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Return pairs (P, 2) of `members` (n,) whose marks differ little."""
    bits = np.unpackbits(marks[members], axis=1).astype(np.float32)
    size = bits.sum(axis=1)
    apart = size[:, None] + size[None] - 2 * products(bits, bits)
    first, second = np.nonzero(np.triu(apart <= DIFFERENT, k=1))
    return np.stack([members[first], members[second]], axis=1)
