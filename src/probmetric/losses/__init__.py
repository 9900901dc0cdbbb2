"""Training losses for image embeddings, found by name.

Every loss maps raw, un-normalised embeddings (B, M) and labels (B,) to a scalar. A loss owns the parameters it trains
(proxies, temperatures, concentrations). Each loss has its own file, named like the loss. You can list names and check
options without importing PyTorch; `Loss`, `ProxyLoss` and the helpers of a loss are imported on first use:

    from probmetric.losses import ProxyLoss, cosine_similarities, register
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probmetric.lazy import exported
from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.losses._base import Loss, ProxyLoss, cosine_similarities, unit

__all__ = [
    "REGISTRY",
    "Loss",
    "ProxyLoss",
    "cosine_similarities",
    "create_loss",
    "list_losses",
    "register",
    "unit",
]

REGISTRY = Registry(
    "loss",
    "probmetric.losses",
    context=("num_classes", "dim"),
    constants=("has_proxies", "is_classifier", "starts_at_random"),
)
register, list_losses = REGISTRY.register, REGISTRY.names
__getattr__ = exported(__name__)


def create_loss(name: str, *, num_classes: int, dim: int, **options: Any) -> Loss:
    """Create loss `name` for `num_classes` training classes (C) and embeddings of `dim` (M) dimensions.

    An unknown name or option raises an error that names the nearest valid one.
    """
    loss: Loss = REGISTRY.create(name, num_classes=num_classes, dim=dim, **options)
    return loss
