"""One retrieval task, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.registry import nearest
from probmetric.retrieval.keys import NAMES, Distance
from probmetric.retrieval.relation import LabelRelation, Relation, sparse_relation

Ints = NDArray[np.int64]
FILTERED_DISTANCES: tuple[Distance, ...] = ("cosine", "euclidean")


@dataclass(frozen=True)
class Problem:
    """What is searched (Q,M), in what (N,M), and what counts as right.

    `self_index` (Q,) is the gallery row that is the query itself, -1 for none.
    """

    queries: NDArray[np.float32]
    gallery: NDArray[np.float32]
    relation: Relation
    self_index: Ints | None
    distance: Distance
    on_gpu: bool = False

    def itself(self, start: int, stop: int) -> Ints:
        """Return `self_index` of queries start..stop-1, -1 for all where there is none."""
        return np.full(stop - start, -1) if self.self_index is None else self.self_index[start:stop]


def build_problem(
    embeddings: Any,
    labels: Any = None,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    positives: Any = None,
    self_index: Any = None,
    distance: Distance = "cosine",
    normalize: bool = False,
) -> Problem:
    """Check the arguments of `retrieval_metrics` and put them together; CUDA tensors are searched on the GPU."""
    known_distance(distance)
    queries = numpy_rows(embeddings, "embeddings", distance, normalize=normalize)
    same = gallery is None
    searched = queries if same else numpy_rows(gallery, "gallery", distance, normalize=normalize)
    if queries.shape[1] != searched.shape[1]:
        raise ValueError(f"embeddings have {queries.shape[1]} dimensions, the gallery has {searched.shape[1]}.")
    if same and self_index is not None:
        raise ValueError("self_index is for a separate gallery; in self-retrieval a row is its own index.")
    own = np.arange(len(queries)) if same else checked_self_index(self_index, len(queries), len(searched))
    shape = (len(queries), len(searched))
    if positives is None:
        relation: Relation = _label_relation(labels, gallery_labels, own, same, shape)
    elif labels is not None or gallery_labels is not None:
        raise ValueError("pass either labels or positives, not both: they could contradict each other.")
    else:
        relation = sparse_relation(positives, shape, own)
    on_gpu = arrays.is_cuda(embeddings) and distance in FILTERED_DISTANCES
    return Problem(queries, searched, relation, own, distance, on_gpu)


def known_distance(distance: Distance) -> None:
    """Raise a ValueError if `distance` is neither a known name nor a function."""
    if callable(distance) or distance in NAMES:
        return
    raise ValueError(
        f"distance is {distance!r}: {nearest(str(distance), NAMES)} Or pass a function "
        "(queries (B,M), gallery (N,M)) -> distances (B,N)."
    )


def numpy_rows(
    values: Any, name: str, distance: Distance = "cosine", *, normalize: bool = False
) -> NDArray[np.float32]:
    """Return rows (N,M) as a float32 array that suits `distance`, normalised if asked."""
    rows = arrays.matrix(values, name)
    if normalize:
        return arrays.normalized(rows, name)
    if distance == "cosine":
        arrays.check_unit_rows(rows, name)
    if distance == "euclidean":
        arrays.check_scale(float(arrays.row_norms(rows).max()), name)
    if distance == "poincare":
        arrays.check_inside_ball(rows, name)
    return rows


def checked_self_index(values: Any, queries: int, gallery: int) -> Ints | None:
    """Return the gallery row of each query, (Q,) from -1 (none) up, or None.

    Raises:
        ValueError: another shape or type, or a row that is not in the gallery.
    """
    if values is None:
        return None
    index = arrays.to_numpy(values)
    if index.shape != (queries,) or index.dtype.kind not in "iu" or index.min() < -1 or index.max() >= gallery:
        raise ValueError(
            f"self_index has shape {index.shape}, dtype {index.dtype}; expected ({queries},) integers from -1 (not in "
            f"the gallery) to {gallery - 1}."
        )
    return index.astype(np.int64)


def _label_relation(
    labels: Any, gallery_labels: Any, own: Ints | None, same: bool, shape: tuple[int, int]
) -> LabelRelation:
    if labels is None:
        raise ValueError("labels is None and no positives are given; pass one of them.")
    if same == (gallery_labels is not None):
        raise ValueError("gallery and gallery_labels go together: pass both or neither.")
    checked = arrays.labels_of(labels, shape[0], "labels", "embeddings")
    if same:
        return LabelRelation(checked, checked, own)
    return LabelRelation(checked, arrays.labels_of(gallery_labels, shape[1], "gallery_labels", "gallery"), own)
