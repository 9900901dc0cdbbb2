"""Batches of episodes and of pairs: pure functions of (labels or positions, seed, epoch), as in `samplers`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probmetric.data.manifest import OptionError
from probmetric.data.samplers import generator


class EpisodicSampler:
    """N classes x K images drawn anew for every episode: classes without replacement, images of a class likewise.

    Episodes are independent of each other. Classes with fewer than K images are not drawn.
    """

    def __init__(self, labels: np.ndarray, classes: int, per_class: int, episodes: int, seed: int) -> None:
        """Episodes over the images with the given labels.

        Args:
            labels: class of every image (N_images,).
            classes: N, classes per episode.
            per_class: K, images per class.
            episodes: episodes per epoch.
            seed: seed of the run.
        """
        labels = np.asarray(labels)
        found, counts = np.unique(labels, return_counts=True)
        usable = found[counts >= per_class]
        if len(usable) < classes:
            raise OptionError(
                f"episodes of {classes} classes x {per_class} images: only {len(usable)} of {len(found)} classes have "
                f"that many images; use at most {len(usable)} classes or fewer images."
            )
        self.classes, self.per_class, self.episodes, self.seed = classes, per_class, episodes, seed
        order = np.argsort(labels, kind="stable")
        self._members = [part for part in np.split(order, np.cumsum(counts)[:-1]) if len(part) >= per_class]

    def __len__(self) -> int:
        """Episodes per epoch."""
        return self.episodes

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Positions (N * K,) of each episode, the K images of a class side by side."""
        rng = generator(self.seed, epoch)
        return [self._episode(rng) for _ in range(self.episodes)]

    def _episode(self, rng: np.random.Generator) -> np.ndarray:
        chosen = rng.choice(len(self._members), self.classes, replace=False)
        return np.concatenate([rng.choice(self._members[k], self.per_class, replace=False) for k in chosen])


class PairSampler:
    """Batches of B pairs (query, positive), 2 B images: every query that has a positive occurs once per epoch.

    Faces: the positive is another random image of the same person. Places: a random database image near the query.
    """

    def __init__(self, queries: np.ndarray, positives: Sequence[np.ndarray], pairs_per_batch: int, seed: int) -> None:
        """Pairs of queries with one of their positives.

        Args:
            queries: positions of the queries (Q,).
            positives: for each query the positions it may be paired with; queries with none are left out.
            pairs_per_batch: B.
            seed: seed of the run.
        """
        usable = [i for i, found in enumerate(positives) if len(found)]
        if not usable or pairs_per_batch < 1:
            raise OptionError(
                f"{len(usable)} queries have a positive, {pairs_per_batch} pairs per batch: need at least 1."
            )
        self.queries = np.asarray(queries)[usable]
        self.positives = [np.asarray(positives[i]) for i in usable]
        self.pairs_per_batch, self.seed = pairs_per_batch, seed

    @classmethod
    def of_classes(cls, labels: np.ndarray, pairs_per_batch: int, seed: int) -> PairSampler:
        """Pairs of two different images of one class; classes of one image give none.

        Args:
            labels: class of every image (N,).
            pairs_per_batch: B.
            seed: seed of the run.
        """
        labels = np.asarray(labels)
        order = np.argsort(labels, kind="stable")
        members = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
        others: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(labels)
        for group in members:
            for position in group:
                others[position] = group[group != position]
        return cls(np.arange(len(labels)), others, pairs_per_batch, seed)

    def __len__(self) -> int:
        """Batches per epoch; a last, smaller batch is dropped unless it is the only one."""
        return max(1, len(self.queries) // self.pairs_per_batch)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Positions (2 B,) of each batch: query, positive, query, positive, ..."""
        rng = generator(self.seed, epoch)
        order = rng.permutation(len(self.queries))
        picks = np.array(
            [self.positives[i][int(u * len(self.positives[i]))] for i, u in enumerate(rng.random(len(order)))]
        )
        pairs = np.stack([self.queries, picks], axis=1)[order]
        size = self.pairs_per_batch
        return [pairs[i * size : (i + 1) * size].reshape(-1) for i in range(len(self))]
