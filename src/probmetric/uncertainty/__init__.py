"""How sure is the encoder about an image? Every answer has one shape, `DirectionalBatch`.

    uncertainty = create_uncertainty("laplace", geometry="arccos", samples=100)
    posterior = uncertainty.fit(encoder, train_batches, generator=generator, device=device)   # where `fits`
    batch = uncertainty.embed(encoder, images, posterior=posterior, seed=0)

Names and options are read from the source text; PyTorch is imported when an uncertainty is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.uncertainty._base import DirectionalBatch, Uncertainty

__all__ = ["REGISTRY", "DirectionalBatch", "Uncertainty", "create_uncertainty", "list_uncertainties", "register"]

REGISTRY = Registry("uncertainty", "probmetric.uncertainty")
register = REGISTRY.register


def list_uncertainties() -> list[str]:
    """Names of all uncertainties, sorted."""
    return REGISTRY.names()


def create_uncertainty(name: str, **options: Any) -> Uncertainty:
    """Create the uncertainty `name`; unknown names and options are answered with the nearest valid one."""
    return REGISTRY.create(name, **options)


def __getattr__(name: str) -> Any:
    if name in {"DirectionalBatch", "Uncertainty"}:
        from probmetric.uncertainty import _base

        return getattr(_base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
