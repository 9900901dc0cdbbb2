"""Contracts: tests that every component must pass, for your own components too.

    from probmetric.testing import LossContract

    class TestCircle(LossContract):        # pytest runs its tests
        name = "circle"
        options = {"margin": 0.3}

    check(LossContract, "circle")          # the same without pytest

A component declares the tests that it is exempt from, and why:
`exempt = {"gradient_is_the_finite_difference": "stop-gradient"}`. Importing this package does not need pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported
from probmetric.registry import isolated_components
from probmetric.testing.contract import Contract, cases, check

if TYPE_CHECKING:
    from probmetric.testing.losses import LossContract
    from probmetric.testing.others import BackboneContract, MetricContract, SourceContract, ViewContract
    from probmetric.testing.uncertainties import UncertaintyContract

__all__ = [
    "BackboneContract",
    "Contract",
    "LossContract",
    "MetricContract",
    "SourceContract",
    "UncertaintyContract",
    "ViewContract",
    "cases",
    "check",
    "isolated_components",
]

__getattr__ = exported(__name__)
