"""The model card, written from the record alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from probmetric.reporting.words import component_words
from probmetric.serving.export import preprocess, preprocessing
from probmetric.serving.record import ModelRecord

SHOWN = {
    "retrieval/recall_at_1": "Recall@1",
    "retrieval/map_at_r": "MAP@R",
    "classification/accuracy": "accuracy",
    "calibration/ece": "expected calibration error",
}
RANKED = {
    "sparsification/error_auroc": "telling its wrong answers from right ones",
    "ood/auroc": "telling strangers (the OOD sets) from test images",
}
SHARES = ("retrieval/recall_at_1", "classification/accuracy")
GOOD = 0.6


def card(record: ModelRecord) -> str:
    """Return in Markdown what the model is, what it was trained and measured on, what its uncertainty is good for."""
    parts = (_front, _data, _measured, _uncertainty, _use, _preprocessing)
    return "\n".join(line for part in parts for line in part(record)) + "\n"


def _front(record: ModelRecord) -> Iterator[str]:
    settings = record.members[0].settings
    members = f", {len(record.members)} members" if len(record.members) > 1 else ""
    channels, side = record.shape
    yield from ("---", f"license: {record.license}", "library_name: probmetric", "---", f"# {record.name}", "")
    loss = component_words(settings.loss.name, settings.loss.options) if settings.loss else "none"
    tensor, facts = record.transform.tensor, record.members[0].facts
    inputs = f"tensors of shape {tensor}" if tensor else f"{channels} x {side} x {side} pixels"
    yield f"Image embeddings of {facts.dim} dimensions{members}, from {inputs}:"
    network = record.members[0].network
    backbone = component_words(settings.backbone.name, settings.backbone.options)
    encoder = f"backbone {backbone}" if network is None else f"a network of one's own, {network.kind}"
    yield f"{encoder}, loss {loss}, uncertainty {component_words(record.uncertainty.name, record.uncertainty.options)}."
    if facts.pretrained_sha256:
        yield f"It started from pretrained weights, SHA-256 `{facts.pretrained_sha256}`."
    yield f"Licence: {record.license}."


def _data(record: ModelRecord) -> Iterator[str]:
    about: Mapping[str, Any] = record.provenance.get("data", {})
    yield from ("", "## Data", "")
    yield f"Dataset `{record.members[0].settings.data}`: {about.get('description', 'not described')}."
    protocols = {
        "open_set": "Test classes are unseen in training (open set).",
        "closed_set": "Test images are of the training classes (closed set).",
    }
    yield protocols.get(about.get("protocol", ""), "")
    splits = about.get("splits", {})
    if splits:
        yield from ("", "| split | images | classes |", "| --- | --- | --- |")
        yield from (f"| {name} | {part['images']} | {part['classes']} |" for name, part in splits.items())
    yield from ("", f"Data digest `{record.provenance.get('data_digest', 'unknown')}`.")


def _measured(record: ModelRecord) -> Iterator[str]:
    yield from ("", "## Measured on the test split", "")
    values = {name: value for name in SHOWN if (value := record.metrics.get(name)) is not None}
    if not values:
        yield "Nothing was measured."
        return
    rows = record.provenance.get("data", {}).get("splits", {}).get("test", {}).get("images", 0)
    yield from ("| metric | value | 95 % interval |", "| --- | --- | --- |")
    yield from (f"| {SHOWN[name]} | {value:.4f} | {_interval(name, value, rows)} |" for name, value in values.items())
    yield from ("", "Intervals (Wilson) are of the test images drawn; one training says nothing of other seeds.")


def _interval(name: str, value: float, count: int) -> str:
    """Return Wilson's interval of a share of `count` test images; nothing for what is no share."""
    if name not in SHARES or not count:
        return ""
    from scipy.stats import binomtest  # a second, which loading a model need not wait for

    low, high = binomtest(round(value * count), count).proportion_ci(method="wilson")
    return f"{low:.4f} to {high:.4f}"


def _uncertainty(record: ModelRecord) -> Iterator[str]:
    yield from ("", "## Its uncertainty", "")
    yield f"`{record.uncertainty.name}`; a search says which share of the validation images was surer."
    for name, use in RANKED.items():
        value = record.metrics.get(name)
        verdict = (
            "not measured" if value is None else f"AUROC {value:.2f}{'' if value >= GOOD else ', hardly above chance'}"
        )
        yield f"- {'Good' if (value or 0) >= GOOD else 'Do not use it'} for {use}: {verdict}."


def _use(record: ModelRecord) -> Iterator[str]:
    network = "" if record.members[0].network is None else ", network=..."
    yield from ("", "## Use", "", "```python", "import probmetric", "")
    yield f'model = probmetric.load("this folder"{network})'
    yield from ('batch = model.embed(["photo.jpg"])', "```", "")
    if record.plugins:
        yield f"Needs components of {', '.join(record.plugins)}: `probmetric.load_plugins([...])` first."
    versions = record.provenance.get("versions", {})
    yield "Made with " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."


def _preprocessing(record: ModelRecord) -> Iterator[str]:
    """Say how other programs make the network's input of an image."""
    spec = preprocessing(record.transform.created(), record.shape, record.transform.shorter_side)
    if spec is not None:
        yield from ("", "## Preprocessing", "", "For an exported graph, with Pillow and NumPy (up to rounding):", "")
        yield from ("```python", "import numpy as np", "", f"spec = {spec!r}", "")
        yield from (inspect.getsource(preprocess).replace("image: Image.Image, spec: dict[str, Any]", "image, spec"),)
        yield "```"
