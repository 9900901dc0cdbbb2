"""Which sampler a training setting names, on which labels or places.

shuffle                     plain shuffling
balanced                    P classes x K images, without replacement (`samplers.BalancedSampler`)
balanced_with_replacement   the same, images drawn independently
class_random                the proxy papers' released code: classes and images with replacement
episodic                    N classes x K images anew for every step (the vMF paper); N = batch size / K
pairs                       batch size / 2 pairs: two images of a person (any class), or a query and a database
                            image within 10 m (the Laplacian metric learner on faces and places)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from probmetric.data.manifest import DataError, OptionError
from probmetric.data.pairs import EpisodicSampler, PairSampler
from probmetric.data.places import TRAIN_RADIUS, positives
from probmetric.data.samplers import BalancedSampler, ClassRandomSampler, ShuffledSampler


class Sampler(Protocol):
    """The batches of an epoch, as a function of the epoch alone."""

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Positions (B,) in the training split, for every batch."""
        ...


def create_sampler(
    sampler: str,
    labels: np.ndarray,
    *,
    batch_size: int,
    per_class: int,
    seed: int,
    steps: int | None = None,
    places: Mapping[str, np.ndarray] | None = None,
) -> Sampler:
    """The sampler by name.

    Args:
        sampler: see the module docstring.
        labels: class of every training image (N,).
        batch_size: B.
        per_class: K, where batches are made of classes.
        seed: seed of the run.
        steps: steps of an epoch, where they are set; episodes need the number.
        places: manifest columns `places.COLUMNS` of the training images (N,), where they are street scenes.

    Raises:
        OptionError: the sampler cannot make batches of that size from these images.
        DataError: pairs are asked for, but no image has a partner.
    """
    if sampler == "shuffle":
        return ShuffledSampler(len(labels), batch_size, seed)
    if sampler == "pairs":
        return _pairs(labels, batch_size, seed, places)
    if sampler == "class_random":
        return ClassRandomSampler(labels, batch_size, per_class, seed)
    if sampler == "episodic":
        if batch_size % per_class:
            raise OptionError(f"batch size {batch_size} is not a multiple of {per_class} images per class.")
        episodes = steps or max(1, len(labels) // batch_size)
        return EpisodicSampler(labels, batch_size // per_class, per_class, episodes, seed)
    return BalancedSampler(labels, batch_size, per_class, seed, replacement=sampler == "balanced_with_replacement")


def _pairs(labels: np.ndarray, batch_size: int, seed: int, places: Mapping[str, np.ndarray] | None) -> PairSampler:
    if batch_size % 2:
        raise OptionError(f"batch size is {batch_size}; with the sampler 'pairs' it must be even.")
    if places is None:
        if np.unique(labels, return_counts=True)[1].max(initial=0) < 2:
            raise DataError("sampler 'pairs': no training class has two images; use 'shuffle'.")
        return PairSampler.of_classes(labels, batch_size // 2, seed)
    queries, database, found = positives(dict(places), radius=TRAIN_RADIUS)
    if not any(map(len, found)):
        raise DataError(
            f"sampler 'pairs': none of the {len(queries)} training queries has a database image within "
            f"{TRAIN_RADIUS:g} m; use 'shuffle' or 'balanced'."
        )
    return PairSampler(queries, [database[near] for near in found], batch_size // 2, seed)
