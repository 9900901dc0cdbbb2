"""Errors of models and galleries."""

from __future__ import annotations

from probmetric.errors import ProbMetricError


class ServingError(ProbMetricError, ValueError):
    """A model, gallery or image cannot be used; the message says what to change."""
