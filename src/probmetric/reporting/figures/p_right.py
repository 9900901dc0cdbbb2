"""Reliability of P(right): how often the answer to a query is right, against what was stated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Reliability of P(right)"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    found = _data.reliability_curves(context, "p_right")
    if not found:
        return _style.nothing(TITLE, "no run of this experiment has both right and wrong answers to labelled queries.")
    figure = _lines.reliability_panels(context, found)
    caption = (
        "Share of right answers against the stated probability that an answer is right, in bins of equal mass, mean "
        "over seeds. P(right) comes from the scores of the answer that cost nothing, by a map fitted on other classes "
        "of the same gallery. On the dotted diagonal it means what it says; below it, too much is promised."
    )
    return _style.Drawing(figure, TITLE, caption, _data.reliability_words(context, found))
