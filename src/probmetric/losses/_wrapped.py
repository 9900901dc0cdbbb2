"""Which of a wrapping loss's options the loss inside it has (NIR's base, EL-nivMF's guide)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probmetric.losses import REGISTRY
from probmetric.losses._base import require


def options_of(name: str, given: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """The given options that loss `name` has; a `scale` or `margin` that it lacks is an error (`prefix` + its name)."""
    known = REGISTRY.options(name)
    for option in ("scale", "margin"):
        value = given[option]
        require(value is None or option in known, prefix + option, value, f"None: {name} has no such option")
    return {option: value for option, value in given.items() if option in known and value is not None}
