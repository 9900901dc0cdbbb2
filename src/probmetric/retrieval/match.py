"""Make the match record: what one search tells of the answer to each query.

The answer is the nearest gallery image by cosine, and its class. One exact search finds the K nearest. The nearest of
another class is among them, or is searched for block by block. Where all images of a large set are asked among the
others, one symmetric pass lists both and counts the ranks of the right answers (see `compiled`).

    nearest, nearest_class   row and class of the answer
    cosine                   cosine with the answer; higher = surer
    gap                      cosine of the answer - cosine of the nearest image of another class; higher = surer
    disagreement             share of the k nearest whose class is not the answer's
    entropy                  entropy of the classes of the k nearest, in nats

Registered scores (`probmetric.trust.scores`) turn the record, and what the method says of both images, into doubts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Bools, Doubles, Ints
from probmetric.metrics.ranked import collect
from probmetric.retrieval.measures import KS, checked_cutoffs
from probmetric.retrieval.neighbours import (
    LONGEST_LIST,
    Nearest,
    Search,
    gathered,
    in_parts,
    nearest,
    parts_of,
    settled,
)
from probmetric.retrieval.problem import JUNK, build_problem, gallery_classes, numpy_rows, struck_rows
from probmetric.retrieval.rank_counts import compiles, engine, ranks
from probmetric.retrieval.relation import SparseRelation

NEAREST = 10


class GalleryRows(Mapping[str, Array]):
    """Hold some rows (Q,) of a gallery's record, tensor name -> (N, ...); a tensor is gathered when it is asked for."""

    def __init__(self, record: Mapping[str, Any], index: Ints) -> None:
        """Take rows `index` (Q,) of the tensors of `record`."""
        self._record, self._index = record, index

    def __getitem__(self, name: str) -> Array:
        """Return the tensor's rows (Q, ...)."""
        values = self._record[name]
        return gathered(values, self._index) if in_parts(values) else arrays.to_numpy(values)[self._index]

    def __contains__(self, name: object) -> bool:
        """Say whether the record has the tensor, without gathering it."""
        return name in self._record

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tensors."""
        return iter(self._record)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._record)

    def rows(self, kept: Bools | slice) -> GalleryRows:
        """Return the rows that are `kept`: (Q,), or a slice."""
        return GalleryRows(self._record, self._index[kept])


@dataclass(frozen=True)
class Match:
    """Hold what one search found for Q queries.

    Attributes:
        similarity: (Q,K) cosines of the K nearest, descending.
        indices: (Q,K) gallery rows of the K nearest.
        classes: (Q,K) classes of the K nearest.
        gap: (Q,) cosine of the answer minus that of the nearest image of another class; None if there is one class.
        query: tensor name -> (Q, ...): record of the queries, such as uncertainty (Q,).
        answer: tensor name -> (Q, ...): record of the answers, read from the gallery's record when asked for.
    """

    similarity: Doubles
    indices: Ints
    classes: Ints
    gap: Doubles | None
    query: Mapping[str, Array] = field(default_factory=dict)
    answer: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of queries Q."""
        return len(self.similarity)

    def rows(self, kept: Bools | slice) -> Match:
        """Return the rows that are `kept`: (Q,), or a slice."""
        gap = None if self.gap is None else self.gap[kept]
        query = {name: values[kept] for name, values in self.query.items()}
        answer = self.answer if isinstance(self.answer, GalleryRows) else GalleryRows(self.answer, np.arange(len(self)))
        return Match(self.similarity[kept], self.indices[kept], self.classes[kept], gap, query, answer.rows(kept))

    @property
    def record(self) -> dict[str, Array]:
        """The arrays (Q,) of the module docstring, by name; without `gap` in a gallery of one class."""
        values: dict[str, Array] = {
            "nearest": self.indices[:, 0],
            "nearest_class": self.classes[:, 0],
            "cosine": self.similarity[:, 0],
            "disagreement": (self.classes != self.classes[:, :1]).mean(axis=1),
            "entropy": entropy(self.classes),
        }
        return values if self.gap is None else values | {"gap": self.gap}


def match_record(
    queries: Any, gallery: Any, gallery_labels: Any, *, k: int = NEAREST, self_index: Any = None, ignore: Any = None
) -> dict[str, Array]:
    """Return the match record of unit rows `queries` (Q,M) in a gallery: name -> (Q,), as in the module docstring.

    Args:
        queries: (Q,M) unit rows.
        gallery: (N,M) unit rows, or a list of arrays (n,M), as `search` takes them.
        gallery_labels: (N,) classes; images labelled -1 are junk, which is never found.
        k: neighbours that vote; fewer where the gallery is smaller.
        self_index: (Q,) gallery row that is the query itself and must not be found, -1 for none.
        ignore: further gallery rows that a query must not find, in a form that `search` takes.

    Raises:
        ValueError: no labels, labels below -1, rows that are not unit vectors; the message names the entry.

    Examples:
        >>> rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> record = match_record([[0.96, 0.28]], rows, [5, 5, 7], k=3)
        >>> record["nearest_class"].tolist(), record["gap"].round(2).tolist(), record["disagreement"].round(2).tolist()
        ([5], [0.68], [0.33])
    """
    sides = {"mean": queries}, {"mean": gallery}
    return find_match(*sides, gallery_labels, k=k, self_index=self_index, ignore=ignore).record


def find_match(
    query: Mapping[str, Any],
    gallery: Mapping[str, Any],
    gallery_labels: Any,
    *,
    k: int = NEAREST,
    self_index: Any = None,
    ignore: Any = None,
) -> Match:
    """Return the match of queries in a gallery, with the records of the queries and of their answers.

    Args:
        query: tensor name -> (Q, ...), with `mean` (Q,M), unit rows.
        gallery: tensor name -> (N, ...), with `mean` (N,M), from which the answers' rows are read.
        gallery_labels: (N,) classes, -1 for junk.
        k: neighbours that vote.
        self_index: (Q,) gallery row of each query, -1 for none.
        ignore: further gallery rows that a query must not find, in a form that `search` takes.
    """
    for name, sides in (("query", query), ("gallery", gallery)):
        arrays.check_mapping(sides, name, "mean")
    if gallery_labels is None:
        raise ValueError(
            "the gallery has no labels; answers can be judged only where the class of its images is known."
        )
    rows = numpy_rows(query["mean"], "queries")
    parts = [rows] if gallery["mean"] is query["mean"] else parts_of(gallery["mean"], rows.shape[1])
    labels = gallery_classes(gallery_labels, sum(map(len, parts)))
    struck = struck_rows(self_index, ignore, (len(rows), len(labels)))
    kept = np.flatnonzero(labels != JUNK)
    if len(kept) < len(labels):
        parts, struck = [gathered(parts, kept)], struck.among(kept)
    space = Search(rows, parts, struck, labels=labels[kept])
    arrays.check_count(k, "k")
    most = min(k, len(kept) - int(struck.counts.max()))
    match = match_of_lists(space, nearest(space, most))
    indices = kept[match.indices]
    return replace(match, indices=indices, query=dict(query), answer=GalleryRows(gallery, indices[:, 0]))


def match_among(
    record: Mapping[str, Any], labels: Any, *, ks: Sequence[int] = KS, k: int = NEAREST
) -> tuple[Match, dict[str, Doubles]]:
    """Ask each image of a set among the others; return match and per-query retrieval metrics from one pass.

    Args:
        record: tensor name -> (N, ...) of the images, with `mean` (N,M), unit rows.
        labels: (N,) classes.
        ks: cutoffs of recall and precision.
        k: neighbours that vote in the match record.
    """
    arrays.check_mapping(record, "record", "mean")
    arrays.check_count(k, "k")
    problem, cutoffs = build_problem(record["mean"], labels), checked_cutoffs(ks)
    if k > LONGEST_LIST or not compiles(problem):
        per_query = collect(ranks(problem), problem.relation.counts, cutoffs)
        return find_match(record, record, labels, k=k, self_index=np.arange(len(problem.queries))), per_query
    compiled, classes = engine("compiled"), arrays.to_numpy(labels).astype(np.int64)
    lists = compiled.Lists(problem.queries, classes, k)
    per_query = collect(compiled.compiled_counts(problem, lists=lists), problem.relation.counts, cutoffs)
    space = Search(problem.queries, [problem.queries], problem.struck, labels=classes)
    match = match_of_lists(space, settled(space, lists.nearest()), lists.nearest_of_others())
    return replace(match, query=dict(record), answer=GalleryRows(record, match.indices[:, 0])), per_query


def entropy(classes: Ints) -> Doubles:
    """Return the entropy (Q,), in nats, of the shares of the classes in each row of `classes` (Q,K).

    Examples:
        >>> entropy(np.array([[1, 1, 2, 2], [3, 3, 3, 3]])).round(4).tolist()
        [0.6931, 0.0]
    """
    shares = ((classes == classes[:, [place]]).mean(axis=1) for place in range(classes.shape[1]))
    return 0.0 - np.mean([np.log(share) for share in shares], axis=0)


def match_of_lists(space: Search, listed: Nearest, others: Any = None) -> Match:
    """Return the match of queries whose nearest rows are `listed`, without records.

    `space` holds the labels (N,) of the gallery. `others` (`compiled.Listed`) may be given where the queries are the
    gallery; it holds the nearest row of another class than each query's own.
    """
    assert space.labels is not None
    rows, cosines = listed
    classes = space.labels[rows]
    if space.labels.min() == space.labels.max():
        return Match(cosines.clip(-1.0, 1.0), rows, classes, None)
    other = classes != classes[:, :1]
    second = cosines[np.arange(len(rows)), other.argmax(axis=1)]
    far = ~other.any(axis=1)
    if others is not None:
        sure = far & others.sure & (classes[:, 0] == space.labels)
        second[sure], far = others.cosines[sure, 0], far & ~sure
    which = np.flatnonzero(far)
    if len(which):
        struck = SparseRelation(*space.struck.of(which), (len(which), len(space.labels)))
        again = replace(space, queries=space.queries[which], struck=struck, classes=classes[which, 0])
        second[which] = again.nearest(1).cosines[:, 0]
    return Match(cosines.clip(-1.0, 1.0), rows, classes, cosines[:, 0] - np.maximum(second, -1.0))
