"""Counts of negatives above each positive on a torch device, equal to those of the NumPy path to the last one.

Per block of queries: one float32 product with the whole gallery, positives and self taken out, and for each positive
the entries beyond the float32 error bound of its exact key counted (see `kernels`); those within it are settled by
their exact keys, whose float64 sums are exact in any order and hence the same on every device. TF32 and autocast, which
would break the bound, are off during the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probmetric.metrics.arrays import UNIT_TOLERANCE, check_scale, normalized, to_numpy
from probmetric.metrics.ranked import Counts
from probmetric.retrieval.keys import BITS, Distance, float32_error, norm_exponents
from probmetric.retrieval.problem import Problem

BLOCK_BYTES = 256 << 20
SORT_FROM = 32


def torch_rows(values: Any, name: str, distance: Distance = "cosine", *, normalize: bool = False) -> Tensor:
    """Return rows as a checked float32 (N,M) tensor on its own device; complaints as for NumPy input."""
    rows = torch.as_tensor(values)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; expected (N, M) with N and M at least 1.")
    rows = rows.detach().to(torch.float32).contiguous()
    finite = torch.isfinite(rows).all(dim=1)
    if not bool(finite.all()):
        first = int(torch.argmin(finite.int()))
        raise ValueError(f"{name}: row {first} is not finite. Drop such rows or mend the model that made them.")
    if normalize:
        return torch.from_numpy(normalized(to_numpy(rows), name)).to(rows.device)
    norms = _norms(rows)
    wrong = (norms - 1.0).abs() > UNIT_TOLERANCE
    if distance == "cosine" and bool(wrong.any()):
        first = int(torch.argmax(wrong.int()))
        raise ValueError(
            f"{name}: row {first} has norm {float(norms[first]):.6g} and {int(wrong.sum())} of {len(rows)} rows are "
            "not unit vectors. Divide each row by its norm, pass normalize=True, or choose another distance."
        )
    if distance == "euclidean":
        check_scale(float(norms.max()), name)
    return rows


def _norms(rows: Tensor) -> Tensor:
    return torch.cat([part.double().square().sum(dim=1).sqrt() for part in rows.split(8192)])


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Float32 products in float32: no TF32, no autocast; the caller's settings come back afterwards."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device_type=device.type, enabled=False):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)


def torch_counts(problem: Problem, block: int | None = None) -> Iterator[Counts]:
    """Counts of `problem`, whose rows are tensors on one device, a block of queries at a time."""
    queries, gallery = problem.queries, problem.gallery
    with full_precision(gallery.device):
        engine = _Engine(problem)
    step = block or max(1, BLOCK_BYTES // (4 * len(gallery)))
    for start in range(0, len(queries), step):
        with full_precision(gallery.device):
            counts = engine.block(start, min(start + step, len(queries)))
        yield counts


class _Engine:
    """What all blocks share: steps of the grids (see `keys`), shifts -|x|^2 / 2 or 0, unit of the float32 keys."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.distance = str(problem.distance)
        self.steps_q, self.steps_g = self._steps(problem.queries), self._steps(problem.gallery)
        self.shift_q = self._shift(problem.queries, self.steps_q)
        self.shift_g = self._shift(problem.gallery, self.steps_g)
        self.unit = (min(float(self.steps_q.min()), float(self.steps_g.min())) / 2.0**BITS) ** 2
        self.error = float32_error(problem.gallery.shape[1], self.distance)

    def _steps(self, rows: Tensor) -> Tensor:
        norms = _norms(rows) if self.distance == "euclidean" else torch.ones(len(rows))
        steps = np.ldexp(1.0, BITS - norm_exponents(norms.cpu().numpy(), self.distance))
        return torch.from_numpy(steps).to(rows.device)

    def _shift(self, rows: Tensor, steps: Tensor) -> Tensor:
        if self.distance == "cosine":
            return torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        pairs = zip(rows.split(8192), steps.split(8192), strict=True)
        return torch.cat([_on_grid(part, step).square().sum(dim=1) / step**2 / -2 for part, step in pairs])

    def exact(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Exact keys (P,) of query rows against gallery columns, both (P,)."""
        size = max(1, BLOCK_BYTES // (8 * self.problem.gallery.shape[1]))
        parts = []
        for i, j in zip(rows.split(size), columns.split(size), strict=True):
            x = _on_grid(self.problem.queries[i], self.steps_q[i])
            y = _on_grid(self.problem.gallery[j], self.steps_g[j])
            parts.append((x * y).sum(dim=1) / (self.steps_q[i] * self.steps_g[j]) + self.shift_g[j])
        return torch.cat(parts)

    def block(self, start: int, stop: int) -> Counts:
        """Counts of queries start..stop-1."""
        device = self.problem.gallery.device
        offsets, columns = self.problem.relation.block(start, stop)
        owner = torch.from_numpy(np.repeat(np.arange(stop - start), np.diff(offsets))).to(device)
        positives = torch.from_numpy(columns).to(device)
        exact = self.exact(owner + start, positives)
        keys = self._float32_keys(start, stop)
        keys[owner, positives] = -torch.inf
        if self.problem.self_index is not None:
            own = torch.from_numpy(self.problem.self_index[start:stop]).to(device)
            known = own >= 0
            keys[torch.arange(stop - start, device=device)[known], own[known]] = -torch.inf
        order = torch.argsort(exact, descending=True)
        order = order[torch.argsort(owner[order], stable=True)]
        exact = exact[order]
        threshold = (exact + self.shift_q[start:stop][owner]) * self.unit
        low = torch.nextafter((threshold - self.error).float(), torch.tensor(-torch.inf, device=device))
        high = torch.nextafter((threshold + self.error).float(), torch.tensor(torch.inf, device=device))
        place = torch.arange(len(owner), device=device) - torch.from_numpy(offsets[:-1]).to(device)[owner]
        reached, above = _counts_from(keys, owner, place, low), _counts_from(keys, owner, place, high)
        tied = self._settle(keys, owner, low, high, exact, above, (reached > above).nonzero().ravel(), start)
        return Counts(start, stop, offsets, above.cpu().numpy(), tied.cpu().numpy())

    def _float32_keys(self, start: int, stop: int) -> Tensor:
        keys = self.problem.queries[start:stop] @ self.problem.gallery.T
        if self.distance != "cosine":
            keys *= self.unit
            keys += (self.shift_q[start:stop] * self.unit).float()[:, None]
            keys += (self.shift_g * self.unit).float()
        return keys

    def _settle(
        self,
        keys: Tensor,
        owner: Tensor,
        low: Tensor,
        high: Tensor,
        exact: Tensor,
        above: Tensor,
        doubtful: Tensor,
        start: int,
    ) -> Tensor:
        """Settle what float32 cannot decide for the `doubtful` positives: adds to `above`, returns the tied."""
        tied = torch.zeros_like(above)
        for part in doubtful.split(max(1, BLOCK_BYTES // (4 * keys.shape[1]))):
            rows = keys[owner[part]]
            near = ((rows >= low[part, None]) & (rows < high[part, None])).nonzero()
            positive, column = part[near[:, 0]], near[:, 1]
            found = self.exact(owner[positive] + start, column)
            above.index_add_(0, positive, (found > exact[positive]).long())
            tied.index_add_(0, positive, (found == exact[positive]).long())
        return tied


def _on_grid(rows: Tensor, steps: Tensor) -> Tensor:
    """Rows (B,M) in whole steps of their grids, float64."""
    return (rows.double() * steps[:, None]).round_()


def _counts_from(keys: Tensor, owner: Tensor, place: Tensor, bounds: Tensor) -> Tensor:
    """How many entries of its query's row of `keys` (B,G) reach each of `bounds` (P,)."""
    if not len(bounds):
        return torch.zeros(0, dtype=torch.int64, device=keys.device)
    width = int(place.max()) + 1
    padded = torch.full((len(keys), width), torch.inf, device=keys.device)
    padded[owner, place] = bounds
    if width > SORT_FROM:
        ordered = keys.sort(dim=1).values
        return keys.shape[1] - torch.searchsorted(ordered, padded, side="left")[owner, place]
    counts = torch.stack([(keys >= padded[:, p, None]).sum(dim=1) for p in range(width)], dim=1)
    return counts[owner, place]


def torch_candidates(
    asked: NDArray[np.float32], parts: Sequence[NDArray[Any]], own: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return rows (Q,W) that may be among the nearest, and their float32 products, descending; computed on the GPU.

    As `search.candidates`: -1 and -inf where there is no row.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gallery = torch.cat([torch.from_numpy(np.asarray(part, dtype=np.float32)).to(device) for part in parts])
    rows = np.full((len(asked), width), -1)
    rough = np.full((len(asked), width), -np.inf, dtype=np.float32)
    step, listed = max(1, BLOCK_BYTES // (4 * len(gallery))), min(width, len(gallery))
    for start in range(0, len(asked), step):
        part = slice(start, start + step)
        with full_precision(device):
            products = torch.from_numpy(asked[part]).to(device) @ gallery.T
        itself = torch.from_numpy(own[part]).to(device)
        known = (itself >= 0).nonzero().ravel()
        products[known, itself[known]] = -torch.inf
        values, columns = products.topk(listed, dim=1)
        rough[part, :listed], rows[part, :listed] = values.cpu().numpy(), columns.cpu().numpy()
    rows[np.isinf(rough)] = -1
    return rows, rough
