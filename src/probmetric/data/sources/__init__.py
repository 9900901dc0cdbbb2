"""Dataset sources, found by name: one file per dataset, the file's name is the dataset's name."""

from __future__ import annotations

from probmetric.registry import Registry

REGISTRY = Registry("dataset", "probmetric.data.sources")
register, list_datasets = REGISTRY.register, REGISTRY.names

__all__ = ["REGISTRY", "list_datasets", "register"]
