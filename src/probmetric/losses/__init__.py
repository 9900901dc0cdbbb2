"""Training losses for image embeddings, found by name.

Every loss maps raw, un-normalised embeddings (B, M) and labels (B,) to a scalar, and owns whatever it trains
(proxies, temperatures, concentrations). One loss per file; the file's name is the loss's name. Listing names and
checking options reads source text only; PyTorch is imported when a loss is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.losses._base import Loss

REGISTRY = Registry("loss", "probmetric.losses", context=("num_classes", "dim"))
register, list_losses = REGISTRY.register, REGISTRY.names

__all__ = ["REGISTRY", "create_loss", "list_losses", "register"]


def create_loss(name: str, *, num_classes: int, dim: int, **options: Any) -> Loss:
    """Create loss `name` for `num_classes` training classes (C) and embeddings of `dim` (M) dimensions.

    An unknown name or option is answered with the nearest valid one.
    """
    loss: Loss = REGISTRY.create(name, num_classes=num_classes, dim=dim, **options)
    return loss
