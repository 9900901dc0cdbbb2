"""Where pytorch-metric-learning has the same mathematics, both give the same number and the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probmetric.losses import create_loss
from probmetric.losses._base import Loss

C, M, B = 8, 12, 32

peers = pytest.importorskip("pytorch_metric_learning.losses")
distances = pytest.importorskip("pytorch_metric_learning.distances")
miners = pytest.importorskip("pytorch_metric_learning.miners")
reducers = pytest.importorskip("pytorch_metric_learning.reducers")


def proxies(peer: nn.Module, loss: Loss) -> None:
    peer.proxies.data = loss.proxies.data.clone()


def centres(peer: nn.Module, loss: Loss) -> None:
    peer.fc.data = loss.centres().detach().reshape(-1, M).T.clone()


def columns(peer: nn.Module, loss: Loss) -> None:
    peer.W.data = loss.weight.data.T.clone()


def nothing(peer: nn.Module, loss: Loss) -> None:
    pass


def mined(loss: nn.Module, miner: Callable[[Tensor, Tensor], Any]) -> nn.Module:
    forward = loss.forward
    loss.forward = lambda z, y: forward(z, y, miner(z, y))
    return loss


def squared() -> Any:
    return distances.LpDistance(p=2, power=2)


PAIRS: dict[str, tuple[str, dict[str, Any], Callable[[], nn.Module], Callable[[nn.Module, Loss], None]]] = {
    "ProxyAnchor": ("proxy_anchor", {}, lambda: peers.ProxyAnchorLoss(C, M, margin=0.1, alpha=32), proxies),
    "ProxyNCA": ("proxy_nca_pp", {"temperature": 1.0}, lambda: peers.ProxyNCALoss(C, M), proxies),
    "ProxyNCA scaled": ("proxy_nca_pp", {}, lambda: peers.ProxyNCALoss(C, M, softmax_scale=9), proxies),
    "NormalizedSoftmax": (
        "cosine",
        {"scale": 20.0},
        lambda: peers.NormalizedSoftmaxLoss(C, M, temperature=0.05),
        columns,
    ),
    "ArcFace": (
        "arcface",
        {"scale": 16.0, "margin": 0.5},
        lambda: peers.ArcFaceLoss(C, M, margin=28.64788975654116, scale=16),
        columns,
    ),
    "MultiSimilarity": (
        "multi_similarity",
        {"beta": 50.0, "mining": False},
        lambda: peers.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        nothing,
    ),
    "MultiSimilarity mined": (
        "multi_similarity",
        {},
        lambda: mined(peers.MultiSimilarityLoss(alpha=2, beta=40), miners.MultiSimilarityMiner(epsilon=0.1)),
        nothing,
    ),
    "Contrastive, all pairs": (
        "contrastive",
        {"mining": "none", "margin": 1.0, "fidelity": "as_published"},
        lambda: peers.ContrastiveLoss(neg_margin=1.0, distance=distances.LpDistance()),
        nothing,
    ),
}
for _type in ("all", "hard", "semihard", "easy"):
    PAIRS[f"Contrastive, {_type} triplets"] = (
        "contrastive",
        {"mining": _type, "margin": 0.7, "fidelity": "as_published"},
        lambda kind=_type: mined(
            peers.ContrastiveLoss(neg_margin=0.7, distance=distances.LpDistance()),
            miners.TripletMarginMiner(margin=0.7, type_of_triplets=kind, distance=distances.LpDistance()),
        ),
        nothing,
    )


@pytest.mark.parametrize("peer_name", PAIRS)
def test_equals_the_peer(peer_name: str) -> None:
    name, options, build, share = PAIRS[peer_name]
    loss, peer = create_loss(name, num_classes=C, dim=M, **options).double(), build().double()
    share(peer, loss)
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, C, (B,), generator=generator)
    z = torch.randn(B, M, generator=generator, dtype=torch.float64) + 1.5 * torch.eye(C, M).double()[y]
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    value, expected = loss(ours, y), peer(theirs, y)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)


def test_soft_triple_equals_the_peer_without_the_regulariser() -> None:
    loss = create_loss("soft_triple", num_classes=C, dim=M, proxies_per_class=3, tau=0.0).double()
    peer = peers.SoftTripleLoss(C, M, centers_per_class=3).double()
    centres(peer, loss)
    z, y = torch.randn(B, M, dtype=torch.float64), torch.randint(0, C, (B,))
    torch.testing.assert_close(loss(z, y), peer(z, y), rtol=1e-6, atol=1e-6)


def test_threshold_consistent_adds_the_peers_term_to_its_base() -> None:
    loss = create_loss("threshold_consistent", num_classes=C, dim=M, positive_weight=2.0).double()
    z, y = torch.randn(B, M, dtype=torch.float64), torch.randint(0, C, (B,))
    z = z + 1.5 * torch.eye(C, M).double()[y]
    term = peers.ThresholdConsistentMarginLoss(lambda_plus=2.0)(z, y)
    assert float(term) > 0.1
    torch.testing.assert_close(loss(z, y) - loss.inner(z, y), term, rtol=1e-6, atol=1e-6)
