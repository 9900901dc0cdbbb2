"""What every component must keep, as tests that a user's own components can be given to.

    from probmetric.testing import LossContract

    class TestCircle(LossContract):        # pytest runs its tests
        name = "circle"
        options = {"margin": 0.3}

    check(LossContract, "circle")          # the same without pytest

A component declares what it is exempt from, and why: `exempt = {"gradient_is_the_finite_difference": "stop-gradient"}`.
pytest is not needed to import this.
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
