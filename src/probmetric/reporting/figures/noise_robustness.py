"""A metric against the rate of wrong training labels."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from probmetric.metrics import arrow, label
from probmetric.reporting._comparison import Cell, summarise
from probmetric.reporting.figures import _data, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Robustness to label noise"
_Lines = dict[str, dict[str, dict[float, Cell]]]


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset with several noise rates; methods run at two rates or more."""
    metric = context.metrics[0]
    lines = _collect(context, metric)
    if not lines:
        return _style.nothing(TITLE, "no method of this experiment was run at more than one noise rate.")
    variants = _data.methods_drawn(context, {variant for methods in lines.values() for variant in methods})
    known = _style.looks(context.variants)
    columns = min(2, len(lines))
    figure, axes = _style.grid(-(-len(lines) // columns), columns, panel_height=2.4, legend_entries=len(variants))
    for axis, (dataset, methods) in zip(_style.trim(axes, len(lines)), lines.items(), strict=True):
        for variant in variants:
            rates = methods.get(variant, {})
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
        axis.margins(x=0.08)
    _style.method_legend(figure, context, variants, known)
    caption = (
        f"{label(metric)} on clean test data after training with wrong labels: mean over seeds with the "
        "95 % t-interval."
    )
    return _style.Drawing(figure, TITLE, caption, _alt(context, lines))


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
