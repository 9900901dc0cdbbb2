"""Place recognition: queries search a database of their own, and an image within 25 m is a right answer.

The protocol of Mapillary Street-Level Sequences (Warburg et al. 2020), which paper 003 follows: `retrieval/...` counts
a query as answered by database images of its city within the radius; images of the queries' side are not searched.
Along walks a frame of the same walk within `data.places.FRAMES` frames is a right answer.
Subtasks: `retrieval_day_to_night/...` asks with day images and searches night images, `retrieval_night_to_day/...` the
other way round; they are there where a query has an answer. `sparsification/...` are over the queries.

Clustering and structure need classes, which places do not have: a run on places has no such metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.data.places import RADIUS, SEQUENCE, Subtask, located, positives, subtask
from probmetric.metrics.selective import selective_metrics, sparsification
from probmetric.metrics.units import Images, retrieval_units
from probmetric.retrieval import retrieval_per_query, search, summarize
from probmetric.trust.answers import Answers, asked_in

Doubles = NDArray[np.float64]
SUBTASKS: tuple[Subtask, ...] = ("day_to_night", "night_to_day")


@dataclass(frozen=True)
class Places:
    """Where and when the images of a prepared dataset were taken.

    Attributes:
        columns: manifest columns city, easting, northing, role and night, (N,) each, of all N rows.
        radius: metres within which a database image answers a query.
        walks: the walk (N,) each image was taken on, numbered; images of no known walk have numbers of their own.
    """

    columns: dict[str, NDArray]
    radius: float = RADIUS
    walks: NDArray[np.int64] | None = None

    @classmethod
    def in_manifest(cls, columns: dict[str, NDArray]) -> Places | None:
        """Read them from a manifest's columns; None where these do not say. Walks are numbered by their names."""
        places = located(columns)
        if places is None or SEQUENCE not in columns:
            return None if places is None else cls(*places)
        names = columns[SEQUENCE]
        walks = np.unique(names, return_inverse=True)[1].astype(np.int64)
        return cls(*places, walks=np.where(names == "", -1 - np.arange(len(names)), walks))

    def of(self, index: NDArray[np.int64]) -> Places:
        """Return the places of the manifest rows `index` (n,)."""
        walks = None if self.walks is None else self.walks[index]
        return Places({name: values[index] for name, values in self.columns.items()}, self.radius, walks)

    @property
    def sides(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows of the queries (Q,) and of the database (D,)."""
        queries, database = (np.flatnonzero(self.columns["role"] == role) for role in ("query", "database"))
        return queries, database


def place_retrieval(
    mean: NDArray[np.floating], places: Places, *, ks: Sequence[int], task: Subtask = "all"
) -> tuple[dict[str, Doubles], NDArray[np.int64], NDArray[np.int64]]:
    """Return retrieval metrics of every query.

    Args:
        mean: unit embeddings (n, M) of queries and database.
        places: of the same n images.
        ks: cutoffs.
        task: which queries ask and which database images are searched.

    Returns:
        (metric -> (Q,), rows of the queries (Q,), rows of the database (D,)) into `mean`; without queries or database
        the metrics are empty.
    """
    rows = np.flatnonzero(subtask(places.columns, task))
    chosen = places.of(rows)
    query_rows, searched, near = positives(chosen.columns, radius=chosen.radius)
    queries, database = rows[query_rows], rows[searched]
    if not len(queries) or not len(database):
        return {}, queries, database
    values = retrieval_per_query(mean[queries], gallery=mean[database], positives=near, ks=ks)
    return values, queries, database


def place_answers(record: Mapping[str, NDArray[Any]], places: Places, ks: Sequence[int] = ()) -> Answers | None:
    """Return the answers to the queries of a split, searched in its database; None where either has no images.

    `nearest` of the match record are rows of the split.

    Args:
        record: tensor name -> (n, ...) of the split's images, with `mean` and `label`.
        places: of the same n images.
        ks: cutoffs of the retrieval metrics that come along.
    """
    values, queries, database = place_retrieval(record["mean"], places, ks=tuple(dict.fromkeys((1, *ks))))
    if not values:
        return None
    queried, searched = ({name: each[rows] for name, each in record.items()} for rows in (queries, database))
    answers = asked_in(queried, queried["label"], searched, searched["label"])
    match = replace(answers.match, indices=database[answers.match.indices])
    right, answerable = values["recall_at_1"] == 1, values["positives"] > 0
    return replace(answers, match=match, right=right, asked=answerable, retrieval=values)


def place_metrics(
    mean: NDArray[np.floating], uncertainty: NDArray[np.floating], places: Places, *, ks: Sequence[int]
) -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """Return metrics and curves of a split; arguments and names are explained at the top of this module."""
    values, queries, database = place_retrieval(mean, places, ks=tuple(dict.fromkeys((1, *ks))))
    metrics: dict[str, float] = {}
    curves: dict[str, dict[str, list[float]]] = {}
    if values:
        metrics |= {f"retrieval/{name}": value for name, value in summarize(values).items()}
    if values and np.any(values["positives"] > 0):
        answerable = values["positives"] > 0
        correct, doubt = values["recall_at_1"][answerable], uncertainty.astype(np.float64)
        nearest = database[search(mean[queries], mean[database], k=1).rows[:, 0]]
        both = ((doubt[queries] + doubt[nearest]) / 2)[answerable]
        curve, _ = sparsification(doubt[queries][answerable], correct)
        selective = selective_metrics(doubt[queries][answerable], correct)
        selective["ausc_query_and_neighbour"] = sparsification(both, correct)[1]
        selective["ausc_as_published"] = sparsification(both, correct, scaling="as_published")[1]
        metrics |= {f"sparsification/{name}": value for name, value in selective.items()}
        curves["sparsification"] = {"removed": curve.removed.tolist(), "accuracy": curve.accuracy.tolist()}
        unit, walks = ("image", np.arange(len(mean))) if places.walks is None else ("walk", places.walks)
        curves |= retrieval_units(values, answerable, Images.of(doubt[queries], walks[queries]), unit).curves()
    for task in SUBTASKS:
        other, _, _ = place_retrieval(mean, places, ks=ks, task=task)
        if other and np.any(other["positives"] > 0):
            metrics |= {f"retrieval_{task}/{name}": value for name, value in summarize(other).items()}
    return metrics, curves
