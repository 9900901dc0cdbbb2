"""Errors about names and values."""

from __future__ import annotations

from probmetric.errors import ProbMetricError


class UnknownNameError(ProbMetricError, ValueError):
    """No component or option has this name."""


class OptionValueError(ProbMetricError, ValueError):
    """An option does not take this value."""


class RegistrationError(ProbMetricError, ValueError):
    """A component cannot be registered as it is written: its name, its options or what it must declare."""


class PluginError(ProbMetricError, ValueError):
    """A plugin cannot be found or imported."""
