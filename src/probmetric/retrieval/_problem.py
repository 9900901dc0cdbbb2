"""A checked `Problem` from what the caller of `retrieval_metrics` handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.retrieval._keys import Distance
from probmetric.retrieval._relation import LabelRelation, Relation, sparse_relation
from probmetric.retrieval.gallery import Gallery
from probmetric.retrieval.ranks import Problem, known_distance

RowReader = Callable[[Any, str, Distance, bool], Any]


def build_problem(
    embeddings: Any,
    labels: Any,
    gallery: Any,
    gallery_labels: Any,
    positives: Any,
    query_index: Any,
    distance: Distance,
    normalize: bool,
    rows: RowReader,
) -> Problem:
    """Check everything and put it together; `rows` reads the embeddings, as arrays or as tensors."""
    distance = known_distance(distance)
    queries = rows(embeddings, "embeddings", distance, normalize)
    if isinstance(gallery, Gallery):
        _check_streamable(distance, normalize)
        searched, gallery_labels = gallery, gallery.labels if gallery_labels is None else gallery_labels
    else:
        searched = queries if gallery is None else rows(gallery, "gallery", distance, normalize)
    if queries.shape[1] != searched.shape[1]:
        raise ValueError(f"embeddings have {queries.shape[1]} dimensions, the gallery has {searched.shape[1]}.")
    own = _self_index(len(queries), len(searched), gallery is None, query_index)
    relation = _relation(labels, gallery_labels, positives, own, gallery is None, (len(queries), len(searched)))
    return Problem(queries, searched, relation, own, distance)


def _check_streamable(distance: Distance, normalize: bool) -> None:
    if distance != "cosine" or normalize:
        raise ValueError("a Gallery holds unit rows and is searched by distance='cosine', without normalize.")


def numpy_rows(values: Any, name: str, distance: Distance, normalize: bool) -> NDArray[np.float32]:
    """Rows (N,M) as a float32 array that suits `distance`, normalised if asked."""
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


def torch_rows(values: Any, name: str, distance: Distance, normalize: bool) -> Any:
    """Rows (N,M) as a float32 tensor on its device that suits `distance`, normalised if asked."""
    from probmetric.retrieval import _ranks_torch

    return _ranks_torch.matrix(values, name, str(distance), normalize)


def _self_index(queries: int, gallery: int, same: bool, query_index: Any) -> NDArray[np.int64] | None:
    if query_index is None:
        return np.arange(queries) if same else None
    if same:
        raise ValueError("query_index is for a separate gallery; in self-retrieval a row is its own index.")
    index = arrays.to_numpy(query_index)
    if index.shape != (queries,) or index.dtype.kind not in "iu" or index.min() < -1 or index.max() >= gallery:
        raise ValueError(
            f"query_index has shape {index.shape}, dtype {index.dtype}; expected ({queries},) integers from -1 (not in "
            f"the gallery) to {gallery - 1}."
        )
    return index.astype(np.int64)


def _relation(
    labels: Any, gallery_labels: Any, positives: Any, own: Any, same: bool, shape: tuple[int, int]
) -> Relation:
    if positives is not None:
        if labels is not None or gallery_labels is not None:
            raise ValueError("pass either labels or positives, not both: they could contradict each other.")
        return sparse_relation(positives, shape, own)
    if labels is None:
        raise ValueError("labels is None and no positives are given; pass one of them.")
    if same == (gallery_labels is not None):
        raise ValueError("gallery and gallery_labels go together: pass both or neither.")
    checked = arrays.labels_of(labels, shape[0], "labels", "embeddings")
    if same:
        return LabelRelation(checked, checked, own)
    return LabelRelation(checked, arrays.labels_of(gallery_labels, shape[1], "gallery_labels", "gallery"), own)
