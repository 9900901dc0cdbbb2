"""ROC curves of uncertainty as a detector of out-of-distribution images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext

TITLE = "Out-of-distribution detection"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset and out-of-distribution set, one line per method, averaged over seeds."""
    panels: dict[str, dict[str, _data.Curve]] = {}
    for source in _sources(context):
        found = _data.collect(context, lambda runs, name=source: _mean_roc([r.curves.get(name) for r in runs]))  # type: ignore[misc]
        for data, curves in found.items():
            panels[f"{_data.group_title(data)}\nvs {source.removeprefix('roc/')}"] = curves
    if not panels:
        return _style.nothing(TITLE, "no run of this experiment was evaluated on out-of-distribution images.")
    figure = _lines.line_panels(context, panels, _finish, panel_height=2.7)
    caption = (
        "Receiver operating characteristic of the uncertainty, with out-of-distribution images as the positive class "
        "(a higher uncertainty should mean an image from elsewhere) and the test split as the negative class; mean "
        "over seeds. The dotted diagonal is chance; a line below it gives strange images the lower uncertainty."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, panels))


def _sources(context: ReportContext) -> list[str]:
    return sorted({name for run in context.runs for name in run.curves if name.startswith("roc/")})


def _mean_roc(curves: list[object]) -> _data.Curve | None:
    mean = _data.mean_curve(curves, "fpr", "tpr", points=201)
    return None if mean is None else (np.concatenate([[0.0], mean[0]]), np.concatenate([[0.0], mean[1]]))


def _finish(axis: Axes) -> None:
    axis.plot([0, 1], [0, 1], ":", color="#888888", linewidth=1, zorder=1)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="false positive rate", ylabel="true positive rate")
    axis.set_box_aspect(1)


def _alt(context: ReportContext, panels: dict[str, dict[str, _data.Curve]]) -> str:
    parts = []
    for title, curves in panels.items():
        area = {variant: float(np.trapezoid(y, x)) for variant, (x, y) in curves.items()}
        best = max(area, key=area.__getitem__)
        parts.append(f"{title.replace(chr(10), ' ')}: {context.label(best)} has the largest area ({area[best]:.2f})")
    return f"ROC curves. {'; '.join(parts)}."
