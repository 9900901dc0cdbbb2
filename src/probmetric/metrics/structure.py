"""Measure the structure of an embedding space, after Roth et al. (2020) and papers 000, 001 and 004.

All measures are of unit rows. d(u,v) = 1 - u.v; m_c is the normalised mean of class c. Classes of one image have no
inner distances and are left out of class averages.

    richness_kl             KL(U || s) = sum_k (1/n) log((1/n) / s_k), s the singular values of the uncentred matrix
                            over their sum, n = min(N, M); lower = more directions in use. 000 T5, 001 T3 ("rho")
    richness_kl_without_first   richness_kl without the largest singular value (mode "@2" of 000, 001)
    density                 mean over c of mean d within c, over mean d between the m_c; 001 T3 ("pi_density")
    uniformity              mean over pairs of exp(-2 |u-v|^2), no logarithm, self pairs left out; lower = more uniform,
                            about e^-4 = 0.018 for uniform points. 001 T3 ("G2")
    concentration_variance  variance over c of (mean d to m_c) / (mean d between the m_c); 001 T3 ("sigma^2_kappa"; its
                            printed size suggests another scaling: compare changes, not values)
    concentration_std       root of concentration_variance
    cluster_diversity       mean over c of the variance of d within c; 000 T5 (no code released: relative changes only)

Papers 000 and 001 compute these on training embeddings. Which direction is better depends on the paper's claim.

`proxy_transport` measures how well proxies stand for their classes (paper 004, table 3 and supplement 2). The m proxies
of a class are assigned to m different embeddings of the class at least total distance (Hungarian method). The distances
are averaged over proxies, then over classes. The paper prints the mean distance (`w1`) as W2; `w2` is the root of the
mean squared distance under the assignment that minimises it. Lower is better.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Doubles, Floats, Ints
from probmetric.metrics.record import table

ROWS = 4096
RESOLUTION = 1e-7

METRICS = (
    *table(
        "structure train/structure",
        __name__,
        """
        richness_kl | Spectrum KL | KL(U ‖ s), U uniform, s the singular values of the uncentred embeddings divided by
            their sum; lower = more directions in use | 000 T5, 001 T3 (ρ)
        richness_kl_without_first | Spectrum KL (without first) | `richness_kl` without the largest singular value |
            mode "@2" of 000, 001
        density | | mean cosine distance between two images of a class, divided by the mean cosine distance between two
            class means | 001 T3 (π)
        uniformity | Uniformity | mean over pairs of different images of exp(−2 ‖u − v‖²), without the logarithm; lower
            = more uniform | 001 T3 (G₂)
        concentration_variance, concentration_std | | variance and standard deviation over classes of the mean distance
            to the class mean, divided by the mean distance between class means | 001 T3 (σ²κ): compare changes, its
            printed scale is unclear
        cluster_diversity | Cluster diversity | variance of the distances between two images of a class, mean over the
            classes | 000 T5: relative changes
        """,
    ),
    *table(
        "structure",
        __name__,
        """
        proxy_w1, proxy_w2 | W{} (proxy) ↓ | distance between the proxies and the images of their class, each proxy
            assigned to another image at least total cost (`proxy_transport`): mean distance (w1), root mean square
            (w2); needs `evaluation.proxies: true` | 004 T3 prints `proxy_w1` under the name W2
        """,
    ),
)


def structure_metrics(embeddings: Any, labels: Any, *, normalize: bool = False) -> dict[str, float]:
    """Return the measures of the module docstring for unit rows `embeddings` (N,M) with `labels` (N,).

    NaN where undefined: fewer than two classes, or no class of two images.

    Examples:
        >>> measures = structure_metrics([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0, 0, 1, 1])
        >>> measures["density"], measures["richness_kl"]
        (0.0, 0.0)
    """
    rows = arrays.matrix(embeddings, "embeddings")
    if normalize:
        rows = arrays.normalized(rows)
    else:
        arrays.check_unit_rows(rows, "embeddings")
    classes = arrays.labels_of(labels, len(rows), "labels", "embeddings")
    spectrum = singular_values(rows)
    return {
        "richness_kl": _uniform_divergence(spectrum),
        "richness_kl_without_first": _uniform_divergence(spectrum[1:]),
        "uniformity": uniformity(rows),
        **_class_structure(rows, classes),
    }


def singular_values(rows: Floats) -> Doubles:
    """Return the min(N, M) singular values of `rows` (N,M), descending: roots of the float64 Gram matrix's eigenvalues.

    They are accurate to about 1e-8 of the largest, a tenth of the resolution of float32 rows.
    """
    if len(rows) <= rows.shape[1]:
        whole = rows.astype(np.float64)
        gram = arrays.products(whole, whole)
    else:
        gram = np.zeros((rows.shape[1], rows.shape[1]))
        for start in range(0, len(rows), ROWS):
            block = rows[start : start + ROWS].astype(np.float64)
            gram += arrays.products(block.T, block.T)
    return np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))


def _uniform_divergence(values: Doubles) -> float:
    """Return KL(U || values / sum); smaller values count as 1e-7 of the largest, the resolution of float32."""
    if not len(values) or values[0] <= 0:
        return float("nan")
    floored = np.maximum(values, RESOLUTION * values[0])
    share = floored / floored.sum()
    return max(0.0, float(-np.mean(np.log(len(share) * share))))


def uniformity(rows: Floats) -> float:
    """Return the mean over pairs of exp(-2 |u-v|^2) = exp(4 u.v - 2 |u|^2 - 2 |v|^2); NaN for a single row.

    `rows` (N,M) are of length 1, or 0 where they have no direction.
    """
    count, total, block = len(rows), 0.0, 1024
    halves = np.where(rows.any(axis=1), np.float32(0.5), np.float32(0))
    for i in range(0, count, block):
        for j in range(i, count, block):
            values = arrays.products(rows[i : i + block], rows[j : j + block])
            values -= halves[i : i + block, None] + halves[j : j + block]
            values *= np.float32(4)
            np.exp(values, out=values)
            total += (1 if i == j else 2) * float(values.sum(dtype=np.float64))
    return (total - count) / (count * (count - 1)) if count > 1 else float("nan")


def _class_structure(rows: Floats, classes: Ints) -> dict[str, float]:
    order = np.argsort(classes, kind="stable")
    edges = np.flatnonzero(np.diff(classes[order], prepend=-1))
    centres, inner, spread, to_centre = [], [], [], []
    for members in np.split(order, edges[1:]):
        inside = rows[members].astype(np.float64)
        total = inside.sum(axis=0)
        norm = float(np.linalg.norm(total))
        centres.append(total / max(norm, 1e-12))
        if len(inside) > 1:
            mean, variance = _pair_distances(inside, norm)
            inner.append(mean)
            spread.append(variance)
            to_centre.append(1.0 - norm / len(inside))
    between = _mean_distance(np.array(centres))
    ratio = np.array(to_centre) / between if inner and between > 0 else np.array([np.nan])
    return {
        "density": float(np.mean(inner) / between) if inner and between > 0 else float("nan"),
        "concentration_variance": float(ratio.var()),
        "concentration_std": float(ratio.std()),
        "cluster_diversity": float(np.mean(spread)) if spread else float("nan"),
    }


def _pair_distances(inside: Doubles, norm: float) -> tuple[float, float]:
    """Return mean and variance of 1 - u.v over the pairs of unit rows `inside` (n,M) whose sum has length `norm`."""
    count = len(inside)
    pairs = count * (count - 1)
    across = inside.T if count > inside.shape[1] else inside
    gram = arrays.products(across, across)
    lengths = np.einsum("ij,ij->i", inside, inside)
    mean = (norm**2 - lengths.sum()) / pairs
    second = (np.sum(gram**2) - np.sum(lengths**2)) / pairs
    return float(1.0 - mean), float(max(second - mean**2, 0.0))


def _mean_distance(centres: Doubles) -> float:
    count = len(centres)
    if count < 2:
        return float("nan")
    total = centres.sum(axis=0)
    return float(1.0 - (total @ total - np.sum(centres**2)) / (count * (count - 1)))


def proxy_transport(embeddings: Any, labels: Any, proxies: Any, proxy_labels: Any) -> dict[str, float]:
    """Return `w1` and `w2` between `proxies` (P,M) with `proxy_labels` (P,) and `embeddings` (N,M) with `labels` (N,).

    Classes without embeddings are left out. A class with fewer embeddings than proxies uses its nearest proxies. Rows
    are compared as given: normalise them first if the method does (paper 004 does).

    Examples:
        >>> measures = proxy_transport([[1.0, 0.0], [0.0, 1.0]], [0, 0], [[1.0, 0.5]], [0])
        >>> measures["w1"], measures["w2"]
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


def _class_costs(rows: Floats, proxies: Floats) -> tuple[float, float]:
    from scipy.optimize import linear_sum_assignment

    difference = proxies[:, None].astype(np.float64) - rows[None]
    squared = np.einsum("pnm,pnm->pn", difference, difference)
    distance = np.sqrt(squared)
    first = distance[linear_sum_assignment(distance)].mean()
    second = squared[linear_sum_assignment(squared)].mean() ** 0.5
    return float(first), float(second)
