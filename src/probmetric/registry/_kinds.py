"""The kinds of components, and the package each kind lives in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.registry import _catalogue

if TYPE_CHECKING:
    from probmetric.registry._registry import Registry

KINDS = {
    "loss": "probmetric.losses",
    "uncertainty": "probmetric.uncertainty",
    "backbone": "probmetric.models",
    "dataset": "probmetric.data.sources",
    "view": "probmetric.data.views",
    "metric": "probmetric.metrics",
    "score": "probmetric.trust.scores",
    "figure": "probmetric.reporting.figures",
    "theory figure": "probmetric.reporting.theory",
}


def registry_of(kind: str) -> Registry:
    """The registry of one kind of component, by what the kind is called in messages."""
    registry: Registry = importlib.import_module(KINDS[kind]).REGISTRY
    return registry


def all_registries() -> Iterator[Registry]:
    """The registries of all kinds of components."""
    return map(registry_of, KINDS)


def write_catalogue(path: Path | None = None) -> Path:
    """Write the catalogue of all components of the package, importing each; returns its path."""
    from probmetric.io import write_json

    path = path or _catalogue.SHIPPED
    write_json(path, {registry.kind: registry.catalogue() for registry in all_registries()})
    return path
