"""Decide for place recognition which database images show the place of a query.

Where the manifest holds positions (`COLUMNS`), the distance on the ground decides. Otherwise the frames of a walk
(`WALKS`) decide: frames of one walk at most `FRAMES` apart show one place.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy

Subtask = Literal["all", "day_to_night", "night_to_day"]
COLUMNS = ("city", "easting", "northing", "role", "night")
SEQUENCE = "sequence"
WALKS = (SEQUENCE, "frame", "role")
TRAIN_RADIUS, RADIUS, FRAMES = 10.0, 25.0, 3


def located(columns: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float] | None:
    """Return the columns `COLUMNS` (N,) and the radius within which an image is a right answer; None without positions.

    Frames of a walk are placed on a line, one unit apart, each walk in a city of its own.
    """
    if set(COLUMNS) <= columns.keys():
        return {name: columns[name] for name in COLUMNS}, RADIUS
    if not set(WALKS) <= columns.keys():
        return None
    line, never = columns["frame"].astype(np.float64), np.zeros(len(columns["role"]), dtype=bool)
    walks = {"city": columns["sequence"], "easting": line, "northing": np.zeros_like(line), "role": columns["role"]}
    return walks | {"night": never}, float(FRAMES)


def matched(queries: np.ndarray, database: np.ndarray, radius: float) -> np.ndarray:
    """Tell whether each query (Q, 2) has a database image (D, 2) within `radius` metres; (Q,) bool."""
    if not len(queries) or not len(database):
        return np.zeros(len(queries), dtype=bool)
    distance, _ = scipy.spatial.cKDTree(database).query(queries, distance_upper_bound=np.nextafter(radius, np.inf))
    return np.isfinite(distance)


def positives(
    columns: dict[str, np.ndarray], *, radius: float = RADIUS
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return queries, database and which of the database matches each query.

    Args:
        columns: manifest columns city, easting, northing and role of the images (N,).
        radius: metres; an image at exactly this distance matches.

    Returns:
        (query rows (Q,), database rows (D,), for each query the matching positions in the database rows). Images of
        different cities never match.
    """
    role, city = columns["role"], columns["city"]
    position = np.stack([columns["easting"], columns["northing"]], axis=1)
    queries, database = np.flatnonzero(role == "query"), np.flatnonzero(role == "database")
    near_by: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(queries)
    for name in dict.fromkeys(city[queries].tolist()):
        there = np.flatnonzero(city[database] == name)
        here = np.flatnonzero(city[queries] == name)
        if len(there):
            near = scipy.spatial.cKDTree(position[database[there]]).query_ball_point(position[queries[here]], radius)
            for i, hits in zip(here, near, strict=True):
                near_by[i] = np.sort(there[np.array(hits, dtype=np.int64)])
    return queries, database, near_by


def subtask(columns: dict[str, np.ndarray], name: Subtask) -> np.ndarray:
    """Return the mask (N,) of the images of a subtask; `day_to_night` has day queries and a night database."""
    if name == "all":
        return np.ones(len(columns["role"]), dtype=bool)
    night, query = columns["night"].astype(bool), columns["role"] == "query"
    return night != query if name == "day_to_night" else night == query
