"""Find dataset sources by name: one file per dataset, or per family of datasets that share their code.

`from probmetric.data.sources import RawFile, RawFiles, Source, Table, register` is what a source needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported
from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.data.sources._base import RawFile, RawFiles, Source, Table, check_counts, options

REGISTRY = Registry(
    "dataset", "probmetric.data.sources", constants=("closed_set", "counts", "needs_raw", "view", "views")
)
register, list_datasets = REGISTRY.register, REGISTRY.names

__all__ = ["REGISTRY", "RawFile", "RawFiles", "Source", "Table", "check_counts", "list_datasets", "options", "register"]

__getattr__ = exported(__name__)
