"""Settings of a method in words, read from the records of its runs, and whether it is the frozen baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from probmetric.io import open_tensors, present
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.words import component_words, value_words
from probmetric.runs.folder import RunFolder, flatten

HOW_TO_ADD_FROZEN = (
    "`frozen: {backbone: {name: timm, tag: tf_efficientnet_lite0, head: none}, pretrained: true, "
    "training: {epochs: 0}}`"
)
_SETTINGS = {
    "loss": "Loss",
    "uncertainty": "Uncertainty",
    "backbone": "Backbone",
    "dim": "Dimensions",
    "training.epochs": "Epochs",
    "training.batch_size": "Batch",
    "training.augment": "Augmentation",
    "training.optimizer": "Optimiser",
    "training.learning_rate": "Learning rate",
    "training.learning_rates.trunk": "Learning rate of the trunk",
    "training.learning_rates.head": "Learning rate of the head",
    "training.head_init": "Head starts from",
    "training.proxy_init": "Proxies and class weights start from",
    "training.freeze": "Frozen",
    "training.selection_metric": "Epoch chosen by",
    "base": "Encoder of",
}
# Without epochs, only these settings of training have an effect.
_FITTED = ("training.epochs", "training.head_init")


def is_frozen(settings: Mapping[str, Any]) -> bool:
    """Return whether a run's settings measure a pretrained model as it is, without training, head or fitting."""
    untrained = (settings.get("training") or {}).get("epochs") == 0
    started = settings.get("pretrained") or (settings.get("backbone") or {}).get("name") == "vectors"
    return bool(untrained and _headless(settings) and started)


def _headless(settings: Mapping[str, Any]) -> bool:
    """Return whether the embedding is the backbone's features as they are."""
    return ((settings.get("backbone") or {}).get("options") or {}).get("head") == "none"


def frozen_baselines(context: ReportContext) -> dict[str, str]:
    """Return dataset -> its frozen baseline (the experiment's first of several); datasets without one are left out."""
    baselines: dict[str, str] = {}
    for run in context.runs:
        if run.key.group not in baselines and is_frozen(run.record.get("settings") or {}):
            baselines[run.key.group] = run.key.variant
    return baselines


def settings_of(context: ReportContext) -> dict[str, dict[str, str]]:
    """Return method -> name of a setting -> its value in words, for every method with a finished run."""
    runs: dict[str, list[RunFolder]] = {}
    for run in context.runs:
        runs.setdefault(run.key.variant, []).append(run)
    return {variant: _settings(context, runs[variant]) for variant in context.ordered(runs)}


def _settings(context: ReportContext, runs: list[RunFolder]) -> dict[str, str]:
    run = runs[0]
    nested = run.record.get("settings") or {}
    flat = flatten(nested)
    left_out = ["training.head_init"] if _headless(nested) else []
    if flat.get("training.epochs") == 0:
        left_out += [name for name in _SETTINGS if name.startswith("training.") and name not in _FITTED]
    values = {}
    for name, heading in _SETTINGS.items():
        chosen = nested.get(name)
        value = value_words(flat.get(name))
        if isinstance(chosen, Mapping):
            value = component_words(chosen["name"], chosen.get("options") or {})
        if value and name not in left_out:
            values[heading] = value
    values |= {"Fidelity": run.fidelity.replace("_", " ")} | _of_encoder(context.trained_by(run))
    if (nested.get("backbone") or {}).get("name") == "vectors":  # stored as pictures, with zeros behind them
        values.pop("Pixels", "")
        if flat.get("dim") == "features":
            values.pop("Dimensions", "")
    seconds = [taken for each in runs if (taken := context.trained_by(each).times.get("training/seconds"))]
    return values | ({"Seconds of training": f"{fmean(seconds):.0f}"} if seconds else {})


def _of_encoder(run: RunFolder) -> dict[str, str]:
    """Return the facts in the encoder's record: dimensions, input, the weights it started from, size."""
    values = {}
    if run.trained:
        facts = run.encoder["encoder"]
        side = facts.get("image_size")
        values = {
            "Dimensions": str(facts.get("dim") or ""),
            "Pixels": f"{side} × {side}" if side else "",
            "Pretrained weights": str(facts.get("pretrained_sha256") or ""),
        }
    if present(run.weights_file()):
        with open_tensors(run.weights_file()) as file:
            names = [name for name in file.keys() if name.startswith("encoder.")]  # noqa: SIM118 (no dictionary)
            shapes = [file.get_slice(name).get_shape() for name in names]
        numbers = sum(math.prod(shape) for shape in shapes)
        values["Model size"] = f"{numbers / 1e6:.3g} million numbers, {run.weights_file().stat().st_size / 1e6:.3g} MB"
    return {name: value for name, value in values.items() if value}
