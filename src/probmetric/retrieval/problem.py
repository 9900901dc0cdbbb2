"""Check the arguments of one retrieval task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from probmetric.errors import nearest
from probmetric.metrics import arrays
from probmetric.metrics.arrays import Floats, Ints
from probmetric.retrieval.keys import NAMES, Distance
from probmetric.retrieval.relation import LabelRelation, Relation, SparseRelation, sparse_relation

FILTERED_DISTANCES: tuple[Distance, ...] = ("cosine", "euclidean")
JUNK = -1


class SearchOptions(TypedDict, total=False):
    """Hold the arguments of `retrieval_metrics` that say what is searched, and how."""

    gallery: Any
    gallery_labels: Any
    positives: Any
    self_index: Any
    ignore: Any
    distance: Distance
    normalize: bool


@dataclass(frozen=True)
class Problem:
    """Hold queries (Q,M), gallery (N,M), which rows are right, and rows that a query must not find, such as itself."""

    queries: Floats
    gallery: Floats
    relation: Relation
    struck: SparseRelation
    distance: Distance = "cosine"
    on_gpu: bool = False


def build_problem(embeddings: Any, labels: Any = None, **options: Unpack[SearchOptions]) -> Problem:
    """Check the arguments of `retrieval_metrics` and make a problem of them; CUDA tensors are searched on the GPU."""
    distance, normalize = options.get("distance", "cosine"), options.get("normalize", False)
    gallery, gallery_labels = options.get("gallery"), options.get("gallery_labels")
    self_index, positives = options.get("self_index"), options.get("positives")
    check_distance(distance)
    queries = numpy_rows(embeddings, "embeddings", distance, normalize=normalize)
    searched = queries if gallery is None else numpy_rows(gallery, "gallery", distance, normalize=normalize)
    if queries.shape[1] != searched.shape[1]:
        raise ValueError(f"embeddings have {queries.shape[1]} dimensions, the gallery has {searched.shape[1]}.")
    shape = (len(queries), len(searched))
    struck = struck_rows(own_rows(self_index, gallery, len(queries)), options.get("ignore"), shape)
    if positives is None:
        classes, searched_classes = _labels(labels, gallery_labels, gallery is None, shape)
        kept = np.flatnonzero(searched_classes != JUNK)
        if len(kept) < len(searched):
            searched, searched_classes, struck = searched[kept], searched_classes[kept], struck.among(kept)
        relation: Relation = LabelRelation(classes, searched_classes, struck)
    elif labels is not None or gallery_labels is not None:
        raise ValueError("pass either labels or positives, not both: they could contradict each other.")
    else:
        relation = sparse_relation(positives, shape, "positives", struck)
    on_gpu = arrays.is_cuda(embeddings) and distance in FILTERED_DISTANCES
    return Problem(queries, searched, relation, struck, distance, on_gpu)


def check_distance(distance: Distance) -> None:
    """Raise a ValueError if `distance` is not a known name or a function."""
    if callable(distance) or distance in NAMES:
        return
    raise ValueError(
        f"distance is {distance!r}: {nearest(str(distance), NAMES)} Or pass a function "
        "(queries (B,M), gallery (N,M)) -> distances (B,N)."
    )


def numpy_rows(values: Any, name: str, distance: Distance = "cosine", *, normalize: bool = False) -> Floats:
    """Return rows (N,M) as a float32 array that suits `distance`, normalised if asked."""
    rows = arrays.matrix(values, name)
    if normalize:
        return arrays.normalized(rows)
    if distance == "cosine":
        arrays.check_unit_rows(rows, name)
    if distance == "euclidean":
        arrays.check_scale(float(arrays.row_norms(rows).max()), name)
    if distance == "poincare":
        arrays.check_inside_ball(rows, name)
    return rows


def own_rows(self_index: Any, gallery: Any, count: int) -> Any:
    """Return the gallery row (Q,) that each of `count` queries is; without a gallery they are the rows themselves.

    Raises:
        ValueError: there is no gallery, but a `self_index`.
    """
    if gallery is not None:
        return self_index
    if self_index is not None:
        raise ValueError("self_index is for a separate gallery; in self-retrieval a row is its own index.")
    return np.arange(count)


def struck_rows(self_index: Any, ignore: Any, shape: tuple[int, int]) -> SparseRelation:
    """Return the gallery rows that each query must not find: itself, and rows to ignore.

    Args:
        self_index: (Q,) gallery row that is the query, -1 for none, or None.
        ignore: (Q,N) bool, or rows in a form of `sparse_relation`, or None.
        shape: numbers of queries and gallery rows.

    Raises:
        ValueError: wrong shape or type, or a row that is not in the gallery.
    """
    index = np.full(shape[0], -1) if self_index is None else arrays.to_numpy(self_index)
    if index.shape != shape[:1] or index.dtype.kind not in "iu" or not -1 <= index.min() <= index.max() < shape[1]:
        raise ValueError(
            f"self_index has shape {index.shape}, dtype {index.dtype}; expected ({shape[0]},) integers from -1 (not in "
            f"the gallery) to {shape[1] - 1}."
        )
    queries, columns = np.flatnonzero(index >= 0), index[index >= 0].astype(np.int64)
    if ignore is not None:
        more = sparse_relation(ignore, shape, "ignore")
        queries, columns = np.concatenate([queries, more.queries]), np.concatenate([columns, more.columns])
    return SparseRelation(queries, columns, shape)


def _labels(labels: Any, gallery_labels: Any, same: bool, shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Return the labels (Q,) of the queries and (N,) of the gallery, `JUNK` for an image that counts for nothing."""
    if labels is None:
        raise ValueError("labels is None and no positives are given; pass one of them.")
    if same == (gallery_labels is not None):
        raise ValueError("gallery and gallery_labels go together: pass both or neither.")
    checked = arrays.labels_of(labels, shape[0], "labels", "embeddings")
    if same:
        return checked, checked
    return checked, gallery_classes(gallery_labels, shape[1])


def gallery_classes(values: Any, count: int) -> Ints:
    """Return the labels (N,) of a gallery of `count` images: integers from 0, or `JUNK`.

    Raises:
        ValueError: wrong shape, a number below `JUNK`, or all junk.
    """
    classes = arrays.labels_of(values, count, "gallery_labels", "the gallery", least=JUNK)
    if (classes == JUNK).all():
        raise ValueError(f"gallery_labels: all {count} are {JUNK}, images that count for nothing; none can be found.")
    return classes
