"""How the weights of a run were chosen, whether the choice meant anything, and whether training had stopped gaining."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probmetric.runs.folder import RunFolder

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TINY = 1e-9


def trained_by(context: ReportContext, run: RunFolder) -> RunFolder:
    """The run that trained the encoder of `run`: itself, or the one whose encoder it uses."""
    encoder = run.find("encoder")
    if run.history or not isinstance(encoder, str):
        return run
    return RunFolder.named(encoder, context.results)


def late_gain(history: Sequence[dict[str, float | None]]) -> float | None:
    """How much better the last fifth of the epochs is than those before, by their best, as a share of the latter.

    Args:
        history: rows of history.csv; None without at least five validations.
    """
    values = validations(history)
    last = max(1, len(values) // 5)
    if len(values) < 5:
        return None
    before, after = max(values[:-last]), max(values[-last:])
    return (after - before) / max(abs(before), TINY)


def validations(history: Sequence[dict[str, float | None]]) -> list[float]:
    """The validation metric of every epoch that has one."""
    return [value for row in history if (value := row.get("val_metric")) is not None]


def warning(context: ReportContext, run: RunFolder) -> str:
    """What speaks against the choice of the weights of `run`; empty for nothing, or without a history."""
    from probmetric.metrics.selection import selection_warning

    values = [row.get("val_metric") for row in trained_by(context, run).history]
    known = [value for value in values if value is not None]
    if not known:
        return ""
    selected = run.find("training.selected_epoch")
    latest = max(epoch for epoch, value in enumerate(values) if value == max(known))
    return selection_warning(values, selected if isinstance(selected, int) else latest)


def cautions(context: ReportContext) -> dict[str, dict[str, str]]:
    """Dataset -> label of a method -> how many of its runs were chosen badly, and why (of the first such run)."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    runs: Counter[tuple[str, str]] = Counter()
    for run in context.runs:
        place = run.key.data, context.label(run.key.variant)
        runs[place] += 1
        if reason := warning(context, run):
            reasons[place].append(reason)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for (data, label), why in reasons.items():
        found[data][label] = f"Selection, {len(why)} of {runs[data, label]} runs: {why[0]}."
    return dict(found)
