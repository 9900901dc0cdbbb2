"""Which method to deploy: chosen on the validation images alone.

Frozen features are the answer unless a method is clearly better: in MAP@R by a sign-flip test over the classes (images,
where test classes are training classes), corrected for all methods, at 0.1, and recall@1 is not lower. Of several such
methods the best mean MAP@R counts. Images that are alone in their class ask nothing. `benchmarks/recommended.py` says
what that gains, and how often it loses.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from probmetric.config import ConfigError
from probmetric.metrics.arrays import Doubles
from probmetric.metrics.statistics import sign_flip_test
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import unit_of
from probmetric.reporting.settings import frozen_baselines
from probmetric.retrieval.measures import retrieval_per_query
from probmetric.retrieval.votes import with_partner
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import override_items

LEVEL = 0.1


@dataclass(frozen=True)
class Candidate:
    """A method with finished runs on one dataset.

    Attributes:
        method: its name, with its overrides.
        runs: its finished runs, of several seeds and splits of the classes.
        frozen: whether nothing was trained or fitted.
    """

    method: str
    runs: tuple[RunFolder, ...]
    frozen: bool

    @functools.cached_property
    def by_image(self) -> bool:
        """Whether images are judged, not classes."""
        return any(unit_of(run.curves) == "image" for run in self.runs)

    @functools.cached_property
    def values(self) -> Doubles:
        """Return MAP@R and recall@1 of each validation class or image (U, 2), means over seeds, split by split."""
        splits: dict[str, list[Doubles]] = defaultdict(list)
        for run in self.runs:
            splits[run.key.data].append(_values(run, by_image=self.by_image))
        return np.concatenate([np.mean(values, axis=0) for _, values in sorted(splits.items())])

    @property
    def means(self) -> tuple[float, float]:
        """Return MAP@R and recall@1, each the mean over the validation classes or images."""
        precision, recall = self.values.mean(axis=0)
        return float(precision), float(recall)

    @property
    def evidence(self) -> str:
        """Return what judges: "12 validation classes"."""
        return f"{len(self.values)} validation {'images' if self.by_image else 'classes'}"


def _values(run: RunFolder, *, by_image: bool) -> Doubles:
    split = run.embeddings("val")
    values = retrieval_per_query(split["mean"], split["label"], ks=(1,), normalize=True)
    answered = values["positives"] > 0
    both, labels = np.stack([values["map_at_r"], values["recall_at_1"]], axis=1)[answered], split["label"][answered]
    if by_image:
        return both
    return np.stack([both[labels == label].mean(axis=0) for label in np.unique(labels)])


def best(candidates: list[Candidate]) -> Candidate:
    """Return the candidate to deploy: the best of those that beat the frozen features, or these."""
    baseline = next((each for each in candidates if each.frozen), None)
    if baseline is None:
        return max(candidates, key=lambda each: each.means)
    others = [each for each in candidates if each is not baseline]
    better = clearly_better([each.values for each in others], baseline.values)
    preferred = [each for each, clearly in zip(others, better, strict=True) if clearly]
    return max(preferred, key=lambda each: each.means, default=baseline)


def clearly_better(methods: Sequence[Doubles], frozen: Doubles, level: float = LEVEL) -> list[bool]:
    """Say of each method whether it is to be preferred to frozen features, by MAP@R and recall@1 of units (U, 2)."""
    if not methods:
        return []
    gains = np.stack([each - frozen for each in methods])
    lucky = sign_flip_test(gains[:, :, 0])
    return [bool(p <= level and gain >= 0) for p, gain in zip(lucky, gains[:, :, 1].mean(axis=1), strict=True)]


def recommended(context: ReportContext) -> dict[str, Candidate]:
    """Return dataset -> the method that its validation images recommend; without such images there is none."""
    return {data: best(methods) for data, methods in candidates(context).items()}


def candidates(context: ReportContext) -> dict[str, list[Candidate]]:
    """Return dataset -> the methods that its validation images can judge; a dataset without any is left out.

    Only methods count that were run on every split of the classes that any was, and whose weights have not seen the
    validation images.
    """
    frozen = frozen_baselines(context)
    judged_of: dict[str, list[Candidate]] = {}
    for data, methods in context.methods.items():
        judged = {variant: tuple(filter(_validates, runs)) for variant, runs in methods.items()}
        splits = {variant: {run.key.data for run in runs} for variant, runs in judged.items()}
        every = set().union(*splits.values())
        judged_of[data] = [
            Candidate(variant, runs, variant == frozen.get(data))
            for variant, runs in judged.items()
            if runs and splits[variant] == every
        ]
    return {data: methods for data, methods in judged_of.items() if methods}


def _validates(run: RunFolder) -> bool:
    chosen = run.find("settings.training.selection", default="validation")
    return chosen == "validation" and bool(with_partner(run.tensors("val", "label").get("label", ())).any())


def recommendation(context: ReportContext) -> str:
    """Say for each dataset of an experiment which method to deploy, and how.

    Raises:
        ConfigError: nothing is finished.
    """
    lines = [line for data, methods in candidates(context).items() for line in _lines(data, methods)]
    if not lines:
        raise ConfigError(
            f"no run of {context.name} is finished that has two validation images of a class, by which methods are "
            f"compared. Make them: snakemake --config experiments={context.name}; or add images."
        )
    return "\n".join(lines)


def _lines(data: str, methods: list[Candidate]) -> list[str]:
    chosen = best(methods)
    width = max(len(name) for name in (*(each.method for each in methods), data))
    lines = [f"{data:<{width}}  validation: MAP@R  recall@1"]
    for each in sorted(methods, key=lambda candidate: candidate.means, reverse=True):
        precision, recall = each.means
        mark = "  <- recommended" if each is chosen else ""
        lines.append(f"{each.method:<{width}}  {precision:>17.4f}  {recall:>8.4f}{mark}")
    if chosen.frozen:
        lines.append(
            f"Frozen features are the safe choice: in {chosen.evidence} nothing that was fitted or trained is clearly "
            "better."
        )
    elif any(each.frozen for each in methods):
        lines.append(f"{chosen.method} is better than frozen features in validation; the test images had no say.")
    key = chosen.runs[0].key
    lines.append(f"Deploy: probmetric export {key.run} {data}-model")
    if not chosen.frozen:
        changed = [*override_items(key.overrides), "training.selection=refit"]
        again = replace(key, overrides="+".join(sorted(changed, key=lambda item: item.partition("=")[0]))).run
        lines.append(
            f"Trained on the validation images too: snakemake --config experiments=[] 'runs=[{again}]', then export "
            "that run."
        )
    return lines
