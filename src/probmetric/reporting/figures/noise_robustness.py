"""A metric against the rate of wrong training labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.metrics import arrow, label
from probmetric.reporting._comparison import Cell, summarise
from probmetric.reporting._words import noise_words
from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.figures._multiples import label_ends
from probmetric.runs.names import LabelNoise, split_data_name

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Robustness to label noise"
_NAME, _AROUND = 0.14, 0.7  # inches: a line of text; title and axis label around a panel
_Lines = dict[str, dict[str, dict[float, Cell]]]


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset and kind of noise; methods run at two rates or more, named at their lines' ends."""
    metric = context.metrics[0]
    lines = _collect(context, metric)
    if not lines:
        return _style.nothing(TITLE, "no method of this experiment was run at more than one noise rate.")
    variants = _data.methods_drawn(context, {variant for methods in lines.values() for variant in methods})
    known = _style.looks(context.variants)
    height = max(2.4, _NAME * len(variants) + _AROUND)
    figure, axes = _style.grid(len(lines), 1, panel_height=height)
    for axis, (title, methods) in zip(_style.cells(axes), lines.items(), strict=True):
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
        axis.set_title(title)
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
    """Panel -> method -> rate -> mean over seeds, for methods with two rates or more."""
    found = _data.values(context, metric)
    lines: _Lines = {}
    for data, methods in found.items():
        dataset, label_noise = split_data_name(data)
        if not label_noise:
            continue
        noise = LabelNoise.parse(label_noise)
        panel = lines.setdefault(_title(dataset, noise), {})
        for variant, values in methods.items():
            clean = found.get(dataset, {}).get(variant)
            panel.setdefault(variant, {0.0: summarise(clean)} if clean else {})[noise.rate] = summarise(values)
    drawn = {
        title: {name: dict(sorted(rates.items())) for name, rates in panel.items() if len(rates) > 1}
        for title, panel in lines.items()
    }
    return {title: panel for title, panel in drawn.items() if panel}


def _title(dataset: str, noise: LabelNoise) -> str:
    """The dataset, and which labels are wrong unless they are any."""
    usual = noise.kind == "uniform" and not noise.seed
    return dataset if usual else f"{dataset}, {noise_words(noise)}"


def _alt(context: ReportContext, lines: _Lines) -> str:
    parts = []
    for title, methods in lines.items():
        for variant, rates in methods.items():
            first, last = min(rates), max(rates)
            change = rates[last].mean - rates[first].mean
            parts.append(
                f"{title}, {context.label(variant)}: {change:+.3f} from {100 * first:g} % to {100 * last:g} % noise"
            )
    return f"Metric against label noise. {'; '.join(parts)}."
