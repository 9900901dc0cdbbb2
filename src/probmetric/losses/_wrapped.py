"""Options a wrapping loss passes on to the loss inside it (NIR's base, EL-nivMF's guide)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probmetric.losses import REGISTRY

SCALED = WITH_MARGIN = ("proxy_anchor", "proxy_anchor_nca", "soft_triple")
"""Losses that can stand inside another one and have an option `scale`, a `margin`."""


def options_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that loss `name` has and that are not None."""
    accepted = REGISTRY.options(name)
    return {option: value for option, value in options.items() if option in accepted and value is not None}
