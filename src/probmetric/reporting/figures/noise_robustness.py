"""A metric against the rate of wrong training labels."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from probmetric.metrics import arrow, label
from probmetric.reporting._comparison import Cell, summarise
from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.figures._multiples import label_ends

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Robustness to label noise"
_NAME, _AROUND = 0.14, 0.7  # inches: a line of text; title and axis label around a panel
_Lines = dict[str, dict[str, dict[float, Cell]]]


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset with several noise rates; methods run at two rates or more, named at their lines' ends."""
    metric = context.metrics[0]
    lines = _collect(context, metric)
    if not lines:
        return _style.nothing(TITLE, "no method of this experiment was run at more than one noise rate.")
    variants = _data.methods_drawn(context, {variant for methods in lines.values() for variant in methods})
    known = _style.looks(context.variants)
    height = max(2.4, _NAME * len(variants) + _AROUND)
    figure, axes = _style.grid(len(lines), 1, panel_height=height)
    for axis, (dataset, methods) in zip(_style.cells(axes), lines.items(), strict=True):
        for variant, rates in methods.items():
            axis.errorbar(
                [100 * rate for rate in rates],
                [cell.mean for cell in rates.values()],
                yerr=[cell.half_width or 0.0 for cell in rates.values()],
                color=known[variant].colour,
                linestyle=known[variant].dash,
                marker="o",
                markersize=4,
                capsize=2.5,
            )
        axis.set_title(dataset)
        axis.set(xlabel="wrong training labels (%)", ylabel=f"{label(metric)} {arrow(metric)}".strip())
        axis.margins(x=0.04)
        ends = {context.label(variant): _end(rates, known[variant]) for variant, rates in methods.items()}
        label_ends(axis, ends, least=_NAME / (height - _AROUND))
    caption = (
        f"{label(metric)} on clean test data after training with wrong labels: mean over seeds with the "
        "95 % t-interval."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, lines))


def _end(rates: dict[float, Cell], look: _style.Look) -> tuple[float, float, str]:
    rate = max(rates)
    return 100 * rate, rates[rate].mean, look.colour


def _collect(context: ReportContext, metric: str) -> _Lines:
    found: dict[str, dict[str, dict[float, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for record in sorted(context.records, key=lambda record: record.key):
        if record.metric == metric and record.value is not None:
            found[record.key.dataset][record.key.variant][record.key.noise].append(record.value)
    lines: _Lines = {}
    for dataset, methods in found.items():
        several = {
            variant: {rate: summarise(values) for rate, values in sorted(rates.items())}
            for variant, rates in methods.items()
            if len(rates) > 1
        }
        if several:
            lines[dataset] = several
    return lines


def _alt(context: ReportContext, lines: _Lines) -> str:
    parts = []
    for dataset, methods in lines.items():
        for variant, rates in methods.items():
            first, last = min(rates), max(rates)
            change = rates[last].mean - rates[first].mean
            parts.append(
                f"{dataset}, {context.label(variant)}: {change:+.3f} from {100 * first:g} % to {100 * last:g} % noise"
            )
    return f"Metric against label noise. {'; '.join(parts)}."
