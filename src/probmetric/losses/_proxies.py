"""Proxies of the proxy losses: their initialisation, their learning rate and the warm start from class means.

Released code of the papers initialises proxies with N(0, 1)/8 and gives them a learning rate thousands of times
the network's, in absolute terms 0.01 to 0.04 under Adam. Only a proxy's direction matters; Adam turns it by about
8 lr per step, whatever the dimension, because the norm of such a proxy is sqrt(M)/8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probmetric.losses._base import Loss, unit

INITIAL_STD = 0.125


class ProxyLoss(Loss):
    """A loss over `proxies` (K C, M), K = `per_class` to a class, of which only the directions matter."""

    has_proxies = True

    def __init__(self, *, num_classes: int, dim: int, proxy_lr: float, per_class: int = 1) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.proxy_lr = proxy_lr
        self.proxies = nn.Parameter(torch.randn(per_class * num_classes, dim) * INITIAL_STD)

    def class_proxies(self) -> tuple[Tensor, Tensor]:
        """Unit proxies (K C, M) and the class (K C,) of each; row k C + c is proxy k of class c."""
        count = len(self.proxies) // self.num_classes
        return unit(self.proxies), torch.arange(self.num_classes, device=self.proxies.device).repeat(count)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Proxies with their own absolute learning rate, without weight decay; the rest at the base rate."""
        rest = [parameter for parameter in self.parameters() if parameter is not self.proxies]
        groups = [{"params": [self.proxies], "lr": self.proxy_lr, "weight_decay": 0.0}]
        return groups + ([{"params": rest, "lr_multiplier": 1.0, "weight_decay": 0.0}] if rest else [])


def class_means(
    embeddings: Tensor,  # (N, M)
    labels: Tensor,  # (N,)
    num_classes: int,
) -> tuple[Tensor, Tensor]:  # (C, M), (C,) bool
    """Unit mean direction of every class and whether the class occurs."""
    sums = embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add_(0, labels, embeddings)
    return unit(sums), torch.bincount(labels, minlength=num_classes) > 0
