"""What every component must keep, as tests that a user's own components can be given to."""

from __future__ import annotations

from probmetric.testing._isolation import isolated_components

__all__ = ["isolated_components"]
