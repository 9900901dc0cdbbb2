"""What stronger distortions of the query do: errors, whether P(right) stays true, whether the uncertainty notices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.reporting.figures import _data, _lines, _style, register
from probmetric.reporting.figures._multiples import FEW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Answers by severity of each distortion"
ALL = "distortion"
SHOWN = {"wrong": "errors", "unstated": "excess errors", "rank": "rank"}


@register
def draw(context: ReportContext) -> _style.Drawing:
    """A panel per dataset, distortion and question; of many methods all distortions together, if known."""
    found = {name: _collected(context, name) for name in _distortions(context)}
    asked = [curves for data in found.values() for kinds in data.values() for curves in kinds.values()]
    drawn = {variant for curves in asked for variant in curves}
    if not drawn:
        return _style.nothing(TITLE, "no dataset of this experiment says how strongly its images were distorted.")
    summed = found.get(ALL, {}) if len(drawn) > FEW else {}
    panels = {
        f"{data}, {name}: {words}": curves[kind]
        for kind, words in SHOWN.items()
        for name in found
        for data, curves in found[name].items()
        if curves[kind] and (name == ALL or data not in summed)
    }
    figure = _lines.line_panels(context, panels, _finish, columns=2)
    caption = (
        "Test images in bins of equal mass by the strength of a distortion. Errors: the share of wrong answers. Excess "
        "errors: how much larger that share is than 1 - P(right) stated; above 0 too much was promised. Rank: the mean "
        "rank of the method's own uncertainty, 0 surest and 1 least sure; it rises if it notices the distortion. Mean "
        "over seeds."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, found))


def _distortions(context: ReportContext) -> list[str]:
    """Distortions that any run has curves of, in the order of the file."""
    names = (name for run in context.runs for name in run.curves if name.startswith("severity/"))
    return list(dict.fromkeys(name.removeprefix("severity/") for name in names))


def _collected(context: ReportContext, name: str) -> dict[str, dict[str, dict[str, _data.Curve]]]:
    """Dataset -> question -> method -> curve."""
    found: dict[str, dict[str, dict[str, _data.Curve]]] = {}
    for kind in SHOWN:
        for data, curves in _data.collect(context, partial(_mean, name, kind)).items():
            found.setdefault(data, {each: {} for each in SHOWN})[kind] = curves
    return found


def _mean(name: str, kind: str, runs: Sequence[RunFolder]) -> _data.Curve | None:
    return _data.mean_curve([_question(run, name) for run in runs], "strength", kind, points=33)


def _question(run: RunFolder, name: str) -> Mapping[str, Any] | None:
    curve = run.curves.get(f"severity/{name}")
    if not curve or "stated" not in curve:
        return curve
    return {**curve, "unstated": (np.array(curve["wrong"]) - np.array(curve["stated"])).tolist()}


def _finish(axis: Axes) -> None:
    axis.set_xlabel("strength")
    axis.set_ylabel("share")


def _alt(context: ReportContext, found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, _data.Curve]]]]) -> str:
    parts = []
    for name, datasets in found.items():
        for data, curves in datasets.items():
            rise = {variant: float(y[-1] - y[0]) for variant, (_, y) in curves["rank"].items()}
            if rise:
                most = max(rise, key=rise.__getitem__)
                parts.append(
                    f"{_data.group_title(data)}, {name}: the uncertainty of {context.label(most)} rises most "
                    f"({rise[most]:+.2f} of all ranks)"
                )
    return f"Errors and uncertainty against the strength of distortions. {'; '.join(parts)}."
