"""Add label noise: replace a share of the training labels, reproducibly; the original labels are kept.

Uniform noise replaces a label by another training class, each equally likely. Class-dependent noise (`nearest`)
replaces it by one of the classes that look most alike (smallest distance between the classes' mean images, or mean
vectors), as people do by mistake. Exactly round(rate * N) labels change, so the realised rate differs from `rate` by
less than one image. Validation and test labels never change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np

from probmetric.data.manifest import OptionError, load_columns, read_columns, read_summary, verify_digest
from probmetric.data.store import ImageStore
from probmetric.data.variants import write_variant
from probmetric.errors import nearest
from probmetric.metrics.arrays import products

Kind = Literal["uniform", "nearest"]
NEIGHBOURS = 5


def inject_label_noise(
    labels: np.ndarray,
    split: np.ndarray,
    *,
    rate: float,
    seed: int,
    kind: Kind = "uniform",
    neighbours: np.ndarray | None = None,
) -> np.ndarray:
    """Replace a share of the training labels.

    Args:
        labels: class of every image (N,).
        split: train, val or test for every image (N,); only train changes.
        rate: share of the training labels to change, in [0, 1).
        seed: seed of the choice; the same seed changes the same images.
        kind: `uniform` over the other training classes, or `nearest`: one of the classes in `neighbours`.
        neighbours: for `nearest`: (C_train, K) labels; row i lists the labels that may replace the i-th smallest
            training label.

    Returns:
        The new labels (N,).
    """
    if not 0.0 <= rate < 1.0:
        raise OptionError(f"label noise rate is {rate}; allowed: 0 <= rate < 1.")
    if kind not in get_args(Kind):
        raise OptionError(f"label noise kind is {kind!r}; {nearest(kind, get_args(Kind))}")
    labels = np.asarray(labels)
    rows = np.flatnonzero(np.asarray(split) == "train")
    classes = np.unique(labels[rows])
    if len(classes) < 2:
        raise OptionError(f"label noise needs at least 2 training classes, found {len(classes)}.")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(rows)[: round(rate * len(rows))]
    position = np.searchsorted(classes, labels[chosen])
    noisy = labels.copy()
    if kind == "uniform":
        step = rng.integers(1, len(classes), size=len(chosen))
        noisy[chosen] = classes[(position + step) % len(classes)]
    else:
        if neighbours is None:
            raise OptionError("label noise of kind 'nearest' needs `neighbours`, a (C_train, K) array of labels.")
        pick = rng.integers(0, neighbours.shape[1], size=len(chosen))
        noisy[chosen] = neighbours[position, pick]
    return noisy


def add_noise(
    prepared_folder: str | Path, output_folder: str | Path, *, rate: float, kind: Kind = "uniform", seed: int = 0
) -> float:
    """Write a variant of a prepared dataset with noisy training labels; the images are not copied.

    Args:
        prepared_folder: the clean dataset.
        output_folder: the folder to write, `data/prepared/<dataset>+noise<rate>`.
        rate: share of the training labels to change.
        kind: see `inject_label_noise`.
        seed: seed of the choice.

    Returns:
        The realised rate.

    Raises:
        DataError: the clean dataset is not as it was prepared.
    """
    prepared_folder, output_folder = Path(prepared_folder), Path(output_folder)
    verify_digest(prepared_folder)
    columns, metadata = read_columns(prepared_folder)
    if "noise" in metadata:
        raise OptionError(f"{prepared_folder} already has noisy labels; start from the clean dataset.")
    clean, split = columns["label"], columns["split"]
    neighbours = nearest_classes(prepared_folder) if kind == "nearest" else None
    noisy = inject_label_noise(clean, split, rate=rate, seed=seed, kind=kind, neighbours=neighbours)
    realised = float((noisy != clean)[split == "train"].mean())
    noise = {"kind": kind, "rate": rate, "seed": seed, "realised_rate": realised}
    write_variant(prepared_folder, output_folder, {"label": noisy, "clean_label": clean}, {"noise": noise})
    return realised


def nearest_classes(prepared_folder: str | Path) -> np.ndarray:
    """Return the most similar training classes of each, by Euclidean distance of the classes' mean 16x16 grey images.

    For `source: embeddings` the distance is that of the classes' mean vectors.

    Returns:
        Labels (C_train, K), nearest first, K = min(NEIGHBOURS, C_train - 1).
    """
    columns = load_columns(prepared_folder, ["label", "split"])
    label, split = columns["label"], columns["split"]
    classes = np.unique(label[split == "train"])
    store = ImageStore(prepared_folder)
    chosen = [np.flatnonzero((label == c) & (split == "train")).tolist() for c in classes]
    seen = _vector if "dimensions" in read_summary(prepared_folder) else _thumbnail
    means = np.stack([np.mean([seen(store[row]) for row in rows], axis=0) for rows in chosen])
    squared = (means**2).sum(1)
    distance = squared[:, None] + squared[None] - 2 * products(means, means)
    np.fill_diagonal(distance, np.inf)
    order = np.argsort(distance, axis=1, kind="stable")[:, : min(NEIGHBOURS, len(classes) - 1)]
    return classes[order]


def _vector(pixels: np.ndarray) -> np.ndarray:
    """Return the vector (D,), with its padding of zeros, that is stored as the bytes of an image (H, W, C)."""
    stored = pixels.reshape(-1)
    return stored[: len(stored) // 4 * 4].view("<f4").astype(np.float64)


def _thumbnail(pixels: np.ndarray) -> np.ndarray:
    """Return mean grey values (256,) of 16 x 16 places of an image (H, W, C), by PIL's box filter."""
    from PIL import Image

    grey = pixels.mean(axis=2).round().astype(np.uint8)
    return np.asarray(Image.fromarray(grey).resize((16, 16), Image.Resampling.BOX), dtype=np.float64).ravel()
