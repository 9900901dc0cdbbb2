"""The match record: what is known of the answer to a query, beside what is known of its image.

The answer is the nearest gallery image by cosine, and its class. One exact search finds the K nearest; the nearest of
another class is among them, or is looked for block by block (no more than a block of rows and one of products is held).
Where all images of a set are asked among the others, one symmetric pass lists both (see `_nearest_compiled`).

    nearest, nearest_class   row and class of the answer
    cosine                   with the answer; higher = surer
    gap                      cosine of the answer - cosine of the nearest image of another class; higher = surer
    disagreement             share of the k nearest whose class is not the answer's
    entropy                  of the classes of the k nearest, in nats

Registered scores (`probmetric.trust.scores`) turn it, and what the method says of both images, into doubts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.retrieval._keys import keys, on_grid, steps_of
from probmetric.retrieval.gallery import BLOCK_ROWS, Gallery
from probmetric.retrieval.neighbours import EXACT_BYTES, FAISS_FROM, by_all_keys, devices, nearest_neighbours
from probmetric.retrieval.ranks import worth_compiling

if TYPE_CHECKING:
    from probmetric.retrieval._nearest_compiled import Lists

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
NEAREST = 10
LONGEST_LIST = 64


class GalleryRows(Mapping[str, NDArray[Any]]):
    """Some rows (Q,) of a gallery's record, tensor name -> (N, ...); gathered where a tensor is asked for."""

    def __init__(self, record: Mapping[str, Any], index: Ints) -> None:
        """Take rows `index` (Q,) of the tensors of `record`."""
        self._record, self._index = record, index

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The tensor's rows (Q, ...)."""
        return arrays.to_numpy(self._record[name])[self._index]

    def __contains__(self, name: object) -> bool:
        """Whether the record has the tensor; gathers nothing."""
        return name in self._record

    def __iter__(self) -> Iterator[str]:
        """Names of the tensors."""
        return iter(self._record)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._record)

    def rows(self, kept: NDArray[np.bool_] | slice) -> GalleryRows:
        """Those of the rows that are `kept`."""
        return GalleryRows(self._record, self._index[kept])


@dataclass(frozen=True)
class Match:
    """What one search found for Q queries.

    Attributes:
        similarity: cosines (Q,K) of the K nearest, descending.
        indices: their gallery rows (Q,K).
        classes: their classes (Q,K).
        gap: (Q,) how much nearer the answer is than the nearest image of another class; None where all are of one.
        query: tensor name -> (Q, ...): the record of the queries, such as uncertainty (Q,).
        answer: tensor name -> (Q, ...): the record of the answers; read from the gallery's where it is asked for.
    """

    similarity: Doubles
    indices: Ints
    classes: Ints
    gap: Doubles | None
    query: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    answer: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of queries Q."""
        return len(self.similarity)

    def rows(self, kept: NDArray[np.bool_] | slice) -> Match:
        """The same of the queries that are `kept`: (Q,), or a slice."""
        gap = None if self.gap is None else self.gap[kept]
        query = {name: values[kept] for name, values in self.query.items()}
        answer = self.answer if isinstance(self.answer, GalleryRows) else GalleryRows(self.answer, np.arange(len(self)))
        return Match(self.similarity[kept], self.indices[kept], self.classes[kept], gap, query, answer.rows(kept))

    @property
    def record(self) -> dict[str, NDArray[Any]]:
        """The arrays (Q,) of the module docstring, by name; no gap in a gallery of one class."""
        found: dict[str, NDArray[Any]] = {
            "nearest": self.indices[:, 0],
            "nearest_class": self.classes[:, 0],
            "cosine": self.similarity[:, 0],
            "disagreement": (self.classes != self.classes[:, :1]).mean(axis=1),
            "entropy": entropy(self.classes),
        }
        return found if self.gap is None else found | {"gap": self.gap}


def match_scores(
    queries: Any, gallery: Any, gallery_labels: Any = None, *, k: int = NEAREST, self_index: Any = None
) -> dict[str, NDArray[Any]]:
    """The match record of unit rows `queries` (Q,M) in a gallery: name -> (Q,), as in the module docstring.

    Args:
        queries: (Q,M) unit rows.
        gallery: (N,M) unit rows, or a `Gallery`.
        gallery_labels: (N,) classes; those of a `Gallery` by default.
        k: neighbours that vote; fewer where the gallery is smaller.
        self_index: (Q,) gallery row that is the query itself and is not to be found, -1 for none.

    Raises:
        ValueError: no labels, labels below 0, rows that are not unit vectors; names the entry.

    Examples:
        >>> rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> found = match_scores([[0.96, 0.28]], rows, [5, 5, 7], k=3)
        >>> found["nearest_class"].tolist(), found["gap"].round(2).tolist(), found["disagreement"].round(2).tolist()
        ([5], [0.68], [0.33])
    """
    return find_match(queries, gallery, gallery_labels, k=k, self_index=self_index).record


def find_match(
    queries: Any,
    gallery: Any,
    gallery_labels: Any = None,
    *,
    k: int = NEAREST,
    self_index: Any = None,
    query: Mapping[str, Any] | None = None,
    gallery_record: Mapping[str, Any] | None = None,
    lists: Lists | None = None,
) -> Match:
    """As `match_scores`, with the record of the queries and that of the gallery's images beside it.

    Args:
        queries: (Q,M) unit rows.
        gallery: (N,M) unit rows, or a `Gallery`.
        gallery_labels: (N,) classes.
        k: neighbours that vote.
        self_index: (Q,) gallery row of each query, -1 for none.
        query: tensor name -> (Q, ...).
        gallery_record: tensor name -> (N, ...); of it the answers' rows are kept.
        lists: of these queries, labels and k, where each is asked among the others and all pairs were seen already.
    """
    asked = arrays.matrix(queries, "queries")
    labels = gallery_labels_of(gallery, gallery_labels)
    own = _own(self_index, len(asked), len(labels))
    if len(labels) < 1 + (own is not None):
        raise ValueError(f"the gallery has {len(labels)} image(s); nothing can be found in it but the query itself.")
    if lists is None:
        lists = _searched(asked, gallery, labels, own, k)
    similarity, indices = _nearest(asked, gallery, own, k) if lists is None else _settled(asked, lists)
    classes = labels[indices]
    answer = GalleryRows(gallery_record or {}, indices[:, 0])
    gap = _gap(asked, gallery, labels, own, similarity, classes, lists)
    return Match(similarity, indices, classes, gap, dict(query or {}), answer)


def gallery_labels_of(gallery: Any, labels: Any) -> Ints:
    """Labels (N,) of a gallery, checked.

    Raises:
        ValueError: there are none, or one is missing.
    """
    if labels is None and isinstance(gallery, Gallery):
        labels = gallery.labels
    if labels is None:
        raise ValueError(
            "the gallery has no labels; answers can be judged only where the class of its images is known."
        )
    return arrays.labels_of(labels, len(gallery), "gallery_labels", "the gallery")


def entropy(classes: Ints) -> Doubles:
    """Entropy (Q,), in nats, of the shares of the classes in each row of `classes` (Q,K).

    Examples:
        >>> entropy(np.array([[1, 1, 2, 2], [3, 3, 3, 3]])).round(4).tolist()
        [0.6931, 0.0]
    """
    ordered = np.sort(classes, axis=1)
    count = ordered.shape[1]
    total = np.zeros(len(ordered))
    run = np.ones(len(ordered))
    for place in range(1, count + 1):
        same = ordered[:, place] == ordered[:, place - 1] if place < count else np.zeros(len(ordered), dtype=bool)
        total[~same] += _entr(run[~same] / count)
        run = np.where(same, run + 1, 1)
    return total


def _entr(share: Doubles) -> Doubles:
    return -share * np.log(share)


def _own(self_index: Any, queries: int, rows: int) -> Ints | None:
    if self_index is None:
        return None
    index = arrays.to_numpy(self_index)
    if index.shape != (queries,) or index.dtype.kind not in "iu" or index.min() < -1 or index.max() >= rows:
        raise ValueError(
            f"self_index has shape {index.shape}, dtype {index.dtype}; expected ({queries},) integers from -1 (not in "
            f"the gallery) to {rows - 1}."
        )
    return index.astype(np.int64)


def _nearest(asked: NDArray[np.float32], gallery: Any, own: Ints | None, k: int) -> tuple[Doubles, Ints]:
    """Similarities and rows (Q,k) of the nearest that are not the query itself."""
    if own is None:
        return nearest_neighbours(asked, gallery, k=min(k, len(gallery)))
    if _among_themselves(asked, gallery, own):
        return nearest_neighbours(asked, k=min(k, len(asked) - 1))
    found = nearest_neighbours(asked, gallery, k=min(k + 1, len(gallery)))
    others = found.indices != own[:, None]
    others[others.all(axis=1), -1] = False
    shape = (len(asked), found.indices.shape[1] - 1)
    return found.similarity[others].reshape(shape), found.indices[others].reshape(shape)


def _among_themselves(asked: NDArray[np.float32], gallery: Any, own: Ints | None) -> bool:
    if own is None or isinstance(gallery, Gallery) or not np.array_equal(own, np.arange(len(gallery))):
        return False
    return np.array_equal(arrays.to_numpy(gallery), asked)


def _searched(asked: NDArray[np.float32], gallery: Any, labels: Ints, own: Ints | None, k: int) -> Lists | None:
    """Lists from a pass of their own, where it is faster than a search for each query."""
    large = len(asked) >= FAISS_FROM and worth_compiling(len(asked), len(asked), asked.shape[1])
    if not large or k > LONGEST_LIST or not _among_themselves(asked, gallery, own) or devices():
        return None
    try:
        from probmetric.retrieval._nearest_compiled import searched_lists
    except (ImportError, RuntimeError):  # not installed, or no folder where numba may keep what it compiles
        return None
    arrays.check_unit_rows(asked, "embeddings")
    return searched_lists(asked, labels, k)


def _settled(asked: NDArray[np.float32], lists: Lists) -> tuple[Doubles, Ints]:
    """Similarities and rows (Q,k) of the nearest; those that the lists do not prove are searched again."""
    similarity, indices, sure = lists.nearest()
    again = np.flatnonzero(~sure)
    if len(again):
        similarity[again], indices[again] = by_all_keys(asked, asked, again, similarity.shape[1], own=True)
    return similarity, indices


def _gap(
    asked: NDArray[np.float32],
    gallery: Any,
    labels: Ints,
    own: Ints | None,
    similarity: Doubles,
    classes: Ints,
    lists: Lists | None,
) -> Doubles | None:
    """Cosine of the answer minus that of the nearest image of another class (Q,)."""
    if labels.min() == labels.max():
        return None
    other = classes != classes[:, :1]
    first = other.argmax(axis=1)
    second = similarity[np.arange(len(asked)), first]
    far = np.flatnonzero(~other.any(axis=1))
    if lists is not None and len(far):
        listed = lists.nearest_of_others()
        known = listed.sure[far] & (classes[far, 0] == labels[far])
        second[far[known]] = listed.similarity[far[known], 0]
        far = far[~known]
    if len(far):
        mine = np.full(len(far), -1) if own is None else own[far]
        second[far] = _nearest_of_others(asked[far], classes[far, 0], mine, gallery, labels)
    return similarity[:, 0] - np.maximum(second, -1.0)  # the farthest there is, where no other class is left


def _nearest_of_others(asked: NDArray[np.float32], classes: Ints, own: Ints, gallery: Any, labels: Ints) -> Doubles:
    """Cosine (Q,) of the nearest gallery image but row `own` (Q,) whose class is not that in `classes` (Q,)."""
    grid, best = on_grid(asked, steps_of(asked, "cosine")), np.full(len(asked), -np.inf)
    for start, rows in _blocks(gallery):
        searched, step = on_grid(rows, steps_of(rows, "cosine")), max(1, EXACT_BYTES // (8 * len(rows)))
        for first in range(0, len(asked), step):
            part = slice(first, first + step)
            found = keys(grid[part], searched, "cosine")
            found[classes[part, None] == labels[None, start : start + len(rows)]] = -np.inf
            here = np.flatnonzero((own[part] >= start) & (own[part] < start + len(rows)))
            found[here, own[part][here] - start] = -np.inf
            best[part] = np.maximum(best[part], found.max(axis=1))
    return best


def _blocks(gallery: Any) -> Iterator[tuple[int, NDArray[np.float32]]]:
    if isinstance(gallery, Gallery):
        yield from gallery.blocks()
        return
    rows = arrays.matrix(gallery, "gallery")
    for start in range(0, len(rows), BLOCK_ROWS):
        yield start, rows[start : start + BLOCK_ROWS]
