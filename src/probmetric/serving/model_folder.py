"""Read the parts of a model (its record and its tensors) from a run or a model folder, and write a model folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from probmetric.config import EncoderSettings, check_store, parse
from probmetric.data import load_columns
from probmetric.data.choosing import trained_on
from probmetric.data.loose import prepared_images
from probmetric.data.manifest import SUMMARY, load_metadata, read_summary
from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.errors import ProbMetricError, ServingError
from probmetric.io import (
    FileError,
    content_digest,
    present,
    read_json,
    read_tensors,
    signed,
    tensors_digest,
    unsigned,
    write_json,
    write_tensors,
    write_text,
)
from probmetric.io.folders import new_folder
from probmetric.registry import all_registries, load_plugins
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS, RunKey
from probmetric.runs.plan import Run, recorded_run
from probmetric.serving.card import card
from probmetric.serving.content import Content
from probmetric.serving.gallery import Embedder, Gallery
from probmetric.serving.record import CARD, POSTERIOR, RECORD, REFERENCE, ModelRecord, Transform
from probmetric.tracking import store
from probmetric.training.data import training_view

Tensors = Mapping[str, "torch.Tensor"]
BROKEN = "export the model again"
MEMBER = "weights-{}.safetensors"
MODEL_FOLDER = "model folder"
_LARGEST_RECORD = 64 * 2**20
_KEPT_SUMMARY = ("description", "protocol", "images", "classes", "splits")
_KEPT_FACTS = ("training", "data_digest", "versions", "hardware")


@dataclass(frozen=True)
class Parts:
    """A model taken apart.

    Attributes:
        record: description of the model; its `files` name the digests of the tensors.
        tensors: file name -> tensors.
        training_images: returns the images that it was trained on, if they are available.
    """

    record: ModelRecord
    tensors: Mapping[str, Tensors]
    training_images: Callable[[], Sequence[Any]] = tuple

    @classmethod
    def of_run(cls, run: Run, root: Path, results: Path) -> Parts:
        """Return the parts of a finished run of the project in the folder `root`.

        Raises:
            FileError: a file of the run, or the prepared dataset it was trained on, is missing or damaged.
        """
        folders = [RunFolder.named(name, results) for name in run.encoders]
        folder, settings = RunFolder.named(run.name, results), run.settings
        tensors: dict[str, Tensors] = {MEMBER.format(row): each.weights() for row, each in enumerate(folders)}
        if run.fits_posterior:
            tensors[POSTERIOR] = folder.posterior()
        data = root / settings.data_folder
        reference = _reference(folder)
        values = {
            "name": run.name,
            "members": [_member(member) for member in folders],
            "transform": _transform(folders[0], data),
            "uncertainty": settings.uncertainty.model_dump(mode="json"),
            "seed": settings.seed,
            "classes": _training_classes(data, settings.training.selection),
            "plugins": list(folder.record.get("plugins", ())),
            "provenance": _provenance(folder, data),
            "metrics": folder.metrics,
            "files": {name: tensors_digest(part) for name, part in tensors.items()},
            "reference": tensors_digest(reference),
        }
        record = parse(ModelRecord, values, str(folder.record_file))
        return cls(record, tensors | {REFERENCE: reference}, partial(_training_images, settings, data))

    def with_reference(self, **tensors: torch.Tensor) -> Parts:
        """Return the parts with a longer reference: looks (T, L) of training images, embeddings of `canary`."""
        reference = {**self.tensors[REFERENCE], **tensors}
        record = self.record.model_copy(update={"reference": tensors_digest(reference)})
        return replace(self, record=record, tensors={**self.tensors, REFERENCE: reference})

    @classmethod
    def read(cls, folder: Path) -> Parts:
        """Return the parts in a model folder.

        Raises:
            FileError: a file is missing, or has changed since it was written.
            ConfigError: the record holds a value that is not allowed.
        """
        path = folder / RECORD
        if present(path) and path.stat().st_size > _LARGEST_RECORD:
            raise FileError(f"{path} is larger than {_LARGEST_RECORD >> 20} MiB: it is no record of a model.")
        values = unsigned(read_json(path, BROKEN), path, BROKEN)
        _check_components(values, path)
        record: ModelRecord = parse(ModelRecord, values, str(path))
        expected = {MEMBER.format(number) for number in range(len(record.members))}
        names = set(record.files)
        if not expected <= names or names - expected - {POSTERIOR}:
            raise FileError(f"{path} lists the files {', '.join(sorted(names))}; {BROKEN}.")
        tensors = {name: _checked(folder / name, digest) for name, digest in record.files.items()}
        tensors[REFERENCE] = _checked(folder / REFERENCE, record.reference)
        return cls(record, tensors)

    def write(self, folder: Path, *, license: str = "") -> Path:
        """Write the model folder: whole, or not at all.

        Raises:
            FileError: the folder holds files that do not belong to a model folder, or is a link or the current folder.
        """
        record = self.record.model_copy(update={"license": license} if license else {})
        with new_folder(folder, MODEL_FOLDER) as target:
            for name, tensors in self.tensors.items():
                write_tensors(target / name, tensors)
            write_json(target / RECORD, signed(record.model_dump(mode="json")))
            write_text(target / CARD, card(record))
        return folder


def _checked(path: Path, digest: str) -> Tensors:
    """Return the tensors of a file, whose digest must be that of the record."""
    tensors, _ = read_tensors(path, framework="torch")
    if content_digest(path) != digest:
        raise FileError(f"{path} is not the file its record was written with; {BROKEN}.")
    return cast("Tensors", tensors)


def check_sizes(num_classes: int, weights: Tensors, misfit: str) -> None:
    """Raise `FileError` if the weights of the loss are for far fewer classes, before such a loss is built."""
    sizes = [max(tensor.shape) for name, tensor in weights.items() if name.startswith("loss.") and tensor.ndim]
    if sizes and num_classes > 64 * max(sizes):
        raise FileError(f"{misfit} It speaks of {num_classes} classes.")


def _check_components(values: Any, path: Path) -> None:
    """Name the plugins that a model needs before its components are looked up; plugins are never imported for it."""
    load_plugins()
    plugins = values.get("plugins") if isinstance(values, dict) else None
    if not plugins or not isinstance(plugins, list):
        return
    missing = set(_component_names(values)) - {name for registry in all_registries() for name in registry.names()}
    if missing:
        listed = ", ".join(map(repr, plugins))
        raise ServingError(
            f"{path} uses {', '.join(sorted(missing))}, of code that is not part of ProbMetric. If you trust it, "
            f"call probmetric.load_plugins([{listed}]) first, or name it: --plugin {plugins[0]}."
        )


def _component_names(values: dict[str, Any]) -> list[str]:
    """Return the names of all components in a record, even if the record is wrong otherwise."""
    names: list[str] = []
    waiting: list[Any] = [values.get("members"), values.get("transform"), {"uncertainty": values.get("uncertainty")}]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            names += [item["name"]] if isinstance(item.get("name"), str) and "options" in item else []
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return names


def _member(folder: RunFolder) -> dict[str, Any]:
    settings = dict(folder.encoder["settings"])
    settings.pop("prepared", None)
    return {"settings": settings | {"pretrained": None}, "facts": folder.encoder["encoder"]}


def _transform(encoder: RunFolder, data: Path) -> dict[str, Any]:
    """Return the evaluation view with all its options, and the size to which preparation reduced the images."""
    settings: EncoderSettings = parse(EncoderSettings, encoder.encoder["settings"], str(encoder.record_file))
    view = training_view(settings, data).evaluation()
    return Transform.of(view, shorter_side_of(data)).model_dump(mode="json")


def shorter_side_of(data: Path) -> int:
    """Return the pixels to which preparation reduced the shorter side of the images; 0 if it did not."""
    stored = _summary(data).get("options", {})
    options = SOURCES.options(load_metadata(data)["dataset"]).items()
    values = {name: stored.get(name, option.default) for name, option in options}
    return 0 if values.get("store") == "files" else int(values.get("shorter_side") or 0)


def _summary(data: Path) -> dict[str, Any]:
    """Return the summary of the prepared dataset in the folder `data`."""
    return read_summary(data) if present(data / SUMMARY) else {}


def _training_classes(data: Path, selection: str) -> list[str]:
    """Return the names of the training classes, in the order of the loss's classes."""
    columns = load_columns(data, ["label", "split", "class_name"])
    train = np.isin(columns["split"], trained_on(selection))
    _, first = np.unique(columns["label"][train], return_index=True)
    return [str(name) for name in columns["class_name"][train][first]]


def _training_images(settings: EncoderSettings, data: Path) -> Sequence[Any]:
    """Return the images that a run was trained on; none if its network is frozen and nothing was fitted to them."""
    training = settings.training
    if training.head_init == "random" and (settings.loss is None or not training.epochs):
        return ()
    return prepared_images(data, trained_on(training.selection)).images


def _provenance(folder: RunFolder, data: Path) -> dict[str, Any]:
    """Return facts about the training: data, versions, hardware, labels."""
    about = {name: value for name, value in _summary(data).items() if name in _KEPT_SUMMARY}
    facts = {name: folder.record[name] for name in _KEPT_FACTS if name in folder.record}
    labels = {"label": folder.find("settings.label", default=""), "ood": folder.find("settings.ood", default=[])}
    return {"data": about} | facts | labels


def _reference(folder: RunFolder) -> Tensors:
    """Return the uncertainties of the validation images."""
    tensors = folder.tensors("val", "uncertainty")
    return {"uncertainty": torch.from_numpy(tensors["uncertainty"]) if tensors else torch.empty(0)}


def parts_of(source: str | Path) -> Parts:
    """Return the parts of a model; arguments and errors as for `load`."""
    text = str(source)
    if text.startswith("models:/"):
        return Parts.read(_downloaded(text))
    path = Path(source)
    if present(path / RECORD):
        return Parts.read(path)
    run = path if RunFolder(path).trained or RunFolder(path).finished else RESULTS / path
    if _is_run(run) and (RunFolder(run).trained or RunFolder(run).finished):
        results = run.resolve().parents[2]
        made = recorded_run(run.resolve().relative_to(results).as_posix(), results)
        return Parts.of_run(made, results.parent, results)
    raise ServingError(
        f"{text} is no model: expected a folder with {RECORD} (written by `probmetric export`), a finished run "
        "(<dataset>/<method>/seed<k>) or models:/<name>/<version>."
    )


def _is_run(path: Path) -> bool:
    try:
        RunKey.parse(path)
    except ProbMetricError:
        return False
    return True


def _downloaded(uri: str) -> Path:
    """Return the model folder inside an MLflow model."""
    try:
        import mlflow
    except ImportError as error:
        raise ServingError(f"{uri}: MLflow is not installed; pip install 'probmetric[workflow]'.") from error
    for address in (mlflow.get_tracking_uri(), mlflow.get_registry_uri()):
        try:
            check_store(address)
        except ValueError as error:
            raise ServingError(f"MLFLOW_TRACKING_URI: {error}") from None
    try:
        with store.quiet_mlflow(), store.patience(30, 2):
            place = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri))
    except mlflow.MlflowException as error:
        name, _, version = uri.removeprefix("models:/").replace("@", "/").partition("/")
        versions = _versions(name) if error.error_code != "INTERNAL_ERROR" else []
        problem = f"it names no version, as models:/{name}/1 does" if versions and not version else str(error)
        there = f"The versions of {name} there are {', '.join(versions)}. " if versions else ""
        raise ServingError(
            f"{uri} cannot be had from {mlflow.get_tracking_uri()}: {problem.rstrip('.')}. {there}Run this where the "
            "store is, or name it: MLFLOW_TRACKING_URI=sqlite:////path/mlflow.db, or the address of a server."
        ) from error
    records = sorted(place.rglob(RECORD))
    if not records:
        raise ServingError(f"{uri} holds no model of ProbMetric (no {RECORD}).")
    return records[0].parent


def _versions(name: str) -> list[str]:
    """Return the versions of a registered model, the oldest first; empty if the store has none."""
    import mlflow

    with store.quiet_mlflow(), contextlib.suppress(mlflow.MlflowException):  # the name is not allowed
        versions = mlflow.MlflowClient().search_model_versions(f"name = '{name}'")
        return [str(number) for number in sorted(int(each.version) for each in versions)]
    return []


def run_gallery(model: Embedder, source: str, splits: Sequence[str]) -> Gallery:
    """Return the images of a run's own dataset as a gallery; stored embeddings of the run are used.

    Raises:
        ServingError: `source` is no run of this project.
    """
    folder = RunFolder(source) if RunFolder(source).finished else RunFolder.named(source)
    if not folder.finished:
        raise ServingError(f"{source} has no images of its own; name a gallery (`probmetric index` makes one).")
    data = folder.path.resolve().parents[3] / str(folder.find("settings.prepared", default="data/prepared"))
    gallery = Gallery(Content.empty(model.digest))
    for split in splits:
        items = prepared_images(data / folder.key.data, [split])
        if split != "train" and present(folder.embeddings_file("val" if split == "val" else "test")):
            tensors = folder.tensors("val" if split == "val" else "test", "mean", "uncertainty")
            gallery.take(tensors["mean"], items.paths, items.class_names, tensors["uncertainty"])
            gallery.see(model, items.images)
        else:
            gallery.add(model, items.images, paths=items.paths, class_names=items.class_names)
    return gallery
