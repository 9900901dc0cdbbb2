"""Choose the images of each batch: pure functions of (labels, seed, epoch), so a resumed run sees the same batches.

Batches are lists of positions into the labels given. A distributed run splits every batch: rank r of W takes
positions r, r + W, ... of each, so the union over ranks is the batch of a single process.

shuffle                     all images in random order; a last, smaller batch is dropped unless it is the only one
balanced                    P classes x K images without replacement, P = batch size / K: classes take turns in a
                            shuffled order and a class gives its images in a shuffled order, then in a new one; a batch
                            repeats an image only if its class has fewer than K
balanced_with_replacement   P distinct classes, drawn uniformly, and K images of each, drawn independently
class_random                as in the proxy papers' released code: draw P classes uniformly, then K images of each, both
                            with replacement
episodic                    N classes x K images without replacement, drawn again for every step (the vMF paper); N = P;
                            classes with fewer than K images are not drawn
pairs                       batch size / 2 pairs, every query that has a positive once an epoch: two images of a person
                            (any class), or a query and a random database image within 10 m (the Laplacian metric
                            learner on faces and places)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probmetric.data.manifest import DataError, OptionError
from probmetric.data.places import TRAIN_RADIUS, positives

Draw = Callable[[np.random.Generator], list[np.ndarray]]


@dataclass(frozen=True)
class Sampler:
    """The batches of an epoch, as a function of the epoch alone.

    Attributes:
        steps: batches per epoch.
        seed: seed of the run.
        draw: generator of an epoch -> positions (B,) among the training images, for every batch.
    """

    steps: int
    seed: int
    draw: Draw

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.steps

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return positions (B,) among the training images, for every batch."""
        return self.draw(np.random.default_rng([self.seed, epoch]))


@dataclass(frozen=True)
class Batching:
    """How batches are made.

    Attributes:
        sampler: its name, see above.
        batch_size: B.
        per_class: K, where batches are made of classes.
        steps: steps of an epoch, where they are set; `episodic` needs them.
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
        DataError: the sampler needs pairs, but no image has a partner.
    """
    size, per_class = batching.batch_size, batching.per_class
    if not len(labels):
        raise OptionError("there are no images to draw batches from: the training split is empty.")
    if batching.sampler == "shuffle":
        return _shuffled(len(labels), size, seed)
    if batching.sampler == "pairs":
        return _pairs(labels, size, seed, places)
    if size % per_class:
        allowed = max(1, round(size / per_class)) * per_class
        raise OptionError(
            f"batch size {size} is not a multiple of {per_class} images per class; nearest allowed: {allowed}."
        )
    if batching.sampler == "class_random":
        return _class_random(members_of(labels), size, per_class, seed)
    if batching.sampler == "episodic":
        return _episodic(members_of(labels), size // per_class, per_class, batching.steps or len(labels) // size, seed)
    return _balanced(members_of(labels), batching, seed)


def members_of(labels: np.ndarray) -> list[np.ndarray]:
    """Return the positions of the images of each class, in order of the labels; `labels` is (N,)."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(np.asarray(labels)[order])) + 1)


def _shuffled(count: int, size: int, seed: int) -> Sampler:
    steps = max(1, count // size)

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(count)
        return [order[i * size : (i + 1) * size] for i in range(steps)]

    return Sampler(steps, seed, draw)


def _balanced(members: list[np.ndarray], batching: Batching, seed: int) -> Sampler:
    """Return a sampler of classes whose images are at `members`; with only C classes a batch has C * K images."""
    per_class, count = batching.per_class, len(members)
    classes = min(batching.batch_size // per_class, count)
    steps = max(1, sum(map(len, members)) // (classes * per_class))

    def with_replacement(rng: np.random.Generator) -> list[np.ndarray]:
        rounds = [rng.permutation(count)[:classes] for _ in range(steps)]
        return [np.concatenate([rng.choice(members[k], size=per_class) for k in row]) for row in rounds]

    def without(rng: np.random.Generator) -> list[np.ndarray]:
        turns, images = _InTurn([np.arange(count)], rng), _InTurn(members, rng)
        rounds = [turns.take(0, classes) for _ in range(steps)]
        return [np.concatenate([images.take(k, per_class) for k in row]) for row in rounds]

    return Sampler(steps, seed, with_replacement if batching.sampler == "balanced_with_replacement" else without)


def _class_random(members: list[np.ndarray], size: int, per_class: int, seed: int) -> Sampler:
    steps = max(1, sum(map(len, members)) // size)

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        picks = rng.integers(len(members), size=(steps, size // per_class))
        return [np.concatenate([rng.choice(members[k], size=per_class) for k in row]) for row in picks]

    return Sampler(steps, seed, draw)


def _episodic(members: list[np.ndarray], classes: int, per_class: int, episodes: int, seed: int) -> Sampler:
    usable = [positions for positions in members if len(positions) >= per_class]
    if len(usable) < classes:
        raise OptionError(
            f"episodes of {classes} classes x {per_class} images: only {len(usable)} of {len(members)} classes have "
            f"that many images; use at most {len(usable)} classes or fewer images."
        )
    steps = max(1, episodes)

    def episode(rng: np.random.Generator) -> np.ndarray:
        chosen = rng.choice(len(usable), classes, replace=False)
        return np.concatenate([rng.choice(usable[k], per_class, replace=False) for k in chosen])

    return Sampler(steps, seed, lambda rng: [episode(rng) for _ in range(steps)])


def _pairs(labels: np.ndarray, batch_size: int, seed: int, places: Mapping[str, np.ndarray] | None) -> Sampler:
    if batch_size % 2:
        raise OptionError(f"batch size is {batch_size}; with the sampler 'pairs' it must be even.")
    if places is None:
        queries, partners = pairs_of_classes(labels)
        lacking = "no training class has two images"
    else:
        queries, database, near = positives(dict(places), radius=TRAIN_RADIUS)
        partners = [database[rows] for rows in near]
        lacking = f"none of the {len(queries)} training queries has a database image within {TRAIN_RADIUS:g} m"
    if not any(map(len, partners)):
        raise DataError(f"sampler 'pairs': {lacking}; use 'shuffle' or 'balanced'.")
    return pair_sampler(queries, partners, batch_size // 2, seed)


def pairs_of_classes(labels: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the images (Q,) whose class has other images, by `labels` (N,), and for each these other images."""
    others = {i: group[group != i] for group in members_of(labels) if len(group) > 1 for i in group.tolist()}
    queries = np.array(sorted(others), dtype=np.int64)
    return queries, [others[i] for i in queries.tolist()]


def pair_sampler(queries: np.ndarray, partners: Sequence[np.ndarray], size: int, seed: int) -> Sampler:
    """Return a sampler of batches of `size` pairs: query, positive, query, positive, ...

    Args:
        queries: positions of the queries (Q,).
        partners: for each query the positions it may be paired with; queries without partners are left out.
        size: pairs per batch; a last, smaller batch is dropped unless it is the only one.
        seed: seed of the run.
    """
    usable = [i for i, rows in enumerate(partners) if len(rows)]
    if not usable or size < 1:
        raise OptionError(f"{len(usable)} queries have a positive, {size} pairs per batch: need at least 1.")
    queries, partners = np.asarray(queries)[usable], [np.asarray(partners[i]) for i in usable]
    steps = max(1, len(queries) // size)

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        order = rng.permutation(len(queries))
        picks = [rows[int(u * len(rows))] for rows, u in zip(partners, rng.random(len(order)), strict=True)]
        pairs = np.stack([queries, picks], axis=1)[order]
        return [pairs[i * size : (i + 1) * size].reshape(-1) for i in range(steps)]

    return Sampler(steps, seed, draw)


class _InTurn:
    """Give the images of each class in a shuffled order, then in a new one."""

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
