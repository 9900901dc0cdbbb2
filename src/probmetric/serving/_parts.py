"""The parts of a model: its record and its tensors, from a run or from a model folder, and back into a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from probmetric.errors import ProbMetricError, ServingError
from probmetric.io import (
    FileError,
    content_digest,
    new_folder,
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
from probmetric.runs.folder import RunFolder
from probmetric.serving._record import CARD, POSTERIOR, RECORD, REFERENCE, ModelRecord

if TYPE_CHECKING:
    import torch

    from probmetric.data.views import View
    from probmetric.models import Encoder
    from probmetric.runs.plan import Run
    from probmetric.serving._model import Model

Tensors = Mapping[str, "torch.Tensor"]
BROKEN = "export the model again"
MODEL_FOLDER = "model folder"
_LARGEST_RECORD = 64 * 2**20
_KEPT_FACTS = ("training", "data_digest", "versions", "hardware")


@dataclass(frozen=True)
class Parts:
    """A model taken apart.

    Attributes:
        record: what it is; its `files` name the digests of the tensors.
        tensors: file name -> tensors.
    """

    record: ModelRecord
    tensors: Mapping[str, Tensors]

    @classmethod
    def of_run(cls, run: Run, root: Path, results: Path) -> Parts:
        """The parts of a finished run of the project in the folder `root`.

        Raises:
            FileError: a file of the run, or the prepared dataset it was trained on, is missing or damaged.
        """
        from probmetric.runs.embed import prepared_folder

        folders = [RunFolder.named(name, results) for name in run.encoders]
        folder, settings = RunFolder.named(run.name, results), run.settings
        tensors: dict[str, Tensors] = {}
        for number, member in enumerate(folders):
            tensors[_weights(number)] = member.weights()
        if run.fits_posterior:
            tensors[POSTERIOR] = folder.posterior()
        data = root / prepared_folder(settings)
        reference = _reference(folder)
        values = {
            "name": run.name,
            "members": [_member(member) for member in folders],
            "transform": _transform(folders[0], data),
            "uncertainty": settings.uncertainty.model_dump(mode="json"),
            "seed": settings.seed,
            "classes": _training_classes(data),
            "plugins": list(folder.record.get("plugins", ())),
            "provenance": _provenance(folder, data),
            "metrics": folder.metrics,
            "files": {name: tensors_digest(part) for name, part in tensors.items()},
            "reference": tensors_digest(reference),
        }
        record = ModelRecord.parse(values, str(folder.record_file))
        return cls(record, tensors | {REFERENCE: reference})

    @classmethod
    def read(cls, folder: Path) -> Parts:
        """The parts in a model folder.

        Raises:
            FileError: a file is missing or was changed since.
            ConfigError: the record says something that is not allowed.
        """
        path = folder / RECORD
        if present(path) and path.stat().st_size > _LARGEST_RECORD:
            raise FileError(f"{path} is larger than {_LARGEST_RECORD >> 20} MiB: it is no record of a model.")
        values = unsigned(read_json(path, BROKEN), path, BROKEN)
        _check_components(values, path)
        record = ModelRecord.parse(values, str(path))
        expected = {_weights(number) for number in range(len(record.members))}
        names = set(record.files)
        if not expected <= names or names - expected - {POSTERIOR}:
            raise FileError(f"{path} lists the files {', '.join(sorted(names))}; {BROKEN}.")
        tensors = {name: _checked(folder / name, digest) for name, digest in record.files.items()}
        if record.reference or present(folder / REFERENCE):
            tensors[REFERENCE] = _checked(folder / REFERENCE, record.reference)
        return cls(record, tensors)

    def write(self, folder: Path, *, license: str = "") -> Path:
        """Write the model folder: whole, or not at all.

        Raises:
            FileError: the folder holds files that are none of a model folder, or is a link or the current folder.
        """
        from probmetric.serving._card import card

        record = self.record.model_copy(update={"license": license} if license else {})
        with new_folder(folder, MODEL_FOLDER) as target:
            for name, tensors in self.tensors.items():
                write_tensors(target / name, tensors)
            write_json(target / RECORD, signed(record.model_dump(mode="json")))
            write_text(target / CARD, card(record))
        return folder

    def model(self, device: torch.device | str = "cpu") -> Model:
        """Build the model on `device`.

        Raises:
            FileError: the tensors do not fit the record.
        """
        from probmetric.data.views import create_view
        from probmetric.serving._images import Eye
        from probmetric.serving._model import Model
        from probmetric.uncertainty import create_uncertainty

        record = self.record
        encoder, loss = self._encoder()
        chosen = record.uncertainty
        uncertainty = create_uncertainty(chosen.name, **chosen.options)
        posterior = self.tensors.get(POSTERIOR)
        placed = None if posterior is None else {name: tensor.to(device) for name, tensor in posterior.items()}
        if loss is not None:
            loss = loss.to(device)
        try:
            predictor = uncertainty.bind(encoder.to(device), loss=loss, posterior=placed, seed=record.seed)
        except ValueError as error:
            raise FileError(f"{POSTERIOR} of {record.name} does not fit its record: {error}") from error
        view: View = create_view(record.transform.view.name, **record.transform.view.options)
        built = Model(record, predictor, Eye(view, record.shape, record.transform.shorter_side), self._known())
        built._parts = self
        return built

    def _encoder(self) -> tuple[Encoder, Any]:
        """The encoder, or all members as one, and the loss of the first."""
        from probmetric.training.network import assembled

        loaded = []
        for number, member in enumerate(self.record.members):
            misfit = f"{_weights(number)} of {self.record.name} does not fit its record; {BROKEN}."
            weights = cast("dict[str, torch.Tensor]", self.tensors[_weights(number)])
            _check_sizes(member.facts.num_classes, weights, misfit)
            try:
                loaded.append(assembled(member.settings, member.facts.model_dump(), weights, misfit))
            except (TypeError, ValueError, ArithmeticError, MemoryError) as error:  # of sizes that make no network
                raise error if isinstance(error, ProbMetricError) else FileError(f"{misfit} {error}") from error
        if len(loaded) == 1:
            return loaded[0]
        from probmetric.uncertainty.ensemble import EncoderEnsemble

        return cast("Encoder", EncoderEnsemble([encoder for encoder, _ in loaded])), loaded[0][1]

    def _known(self) -> Any:
        from probmetric.serving._model import Reference

        if REFERENCE not in self.tensors:
            return None
        found = self.tensors[REFERENCE].get("uncertainty")
        kinds = ("torch.float32", "torch.float64")
        if found is None or found.ndim != 1 or str(found.dtype) not in kinds or not bool(found.isfinite().all()):
            raise FileError(f"{REFERENCE} of {self.record.name} holds no uncertainties; {BROKEN}.")
        return Reference(np.sort(found.numpy())) if len(found) else None


def _weights(number: int) -> str:
    return f"weights-{number}.safetensors"


def _checked(path: Path, digest: str) -> Tensors:
    """Tensors of a file that must still be the one the record was written with, where it says which."""
    tensors, _ = read_tensors(path, framework="torch")
    if digest and content_digest(path) != digest:
        raise FileError(f"{path} is not the file its record was written with; {BROKEN}.")
    return cast("Tensors", tensors)


def _check_sizes(num_classes: int, weights: Tensors, misfit: str) -> None:
    """A loss of as many classes as the record says must be in the weights: none is built that would not fit."""
    sizes = [max(tensor.shape) for name, tensor in weights.items() if name.startswith("loss.") and tensor.ndim]
    if sizes and num_classes > 64 * max(sizes):
        raise FileError(f"{misfit} It speaks of {num_classes} classes.")


def _check_components(values: Any, path: Path) -> None:
    """Say which plugins a model needs before its components are looked up: they are never imported on its word."""
    from probmetric.registry import all_registries, load_plugins

    load_plugins()
    plugins = values.get("plugins") if isinstance(values, dict) else None
    if not plugins or not isinstance(plugins, list):
        return
    known = {name for registry in all_registries() for name in registry.names()}
    used = set(_component_names(values))
    if used - known:
        listed = ", ".join(map(repr, plugins))
        raise ServingError(
            f"{path} uses {', '.join(sorted(used - known))}, of code that is not part of ProbMetric. If you trust it, "
            f"call probmetric.load_plugins([{listed}]) first, or name it: --plugin {plugins[0]}."
        )


def _component_names(values: dict[str, Any]) -> list[str]:
    """Names of all components a record mentions, whatever it looks like otherwise."""
    found: list[str] = []
    waiting: list[Any] = [values.get("members"), values.get("transform"), {"uncertainty": values.get("uncertainty")}]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            found += [item["name"]] if isinstance(item.get("name"), str) and "options" in item else []
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return found


def _member(folder: RunFolder) -> dict[str, Any]:
    settings = dict(folder.encoder["settings"])
    settings.pop("prepared", None)
    return {"settings": settings | {"pretrained": None}, "facts": folder.encoder["encoder"]}


def _transform(encoder: RunFolder, data: Path) -> dict[str, Any]:
    """The evaluation view, spelled out, and how far preparation reduced the images."""
    from dataclasses import asdict

    from probmetric.config import EncoderSettings
    from probmetric.data.views import REGISTRY
    from probmetric.training.data import training_view

    view = training_view(EncoderSettings(**encoder.encoder["settings"]), data).evaluation()
    name = next(name for name in REGISTRY.names() if REGISTRY.get(name) is type(view))
    options = json.loads(json.dumps(asdict(view)))
    return {"view": {"name": name, "options": options}, "shorter_side": shorter_side_of(data)}


def shorter_side_of(data: Path) -> int:
    """To how many pixels preparation reduced the shorter side of the images; 0 where it did not."""
    from probmetric.data.manifest import SUMMARY, load_metadata, read_summary
    from probmetric.data.sources import REGISTRY

    source = load_metadata(data)["dataset"]
    summary = read_summary(data) if present(data / SUMMARY) else {}
    given = summary.get("options", {})
    chosen = {name: given.get(name, option.default) for name, option in REGISTRY.options(source).items()}
    return 0 if chosen.get("store") == "files" else int(chosen.get("shorter_side") or 0)


def _training_classes(data: Path) -> list[str]:
    """Names of the training classes, in the order of the loss's classes."""
    from probmetric.data import load_columns

    columns = load_columns(data, ["label", "split", "class_name"])
    chosen = columns["split"] == "train"
    _, first = np.unique(columns["label"][chosen], return_index=True)
    return [str(name) for name in columns["class_name"][chosen][first]]


def _provenance(folder: RunFolder, data: Path) -> dict[str, Any]:
    from probmetric.data.manifest import SUMMARY, read_summary

    summary = read_summary(data) if present(data / SUMMARY) else {}
    about = {
        name: summary[name] for name in ("description", "protocol", "images", "classes", "splits") if name in summary
    }
    facts = {name: folder.record[name] for name in _KEPT_FACTS if name in folder.record}
    labels = {"label": folder.find("settings.label", default=""), "ood": folder.find("settings.ood", default=[])}
    return {"data": about} | facts | labels


def _reference(folder: RunFolder) -> Tensors:
    """Uncertainties of the validation images."""
    import torch

    found = folder.tensors("val", "uncertainty")
    return {"uncertainty": torch.from_numpy(found["uncertainty"])} if found else {"uncertainty": torch.empty(0)}
