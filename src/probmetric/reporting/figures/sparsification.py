"""Sparsification curves: accuracy of what is left after the least certain test images have been removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext

TITLE = "Sparsification curves"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    found = _data.collect(
        context, lambda runs: _data.mean_curve([r.curves.get("sparsification") for r in runs], "removed", "accuracy")
    )
    if not found:
        return _style.nothing(TITLE, "no run of this experiment has a sparsification curve.")
    figure = _lines.line_panels(context, {_data.group_title(data): curves for data, curves in found.items()}, _finish)
    caption = (
        "Share of correct test images among those kept, as the images with the highest uncertainty are removed first; "
        "mean over seeds. A line that rises says the uncertainty finds the errors; a flat one says it does not. "
        "The area below the line is AUSC."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, found))


def _finish(axis: Axes) -> None:
    axis.set_xlim(0, 1)
    axis.set_xlabel("share of images removed")
    axis.set_ylabel("accuracy of the rest")


def _alt(context: ReportContext, found: dict[str, dict[str, _data.Curve]]) -> str:
    parts = []
    for data, curves in found.items():
        rise = {variant: y[int(0.5 * (len(y) - 1))] - y[0] for variant, (_, y) in curves.items()}
        most = max(rise, key=rise.__getitem__)
        parts.append(
            f"on {_data.group_title(data)}, removing half of the images changes accuracy most for "
            f"{context.label(most)} ({rise[most]:+.3f})"
        )
    return f"Line plot of accuracy against the share of removed images: {'; '.join(parts)}."
