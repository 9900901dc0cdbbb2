"""A run: what evaluates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.runs.evaluate import evaluate_run
    from probmetric.runs.evaluate_settings import EvaluationSettings

__all__ = ["EvaluationSettings", "evaluate_run"]

__getattr__ = exported(
    __name__,
    {
        "evaluate_run": "evaluate",
        "EvaluationSettings": "evaluate_settings",
    },
)
