"""Reference of NIR: coupling blocks sample by sample, the log-determinant from the dense Jacobian."""

from __future__ import annotations

from typing import Any

import torch
from references import CASES, Case, Reference, direction, reference
from torch import Tensor

State = dict[str, Tensor]


def network(p: State, prefix: str, x: Tensor) -> Tensor:
    indices = sorted(int(name.split(".")[-2]) for name in p if name.startswith(prefix + ".") and "weight" in name)
    for index in indices:
        x = p[f"{prefix}.{index}.weight"] @ x + p[f"{prefix}.{index}.bias"]
        x = x if index == indices[-1] else torch.relu(x)
    return x


def flow(p: State, x: Tensor, proxy: Tensor, seen: list[bool]) -> Tensor:
    """Equation 7 with the soft clamp, one vector at a time."""
    half = round(len(x) / 2)
    for k, sees in enumerate(seen):
        r = [proxy] if sees else []
        x = torch.stack([x[int(i)] for i in p[f"flow.blocks.{k}.order"]])
        x1, x2 = x[:half], x[half:]
        out = network(p, f"flow.blocks.{k}.net2", torch.cat([x2, *r]))
        y1 = x1 * torch.exp(2.0 * 0.636 * torch.atan(out[:half])) + out[half:]
        out = network(p, f"flow.blocks.{k}.net1", torch.cat([y1, *r]))
        rest = len(x) - half
        x = torch.cat([y1, x2 * torch.exp(2.0 * 0.636 * torch.atan(out[:rest])) + out[rest:]])
    return x


def negative_log_density(p: State, x: Tensor, proxy: Tensor, seen: list[bool]) -> Tensor:
    psi = direction(x)
    jacobian = torch.autograd.functional.jacobian(lambda v: flow(p, v, proxy, seen), psi, create_graph=True)
    zeta = flow(p, psi, proxy, seen)
    return (zeta * zeta).sum() / 2 - torch.linalg.slogdet(jacobian).logabsdet


def _nir(base: Case, *, norm: float, per_sample: bool, weight: float, seen: list[bool], mode: str = "exp") -> Reference:
    def scaled(value: Tensor) -> Tensor:
        return torch.exp(value) if mode == "exp" else torch.log(1 + torch.exp(value / 0.3))

    def condition(p: State, x: Tensor, c: int) -> Tensor:
        if base.name != "soft_triple":
            return direction(p["base.proxies"][c])
        centres = [direction(w) for w in p["base.proxies"].reshape(10, -1, len(x))[:, c]]
        s = [torch.exp((direction(x) * w).sum() / 0.1) for w in centres]
        return direction(sum(share * w for share, w in zip(s, centres, strict=True)) / sum(s))

    def loss(p: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        nll = [
            negative_log_density(p, x, condition(p, x, int(c)), seen) / (z.shape[1] if norm else 1)
            for x, c in zip(z, y, strict=True)
        ]
        regulariser = sum(map(scaled, nll)) / len(nll) if per_sample else scaled(sum(nll) / len(nll))
        if weight == 0:
            return regulariser
        parameters = {name.removeprefix("base."): value for name, value in p.items()}
        return regulariser + weight * base.reference(parameters, z, y, generator)

    return loss


def case(name: str, **options: Any) -> Case:
    return next(c for c in CASES if c.name == name and c.options == options)


SMALL = {"blocks": 2, "depth": 3, "width": 16}
_anchor, _released = case("proxy_anchor"), case("proxy_anchor", fidelity="as_published")
reference("nir", **SMALL)(_nir(_anchor, norm=1, per_sample=False, weight=0.0075, seen=[True] * 2))
reference("nir", fidelity="as_published", **SMALL)(
    _nir(_released, norm=0, per_sample=True, weight=0.0075, seen=[True] * 2)
)
for _base in ("proxy_nca", "proxy_anchor_nca", "soft_triple"):
    reference("nir", base=_base, pdml_weight=0.5, **SMALL)(
        _nir(case(_base), norm=1, per_sample=False, weight=0.5, seen=[True] * 2)
    )
for _condition, _seen in {"start": [1, 0, 0], "mid": [0, 1, 0], "end": [0, 0, 1]}.items():
    reference("nir", condition=_condition, blocks=3, depth=2, width=16, pdml_weight=0.0)(
        _nir(_anchor, norm=1, per_sample=False, weight=0.0, seen=[bool(s) for s in _seen])
    )
reference("nir", function="softplus", temperature=0.3, nll_norm="none", **SMALL)(
    _nir(_anchor, norm=0, per_sample=False, weight=0.0075, seen=[True] * 2, mode="softplus")
)


@reference("nir", negative_pairs=True, pdml_weight=0.0, **SMALL)
def _negative_pairs(p: State, z: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    classes = len(p["base.proxies"])
    other = (y + torch.randint(1, classes, y.shape, generator=generator)) % classes
    proxies = [direction(proxy) for proxy in p["base.proxies"]]

    def mean_nll(labels: Tensor) -> Tensor:
        terms = [negative_log_density(p, x, proxies[int(c)], [True] * 2) for x, c in zip(z, labels, strict=True)]
        return sum(terms) / len(terms) / z.shape[1]

    return torch.exp(mean_nll(y)) + torch.exp(-mean_nll(other))
