"""ProbMetric: train, compare and use probabilistic image embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probmetric.registry import load_plugins

__version__ = "0.2.0"
__all__ = ["__version__", "load_plugins"]


def __getattr__(name: str) -> Any:
    if name == "load_plugins":
        from probmetric.registry import load_plugins

        return load_plugins
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
