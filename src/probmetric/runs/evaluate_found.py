"""What the evaluation of a run has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probmetric.metrics.calibration import Reliability
from probmetric.metrics.image_errors import known_errors

Curves = dict[str, dict[str, list[float]]]


@dataclass
class Found:
    """Metrics by name, curves by name, and the standard errors of metrics over the images (NaN = not known)."""

    metrics: dict[str, float] = field(default_factory=dict)
    curves: Curves = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def add(self, group: str, values: Mapping[str, float]) -> None:
        """Metrics `<group>/<name>`."""
        self.metrics |= {f"{group}/{name}": value for name, value in values.items()}

    def add_diagram(self, name: str, found: Reliability) -> None:
        """A reliability diagram as a curve."""
        self.curves[name] = {part: getattr(found, part).tolist() for part in ("confidence", "accuracy", "count")}

    def merge(self, other: Found) -> None:
        """Take over all that `other` holds."""
        self.metrics |= other.metrics
        self.curves |= other.curves
        self.errors |= other.errors

    def all_curves(self) -> Curves:
        """The curves, and the known errors as the curve `image_errors`."""
        known = known_errors(self.errors)
        return self.curves | ({"image_errors": known} if known else {})
