"""Evaluate place recognition: queries search a database of their own, and an image within 25 m is a right answer.

The protocol is that of Mapillary Street-Level Sequences (Warburg et al. 2020), which paper 003 follows. For
`retrieval/...`, database images of the query's city within the radius are right answers; other queries are not
searched. Along walks a frame of the same walk within `data.places.FRAMES` frames is a right answer.
`retrieval_day_to_night/...` has day queries and a night database, `retrieval_night_to_day/...` the reverse; they exist
if a query has an answer. `sparsification/...` are over the queries.

Places have no classes, so a run on places has no metrics of clustering and structure.
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
        walks: number of each image's walk (N,); an image of no known walk has a number of its own.
    """

    columns: dict[str, NDArray]
    radius: float = RADIUS
    walks: Ints | None = None

    @classmethod
    def in_manifest(cls, columns: dict[str, NDArray]) -> Places | None:
        """Read the places from a manifest's columns; None if it has no positions. Walks are numbered by their names."""
        places = located(columns)
        if places is None or SEQUENCE not in columns:
            return None if places is None else cls(*places)
        names = columns[SEQUENCE]
        walks = np.unique(names, return_inverse=True)[1].astype(np.int64)
        return cls(*places, walks=np.where(names == "", -1 - np.arange(len(names)), walks))

    def asked(self, index: Ints, task: Subtask = "all") -> Asked:
        """Return queries and database among the images with these manifest rows (n,), and each query's right answers.

        Args:
            index: the rows.
            task: the subtask, which selects queries and database images.
        """
        rows = np.flatnonzero(subtask({name: values[index] for name, values in self.columns.items()}, task))
        chosen = {name: values[index[rows]] for name, values in self.columns.items()}
        queries, database, near = positives(chosen, radius=self.radius)
        return Asked(rows[queries], rows[database], positives=near)
