"""Embedding norms of images that are retrieved rightly and of those that are not (paper 000, figure 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _histograms, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Norms of right and wrong images"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset and method with concentrations (its first seed).

    Right and wrong are the judgement of the experiment's first method on that dataset, as the paper takes a baseline's;
    where a dataset has a single method, its own.
    """
    judges: dict[str, RunFolder] = {}
    for (data, _), run in _data.first_runs(context, "mean", "label", "index").items():
        judges.setdefault(data, run)
    verdicts = {data: _judgement(judge) for data, judge in judges.items()}
    panels, judged_by, chances = {}, {}, []
    for (data, variant), run in _data.first_runs(context, "concentration", "index").items():
        found = run.tensors("test", "concentration", "index")
        verdict = verdicts[data][found["index"]]
        right, wrong = (found["concentration"][verdict == value] for value in (1, 0))
        chance = _histograms.chance_larger(right, wrong)
        title = f"{_data.group_title(data)}\n{context.label(variant)}"
        panels[title] = _histograms.Groups(right, wrong, f"{chance:.2f}")
        chances.append(f"{title.replace(chr(10), ', ')}: {chance:.2f}")
        judged_by[data] = context.label(judges[data].key.variant)
    if not panels:
        return _style.nothing(TITLE, "no finished run has concentrations.")
    groups = ("nearest neighbour right", "nearest neighbour wrong")
    figure = _histograms.histogram_panels(panels, groups, "concentration")
    names = _data.listed([f"{name} on {_data.group_title(data)}" for data, name in judged_by.items()])
    caption = (
        "Share of test images by concentration (the norm of the embedding, mostly), for images whose nearest neighbour "
        "is of their own class and of another; dashed: medians. In the corner: the chance that a right image has the "
        f"larger one (0.5: it tells nothing). Right and wrong are the judgement of {names}, the experiment's first "
        "method, so that all panels compare the same images; first seed."
    )
    alt = f"Histograms. Chance that a right image has the larger concentration: {'; '.join(chances)}."
    return _style.Drawing(figure, TITLE, caption, alt)


def _judgement(run: RunFolder) -> np.ndarray:
    """By manifest row: 1 if the image's nearest neighbour has its class, 0 if not, -1 for other images."""
    found = run.tensors("test", "mean", "label", "index")
    table = np.full(int(found["index"].max(initial=-1)) + 1, -1)
    table[found["index"]] = _data.is_right(found["mean"], found["label"])
    return table
