"""Reliability diagrams: how often a prediction made with some confidence is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Reliability"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    found = _data.reliability_curves(context, "reliability")
    if not found:
        return _style.nothing(TITLE, "no run of this experiment has class probabilities on a closed set.")
    figure = _lines.reliability_panels(context, found)
    caption = (
        "Accuracy of predictions against their confidence, in bins, mean over seeds. On the dotted diagonal confidence "
        "means what it says; below it the method is overconfident, above it underconfident."
    )
    return _style.Drawing(figure, TITLE, caption, _data.reliability_words(context, found))
