"""Find labels that are probably wrong: images nearer to another class than to their own.

Notation: z_i are unit embeddings, y_i labels, m_c the sum of the embeddings of class c. Image i is compared with every
other class by cos(z_i, m_c), and with its own class without itself by cos(z_i, m_y - z_i):

    suspicion_i = max over c of cos(z_i, m_c) - cos(z_i, m_y - z_i)

Above 0, another class is nearer. Class means judge better than nearest images: where a fifth of the labels is wrong,
the nearest image often has a wrong label, but a mean hardly moves (`benchmarks/labels.py` compares both).

An image that is alone in its class cannot be compared with it: its suspicion is NaN, and it is listed last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Doubles, Ints
from probmetric.trust.copies import copy_groups

BLOCK = 1024  # images compared with all classes at once


@dataclass(frozen=True)
class SuspectedLabels:
    """Rank images by how much nearer another class is than their own.

    Attributes:
        order: (N,) rows, the most suspicious first; images alone in their class last.
        suspicion: (N,) cosine of the nearest other class minus that of the image's own class, NaN if it is alone.
        proposed: (N,) the nearest other class of each image.
    """

    order: Ints
    suspicion: Doubles
    proposed: Array

    @property
    def count(self) -> int:
        """Number of images that are nearer to another class than to their own."""
        return int((self.suspicion > 0).sum())


def suspect_labels(embeddings: Any, labels: Any) -> SuspectedLabels:
    """Rank images by how likely their label is wrong.

    Args:
        embeddings: (N, M) embeddings of any length; only their directions count.
        labels: (N,) class of each image; at least two classes.

    Returns:
        Suspicions, classes proposed in place of the labels, and the order in which to look at images.

    Raises:
        ValueError: shapes do not fit, an embedding is not finite, or there is only one class.
    """
    directions = arrays.matrix(embeddings, "embeddings")
    classes, codes = arrays.names_of(labels, "labels", count=len(directions))
    if len(classes) < 2:
        raise ValueError("labels has one class; a label can only be suspected where there is another class.")
    sums = np.zeros((len(classes), directions.shape[1]))
    for start in range(0, len(codes), BLOCK):
        np.add.at(sums, codes[start : start + BLOCK], _unit(directions[start : start + BLOCK]))
    means = _unit(sums)
    suspicion, proposed = np.empty(len(codes)), np.empty(len(codes), dtype=np.int64)
    for start in range(0, len(codes), BLOCK):
        rows = slice(start, start + BLOCK)
        block, labelled = _unit(directions[rows]), codes[rows]
        cosines = block @ means.T
        cosines[np.arange(len(labelled)), labelled] = -np.inf
        proposed[rows] = cosines.argmax(axis=1)
        without = _unit(sums[labelled] - block)
        suspicion[rows] = cosines.max(axis=1) - np.einsum("ij,ij->i", block, without)
    suspicion[np.bincount(codes)[codes] == 1] = np.nan
    return SuspectedLabels(np.argsort(-suspicion, kind="stable"), suspicion, classes[proposed])


def contradictory_copies(embeddings: Any, labels: Any) -> Ints:
    """Return pairs (P, 2) of rows that show one picture (`copies.copy_groups`) under different labels."""
    pictures = copy_groups(arrays.normalized(arrays.matrix(embeddings, "embeddings")))
    codes = arrays.names_of(labels, "labels", count=len(pictures))[1]
    order = np.argsort(pictures, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(pictures[order])) + 1)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for row, picture in enumerate(pictures.tolist()):
        group = groups[picture]
        against = group[(group > row) & (codes[group] != codes[row])]
        pairs.append(np.column_stack([np.full(len(against), row), against]))
    return np.concatenate(pairs)


def _unit(vectors: Array) -> Doubles:
    """Return rows divided by their norms, in float64; a row of zeros stays."""
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 1e-12)
