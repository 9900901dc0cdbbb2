"""Evaluate queries in their gallery: test images of two roles, as in Market-1501 (Zheng et al. 2015) and landmarks.

If a dataset's manifest names the queries and the gallery among its test images, every query is asked in the gallery.
Gallery images of the query's class and group (the same person by the same camera, the shots of one product) are neither
right nor wrong: they are removed before ranks are counted.

`retrieval/...`, `sparsification/...`, `trust/...` and `p_right/...` are then over the queries; `clustering/...` and
`structure/...` over all test images. Metrics of samples are left out, because samples are asked among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probmetric.metrics.arrays import Array, Doubles, Ints
from probmetric.retrieval import retrieval_per_query
from probmetric.retrieval.problem import SearchOptions
from probmetric.trust.answers import KEPT, LEAST, Answers, among_others, asked_in

QUERY, GALLERY = "query", "gallery"


@dataclass(frozen=True)
class Asked:
    """Queries and gallery among N images, or each image asked among the others.

    Attributes:
        queries: rows (Q,) of the queries.
        gallery: rows (G,) that are searched.
        ignored: pairs (P, 2) of positions in `queries` and in `gallery` that are neither right nor wrong.
        positives: for each query the positions in `gallery` of right answers; None: those of its class.
        among_others: whether queries and gallery are all images, and no query finds itself.
    """

    queries: Ints
    gallery: Ints
    ignored: Ints = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    positives: Sequence[Ints] | None = None
    among_others: bool = False

    @classmethod
    def everyone(cls, count: int) -> Asked:
        """Return each of `count` images, asked among the others."""
        return cls(np.arange(count), np.arange(count), among_others=True)

    def per_query(self, rows: Array, labels: Ints, ks: Sequence[int], **options: Any) -> dict[str, Doubles]:
        """Return the retrieval metrics of each query, name -> (Q,), of rows (N, M) with labels (N,).

        The result is empty without queries or without a gallery.
        """
        if self.among_others:
            return retrieval_per_query(rows, labels, ks=ks, **options)
        if not len(self.queries) or not len(self.gallery):
            return {}
        searched = SearchOptions(gallery=rows[self.gallery], ignore=self.ignored)
        if self.positives is not None:
            searched["positives"] = self.positives
            return retrieval_per_query(rows[self.queries], ks=ks, **searched, **options)
        searched["gallery_labels"] = labels[self.gallery]
        return retrieval_per_query(rows[self.queries], labels[self.queries], ks=ks, **searched, **options)

    def answers(self, record: Mapping[str, Array], labels: Ints, ks: Sequence[int] = ()) -> Answers | None:
        """Return the answers to the queries, from a record of all images, name -> (N, ...), with labels (N,).

        `nearest` of the match record are rows of that record. None without queries or without a gallery for them.
        """
        if self.among_others:
            return among_others(record, labels, ks) if len(self.queries) >= LEAST else None
        values = self.per_query(record["mean"], labels, tuple(dict.fromkeys((1, *ks))))
        if not values:
            return None
        asked = values["positives"] > 0
        ignored = self.ignored[asked[self.ignored[:, 0]]]  # a query without a right answer gets an answer, too
        sides = ({name: record[name][rows] for name in KEPT if name in record} for rows in (self.queries, self.gallery))
        query, gallery = sides
        answers = asked_in(query, labels[self.queries], gallery, labels[self.gallery], ignore=ignored)
        match = replace(answers.match, indices=self.gallery[answers.match.indices])
        return replace(answers, match=match, right=values["recall_at_1"] == 1, asked=asked, retrieval=values)


@dataclass(frozen=True)
class Roles:
    """Roles of the images of a prepared dataset.

    Attributes:
        role: `query`, `gallery` or something else of every manifest row.
        group: group of every row; None if the manifest has no groups.
    """

    role: Array
    group: Array | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Array]) -> Roles | None:
        """Return the roles that the columns of a manifest name; None unless there are queries and a gallery."""
        role = columns.get("role", np.empty(0, dtype=str))
        there = set(role[columns["split"] == "test"].tolist()) if len(role) else set()
        return cls(role, columns.get("group")) if {QUERY, GALLERY} <= there else None

    def among(self, index: Ints, labels: Ints) -> Asked:
        """Return queries and gallery among the images with these manifest rows (N,) and labels (N,)."""
        role = self.role[index].astype(str)
        queries, gallery = np.flatnonzero(role == QUERY), np.flatnonzero(role == GALLERY)
        if self.group is None:
            return Asked(queries, gallery)
        names, numbers = np.unique(self.group[index].astype(str), return_inverse=True)
        together = labels.astype(np.int64) * len(names) + numbers
        unnamed = names[numbers] == ""
        return Asked(queries, gallery, _equal(np.where(unnamed, -1, together)[queries], together[gallery]))


def _equal(first: Ints, second: Ints) -> Ints:
    """Return all pairs (P, 2) of positions in `first` (Q,) and in `second` (G,) that hold the same number."""
    order = np.argsort(second, kind="stable")
    start, end = (np.searchsorted(second[order], first, side=side) for side in ("left", "right"))
    counts = end - start
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([np.repeat(np.arange(len(first)), counts), order[np.repeat(start, counts) + within]], axis=1)
