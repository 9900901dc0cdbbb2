"""Uncertainties: how sure is the encoder about an image? Every method returns a `DirectionalBatch`.

    uncertainty = create_uncertainty("laplace", geometry="arccos", samples=100)
    posterior = uncertainty.fit(encoder, train_batches, generator=generator)   # where `fits`
    predictor = uncertainty.bind(encoder, posterior=posterior, seed=0)
    record = predictor(images)

You can list names and check options without importing PyTorch. `Uncertainty`, `Objective` and their helpers are
imported on first use: `from probmetric.uncertainty import DirectionalBatch, Uncertainty, register`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probmetric.lazy import exported
from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.uncertainty._base import DirectionalBatch, Fitting, Objective, Posterior, Predictor, Uncertainty

__all__ = [
    "REGISTRY",
    "DirectionalBatch",
    "Fitting",
    "Objective",
    "Posterior",
    "Predictor",
    "Uncertainty",
    "create_uncertainty",
    "list_uncertainties",
    "register",
]

REGISTRY = Registry(
    "uncertainty",
    "probmetric.uncertainty",
    constants=("fits", "trains_encoder", "replaces_loss", "closed_set", "needs_head", "needs_classifier"),
)
register, list_uncertainties = REGISTRY.register, REGISTRY.names
__getattr__ = exported(__name__)


def create_uncertainty(name: str, **options: Any) -> Uncertainty:
    """Create the uncertainty `name`. An unknown name or option raises an error that names the nearest valid one."""
    return REGISTRY.create(name, **options)
