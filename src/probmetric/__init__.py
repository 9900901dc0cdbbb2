"""ProbMetric: train, compare and use probabilistic image embeddings.

model = probmetric.load("shop-model")
answers = model.search(probmetric.Gallery.open("shop-gallery"), ["query.jpg"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probmetric.registry import load_plugins
    from probmetric.serving.fitting import fit
    from probmetric.serving.gallery import Gallery
    from probmetric.serving.model import Model, load
    from probmetric.serving.vectors import example_vectors

__version__ = "0.2.0"
__all__ = ["Gallery", "Model", "__version__", "example_vectors", "fit", "load", "load_plugins"]

_HOMES = {"load_plugins": "registry"} | dict.fromkeys(["Gallery", "Model", "example_vectors", "fit", "load"], "serving")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
