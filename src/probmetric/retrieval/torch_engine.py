"""Search on GPUs: exact keys of a block of queries come from float64 products and are sorted on the GPU.

Products of rows on their grids (see `keys`) are exact in float64 in any order of additions, hence on every device;
TF32 and autocast do not affect them. Ranks and lists equal those of the engines for CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from probmetric.metrics.arrays import Doubles, Floats, Ints
from probmetric.metrics.ranked import Counts
from probmetric.retrieval.keys import on_grid, squared_norms, steps_of
from probmetric.retrieval.problem import Problem
from probmetric.retrieval.relation import SparseRelation

BLOCK_BYTES = 512 << 20


def torch_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Yield the counts of a problem (cosine or Euclidean), `block` queries at a time."""
    exact = _Keys(problem.queries, problem.gallery, str(problem.distance))
    step = block or exact.rows_at_a_time
    for start in range(0, len(problem.queries), step):
        stop = min(start + step, len(problem.queries))
        yield _counts(problem, exact.of(start, stop), start, stop)


def torch_nearest(queries: Floats, gallery: Floats, struck: SparseRelation, k: int) -> tuple[Ints, Doubles]:
    """Return rows (Q,k) and cosines (Q,k) of the nearest by cosine, equal ones by row, without those `struck`."""
    exact, total = _Keys(queries, gallery, "cosine"), len(queries)
    rows, cosines = np.empty((total, k), dtype=np.int64), np.empty((total, k))
    for start in range(0, total, exact.rows_at_a_time):
        stop = min(start + exact.rows_at_a_time, total)
        keys = exact.of(start, stop)
        keys[_on(keys, struck.of(np.arange(start, stop)))] = -torch.inf
        ordered = keys.sort(dim=1, descending=True, stable=True)
        rows[start:stop] = ordered.indices[:, :k].cpu().numpy()
        cosines[start:stop] = ordered.values[:, :k].cpu().numpy()
    return rows, cosines


class _Keys:
    """Compute exact keys of queries (Q,M) and a gallery (N,M), on the GPU if there is one."""

    def __init__(self, queries: Floats, gallery: Floats, distance: str) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._queries, self._distance = queries, distance
        steps = steps_of(gallery, distance)
        self._gallery = torch.from_numpy(on_grid(gallery, steps)).to(self._device)
        self._norms = torch.from_numpy(squared_norms(gallery, steps)).to(self._device)
        self.rows_at_a_time = max(1, BLOCK_BYTES // (8 * len(gallery)))

    @torch.no_grad()
    def of(self, start: int, stop: int) -> Tensor:
        """Return the keys (stop-start,N) of queries start..stop-1, equal to those of `keys.keys`."""
        part = self._queries[start:stop]
        products = torch.from_numpy(on_grid(part, steps_of(part, self._distance))).to(self._device) @ self._gallery.T
        return products if self._distance == "cosine" else products - self._norms / 2


def _on(keys: Tensor, pairs: tuple[Ints, Ints]) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(values).to(keys.device) for values in pairs)


def _counts(problem: Problem, keys: Tensor, start: int, stop: int) -> Counts:
    """Return the counts from the `keys` (stop-start,N) of queries start..stop-1; overwrites `keys`."""
    offsets, columns = problem.relation.block(start, stop)
    numbers = np.repeat(np.arange(stop - start), np.diff(offsets))
    owner, positives = _on(keys, (numbers, columns))
    exact = keys[owner, positives]
    order = torch.argsort(exact, descending=True)
    exact = exact[order[torch.argsort(owner[order], stable=True)]]
    keys[owner, positives] = -torch.inf
    keys[_on(keys, problem.struck.of(np.arange(start, stop)))] = -torch.inf
    place = torch.from_numpy(np.arange(len(numbers)) - offsets[numbers]).to(keys.device)
    thresholds = torch.full((len(keys), int(np.diff(offsets).max(initial=0))), torch.inf, dtype=keys.dtype)
    thresholds = thresholds.to(keys.device)
    thresholds[owner, place] = exact
    ordered = keys.sort(dim=1).values
    above, level = (torch.searchsorted(ordered, thresholds, right=right)[owner, place] for right in (True, False))
    return Counts(start, stop, offsets, (keys.shape[1] - above).cpu().numpy(), (above - level).cpu().numpy())
