"""Place recognition: queries search a database of their own, and an image within 25 m is a right answer.

The protocol of Mapillary Street-Level Sequences (Warburg et al. 2020), which paper 003 follows: `retrieval/...` counts
a query as answered by database images of its city within the radius; images of the queries' side are not searched.
Along walks a frame of the same walk within `data.places.FRAMES` frames is a right answer.
Subtasks: `retrieval_day_to_night/...` asks with day images and searches night images, `retrieval_night_to_day/...` the
other way round; they are there where a query has an answer. `sparsification/...` are over the queries.

Clustering and structure need classes, which places do not have: a run on places has no such metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probmetric.data.places import RADIUS, SEQUENCE, Subtask, located, positives, subtask
from probmetric.metrics.arrays import Ints
from probmetric.runs.roles import Asked

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
    walks: Ints | None = None

    @classmethod
    def in_manifest(cls, columns: dict[str, NDArray]) -> Places | None:
        """Read them from a manifest's columns; None where these do not say. Walks are numbered by their names."""
        places = located(columns)
        if places is None or SEQUENCE not in columns:
            return None if places is None else cls(*places)
        names = columns[SEQUENCE]
        walks = np.unique(names, return_inverse=True)[1].astype(np.int64)
        return cls(*places, walks=np.where(names == "", -1 - np.arange(len(names)), walks))

    def asked(self, index: Ints, task: Subtask = "all") -> Asked:
        """Return which of the images with these manifest rows (n,) ask in which, and which answer each query.

        Args:
            index: the rows.
            task: which queries ask and which database images are searched.
        """
        rows = np.flatnonzero(subtask({name: values[index] for name, values in self.columns.items()}, task))
        chosen = {name: values[index[rows]] for name, values in self.columns.items()}
        queries, database, near = positives(chosen, radius=self.radius)
        return Asked(rows[queries], rows[database], positives=near)
