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
        target = d.pop(int(y[i]))
        total.append(target + (log_sum_exp([-x for x in d]) if d else 0.0))
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
        for x, target in zip(z, y, strict=True):
            angles = [torch.acos(cosine(x, w)) for w in p["weight"]]
            angles[int(target)] = angles[int(target)] + margin
            rows.append([p["log_scale"].exp() * torch.cos(angle) for angle in angles])
        return cross_entropy(rows, y)

    return loss


reference("arcface")(_arcface(0.3))
reference("arcface", margin=0.5, margin_from_epoch=20, epoch=19)(_arcface(0.0))
reference("arcface", margin=0.5, margin_from_epoch=20, epoch=20)(_arcface(0.5))


@reference("softmax")
def _softmax(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return cross_entropy([[(x * w).sum() for w in p["weight"]] for x in z], y)


def _hyperbolic(c: float, riemannian: bool = False) -> Reference:
    """Distances to hyperplanes by explicit Moebius addition, class by class."""

    def exp0(v: Tensor) -> Tensor:
        r = math.sqrt(c) * (v * v).sum().sqrt()
        return torch.tanh(r) * v / r

    def moebius(a: Tensor, b: Tensor) -> Tensor:
        ab, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
        return ((1 + 2 * c * ab + c * bb) * a + (1 - c * aa) * b) / (1 + 2 * c * ab + c * c * aa * bb)

    def logit(x: Tensor, point: Tensor, normal: Tensor) -> Tensor:
        p = exp0(point)
        gap = 1 - c * (p * p).sum()
        a = normal * gap
        size = (a * a).sum().sqrt()
        w = moebius(-p, x)
        ratio = 2 * math.sqrt(c) * (w * a).sum() / (size * (1 - c * (w * w).sum()))
        return 2 / gap * size / math.sqrt(c) * torch.log(ratio + torch.sqrt(1 + ratio * ratio))

    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        classes = list(zip(p["points"], p["normals"], strict=True))
        rows = []
        for x in map(exp0, z):
            if riemannian:
                factor = (1 - c * float((x.detach() ** 2).sum())) ** 2 / 4
                x.register_hook(lambda gradient, factor=factor: gradient * factor)
            rows.append([logit(x, point, normal) for point, normal in classes])
        return cross_entropy(rows, y)

    return loss


reference("hyperbolic")(_hyperbolic(1e-5))
reference("hyperbolic", curvature=0.05)(_hyperbolic(0.05))
reference("hyperbolic", curvature=0.05, fidelity="as_published")(_hyperbolic(0.05, riemannian=True))


def _soft_triple(k: int) -> Reference:
    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        centres = p["proxies"].reshape(k, -1, z.shape[1]).transpose(0, 1)
        rows = []
        for x, target in zip(z, y, strict=True):
            row = []
            for c, group in enumerate(centres):
                s = [cosine(x, w) for w in group]
                total = sum(torch.exp(v / 0.1) for v in s)
                relaxed = sum(torch.exp(v / 0.1) / total * v for v in s)
                row.append(20 * (relaxed - (0.01 if c == int(target) else 0.0)))
            rows.append(row)
        spread = [
            torch.sqrt(2 + 1e-5 - 2 * cosine(group[s], group[t]))
            for group in centres
            for s in range(k)
            for t in range(s + 1, k)
        ]
        regulariser = 0.2 * sum(spread) / (len(centres) * k * (k - 1)) if k > 1 else 0.0
        return cross_entropy(rows, y) + regulariser

    return loss


reference("soft_triple")(_soft_triple(10))
reference("soft_triple", proxies_per_class=1)(_soft_triple(1))


def _multi_similarity(mining: bool, skip: bool) -> Reference:
    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        terms = []
        for i in range(len(z)):
            s = {j: cosine(z[i], z[j]) for j in range(len(z)) if j != i}
            positive = [s[j] for j in s if y[j] == y[i]]
            negative = [s[j] for j in s if y[j] != y[i]]
            if mining:
                low = min((t.item() for t in positive), default=math.inf)
                high = max((t.item() for t in negative), default=-math.inf)
                positive = [t for t in positive if t.item() - 0.1 < high]
                negative = [t for t in negative if t.item() + 0.1 > low]
            if skip and not (positive and negative):
                continue
            attract = torch.log(1 + sum((torch.exp(-2 * (t - 0.5)) for t in positive), z.sum() * 0)) / 2
            repel = torch.log(1 + sum((torch.exp(40 * (t - 0.5)) for t in negative), z.sum() * 0)) / 40
            terms.append(attract + repel)
        return mean(terms, z)

    return loss


reference("multi_similarity")(_multi_similarity(mining=True, skip=False))
reference("multi_similarity", mining=False)(_multi_similarity(mining=False, skip=False))
reference("multi_similarity", fidelity="as_published")(_multi_similarity(mining=True, skip=True))


@reference("margin")
def _margin(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator, upper: float = 2.0) -> Tensor:
    n, m = z.shape
    d = [[(((direction(a) - direction(b)) ** 2).sum() + 1e-8).sqrt() for b in z] for a in z]

    def log_weight(x: float) -> float:
        x = max(x, 0.5)
        return -((m - 2) * math.log(x) + (m - 3) / 2 * math.log(1 - x * x / 4))

    uniform, weighted = torch.ones(n, n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)
    for i in range(n):
        same = [float(y[j] == y[i] and j != i) for j in range(n)]
        if sum(same):
            uniform[i] = torch.tensor(same)
        rival = [float(y[j] != y[i] and d[i][j].item() < upper) for j in range(n)]
        if sum(rival):
            weighted[i] = torch.tensor([math.exp(log_weight(d[i][j].item())) * rival[j] for j in range(n)])
    partner = torch.multinomial(uniform, 1, generator=generator)[:, 0].tolist()
    opponent = torch.multinomial(weighted, 1, generator=generator)[:, 0].tolist()
    terms = []
    for i in range(n):
        beta = p["beta"][y[i]]
        if y[partner[i]] == y[i] and partner[i] != i:
            terms.append(torch.relu(d[i][partner[i]] - beta + 0.2))
        if y[opponent[i]] != y[i] and d[i][opponent[i]] < upper:
            terms.append(torch.relu(beta - d[i][opponent[i]] + 0.2))
    return mean([t for t in terms if t.item() > 0], z)


@reference("margin", upper_cutoff=1.4)
def _margin_cut_off(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return _margin(p, z, y, generator, upper=1.4)


@reference("triplet")
def _triplet(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    terms = []
    for a in range(len(z)):
        negative = sorted((distance(z[a], z[n]) ** 2 for n in range(len(z)) if y[n] != y[a]), key=lambda t: t.item())
        for b in range(len(z)):
            if a == b or y[a] != y[b]:
                continue
            positive = distance(z[a], z[b]) ** 2
            farther = [t for t in negative if t.item() > positive.item()]
            terms.append(torch.relu(positive - (farther[0] if farther else negative[-1]) + 0.2))
    return mean(terms, z)


def _proxy_anchor_nca(count: bool) -> Reference:
    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        terms = []
        for x, target in zip(z, y, strict=True):
            s = [cosine(x, proxy) for proxy in p["proxies"]]
            times = int((y == target).sum()) if count else 1
            terms.append(torch.log(1 + times * torch.exp(-32 * (s[int(target)] - 0.1))))
            terms.append(torch.log(1 + sum(torch.exp(32 * (v + 0.1)) for c, v in enumerate(s) if c != int(target))))
        return sum(terms) / len(z)

    return loss


reference("proxy_anchor_nca")(_proxy_anchor_nca(count=False))
reference("proxy_anchor_nca", fidelity="as_published")(_proxy_anchor_nca(count=True))


def _field(k: int, attract: Callable[[Tensor], Tensor], repel: Callable[[Tensor], Tensor], *, selfs: bool) -> Reference:
    """Sum over all ordered pairs of embeddings and proxies, each with itself where `selfs`."""

    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        points = [*z, *p["proxies"]]
        owner = [*y.tolist(), *(row // k for row in range(len(p["proxies"])))]
        total = z.sum() * 0.0
        for i in range(len(points)):
            for j in range(len(points)):
                if i != j:
                    d = distance(points[i], points[j])
                    total = total + (attract(d) if owner[i] == owner[j] else repel(d))
                elif selfs:
                    total = total + attract(torch.zeros((), dtype=torch.float64))
        return total

    return loss


def _per_image(total: Reference, factor: float) -> Reference:
    return lambda p, z, y, generator: total(p, z, y, generator) * factor / len(z)


def _att(alpha: float, delta: float) -> Callable[[Tensor], Tensor]:
    if alpha == 0:
        return lambda d: torch.log(d if d.item() > delta else torch.tensor(delta).double())
    return lambda d: -(d**-alpha if d.item() > delta else torch.tensor(delta).double() ** -alpha)


def _rep(alpha: float, delta: float, least: float, offset: bool) -> Callable[[Tensor], Tensor]:
    def potential(d: Tensor) -> Tensor:
        held = d if least < d.item() < delta else torch.tensor(min(max(d.item(), least), delta)).double()
        return -torch.log(held) if alpha == 0 else held**-alpha

    level = potential(torch.tensor(2.0, dtype=torch.float64)).item() if offset else 0.0
    return lambda d: potential(d) - level


_WIDE = {"delta_attraction": 0.75, "delta_repulsion": 1.5, "min_distance": 0.25}
for _alpha in (0.0, 1.0, 4.0):
    reference("potential_field", alpha=_alpha, proxies_per_class=2, **_WIDE)(
        _per_image(_field(2, _att(_alpha, 0.75), _rep(_alpha, 1.5, 0.25, offset=True), selfs=False), 0.75**_alpha)
    )
    reference("potential_field", alpha=_alpha, proxies_per_class=2, energy="eq6", **_WIDE)(
        _field(2, _att(_alpha, 0.75), _rep(_alpha, 1.5, 0.25, offset=False), selfs=True)
    )
reference("potential_field", alpha=4.0, proxies_per_class=0, **_WIDE)(
    _per_image(_field(1, _att(4.0, 0.75), _rep(4.0, 1.5, 0.25, offset=True), selfs=False), 0.75**4)
)
reference("potential_field", proxies_per_class=1)(
    _per_image(_field(1, _att(4.0, 0.2), _rep(4.0, 0.2, 0.05, offset=True), selfs=False), 0.2**4)
)


def _contrastive_attraction(d: Tensor) -> Tensor:
    return d**2 if d.item() > 0.75 else torch.tensor(0.75).double() ** 2


def _contrastive_hinge(d: Tensor) -> Tensor:
    return torch.relu(1.5 - d) ** 2 if d.item() > 0.25 else torch.tensor(1.25).double() ** 2


def _contrastive_mirror(d: Tensor) -> Tensor:
    return 1.5**2 - (d**2 if d.item() < 1.5 else torch.tensor(1.5).double() ** 2)


reference("contrastive_potential", proxies_per_class=2, **_WIDE)(
    _per_image(_field(2, _contrastive_attraction, _contrastive_hinge, selfs=False), 1.0)
)
reference(
    "contrastive_potential", proxies_per_class=2, repulsion="squared", delta_attraction=0.75, delta_repulsion=1.5
)(_per_image(_field(2, _contrastive_attraction, _contrastive_mirror, selfs=False), 1.0))


def _threshold_consistent(base: Reference, above: float, below: float, weights: tuple[float, float]) -> Reference:
    def loss(p: dict[str, Tensor], z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j]
        near = [above - cosine(z[i], z[j]) for i, j in pairs if y[i] == y[j]]
        far = [cosine(z[i], z[j]) - below for i, j in pairs if y[i] != y[j]]
        near, far = ([term for term in terms if term.item() >= 0] for terms in (near, far))
        inner = {name.removeprefix("inner."): value for name, value in p.items()}
        return base(inner, z, y, generator) + weights[0] * mean(near, z) + weights[1] * mean(far, z)

    return loss


reference("threshold_consistent")(_threshold_consistent(_proxy_anchor(per_sample=False), 0.9, 0.5, (1.0, 1.0)))
reference(
    "threshold_consistent",
    base="proxy_nca_pp",
    positive_margin=0.3,
    negative_margin=-0.1,
    positive_weight=2.0,
    negative_weight=0.5,
)(_threshold_consistent(_proxy_nca_pp, 0.3, -0.1, (2.0, 0.5)))
