"""How the weights of a run were chosen, and whether the choice meant anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from probmetric.run_folder import RunFolder

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext


def trained_by(context: ReportContext, run: RunFolder) -> RunFolder:
    """The run that trained the encoder of `run`: itself, or the one whose encoder it uses."""
    encoder = run.find("encoder")
    if run.history or not isinstance(encoder, str):
        return run
    return RunFolder.named(encoder, context.results)


def warning(context: ReportContext, run: RunFolder) -> str:
    """What speaks against the choice of the weights of `run`; empty for nothing, or without a history."""
    from probmetric.evaluation.selection import selection_warning

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
