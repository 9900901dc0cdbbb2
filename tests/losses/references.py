"""Independent float64 references: every loss written out from its equation, pair by pair and class by class.

A reference receives the loss's parameters and buffers by name, embeddings (B, M), labels and a generator, and returns
the scalar that the loss must equal; autograd through it is the reference gradient. Nothing here imports the library.
Modules named `references*.py` beside this one register theirs with the same decorator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Reference = Callable[[dict[str, Tensor], Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Case:
    """One loss with one set of options, and what it must compute."""

    name: str
    reference: Reference
    options: dict[str, Any] = field(default_factory=dict)
    epoch: int | None = None

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


CASES: list[Case] = []


def reference(name: str, *, epoch: int | None = None, **options: Any) -> Callable[[Reference], Reference]:
    """Register the decorated function as the reference of loss `name` with `options`."""

    def add(function: Reference) -> Reference:
        CASES.append(Case(name, function, options, epoch))
        return function

    return add


def direction(v: Tensor) -> Tensor:
    norm = math.sqrt(sum(float(x) ** 2 for x in v.detach()))
    return v * 0.0 if norm == 0 else v / (v * v).sum().sqrt()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (direction(a) * direction(b)).sum()


def distance(a: Tensor, b: Tensor) -> Tensor:
    difference = direction(a) - direction(b)
    squared = (difference * difference).sum()
    return squared * 0.0 if squared.item() == 0 else squared.sqrt()


def mean(terms: list[Tensor], like: Tensor) -> Tensor:
    return sum(terms) / len(terms) if terms else like.sum() * 0.0


def log_sum_exp(terms: list[Tensor]) -> Tensor:
    top = max(term.item() for term in terms)
    return top + sum((term - top).exp() for term in terms).log()


def cross_entropy(rows: list[list[Tensor]], y: Tensor) -> Tensor:
    return sum(log_sum_exp(row) - row[int(c)] for row, c in zip(rows, y, strict=True)) / len(rows)


def _contrastive(mining: str, linear: bool, margin: float) -> Reference:
    def keep(violation: float) -> bool:
        return {
            "all": violation <= margin,
            "hard": violation <= 0,
            "semihard": 0 < violation <= margin,
            "easy": violation > margin,
        }[mining]

    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        n = len(z)
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
        positive, negative = [], []
        if mining == "none":
            positive = [pair for pair in pairs if y[pair[0]] == y[pair[1]]]
            negative = [pair for pair in pairs if y[pair[0]] != y[pair[1]]]
        else:
            for a, b in pairs:
                for k in range(n):
                    if y[a] == y[b] and y[a] != y[k] and keep((distance(z[a], z[k]) - distance(z[a], z[b])).item()):
                        positive.append((a, b))
                        negative.append((a, k))
        attract = [distance(z[i], z[j]) for i, j in positive]
        repel = [margin - distance(z[i], z[j]) for i, j in negative]
        attract, repel = ([t for t in terms if t.item() > 0] for terms in (attract, repel))
        if not linear:
            attract, repel = [t**2 / 2 for t in attract], [t**2 / 2 for t in repel]
        return mean(attract, z) + mean(repel, z)

    return loss


for _mining in ("all", "hard", "semihard", "easy", "none"):
    reference("contrastive", mining=_mining, margin=0.9)(_contrastive(_mining, linear=False, margin=0.9))
reference("contrastive", fidelity="as_published")(_contrastive("all", linear=True, margin=0.7))


@reference("proxy_nca")
def _proxy_nca(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    total = []
    for i in range(len(z)):
        d = [9 * distance(z[i], proxy) ** 2 for proxy in p["proxies"]]
        own = d.pop(int(y[i]))
        total.append(own + (log_sum_exp([-x for x in d]) if d else 0.0))
    return mean(total, z)


@reference("proxy_nca_pp")
def _proxy_nca_pp(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return cross_entropy([[-9 * distance(x, proxy) ** 2 for proxy in p["proxies"]] for x in z], y)


@reference("proxy_nca_pp", fidelity="as_published")
def _proxy_nca_pp_released(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return cross_entropy([[-3 * distance(x, proxy) for proxy in p["proxies"]] for x in z], y)


def _proxy_anchor(per_sample: bool) -> Reference:
    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        present = y.tolist() if per_sample else sorted(set(y.tolist()))
        attract = []
        for c in present:
            inside = [torch.exp(-32 * (cosine(x, p["proxies"][c]) - 0.1)) for x, k in zip(z, y, strict=True) if k == c]
            attract.append(torch.log(1 + sum(inside)))
        repel = []
        for c, proxy in enumerate(p["proxies"]):
            outside = [torch.exp(32 * (cosine(x, proxy) + 0.1)) for x, k in zip(z, y, strict=True) if k != c]
            repel.append(torch.log(1 + sum(outside)) if outside else z.sum() * 0.0)
        return mean(attract, z) + mean(repel, z)

    return loss


reference("proxy_anchor")(_proxy_anchor(per_sample=False))
reference("proxy_anchor", fidelity="as_published")(_proxy_anchor(per_sample=True))


@reference("cosine")
def _cosine(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return cross_entropy([[p["log_scale"].exp() * cosine(x, w) for w in p["weight"]] for x in z], y)


def _arcface(margin: float) -> Reference:
    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        rows = []
        for x, own in zip(z, y, strict=True):
            angles = [torch.acos(cosine(x, w)) for w in p["weight"]]
            angles[int(own)] = angles[int(own)] + margin
            rows.append([p["log_scale"].exp() * torch.cos(angle) for angle in angles])
        return cross_entropy(rows, y)

    return loss


reference("arcface")(_arcface(0.3))
reference("arcface", margin=0.5, margin_from_epoch=20, epoch=19)(_arcface(0.0))
reference("arcface", margin=0.5, margin_from_epoch=20, epoch=20)(_arcface(0.5))
