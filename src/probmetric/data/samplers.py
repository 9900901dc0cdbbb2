"""Which images form which batch: pure functions of (labels, seed, epoch), so that a resumed run sees the same batches.

Batches are lists of positions into the labels given. A distributed run splits every batch: rank r of W takes
positions r, r + W, ... of each, so the union over ranks is the batch of a single process.
"""

from __future__ import annotations

import numpy as np

from probmetric.data.manifest import OptionError


class ShuffledSampler:
    """Plain shuffling; the last, smaller batch is dropped unless it is the only one."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        """Batches over `count` images.

        Args:
            count: number of images N.
            batch_size: B.
            seed: seed of the run.
        """
        if count < 1 or batch_size < 1:
            raise OptionError(f"{count} images in batches of {batch_size}: both must be at least 1.")
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def __len__(self) -> int:
        """Batches per epoch."""
        return max(1, self.count // self.batch_size)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Batches of an epoch: positions (B,) each."""
        order = generator(self.seed, epoch).permutation(self.count)
        return [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(len(self))]


class BalancedSampler:
    """P classes x K images per batch, P = batch_size / K.

    Without replacement (default) classes take turns in a shuffled order and a class gives its images in a shuffled
    order, starting over with a new shuffle when they are used up; a batch repeats an image only if its class has fewer
    than K. With replacement every batch draws P distinct classes uniformly and K images of each independently.
    """

    def __init__(
        self, labels: np.ndarray, batch_size: int, per_class: int, seed: int, *, replacement: bool = False
    ) -> None:
        """Batches over the images with the given labels.

        Args:
            labels: class of every image (N,).
            batch_size: B, a multiple of `per_class`; cut to C * K where there are only C < B / K classes.
            per_class: K.
            seed: seed of the run.
            replacement: draw images of a class with replacement.
        """
        self.labels = np.asarray(labels)
        self.classes = np.unique(self.labels)
        if per_class < 1 or batch_size % per_class:
            raise OptionError(
                f"batch size {batch_size} is not a multiple of {per_class} images per class; nearest allowed: "
                f"{max(1, round(batch_size / max(per_class, 1))) * max(per_class, 1)}."
            )
        if not len(self.classes):
            raise OptionError("there are no images to draw batches from: the training split is empty.")
        self.per_class = per_class
        self.classes_per_batch = min(batch_size // per_class, len(self.classes))
        self.batch_size = self.classes_per_batch * per_class
        self.seed, self.replacement = seed, replacement
        order = np.argsort(self.labels, kind="stable")
        self.members = np.split(order, np.searchsorted(self.labels[order], self.classes[1:]))

    def __len__(self) -> int:
        """Batches per epoch: as many as the images fill, at least one."""
        return max(1, len(self.labels) // self.batch_size)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Batches of an epoch: positions (B,) each, the K images of a class side by side."""
        rng = generator(self.seed, epoch)
        rounds = self._rounds(rng)
        draws = _WithReplacement(self.members, rng) if self.replacement else _InTurn(self.members, rng)
        return [np.concatenate([draws.take(c, self.per_class) for c in chosen]) for chosen in rounds]

    def _rounds(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Classes of each batch, distinct within a batch."""
        count, size = len(self.classes), self.classes_per_batch
        if self.replacement:
            return [rng.permutation(count)[:size] for _ in range(len(self))]
        rounds, queue = [], rng.permutation(count)
        for _ in range(len(self)):
            chosen, queue = queue[:size], queue[size:]
            if len(chosen) < size:
                fresh = rng.permutation(count)
                late = np.isin(fresh, chosen)
                fresh = np.concatenate([fresh[~late], fresh[late]])
                missing = size - len(chosen)
                chosen, queue = np.concatenate([chosen, fresh[:missing]]), fresh[missing:]
            rounds.append(chosen)
        return rounds


class ClassRandomSampler:
    """The sampler of the proxy papers' released code: B / K times a class, uniformly and with replacement, then K of
    its images, with replacement too; a class or an image may occur several times in a batch.
    """

    def __init__(self, labels: np.ndarray, batch_size: int, per_class: int, seed: int) -> None:
        """Batches over the images with the given labels (N,); the arguments are those of `BalancedSampler`."""
        balanced = BalancedSampler(labels, batch_size, per_class, seed)
        self.batch_size, self.per_class, self.seed = batch_size, per_class, seed
        self._count, self._members = len(balanced.labels), balanced.members

    def __len__(self) -> int:
        """Batches per epoch."""
        return max(1, self._count // self.batch_size)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Batches of an epoch: positions (B,) each."""
        rng = generator(self.seed, epoch)
        draws = _WithReplacement(self._members, rng)
        picks = rng.integers(len(self._members), size=(len(self), self.batch_size // self.per_class))
        return [np.concatenate([draws.take(k, self.per_class) for k in row]) for row in picks]


class _WithReplacement:
    def __init__(self, members: list[np.ndarray], rng: np.random.Generator) -> None:
        self.members, self.rng = members, rng

    def take(self, which: int, count: int) -> np.ndarray:
        return self.rng.choice(self.members[which], size=count, replace=True)


class _InTurn:
    """Every class gives its images in a shuffled order, then in a new one."""

    def __init__(self, members: list[np.ndarray], rng: np.random.Generator) -> None:
        self.members, self.rng = members, rng
        self.queue: dict[int, np.ndarray] = {}

    def take(self, which: int, count: int) -> np.ndarray:
        taken = self.queue.get(which, np.empty(0, dtype=np.int64))
        while len(taken) < count:
            fresh = self.rng.permutation(self.members[which])
            late = np.isin(fresh, taken[:count])
            taken = np.concatenate([taken, fresh[~late], fresh[late]])
        self.queue[which] = taken[count:]
        return taken[:count]


def generator(seed: int, epoch: int) -> np.random.Generator:
    """Generator of an epoch's batches."""
    return np.random.default_rng([seed, epoch])
