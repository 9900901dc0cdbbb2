"""References of the vMF loss, the sample-proxy distances and EL-nivMF, one image and one class at a time.

Normalisers are integrals: 1 / C_M(k) = area(S^{M-2}) int exp(k cos t) sin^{M-2} t dt, by quadrature. Only the random
draws come from the library, because they must be the same ones; tests/directional proves those right.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from references import cosine, direction, reference
from torch import Tensor

from probmetric.directional import VonMisesFisher
from probmetric.losses._released_vmf import released_samples

State = dict[str, Tensor]
_NODES, _WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(300))
_ANGLES = (_NODES + 1) * math.pi / 2


def _exponents(kappa: Tensor, dim: int) -> Tensor:
    return kappa * _ANGLES.cos() + (dim - 2) * _ANGLES.sin().log() + (_WEIGHTS * math.pi / 2).log()


def log_c(kappa: Tensor, dim: int) -> Tensor:
    log_area = math.log(2) + (dim - 1) / 2 * math.log(math.pi) - math.lgamma((dim - 1) / 2)
    return -log_area - _exponents(kappa, dim).logsumexp(0)


def resultant(kappa: Tensor, dim: int) -> Tensor:
    return (_exponents(kappa, dim).softmax(0) * _ANGLES.cos()).sum()


def quadratic(kappa: Tensor) -> Tensor:
    return 868 - 0.0002662 * kappa - 0.0009685 * kappa**2


def length(v: Tensor) -> Tensor:
    return (v * v).sum().sqrt()


def cross_entropy(similarities: list[list[Tensor]], y: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(similarities, y.tolist(), strict=True):
        total = total - row[label] + torch.stack(row).logsumexp(0)
    return total / len(y)


def softmax_over(distance, raw: bool = False):  # type: ignore[no-untyped-def]
    """The NCA++ softmax over distance(z, proxy direction, proxy concentration)."""

    def compute(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        kappa = state["concentration"].clamp_min(0.1) if raw else state["concentration"].exp()
        t = state["temperature"] if raw else state["temperature"].exp()
        scaled = z * state["embedding_scale"]
        rows = [
            [-distance(x, direction(p), k) / t for p, k in zip(state["proxies"], kappa, strict=True)] for x in scaled
        ]
        return cross_entropy(rows, y)

    return compute


def d_cos(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    return -cosine(z, p)


def d_l2(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    return ((z - k * p) ** 2).sum()


def d_b(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    m = len(z)
    return log_c(length(z + k * p) / 2, m) - (log_c(length(z), m) + log_c(k, m)) / 2


def d_el(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    m = len(z)
    return log_c(length(z + k * p), m) - log_c(length(z), m) - log_c(k, m)


def d_kl(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    m, kz = len(z), length(z)
    return log_c(kz, m) - log_c(k, m) + resultant(kz, m) * (kz - k * cosine(z, p))


def log_nivmf(x: Tensor, p: Tensor, k: Tensor, normalizer: str = "exact") -> Tensor:
    stretched = k * p
    value = log_c(length(stretched), len(x)) + length(stretched) * cosine(k * x, stretched)
    if normalizer == "none":
        return value
    return value + k.log().sum() - (len(x) * length(k * x).log() if normalizer == "exact" else length(stretched).log())


reference("sample_proxy", distance="cos")(softmax_over(d_cos))
reference("sample_proxy", distance="l2")(softmax_over(d_l2))
reference("sample_proxy", distance="b_vmf")(softmax_over(d_b))
reference("sample_proxy")(softmax_over(d_el))
reference("sample_proxy", distance="kl_vmf")(softmax_over(d_kl))
for factor in ("exact", "paper", "none"):
    reference("sample_proxy", distance="nivmf", normalizer=factor)(
        softmax_over(lambda z, p, k, f=factor: -log_nivmf(direction(z), p, k, f))
    )


def published_b(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    return quadratic(length(z + k * p) / 2) - (quadratic(length(z)) + quadratic(k)) / 2


def published_el(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    return quadratic(length(z + k * p)) - quadratic(length(z)) - quadratic(k)


def published_kl(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    return -(quadratic(length(z)) - quadratic(k) + length(z) - k * cosine(z, p))


def published_nivmf(z: Tensor, p: Tensor, k: Tensor) -> Tensor:
    stretched = k * p
    similarity = length(stretched) * cosine(k * direction(z), stretched)
    return -(quadratic(length(stretched)) + k.log().sum() - length(stretched).log() + similarity)


for name, distance in {
    "cos": d_cos,
    "l2": d_l2,
    "b_vmf": published_b,
    "el_vmf": published_el,
    "kl_vmf": published_kl,
    "nivmf": published_nivmf,
}.items():
    reference("sample_proxy", distance=name, fidelity="as_published")(softmax_over(distance, raw=True))


def _draws(z: Tensor, count: int, generator: torch.Generator) -> Tensor:
    norms = torch.linalg.vector_norm(z, dim=1)
    return VonMisesFisher(z / norms[:, None], norms).rsample((count,), generator=generator)


@reference("el_nivmf")
@reference("el_nivmf", embedding_scale=3.0)
def el_nivmf(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    draws = _draws(z * state["embedding_scale"], 5, generator)
    kappa, t = state["concentration"].exp(), state["temperature"].exp()
    rows = []
    for i in range(len(z)):
        densities = [
            [log_nivmf(x, direction(p), k) for x in draws[:, i]] for p, k in zip(state["proxies"], kappa, strict=True)
        ]
        rows.append([(torch.stack(d).logsumexp(0) - math.log(5)) / t for d in densities])
    return cross_entropy(rows, y)


@reference("el_nivmf", prior_strength=2.0)
def el_nivmf_with_prior(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    logs = state["concentration"]
    deviations = [((logs[c] - sum(logs) / len(logs)) ** 2).sum() for c in range(len(logs))]
    return el_nivmf(state, z, y, generator) + torch.stack(deviations).sum() / logs.numel()


@reference("el_nivmf", guidance="proxy_anchor", guidance_weight=0.3)
def el_nivmf_with_proxy_anchor(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    value = el_nivmf(state, z, y, generator)
    proxies = list(state["proxies"])
    attract, repel = [], []
    for c in range(len(proxies)):
        target = [
            torch.exp(-32 * (cosine(x, proxies[c]) - 0.1)) for x, label in zip(z, y.tolist(), strict=True) if label == c
        ]
        others = [
            torch.exp(32 * (cosine(x, proxies[c]) + 0.1)) for x, label in zip(z, y.tolist(), strict=True) if label != c
        ]
        attract += [torch.log1p(sum(target))] if target else []
        repel.append(torch.log1p(torch.stack(others).sum()))
    return value + 0.3 * (torch.stack(attract).mean() + torch.stack(repel).mean())


@reference("el_nivmf", fidelity="as_published", temperature=0.1)
def el_nivmf_as_released(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    norms = torch.linalg.vector_norm(z, dim=1)
    draws = released_samples(z / norms[:, None], norms, 5, generator)
    kappa, t = state["concentration"].clamp_min(0.1), state["temperature"]
    rows = []
    for i in range(len(z)):
        row = []
        for p, k in zip(state["proxies"], kappa, strict=True):
            stretched = k * direction(p)
            offset = quadratic(length(stretched)) + k.log().sum() - length(stretched).log()
            row.append(
                torch.stack([(offset + length(stretched) * cosine(x, stretched)) / t for x in draws[:, i]]).logsumexp(0)
                - math.log(5)
            )
        rows.append(row)
    return cross_entropy(rows, y)


def _vmf(state: State, z: Tensor, y: Tensor, draws: Tensor, log_c, ratio) -> Tensor:  # type: ignore[no-untyped-def]
    """Equations 8 and 13 of paper 002 with the given normaliser and ratio."""
    weight, beta = state["weight"], state["log_scale"].exp()
    total = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(y.tolist()):
        nu = state["alpha"] * z[i]
        for x in draws[:, i]:
            terms = [log_c(length(w)) - log_c(length(w + beta * x)) for w in weight]
            total = total + torch.stack(terms).logsumexp(0) / len(draws)
        target = cosine(nu, weight[label])
        total = total - beta * ratio(length(nu)) * ratio(length(weight[label])) * target
    return total / len(y)


@reference("vmf")
@reference("vmf", scale=1.0)
def vmf(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    draws = _draws(state["alpha"] * z, 10, generator)
    m = z.shape[1]
    return _vmf(state, z, y, draws, lambda k: log_c(k, m), lambda k: resultant(k, m))


@reference("vmf", fidelity="as_published")
def vmf_as_released(state: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    nu = state["alpha"] * z
    norms = torch.linalg.vector_norm(nu, dim=1)
    draws = released_samples(nu / norms[:, None], norms, 10, generator)
    a, b = (z.shape[1] - 1) / 2, (z.shape[1] + 1) / 2

    def bounds(k: Tensor) -> Tensor:
        upper, lower = (a**2 + k**2).sqrt(), (b**2 + k**2).sqrt()
        return (a * torch.log(a + upper) - upper + a * torch.log(a + lower) - lower) / 2

    def ratio(k: Tensor) -> Tensor:
        return k / 2 * (1 / (a + (b**2 + k**2).sqrt()) + 1 / (a + (a**2 + k**2).sqrt()))

    return _vmf(state, z, y, draws, bounds, ratio)
