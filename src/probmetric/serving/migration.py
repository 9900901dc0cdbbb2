"""Map the vectors of an old model to the space of a new one, so that a large gallery need not be embedded again.

Pairs are images that both models have embedded. With unit rows A (P, M) of the old model and B (P, D) of the new one:

    procrustes   W = U V', where A'B = U S V': the rotation (or projection) with the least |AW - B|, Schoenemann 1966
    ridge        W = (A'A + lambda I)^-1 A'B

A third of the pairs is held out from fitting: the new model's vectors of these pairs are the calibration queries. The
kind of the map and lambda are chosen on a quarter of the other pairs, by the mean cosine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from probmetric.errors import ServingError
from probmetric.io import atomic_path
from probmetric.metrics.arrays import normalized
from probmetric.retrieval.neighbours import search
from probmetric.serving.gallery import directions
from probmetric.serving.vectors import Vectors

PENALTIES = (0.001, 0.01, 0.1, 1.0)  # lambda, in units of P / M, the mean eigenvalue of A'A
LEAST = 30  # pairs


@dataclass(frozen=True)
class Migrated:
    """A gallery in the space of the new model.

    Attributes:
        rows: unit vectors (N, D): mapped rows of the gallery, and the new model's vectors of the held-out pairs.
        calibrates: which rows are held-out pairs (N,).
        kind: kind of the map: procrustes, or ridge with its lambda.
        cosine: mean cosine between mapped and new vectors of the held-out pairs.
        recall: recall@1 of the held-out pairs' new vectors among the other pairs' new vectors.
        recall_mapped: recall@1 of the held-out pairs' new vectors among the other pairs' mapped vectors.
    """

    rows: np.ndarray
    calibrates: np.ndarray
    kind: str
    cosine: float
    recall: float
    recall_mapped: float


def migrate(old: Vectors, new: Vectors) -> Migrated:
    """Map the vectors of `old` to the space of `new`, which has vectors of some images of the same names.

    Raises:
        ServingError: fewer than `LEAST` images have vectors of both models, a name occurs twice, or there are no
            classes, by which to judge the map.
    """
    for side in (old, new):
        if len(set(side.names)) < len(side):
            twice = Counter(side.names).most_common(1)[0][0]
            raise ServingError(f"{side.file} lists {twice!r} more than once; leave one row for each image.")
    if "" in old.labels:
        raise ServingError(f"{old.file} has rows without a class, by which the map is judged and certified; name them.")
    numbers = {name: row for row, name in enumerate(old.names)}
    shared = np.array([(numbers[name], row) for row, name in enumerate(new.names) if name in numbers]).reshape(-1, 2)
    if len(shared) < LEAST:
        raise ServingError(
            f"{len(shared)} of the {len(new)} rows of {new.file} are in {old.file}, by their column `path`; embed at "
            f"least {LEAST} images of the old gallery with the new model, better a thousand."
        )
    shared = np.random.default_rng(0).permutation(shared)
    held, fitted = shared[: len(shared) // 3], shared[len(shared) // 3 :]
    before, after = directions(old.rows), directions(new.rows)
    kind, turn = _chosen_map(before[fitted[:, 0]], after[fitted[:, 1]])
    rows = normalized(before @ turn)
    cosine = float(np.einsum("ij,ij->i", rows[held[:, 0]], after[held[:, 1]]).mean())
    labels = np.array(old.labels)
    recalls = (
        float((labels[fitted[nearest, 0]] == labels[held[:, 0]]).mean())
        for nearest in (
            search(after[held[:, 1]], side).rows[:, 0] for side in (after[fitted[:, 1]], rows[fitted[:, 0]])
        )
    )
    rows[held[:, 0]] = after[held[:, 1]]
    calibrates = np.zeros(len(rows), dtype=bool)
    calibrates[held[:, 0]] = True
    return Migrated(rows, calibrates, kind, cosine, *recalls)


def _chosen_map(before: np.ndarray, after: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the map (M, D) fitted to all unit pairs (P, M), (P, D), of the kind that fits a quarter of them best."""
    quarter = len(before) // 4
    maps = {"procrustes": _procrustes} | {f"ridge {penalty:g}": partial(_ridge, penalty) for penalty in PENALTIES}

    def fit(kind: str) -> float:
        mapped = normalized(before[:quarter] @ maps[kind](before[quarter:], after[quarter:]))
        return float(np.einsum("ij,ij->i", mapped, after[:quarter]).mean())

    kind = max(maps, key=fit)
    return kind, maps[kind](before, after)


def _procrustes(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    left, _, right = np.linalg.svd(before.T @ after, full_matrices=False)
    return np.asarray(left @ right)


def _ridge(penalty: float, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    gram = before.T @ before
    gram[np.diag_indices_from(gram)] += penalty * len(before) / before.shape[1]
    return np.asarray(np.linalg.solve(gram, before.T @ after))


def write_migrated(old: Vectors, migrated: Migrated, output: Path) -> None:
    """Write the migrated gallery as a Parquet file of vectors, whose column `split` marks the calibration rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    splits = np.where(migrated.calibrates, "calibration", "gallery")
    vectors = pa.FixedSizeListArray.from_arrays(migrated.rows.ravel(), migrated.rows.shape[1])
    columns = {"vector": vectors, "label": old.labels, "path": old.names, "split": splits.tolist()}
    with atomic_path(output) as temporary:
        pq.write_table(pa.table(columns), temporary)
