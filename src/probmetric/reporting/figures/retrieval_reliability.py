"""Reliability of retrieval by vote over samples: how often the label most of them retrieve is right (003, figure 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Reliability of retrieval by vote"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method that draws samples, averaged over seeds."""
    found = _data.reliability_curves(context, "retrieval_reliability")
    if not found:
        return _style.nothing(TITLE, "no run of this experiment draws samples of its embeddings.")
    figure = _lines.reliability_panels(context, found)
    caption = (
        "Every sample of an image retrieves its nearest neighbour among the samples of the other images; the label "
        "most of them agree on is the prediction, the share that agrees its confidence. Accuracy against confidence in "
        "ten bins, mean over seeds; bins with few images scatter. On the dotted diagonal confidence means what it "
        "says; below it the method is overconfident."
    )
    return _style.Drawing(figure, TITLE, caption, _data.reliability_words(context, found))
