"""The search engine for GPUs: exact keys of a block of queries by float64 products, sorted there.

Products of rows on their grids (see `keys`) are exact in float64 in any order of their additions, hence on every
device; neither TF32 nor autocast touches them. Ranks and lists are those of the engines for CPUs, to the last one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probmetric.metrics.ranked import Counts
from probmetric.retrieval.keys import on_grid, squared_norms, steps_of
from probmetric.retrieval.problem import Problem

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
BLOCK_BYTES = 512 << 20


def torch_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Yield the counts of a problem (cosine or Euclidean), `block` queries at a time."""
    exact = _Keys(problem.queries, problem.gallery, str(problem.distance))
    step = block or exact.rows_at_a_time
    for start in range(0, len(problem.queries), step):
        stop = min(start + step, len(problem.queries))
        yield _counts(problem, exact.of(start, stop), start, stop)


def torch_nearest(queries: Floats, gallery: Floats, own: Ints, k: int) -> tuple[Ints, Doubles]:
    """Return rows (Q,k) and cosines (Q,k) of the nearest but row `own` (Q,), -1 for none; equal ones by row."""
    exact = _Keys(queries, gallery, "cosine")
    rows, cosines = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k))
    for start in range(0, len(queries), exact.rows_at_a_time):
        part = slice(start, min(start + exact.rows_at_a_time, len(queries)))
        keys = exact.of(part.start, part.stop)
        _strike_itself(keys, own[part])
        ordered = keys.sort(dim=1, descending=True, stable=True)
        rows[part] = ordered.indices[:, :k].cpu().numpy()
        cosines[part] = ordered.values[:, :k].cpu().numpy()
    return rows, cosines


class _Keys:
    """Exact keys of `queries` (Q,M) in a `gallery` (N,M), on the GPU (without one on the CPU)."""

    def __init__(self, queries: Floats, gallery: Floats, distance: str) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._queries, self._distance = queries, distance
        steps = steps_of(gallery, distance)
        self._gallery = torch.from_numpy(on_grid(gallery, steps)).to(self._device)
        self._norms = torch.from_numpy(squared_norms(gallery, steps)).to(self._device)
        self.rows_at_a_time = max(1, BLOCK_BYTES // (8 * len(gallery)))

    @torch.no_grad()
    def of(self, start: int, stop: int) -> Tensor:
        """Return the keys (stop-start,N) of these queries, those of `keys.keys`."""
        part = self._queries[start:stop]
        products = torch.from_numpy(on_grid(part, steps_of(part, self._distance))).to(self._device) @ self._gallery.T
        return products if self._distance == "cosine" else products - self._norms / 2


def _strike_itself(keys: Tensor, own: Ints) -> None:
    known = np.flatnonzero(own >= 0)
    keys[torch.from_numpy(known).to(keys.device), torch.from_numpy(own[known]).to(keys.device)] = -torch.inf


def _counts(problem: Problem, keys: Tensor, start: int, stop: int) -> Counts:
    """Return the counts from the `keys` (stop-start,N) of queries start..stop-1; overwrites `keys`."""
    offsets, columns = problem.relation.block(start, stop)
    numbers = np.repeat(np.arange(stop - start), np.diff(offsets))
    owner, positives = torch.from_numpy(numbers).to(keys.device), torch.from_numpy(columns).to(keys.device)
    exact = keys[owner, positives]
    order = torch.argsort(exact, descending=True)
    exact = exact[order[torch.argsort(owner[order], stable=True)]]
    keys[owner, positives] = -torch.inf
    _strike_itself(keys, problem.itself(start, stop))
    place = torch.from_numpy(np.arange(len(numbers)) - offsets[numbers]).to(keys.device)
    thresholds = torch.full((len(keys), int(np.diff(offsets).max(initial=0))), torch.inf, dtype=keys.dtype)
    thresholds = thresholds.to(keys.device)
    thresholds[owner, place] = exact
    ordered = keys.sort(dim=1).values
    above, level = (torch.searchsorted(ordered, thresholds, right=right)[owner, place] for right in (True, False))
    return Counts(start, stop, offsets, (keys.shape[1] - above).cpu().numpy(), (above - level).cpu().numpy())
