"""How well do proxies stand for their classes? Paper 004, table 3 and supplement 2.

Per class, its m proxies are assigned to m distinct embeddings of the class at least total distance (Hungarian method),
and the distances are averaged; then over classes. The formula printed as W2 is the mean of the plain distance
(`w1`); `w2` is the root of the mean squared distance under the assignment that minimises that. Lower is better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays


def proxy_transport(embeddings: Any, labels: Any, proxies: Any, proxy_labels: Any) -> dict[str, float]:
    """`w1` and `w2` between `proxies` (P,M) with `proxy_labels` (P,) and `embeddings` (N,M) with `labels` (N,).

    Classes without embeddings are left out; one with fewer embeddings than proxies uses its nearest proxies. Both sides
    are compared as given: normalise them first if the method does (paper 004 does).

    Examples:
        >>> found = proxy_transport([[1.0, 0.0], [0.0, 1.0]], [0, 0], [[1.0, 0.5]], [0])
        >>> found["w1"], found["w2"]
        (0.5, 0.5)
    """
    rows = arrays.matrix(embeddings, "embeddings")
    classes = arrays.labels_of(labels, len(rows), "labels", "embeddings")
    stand_ins = arrays.matrix(proxies, "proxies")
    owners = arrays.labels_of(proxy_labels, len(stand_ins), "proxy_labels", "proxies")
    if rows.shape[1] != stand_ins.shape[1]:
        raise ValueError(f"embeddings have {rows.shape[1]} dimensions, proxies {stand_ins.shape[1]}.")
    shared = np.intersect1d(classes, owners)
    if not len(shared):
        raise ValueError("no class has both embeddings and proxies; check that both use the same label numbers.")
    costs = [_class_costs(rows[classes == c], stand_ins[owners == c]) for c in shared]
    return {"w1": float(np.mean([c[0] for c in costs])), "w2": float(np.mean([c[1] for c in costs]))}


def _class_costs(rows: NDArray[np.float32], proxies: NDArray[np.float32]) -> tuple[float, float]:
    from scipy.optimize import linear_sum_assignment

    difference = proxies[:, None].astype(np.float64) - rows[None]
    squared = np.einsum("pnm,pnm->pn", difference, difference)
    distance = np.sqrt(squared)
    first = distance[linear_sum_assignment(distance)].mean()
    second = squared[linear_sum_assignment(squared)].mean() ** 0.5
    return float(first), float(second)
