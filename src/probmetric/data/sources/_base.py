"""What a dataset source is: it reads files (or generates images) and answers with a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Protocol = Literal["open_set", "closed_set"]


@dataclass(frozen=True)
class Table:
    """A dataset before its pixels are stored.

    Attributes:
        columns: name -> array (N,). Required: path, label (0-based and contiguous over all classes),
            class_name, split (train, val or test); anything else becomes an extra manifest column.
        image: row -> pixels (H, W, C) uint8. Must be picklable where the source is large.
        protocol: `open_set` (splits disjoint in class) or `closed_set` (splits disjoint in image).
        description: where the images come from, for summary.json.
        notes: decisions taken while reading (images left out and why), listed in summary.json.
    """

    columns: dict[str, np.ndarray]
    image: Callable[[int], np.ndarray]
    protocol: Protocol
    description: str
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


class Source(ABC):
    """A dataset that can be prepared. Its options are the keyword arguments of its `__init__`."""

    @abstractmethod
    def read(self, raw: Path | None, *, seed: int) -> Table:
        """List the images, labels and splits.

        Args:
            raw: folder with the archives the user supplied; None for datasets that need none.
            seed: seed of the validation split and of anything generated.
        """
