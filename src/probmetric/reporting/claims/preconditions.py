"""What must be given before runs say anything about a paper's claim, and whether it is.

clean_labels        the training labels are right
noise_as_published  20 % of the training labels were replaced at random
converged           training had stopped gaining: the best validation metric of the last fifth of the epochs is at
most 1 % better than that of the epochs before, on average over a method's runs (that of one run is noisy), and in none
of them more than 10 % worse: training that falls apart has not converged. Where the rate falls to zero every training
stops gaining; so where the experiment has the same method with more epochs, these gained at most 1 % as well
tuned_or_published  settings are the paper's, on its dataset, or were tuned, with as many runs for every method; where
they were tuned on another dataset, that is said beside the verdict (`tuned_elsewhere`)
closed_set          test classes are training classes
open_set            no test class was trained on
resnet50            the backbone is a ResNet-50: what a loss costs is told relative to it
few_samples         a loss draws at most five samples an image
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from probmetric.data.manifest import SUMMARY, read_summary
from probmetric.io import present
from probmetric.reporting.comparison import Overrides, but_for_length, overrides_of
from probmetric.reporting.results import TINY, late_gain, validations
from probmetric.runs.names import LabelNoise, split_data_name

if TYPE_CHECKING:
    from probmetric.reporting.claims import Claim, Names
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder
    from probmetric.runs.names import RunKey

PAPERS = ("nivmf", "nir", "vmf", "lam", "pfml")
GAIN = 0.01
FALL = 0.1
NOISE = LabelNoise("uniform", 0.2)
MOST_SAMPLES = 5


def unmet(context: ReportContext, claim: Claim, data: str, variants: Sequence[str]) -> Names:
    """Why the runs of `variants` on `data` say nothing about `claim`; empty where they do. One reason per need."""
    reasons = (_CHECKS[need](context, data, variants) for need in claim.needs)
    return tuple(reason for reason in reasons if reason)


def tuned_elsewhere(context: ReportContext, data: str, variants: Sequence[str]) -> Names:
    """Datasets other than that of `data` the settings of `variants` were tuned on."""
    places = {context.tuned_on.get(variant.partition("+")[0], "") for variant in variants}
    return tuple(sorted(places - {"", split_data_name(data)[0]}))


def _clean_labels(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    return "wrong training labels" if split_data_name(data)[1] else ""


def _converged(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    for variant in variants:
        gains = [late_gain(context.trained_by(run).history) for run in _runs(context, data, [variant])]
        measured = [gain for gain in gains if gain is not None]
        if len(measured) < len(gains) or (measured and fmean(measured) > GAIN):
            return f"{context.label(variant)} had not converged"
        if measured and min(measured) < -FALL:
            return f"the training of {context.label(variant)} fell apart"
        if gained := _gain_of_longer(context, data, variant):
            return f"{context.label(variant)} had not converged: {gained}"
    return ""


def _gain_of_longer(context: ReportContext, data: str, variant: str) -> str:
    """What longer training of the same method gained over `variant`; empty if it gained at most 1 % or was not run."""
    best, epochs = _best_validation(context, data, variant)
    trained = {run.key.variant: _but_for_length(run.key) for run in context.runs if run.key.data == data}
    for other in (other for other in trained if trained[other] == trained.get(variant)):
        later, more = _best_validation(context, data, other)
        if more > epochs and (seeds := best.keys() & later.keys()):
            before, after = (fmean(values[seed] for seed in seeds) for values in (best, later))
            if (gain := (after - before) / max(abs(before), TINY)) > GAIN:
                return f"{gain:.0%} better after {more} epochs instead of {epochs}"
    return ""


def _best_validation(context: ReportContext, data: str, variant: str) -> tuple[dict[int, float], int]:
    """Seed -> best validation metric of the runs of `variant`, and how many epochs each has at least."""
    histories = {run.key.seed: context.trained_by(run).history for run in _runs(context, data, [variant])}
    measured = {seed: validations(history) for seed, history in histories.items()}
    best = {seed: max(values) for seed, values in measured.items() if values}
    return best, min(map(len, histories.values()), default=0)


def _but_for_length(key: RunKey) -> tuple[str, Overrides]:
    return key.method, but_for_length(overrides_of(key))


def _tuned_or_published(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    table, _, substitute = context.name.partition("@")
    if table.partition("/")[0] in PAPERS and not substitute:
        return ""
    budgets = {context.budgets.get(variant.partition("+")[0], 0) for variant in variants}
    if len(budgets) > 1:
        return "tuned with unequal budgets"
    return "" if min(budgets, default=0) else "settings neither tuned nor published"


def _closed_set(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    return "" if _protocol(context, data) == "closed_set" else "test classes are no training classes"


def _open_set(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    return "" if _protocol(context, data) == "open_set" else "test classes are training classes"


def _protocol(context: ReportContext, data: str) -> str:
    folder = context.prepared / data
    return str(read_summary(folder).get("protocol", "")) if present(folder / SUMMARY) else ""


def _noise_as_published(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    noise = split_data_name(data)[1]
    parsed = LabelNoise.parse(noise) if noise else None
    alike = parsed is not None and (parsed.kind, parsed.rate) == (NOISE.kind, NOISE.rate)
    return "" if alike else "not 20 % of the labels replaced at random"


def _few_samples(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    for run in _runs(context, data, variants):
        samples = run.find("settings.loss.options.samples", default=0)
        if samples > MOST_SAMPLES:
            return f"{context.label(run.key.variant)} draws {samples} samples"
    return ""


def _resnet50(context: ReportContext, data: str, variants: Sequence[str]) -> str:
    for run in _runs(context, data, variants):
        name = run.find("settings.backbone.name", default="")
        tag = run.find("settings.backbone.options.tag", default="")
        if "resnet50" not in f"{name} {tag}":
            return f"the backbone is {tag or name or 'unknown'}, not a ResNet-50"
    return ""


def _runs(context: ReportContext, data: str, variants: Sequence[str]) -> list[RunFolder]:
    return [run for run in context.runs if run.key.data == data and run.key.variant in variants]


_CHECKS: dict[str, Callable[[ReportContext, str, Sequence[str]], str]] = {
    "clean_labels": _clean_labels,
    "converged": _converged,
    "tuned_or_published": _tuned_or_published,
    "noise_as_published": _noise_as_published,
    "closed_set": _closed_set,
    "open_set": _open_set,
    "resnet50": _resnet50,
    "few_samples": _few_samples,
}
