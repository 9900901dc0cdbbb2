"""Compare k-means clusters of the embeddings with the classes; higher is better for all metrics.

faiss k-means runs 20 iterations from a fixed seed. k is the number of classes in `labels`, unless you pass `clusters`:
papers 000 and 001 take the number of *training* classes.

    nmi  2 I(A;B) / (H(A) + H(B)), arithmetic mean, as in scikit-learn; grows with the number of clusters
    ami  (I - E I) / ((H(A) + H(B)) / 2 - E I) under the permutation model (Vinh et al. 2010); 0 for chance
    f1   2 TP / (2 TP + FP + FN) over pairs of images, where "same cluster" predicts "same class"
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Floats, Ints
from probmetric.metrics.record import table

EPSILON = float(np.finfo(np.float64).eps)

METRICS = table(
    "clustering",
    __name__,
    """
    nmi | NMI ↑ | mutual information of clusters and classes, divided by the arithmetic mean of their entropies
    ami | AMI ↑ | mutual information of clusters and classes, adjusted so that random clusters have 0
    f1 | F1 ↑ | F1 over pairs of images, where “same cluster” predicts “same class”
    """,
)


def clustering_metrics(
    embeddings: Any, labels: Any, *, clusters: int | None = None, seed: int = 1234, iterations: int = 20
) -> dict[str, float]:
    """Return NMI, AMI and F1 of a k-means clustering of `embeddings` (N,M) against `labels` (N,).

    Examples:
        >>> clustering_metrics([[0.0, 0.0], [0.0, 0.1], [5.0, 5.0], [5.0, 5.1]], [0, 0, 1, 1])["nmi"]
        1.0
    """
    rows = arrays.matrix(embeddings, "embeddings")
    arrays.check_scale(float(arrays.row_norms(rows).max()), "embeddings")
    classes = arrays.labels_of(labels, len(rows), "labels", "embeddings")
    wanted = len(np.unique(classes)) if clusters is None else clusters
    arrays.check_count(wanted, "clusters", most=len(rows))
    arrays.check_count(seed, "seed", least=0, most=2**31 - 1)
    arrays.check_count(iterations, "iterations")
    return agreement(kmeans(rows, wanted, seed=seed, iterations=iterations), classes)


def kmeans(rows: Floats, clusters: int, *, seed: int, iterations: int = 20) -> Ints:
    """Return the cluster number (N,) of each of `rows` (N,M) by faiss k-means with Euclidean distance."""
    import faiss

    engine = faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=1_000_000_000,
    )
    engine.train(rows)
    return engine.index.search(rows, 1)[1].ravel().astype(np.int64)


def agreement(first: Any, second: Any) -> dict[str, float]:
    """Return NMI, AMI and pairwise F1 of two partitions (N,) and (N,); symmetric.

    Examples:
        >>> agreement([0, 0, 1, 1], [1, 1, 0, 0])
        {'nmi': 1.0, 'ami': 1.0, 'f1': 1.0}
    """
    a, b = _codes(first), _codes(second)
    if len(a) != len(b):
        raise ValueError(f"the partitions have {len(a)} and {len(b)} entries; they must be aligned.")
    sizes_a, sizes_b = np.bincount(a), np.bincount(b)
    joint = np.unique(a * len(sizes_b) + b, return_counts=True)
    cells, counts = joint[0], joint[1].astype(np.float64)
    total = float(len(a))
    expected = sizes_a[cells // len(sizes_b)] * sizes_b[cells % len(sizes_b)] / total
    information = max(0.0, float(np.sum(counts / total * np.log(counts / expected))))
    entropy = (_entropy(sizes_a) + _entropy(sizes_b)) / 2
    pairs = _pairs(sizes_a) + _pairs(sizes_b)
    if len(sizes_a) == len(sizes_b) == len(counts):
        return {"nmi": 1.0, "ami": 1.0, "f1": 1.0}
    chance = _expected_information(sizes_a, sizes_b)
    return {
        "nmi": information / entropy if entropy > 0 else 1.0,
        "ami": float((information - chance) / np.copysign(max(abs(entropy - chance), EPSILON), entropy - chance)),
        "f1": 2 * _pairs(counts) / pairs if pairs else 0.0,
    }


def _codes(partition: Any) -> Ints:
    array = arrays.to_numpy(partition)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise ValueError(f"a partition has shape {array.shape}, dtype {array.dtype}; expected a vector of integers.")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _entropy(sizes: Array) -> float:
    share = sizes / sizes.sum()
    return float(-np.sum(share * np.log(share)))


def _pairs(sizes: Array) -> float:
    return float(np.sum(sizes * (sizes - 1.0)) / 2)


def _expected_information(sizes_a: Ints, sizes_b: Ints) -> float:
    """Return the mean mutual information of random partitions with these cluster sizes (hypergeometric model).

    Clusters of equal size contribute the same, so the sum runs over pairs of different sizes.
    """
    total = int(sizes_a.sum())
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, total + 1)))))
    result = 0.0
    for size_a, times_a in zip(*np.unique(sizes_a, return_counts=True), strict=True):
        for size_b, times_b in zip(*np.unique(sizes_b, return_counts=True), strict=True):
            shared = np.arange(max(1, size_a + size_b - total), min(size_a, size_b) + 1)
            log_chance = (
                log_factorial[[size_a, size_b, total - size_a, total - size_b]].sum()
                - log_factorial[total]
                - log_factorial[shared]
                - log_factorial[size_a - shared]
                - log_factorial[size_b - shared]
                - log_factorial[total - size_a - size_b + shared]
            )
            gain = shared / total * np.log(total * shared / (float(size_a) * float(size_b)))
            result += times_a * times_b * float(np.sum(gain * np.exp(log_chance)))
    return result
