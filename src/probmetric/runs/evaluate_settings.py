"""What an evaluation computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class EvaluationSettings:
    """What to compute. `clusters` is the number of k-means clusters, by default that of the test classes."""

    ks: tuple[int, ...] = (1, 2, 4, 8)
    clusters: int | None = None
    clustering: bool = True
    structure: bool = True
    seed: int = 1234
    bins: int = 15
    curve_points: int = 200

    @classmethod
    def of(cls, settings: EvaluationSettings | Mapping[str, Any] | None) -> EvaluationSettings:
        """Settings from a mapping (unknown keys are an error) or None for the defaults."""
        if isinstance(settings, cls):
            return settings
        values = dict(settings or {})  # type: ignore[arg-type]
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                from probmetric.registry import nearest

                raise ValueError(f"evaluation settings have no key {key!r}: {nearest(key, known)}")
        if "ks" in values:
            values["ks"] = tuple(values["ks"])
        return cls(**values)
