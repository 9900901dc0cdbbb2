"""Validation splits: stratified over images (closed-set) or class-disjoint (open-set)."""

from __future__ import annotations

import numpy as np

GALLERY_SPLITS, QUERY_SPLITS = ("gallery", "reference", "index"), ("calibration", "query", "queries", "probe")
"""What columns of tables and of vectors call the images that are searched, and those that are asked about."""


def hold_out_images(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Choose a stratified share of the images.

    Args:
        labels: class of every image (N,).
        fraction: share of each class to hold out; at least one image of a class stays on either side.
        rng: source of randomness.

    Returns:
        Mask (N,), True where the image is held out.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        chosen[rng.permutation(rows)[:count]] = True
    return chosen


def hold_out_classes(classes: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Choose a share of the classes; returns the sorted chosen classes.

    At least two are chosen, because among images of one class every retrieval is right.
    """
    count = min(max(round(fraction * len(classes)), 2), len(classes) - 1)
    return np.sort(rng.permutation(classes)[:count])


def stratified_splits(
    labels: np.ndarray, test_fraction: float, val_fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """Assign each image (N,) to `train`, `val` or `test`, each class shared out alike; val is taken from the rest."""
    split = np.full(len(labels), "train", dtype="<U5")
    test = hold_out_images(labels, test_fraction, rng)
    rest = np.flatnonzero(~test)
    split[test] = "test"
    split[rest[hold_out_images(labels[rest], val_fraction, rng)]] = "val"
    return split
