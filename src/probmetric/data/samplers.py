"""Which images form which batch: pure functions of (labels, seed, epoch), so that a resumed run sees the same batches.

Batches are lists of positions into the labels given. A distributed run splits every batch: rank r of W takes
positions r, r + W, ... of each, so the union over ranks is the batch of a single process.

shuffle                     plain shuffling
balanced                    P classes x K images, without replacement
balanced_with_replacement   the same, images drawn independently
class_random                the proxy papers' released code: classes and images with replacement
episodic                    N classes x K images anew for every step (the vMF paper); N = batch size / K
pairs                       batch size / 2 pairs: two images of a person (any class), or a query and a database
                            image within 10 m (the Laplacian metric learner on faces and places)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from probmetric.data.manifest import DataError, OptionError
from probmetric.data.places import TRAIN_RADIUS, positives


class Sampler(Protocol):
    """The batches of an epoch, as a function of the epoch alone."""

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return positions (B,) among the training images, for every batch."""
        ...


@dataclass(frozen=True)
class Batching:
    """How batches are made.

    Attributes:
        sampler: its name, see above.
        batch_size: B.
        per_class: K, where batches are made of classes.
        steps: steps of an epoch, where they are set; episodes need the number.
    """

    sampler: str
    batch_size: int
    per_class: int = 1
    steps: int | None = None


def create_sampler(
    batching: Batching, labels: np.ndarray, seed: int, places: Mapping[str, np.ndarray] | None = None
) -> Sampler:
    """Create a sampler by name.

    Args:
        batching: name and sizes.
        labels: class of every training image (N,).
        seed: seed of the run.
        places: manifest columns `places.COLUMNS` of the training images (N,), where they are street scenes.

    Raises:
        OptionError: the sampler cannot make batches of that size from these images.
        DataError: pairs are needed, but no image has a partner.
    """
    size, per_class = batching.batch_size, batching.per_class
    if batching.sampler == "shuffle":
        return ShuffledSampler(len(labels), size, seed)
    if batching.sampler == "pairs":
        return _pairs(labels, size, seed, places)
    if batching.sampler == "class_random":
        return ClassRandomSampler(labels, size, per_class, seed)
    if batching.sampler == "episodic":
        if size % per_class:
            raise OptionError(f"batch size {size} is not a multiple of {per_class} images per class.")
        return EpisodicSampler(
            labels, size // per_class, per_class, batching.steps or max(1, len(labels) // size), seed
        )
    replacement = batching.sampler == "balanced_with_replacement"
    return BalancedSampler(labels, size, per_class, seed, replacement=replacement)


def _pairs(labels: np.ndarray, batch_size: int, seed: int, places: Mapping[str, np.ndarray] | None) -> PairSampler:
    if batch_size % 2:
        raise OptionError(f"batch size is {batch_size}; with the sampler 'pairs' it must be even.")
    if places is None:
        if np.unique(labels, return_counts=True)[1].max(initial=0) < 2:
            raise DataError("sampler 'pairs': no training class has two images; use 'shuffle'.")
        return PairSampler.of_classes(labels, batch_size // 2, seed)
    queries, database, near = positives(dict(places), radius=TRAIN_RADIUS)
    if not any(map(len, near)):
        raise DataError(
            f"sampler 'pairs': none of the {len(queries)} training queries has a database image within "
            f"{TRAIN_RADIUS:g} m; use 'shuffle' or 'balanced'."
        )
    return PairSampler(queries, [database[rows] for rows in near], batch_size // 2, seed)


class ShuffledSampler:
    """Plain shuffling; the last, smaller batch is dropped unless it is the only one."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        """Make batches of `count` images.

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
        """Return positions (B,) of each batch of an epoch."""
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
        """Make batches of the images with the given labels.

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
        """Return positions (B,) of each batch of an epoch, the K images of a class side by side."""
        rng = generator(self.seed, epoch)
        rounds = self._rounds(rng)
        in_turn = _InTurn(self.members, rng)

        def take(which: int) -> np.ndarray:
            if self.replacement:
                return rng.choice(self.members[which], size=self.per_class, replace=True)
            return in_turn.take(which, self.per_class)

        return [np.concatenate([take(which) for which in classes]) for classes in rounds]

    def _rounds(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw the classes of each batch, distinct within a batch."""
        count, size = len(self.classes), self.classes_per_batch
        if self.replacement:
            return [rng.permutation(count)[:size] for _ in range(len(self))]
        turns = _InTurn([np.arange(count)], rng)
        return [turns.take(0, size) for _ in range(len(self))]


class ClassRandomSampler:
    """The sampler of the proxy papers' released code: B / K times a class, uniformly and with replacement, then K of
    its images, with replacement too; a class or an image may occur several times in a batch.
    """

    def __init__(self, labels: np.ndarray, batch_size: int, per_class: int, seed: int) -> None:
        """Make batches of the images with the given labels (N,); the arguments are those of `BalancedSampler`."""
        balanced = BalancedSampler(labels, batch_size, per_class, seed)
        self.batch_size, self.per_class, self.seed = batch_size, per_class, seed
        self._count, self._members = len(balanced.labels), balanced.members

    def __len__(self) -> int:
        """Batches per epoch."""
        return max(1, self._count // self.batch_size)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return positions (B,) of each batch of an epoch."""
        rng = generator(self.seed, epoch)
        picks = rng.integers(len(self._members), size=(len(self), self.batch_size // self.per_class))
        return [np.concatenate([rng.choice(self._members[k], size=self.per_class) for k in row]) for row in picks]


class EpisodicSampler:
    """N classes x K images drawn anew for every episode: classes without replacement, images of a class likewise.

    Episodes are independent of each other. Classes with fewer than K images are not drawn.
    """

    def __init__(self, labels: np.ndarray, classes: int, per_class: int, episodes: int, seed: int) -> None:
        """Make episodes of the images with the given labels.

        Args:
            labels: class of every image (N_images,).
            classes: N, classes per episode.
            per_class: K, images per class.
            episodes: episodes per epoch.
            seed: seed of the run.
        """
        labels = np.asarray(labels)
        classes_of, counts = np.unique(labels, return_counts=True)
        usable = classes_of[counts >= per_class]
        if len(usable) < classes:
            raise OptionError(
                f"episodes of {classes} classes x {per_class} images: only {len(usable)} of {len(counts)} classes have "
                f"that many images; use at most {len(usable)} classes or fewer images."
            )
        self.classes, self.per_class, self.episodes, self.seed = classes, per_class, episodes, seed
        order = np.argsort(labels, kind="stable")
        self._members = [part for part in np.split(order, np.cumsum(counts)[:-1]) if len(part) >= per_class]

    def __len__(self) -> int:
        """Episodes per epoch."""
        return self.episodes

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return positions (N * K,) of each episode, the K images of a class side by side."""
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
        """Make pairs of queries with one of their positives.

        Args:
            queries: positions of the queries (Q,).
            positives: for each query the positions it may be paired with; queries with none are left out.
            pairs_per_batch: B.
            seed: seed of the run.
        """
        usable = [i for i, rows in enumerate(positives) if len(rows)]
        if not usable or pairs_per_batch < 1:
            raise OptionError(
                f"{len(usable)} queries have a positive, {pairs_per_batch} pairs per batch: need at least 1."
            )
        self.queries = np.asarray(queries)[usable]
        self.positives = [np.asarray(positives[i]) for i in usable]
        self.pairs_per_batch, self.seed = pairs_per_batch, seed

    @classmethod
    def of_classes(cls, labels: np.ndarray, pairs_per_batch: int, seed: int) -> PairSampler:
        """Make pairs of two different images of one class; classes of one image give none.

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
        """Return positions (2 B,) of each batch: query, positive, query, positive, ..."""
        rng = generator(self.seed, epoch)
        order = rng.permutation(len(self.queries))
        picks = np.array(
            [self.positives[i][int(u * len(self.positives[i]))] for i, u in enumerate(rng.random(len(order)))]
        )
        pairs = np.stack([self.queries, picks], axis=1)[order]
        size = self.pairs_per_batch
        return [pairs[i * size : (i + 1) * size].reshape(-1) for i in range(len(self))]


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
    """Return the generator of an epoch's batches."""
    return np.random.default_rng([seed, epoch])
