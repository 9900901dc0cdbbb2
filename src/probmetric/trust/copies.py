"""Find queries that are not independent draws: copies, bursts of one source, images that the model was trained on.

    copy     two unit vectors at a distance of at most .03 (cosine .99955): one picture, perhaps saved again. Below 64
             dimensions different pictures are this near too, so the limit is .003
    burst    successive queries that look alike: frames of one walk, photographs of one session. Among the queries of
             each class, the nearest is the one before or after more often than by chance

Twenty copies of a query are one draw. A certificate that counts them as twenty promises too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Ints
from probmetric.retrieval.neighbours import search

NEAR, NEAR_IN_FEW, FEW = 0.03, 0.003, 64
NEARER = 0.1  # (1 - first cosine) / (1 - second cosine) if a query finds itself; .94 for other photographs
ROUNDING = 2e-7  # of a cosine
DIMENSIONS = 12
PAIRS = 16_384  # distances computed at once
SEEN = 2000
GROUPS = (
    *("group", "session", "person", "identity", "subject", "patient"),
    *("camera", "video", "sequence", "track", "burst"),
)


def copy_groups(rows: Any) -> Ints:
    """Return the number (N,) of the picture that each unit row (N, M) shows; copies have the same number.

    Examples:
        >>> copy_groups([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).tolist()
        [0, 1, 0]
    """
    vectors = arrays.matrix(rows, "rows")
    marks = np.array([hash(row.tobytes()) for row in vectors])
    _, first, exact = np.unique(marks, return_index=True, return_inverse=True)
    values = vectors if len(first) == len(vectors) else vectors[first]
    exact = exact if len(first) < len(vectors) else np.arange(len(vectors))
    numbers = _linked(values, _near(vectors.shape[1]))[exact]
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def distinct(rows: Any) -> Ints:
    """Return which of the unit rows (N, M) show a picture for the first time, as row numbers (K,)."""
    return np.sort(np.unique(copy_groups(rows), return_index=True)[1])


def copies_of(rows: Any, others: Any) -> Bools:
    """Return which of the unit rows (N, M) are copies of one of the `others` (K, M), such as training images.

    Examples:
        >>> copies_of([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.6, 0.8]]).tolist()
        [False, True]
    """
    vectors, shown = arrays.matrix(rows, "rows"), arrays.matrix(others, "others")
    if vectors.shape[1] != shown.shape[1]:
        raise ValueError(f"rows have {vectors.shape[1]} dimensions, others {shown.shape[1]}; give rows of one model.")
    nearest = search(vectors, shown).rows[:, 0]
    return np.asarray(_distance(vectors, shown[nearest]) <= _near(vectors.shape[1]))


def same_picture(cosines: Any, width: int) -> Bools:
    """Return, in the shape of `cosines`, which ones mean copies among unit rows of `width` dimensions."""
    return np.asarray(cosines >= 1 - _near(width) ** 2 / 2)


def find_themselves(similarity: Any, width: int) -> Bools:
    """Return which queries (Q,) find a copy of themselves, perhaps rounded or compressed, in a gallery.

    If images of a class are close together, a query is about as near to the second as to the first. In few dimensions
    other images are as near by chance, so a copy may differ only by the rounding of a cosine.

    Args:
        similarity: (Q, k) cosines of the nearest, best first.
        width: dimensions of the unit rows; `FEW` if unknown.
    """
    apart = 1.0 - similarity[:, :2].astype(np.float64)
    near = same_picture(similarity[:, 0], width) & (apart[:, 0] <= NEARER * apart[:, -1])
    return (apart[:, 0] <= ROUNDING) | near if width >= FEW else apart[:, 0] <= ROUNDING


def burst_sentence(rows: Any, labels: Any = None, columns: Any = ()) -> str:
    """Return a sentence with the signs that queries are not independent; "" without such signs.

    Args:
        rows: (N, M) rows of the queries, of any length, in the order in which they came; only the first `SEEN` count.
        labels: (N,) classes of the queries, so that an order by class is not taken for bursts.
        columns: names of columns that come with the queries and are not used as groups.
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise TypeError(f"columns is {columns!r:.80}; expected names of columns.")
    vectors = arrays.normalized(arrays.matrix(rows, "rows")[:SEEN])
    classes = np.zeros(len(rows), int) if labels is None else arrays.names_of(labels, "labels", count=len(rows))[1]
    classes = classes[:SEEN]
    beside, expected, variance = 0, 0.0, 0.0
    for number in np.unique(classes):
        block = vectors[classes == number]
        count = len(block)
        if count > 3:
            cosines = block @ block.T
            np.fill_diagonal(cosines, -np.inf)
            beside += int((np.abs(cosines.argmax(axis=1) - np.arange(count)) == 1).sum())
            chance = np.r_[1, np.full(count - 2, 2), 1] / (count - 1)
            expected, variance = expected + chance.sum(), variance + (chance * (1 - chance)).sum()
    named = [name for name in columns if str(name).lower() in GROUPS]
    sentences = []
    if beside > 1.5 * expected + 5 * math.sqrt(variance):
        sentences.append(
            f"the query most like a query comes just before or after it {beside} times, where {expected:.0f} are due "
            "to chance: these look like bursts of one source, which are not independent. Name the source: groups"
        )
    if named:
        sentences.append(f"the column {named[0]!r} says what queries share and is not used: pass it as groups")
    return "; ".join(sentences)


def _near(width: int) -> float:
    return NEAR if width >= FEW else NEAR_IN_FEW


def _linked(rows: Any, near: float) -> Ints:
    """Return the set number (N,) of each of the rows (N, M); distances up to `near` link rows to a set.

    Each row is asked for near rows without a set. The tree is rebuilt when half of its rows have one, so n copies do
    not cost the time or memory of their n^2 pairs.
    """
    places = _projected(rows)
    waiting, tree = np.arange(len(rows)), scipy.spatial.cKDTree(places)
    numbers, count = np.full(len(rows), -1), 0
    alone = ~np.isfinite(tree.query(places, 2, distance_upper_bound=np.nextafter(near, 1))[0][:, 1])
    numbers[alone] = np.flatnonzero(alone)
    for first in np.flatnonzero(~alone).tolist():
        reached = [first] if numbers[first] < 0 else []
        numbers[reached] = first
        while reached:
            row = reached.pop()
            candidates = waiting[tree.query_ball_point(places[row], near)]
            candidates = candidates[numbers[candidates] < 0]
            for part in np.split(candidates, range(PAIRS, len(candidates), PAIRS)):
                part = part[_distance(rows[part], rows[row]) <= near]
                numbers[part] = first
                reached += part.tolist()
                count += len(part)
            if 2 * count > len(waiting):
                waiting, count = np.flatnonzero(numbers < 0), 0
                tree = scipy.spatial.cKDTree(places[waiting])
    return numbers


def _projected(vectors: Any) -> Any:
    """Return projections (N, D) of rows (N, M), which are no farther apart than the rows."""
    width = vectors.shape[1]
    if width <= DIMENSIONS:
        return vectors
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((width, DIMENSIONS)))[0]
    return vectors @ turn.astype(vectors.dtype)


def _distance(first: Any, second: Any) -> Any:
    return np.linalg.norm(first - second, axis=1)
