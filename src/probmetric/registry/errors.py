"""Errors about names and values, and the sentence that names what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from probmetric.errors import ProbMetricError

_LISTED, _SHOWN = 50, 8


def nearest(value: str, allowed: Iterable[str]) -> str:
    """Return the phrase `did you mean 'x'? Allowed: a, b, c.`; of many names it has the nearest only."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) > _LISTED:
        shown = difflib.get_close_matches(str(value), names, n=_SHOWN, cutoff=0.0)
        return f"{hint}Nearest of {len(names)}: {', '.join(shown)}."
    return f"{hint}Allowed: {', '.join(names) or '(nothing)'}."


class UnknownNameError(ProbMetricError, ValueError):
    """No component or option has this name."""


class OptionValueError(ProbMetricError, ValueError):
    """An option does not take this value."""


class RegistrationError(ProbMetricError, ValueError):
    """A component cannot be registered as it is written: its name, its options or what it must declare."""


class PluginError(ProbMetricError, ValueError):
    """A plugin cannot be found or imported."""
