"""Reliability diagrams: how often what was said with some confidence is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _lines, _style, register


@register("reliability")
def class_probabilities(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    words = _style.Words(
        "Reliability",
        "Accuracy of predictions against their confidence, in bins, mean over seeds. On the dotted diagonal confidence "
        "means what it says; below it the method is overconfident, above it underconfident.",
        "no run of this experiment has class probabilities on a closed set.",
    )
    return _diagram(context, "reliability", words)


@register("retrieval_reliability")
def votes(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method that draws samples, averaged over seeds (paper 003, figure 6)."""
    words = _style.Words(
        "Reliability of retrieval by vote",
        "Every sample of an image retrieves its nearest neighbour among the samples of the other images; the label "
        "most of them agree on is the prediction, the share that agrees its confidence. Accuracy against confidence in "
        "ten bins, mean over seeds; bins with few images scatter. On the dotted diagonal confidence means what it "
        "says; below it the method is overconfident.",
        "no run of this experiment draws samples of its embeddings.",
    )
    return _diagram(context, "retrieval_reliability", words)


@register("p_right")
def stated_probabilities(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    words = _style.Words(
        "Reliability of P(right)",
        "Share of right answers against the stated probability that an answer is right, in bins of equal mass, mean "
        "over seeds. P(right) comes from the scores of the answer that cost nothing, by a map fitted on other classes "
        "of the same gallery. On the dotted diagonal it means what it says; below it, too much is promised.",
        "no run of this experiment has both right and wrong answers to labelled queries.",
    )
    return _diagram(context, "p_right", words)


def _diagram(context: ReportContext, curve: str, words: _style.Words) -> _style.Drawing:
    """Accuracy against confidence, by the `curve` of that name of every run."""

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        parts = []
        for variant, (confidence, accuracy) in lines.items():
            gap = float(np.mean(accuracy - confidence))
            word = "above" if gap > 0 else "below"
            parts.append(f"{title}, {context.label(variant)}: on average {abs(gap):.2f} {word}")
        return "; ".join(parts)

    words = replace(words, alt="Accuracy against confidence, relative to the diagonal. ")
    curves = _data.mean_curves(context, curve, "confidence", "accuracy", points=41)
    axes = _lines.SQUARE | {"xlabel": "confidence", "ylabel": "accuracy"}
    return _lines.drawing(context, words, curves, axes, say, panel_height=2.6)
