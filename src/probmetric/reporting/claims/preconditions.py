"""Preconditions: conditions without which runs say nothing about a paper's claim.

    clean_labels        the training labels are right
    noise_as_published  20 % of the training labels were replaced at random
    converged           longer training gains little, see below
    tuned_or_published  settings are the paper's, on its dataset, or were tuned with equally many runs for every method;
                        if they were tuned on another dataset, the verdict names it (`tuned_elsewhere`)
    closed_set          test classes are training classes
    open_set            no test class was trained on
    resnet50            the backbone is a ResNet-50: the cost of a loss is relative to it
    same_hardware       all runs were timed on the same kind of machine, with as many threads and processes
    few_samples         a loss draws at most five samples per image

`converged` compares two lengths of training: one is the claim's own, and the longer is at least twice the shorter. The
longer is at most .01 better in the claim's metric (1 % of values above 1), on average over the seeds (of each split of
the classes) that both lengths have. One length
alone cannot show it, because every training stops gaining where the learning rate falls to zero. A paper's own settings
on its own data have their own length. A training whose best validation metric in the last fifth of its epochs is more
than 10 % worse than its best before has fallen apart or overfitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from probmetric.data.manifest import SUMMARY, read_summary
from probmetric.io import present
from probmetric.reporting.claims import Claim, Names
from probmetric.reporting.comparison import version
from probmetric.reporting.experiment import ReportContext
from probmetric.runs.folder import RunFolder, late_gain
from probmetric.runs.names import LabelNoise, split_data_name, without_split

PAPERS = ("nivmf", "nir", "vmf", "lam", "pfml")
GAIN = 0.01
FALL = 0.1
NOISE = LabelNoise("uniform", 0.2)
MOST_SAMPLES = 5


def unmet(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> Names:
    """Return why the runs of `variants` on `data` say nothing about `claim`, one reason per need; empty if they do."""
    reasons = (_CHECKS[need](context, claim, data, variants) for need in claim.needs)
    return tuple(reason for reason in reasons if reason)


def tuned_elsewhere(context: ReportContext, data: str, variants: Sequence[str]) -> Names:
    """Return where the settings of `variants` were tuned: other datasets, and one of several splits of this one."""
    here = split_data_name(data)[0]
    places = {context.tuned_on.get(variant.partition("+")[0], "") for variant in variants} - {""}
    of_several = f"one split of {here}: other splits test some of its classes"
    several = {of_several} if here in places and context.by_split(data) else set()
    return tuple(sorted(places - {here} | several))


def _clean_labels(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    return "wrong training labels" if split_data_name(data)[1] else ""


def _converged(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    if _as_in_paper(context):
        return ""
    reasons = []
    for variant in variants:
        gains = [late_gain(run.history) for run in _trained_by(context, data, variant)]
        if any(gain is not None and gain < -FALL for gain in gains):
            reasons.append(f"the training of {context.label(variant)} fell apart or overfitted")
        elif reason := _gain_of_longer(context, claim, data, variant):
            reasons.append(f"{context.label(variant)} {reason}")
    return "; ".join(reasons)


def _gain_of_longer(context: ReportContext, claim: Claim, data: str, variant: str) -> str:
    """Say why `variant` is not seen to have converged, compared with the same method trained for another length."""
    measured = context.series(data, claim.metric)
    if variant not in measured:
        return f"has no {claim.metric}"
    alike = [name for name in measured if version(measured[name].key) == version(measured[variant].key)]
    trained = {name: _trained_by(context, data, name) for name in alike}
    epochs = {name: min(len(run.history) for run in runs) for name, runs in trained.items() if runs}
    if variant not in epochs:
        return "has no learning curve left, so nobody knows whether it had converged"
    longer = [name for name in epochs if epochs[name] >= 2 * epochs[variant]]
    shorter = [name for name in epochs if 2 * epochs[name] <= epochs[variant]]
    if not longer and not shorter:
        return "was not trained for twice or half as long, so nobody knows whether it had converged"
    pair = (variant, max(longer, key=epochs.__getitem__)) if longer else (max(shorter, key=epochs.__getitem__), variant)
    before, after = (_by_run(context, data, name, claim.metric) for name in pair)
    runs = before.keys() & after.keys()
    if not runs:
        return "was trained for two lengths that share no seed"
    start, end = (fmean(values[run] for run in runs) for values in (before, after))
    gain = (end - start) * (-1 if claim.better_is == "lower" else 1)
    if gain <= GAIN * max(1.0, abs(start)):
        return ""
    lengths = " instead of ".join(str(epochs[name]) for name in reversed(pair))
    shared = f"{len(runs)} shared seed{'s' * (len(runs) > 1)}"
    return f"had not converged: {gain:.3f} better after {lengths} epochs, {shared}"


def _by_run(context: ReportContext, data: str, variant: str, metric: str) -> dict[tuple[str, int], float]:
    """Return (dataset with the split of its classes, seed) -> value of a metric."""
    return {
        (name, seed): value
        for name, methods in context.by_seed.items()
        if without_split(name) == data and metric in methods.get(variant, {})
        for seed, value in methods[variant][metric].values.items()
    }


def _trained_by(context: ReportContext, data: str, variant: str) -> list[RunFolder]:
    """Return the runs that trained the encoders of a method's runs."""
    return [context.trained_by(run) for run in _runs(context, data, [variant])]


def _as_in_paper(context: ReportContext) -> bool:
    """Say whether an experiment repeats a paper's table on the paper's data."""
    table, _, substitute = context.name.partition("@")
    return table.partition("/")[0] in PAPERS and not substitute


def _tuned_or_published(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    if _as_in_paper(context):
        return ""
    budgets = {context.budgets.get(variant.partition("+")[0], 0) for variant in variants}
    if len(budgets) > 1:
        return "tuned with unequal budgets"
    return "" if min(budgets, default=0) else "settings neither tuned nor published"


def _protocol(
    needed: str, otherwise: str, context: ReportContext, claim: Claim, data: str, variants: Sequence[str]
) -> str:
    folder = context.prepared / data
    if not present(folder / SUMMARY):
        return "the prepared data are not here, so it is unknown whether test classes were trained on"
    return "" if read_summary(folder).get("protocol") == needed else otherwise


def _noise_as_published(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    noise = split_data_name(data)[1]
    parsed = LabelNoise.parse(noise) if noise else None
    alike = parsed is not None and (parsed.kind, parsed.rate) == (NOISE.kind, NOISE.rate)
    return "" if alike else "not 20 % of the labels replaced at random"


def _few_samples(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    for run in _runs(context, data, variants):
        samples = run.find("settings.loss.options.samples", default=0)
        if samples > MOST_SAMPLES:
            return f"{context.label(run.key.variant)} draws {samples} samples"
    return ""


def _resnet50(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    for run in _runs(context, data, variants):
        name = run.find("settings.backbone.name", default="")
        tag = run.find("settings.backbone.options.tag", default="")
        if "resnet50" not in f"{name} {tag}":
            return f"the backbone is {tag or name or 'unknown'}, not a ResNet-50"
    return ""


def _same_hardware(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> str:
    machines = {str(run.record.get("hardware")) for run in _runs(context, data, variants)}
    return "the runs were timed on different machines, or with other threads" if len(machines) > 1 else ""


def _runs(context: ReportContext, data: str, variants: Sequence[str]) -> list[RunFolder]:
    return [run for run in context.runs if run.key.group == data and run.key.variant in variants]


_CHECKS: dict[str, Callable[[ReportContext, Claim, str, Sequence[str]], str]] = {
    "clean_labels": _clean_labels,
    "converged": _converged,
    "tuned_or_published": _tuned_or_published,
    "noise_as_published": _noise_as_published,
    "closed_set": partial(_protocol, "closed_set", "test classes are no training classes"),
    "open_set": partial(_protocol, "open_set", "test classes are training classes"),
    "resnet50": _resnet50,
    "same_hardware": _same_hardware,
    "few_samples": _few_samples,
}
