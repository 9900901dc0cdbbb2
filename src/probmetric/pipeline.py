"""The steps of one run, on folders: each reads what the step before it wrote and writes its own files whole.

results/<run>/   model.safetensors  encoder.yaml  posterior.safetensors  embeddings/  metrics.json  run.yaml
state/<run>/     training checkpoints, gone when training is finished
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from probmetric.config import ConfigError, EncoderSettings, RunSettings
from probmetric.io import read_tensors, read_yaml, write_json, write_tensors, write_yaml
from probmetric.launch import ALONE, Place
from probmetric.runs import encoder_runs

if TYPE_CHECKING:
    import torch

    from probmetric.losses._base import Loss
    from probmetric.models._base import Encoder
    from probmetric.training.ranks import Ranks

    Trained = tuple[Encoder, Loss | None, EncoderSettings]

Weights = Literal["selected", "last"]

RESULTS = Path("results")
STATE = Path("state/training")


def train(run: str, settings: EncoderSettings, *, threads: int = 1, store: str = "", place: Place = ALONE) -> None:
    """Train the encoder of `run` into `results/<run>`, going on from `state/training/<run>` if it was interrupted.

    If `store` is the address of an MLflow server, the curves appear there while the run trains. `place` says which of
    several processes that train it together this one is.
    """
    from probmetric.tracking.live import live_curves
    from probmetric.training import train_run
    from probmetric.training.ranks import joined

    with joined(place) as ranks, live_curves(store if ranks.first else "", run) as on_epoch:
        train_run(
            settings,
            prepared_folder=Path(settings.prepared) / settings.data,
            run_folder=RESULTS / run,
            state_folder=STATE / run,
            threads=threads,
            on_epoch=on_epoch,
            ranks=ranks,
        )


def fit_posterior(run: str, encoder_run: str, settings: RunSettings, *, threads: int = 1) -> None:
    """Fit the run's uncertainty on the training images and write `posterior.safetensors`."""
    import torch

    from probmetric.training import claim_device

    torch.set_num_threads(threads)
    with claim_device("auto") as device:
        posterior = _fit(settings, _load(encoder_run, settings, device, "selected"), device)
    write_tensors(RESULTS / run / "posterior.safetensors", posterior, {"uncertainty": settings.uncertainty.name})


def _load(encoder_run: str, settings: RunSettings, device: torch.device, which: Weights) -> Trained:
    """The encoder of `encoder_run`, or all that the run's uncertainty combines as one, loss and training settings."""
    from probmetric.training import load_encoder

    names = encoder_runs(encoder_run, settings.uncertainty)
    loaded = [load_encoder(RESULTS / name, device, which) for name in names]
    if len(loaded) == 1:
        return loaded[0]
    from probmetric.uncertainty.ensemble import EncoderEnsemble

    _, loss, trained = loaded[0]
    return cast("Encoder", EncoderEnsemble([encoder for encoder, _, _ in loaded])), loss, trained


def _fit(settings: RunSettings, loaded: Trained, device: torch.device) -> dict[str, torch.Tensor]:
    """The posterior of the run's uncertainty for loaded weights."""
    import torch

    from probmetric.training.data import TrainingData
    from probmetric.training.passes import TrainingPass, ValidationPass
    from probmetric.uncertainty import create_uncertainty

    encoder, loss, trained = loaded
    uncertainty = create_uncertainty(settings.uncertainty.name, **settings.uncertainty.options)
    data = TrainingData(_prepared(settings), trained.training, seed=settings.seed, device=device)
    return uncertainty.fit(
        encoder,
        TrainingPass(data),
        loss=loss,
        generator=torch.Generator(device=device).manual_seed(settings.seed),
        device=device,
        validation=ValidationPass(data) if data.has_validation else None,
    )


def embed(run: str, encoder_run: str, settings: RunSettings, *, threads: int = 1, place: Place = ALONE) -> None:
    """Embed validation, test and OOD images with the selected weights, and test images with the last ones.

    Of several processes each embeds its share of the batches; the first one (`place`) writes them all.
    """
    import torch

    from probmetric.training import claim_device
    from probmetric.training.ranks import joined

    torch.set_num_threads(threads)
    data = _prepared(settings)
    with joined(place) as ranks, claim_device("auto") as device:
        selected = _Embedder(run, encoder_run, settings, device, ranks, which="selected")
        selected.write("val", [(data, "val")])
        selected.write("test", [(data, "test")])
        selected.write("ood", [(Path(settings.prepared) / name, "test") for name in settings.ood])
        _Embedder(run, encoder_run, settings, device, ranks, which="last").write("last", [(data, "test")])


class _Embedder:
    """Turns splits of prepared datasets into embeddings files of one run."""

    def __init__(
        self,
        run: str,
        encoder_run: str,
        settings: RunSettings,
        device: torch.device,
        ranks: Ranks,
        which: Weights,
    ) -> None:
        from probmetric.uncertainty import create_uncertainty

        self.folder, self.settings, self.device, self.dim = RESULTS / run, settings, device, 0
        self.ranks = ranks
        loaded = _load(encoder_run, settings, device, which)
        self.encoder, self.loss, self.trained = loaded
        facts = read_yaml(RESULTS / encoder_run / "encoder.yaml")["encoder"]
        self.shape: tuple[int, int] = facts["in_channels"], facts["image_size"]
        combined = len(encoder_runs(encoder_run, settings.uncertainty)) > 1
        # The last weights are compared by their mean alone, which needs no posterior unless encoders are combined.
        chosen = settings.uncertainty
        if which == "last" and not combined:
            chosen = RunSettings.model_fields["uncertainty"].default
        self.uncertainty = create_uncertainty(chosen.name, **chosen.options)
        self.posterior = None
        if self.uncertainty.fits:
            self.posterior = self._stored_posterior() if which == "selected" else _fit(settings, loaded, device)

    def _stored_posterior(self) -> dict[str, torch.Tensor]:
        tensors, _ = read_tensors(self.folder / "posterior.safetensors", framework="torch")
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def write(self, name: str, sources: Sequence[tuple[Path, str]]) -> None:
        """Write `embeddings/<name>.safetensors` for the given (prepared folder, split) pairs."""
        import torch

        parts = [self._embed(folder, split) for folder, split in sources]
        if not self.ranks.first:
            return
        if not parts:
            parts = [self._nothing()]
        tensors = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        self.dim = tensors["mean"].shape[1]
        if name == "ood":
            sizes = torch.tensor([len(part["label"]) for part in parts[: len(sources)]], dtype=torch.int64)
            tensors["source"] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            tensors["label"] = torch.full_like(tensors["label"], -1)
        metadata = {
            "split": name,
            "dataset": self.settings.data,
            "uncertainty": self.settings.uncertainty.name,
            "sources": json.dumps([folder.name for folder, _ in sources]),
            "classes": json.dumps(self._training_classes()),
        }
        curvature = getattr(self.loss, "curvature", None)
        if curvature is not None:
            metadata["curvature"] = str(curvature)
        write_tensors(self.folder / "embeddings" / f"{name}.safetensors", tensors, metadata)

    def _embed(self, folder: Path, split: str) -> dict[str, torch.Tensor]:
        from probmetric.data import load_metadata
        from probmetric.data.batches import SplitImages
        from probmetric.training.data import training_transform
        from probmetric.training.export import embed_together

        source = load_metadata(_prepared(self.trained))["dataset"]
        transform = training_transform(self.trained.training.augment, source).evaluation()
        images = SplitImages(folder, split, transform=transform, shape=self.shape, device=self.device)
        given = {"posterior": self.posterior, "loss": self.loss, "seed": self.settings.seed}
        found = embed_together(self.uncertainty, self.encoder, images, self.ranks, **given)
        return found.to("cpu").tensors() | {"label": images.labels, "index": images.index} if found else {}

    def _training_classes(self) -> list[int]:
        """Manifest label of each training class, in the order of the loss's classes (columns of `probabilities`)."""
        import numpy as np

        from probmetric.data import load_columns

        columns = load_columns(_prepared(self.settings), ["label", "split"])
        return np.unique(columns["label"][columns["split"] == "train"]).tolist()

    def _nothing(self) -> dict[str, torch.Tensor]:
        import torch

        none = torch.empty(0, dtype=torch.int64)
        return {"mean": torch.empty(0, self.dim), "uncertainty": torch.empty(0), "label": none, "index": none}


def evaluate(run: str, encoder_run: str, settings: RunSettings) -> None:
    """Measure the embeddings of `run`; write metrics.json, curves.json and the run's full record, run.yaml."""
    from probmetric.evaluation.evaluator import evaluate_run

    folder, chosen = RESULTS / run, settings.evaluation
    metrics, curves = evaluate_run(
        folder,
        {"ks": chosen.ks, "clustering": chosen.clustering, "seed": chosen.seed, "bins": chosen.calibration_bins},
        **_known(_prepared(settings)),
    )
    if chosen.proxies or chosen.training_images:
        found, spectrum = _training_metrics(encoder_run, settings)
        metrics |= found
        curves |= spectrum
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "curves.json", curves)
    record = read_yaml(RESULTS / encoder_run / "encoder.yaml")
    whose: dict[str, Any] = {"run": run, "encoder": encoder_run}
    members = encoder_runs(encoder_run, settings.uncertainty)
    if len(members) > 1:
        whose["members"] = list(members)
    write_yaml(folder / "run.yaml", record | whose | {"settings": settings.plain()})


def _training_metrics(
    encoder_run: str, settings: RunSettings
) -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """What is measured on the training images, and curves.

    `train/structure/...` with the curve `train/singular_values` (papers 000 and 001); `structure/proxy_w1` and
    `proxy_w2`, how near the loss's proxies are (paper 004).
    """
    import torch
    from torch.nn.functional import normalize

    from probmetric.evaluation import proxy_transport, structure_metrics
    from probmetric.evaluation.structure import singular_values
    from probmetric.training import claim_device
    from probmetric.training.data import TrainingData

    with claim_device("auto") as device, torch.inference_mode():
        encoder, loss, trained = _load(encoder_run, settings, device, "selected")
        data = TrainingData(_prepared(settings), trained.training, seed=settings.seed, device=device)
        rows = torch.cat([normalize(encoder(images)).cpu() for images in data.images_in_order("train")])
        found = loss.class_proxies() if loss is not None else None
    metrics: dict[str, float] = {}
    curves: dict[str, dict[str, list[float]]] = {}
    if settings.evaluation.training_images:
        curves["train/singular_values"] = {"value": singular_values(rows.numpy()).tolist()}
        structure = structure_metrics(rows.numpy(), data.labels.numpy())
        metrics |= {f"train/structure/{name}": value for name, value in structure.items()}
    if settings.evaluation.proxies:
        if found is None:
            raise ConfigError(
                f"evaluation.proxies: the loss of {encoder_run} has no proxies; leave the setting out for this method."
            )
        proxies, owners = (tensor.cpu() for tensor in found)
        distances = proxy_transport(rows, data.labels, proxies, owners)
        metrics |= {f"structure/proxy_{name}": value for name, value in distances.items()}
    return metrics, curves


def _known(folder: Path) -> dict[str, Any]:
    """What a prepared dataset's manifest tells evaluation besides labels: ambiguity, pairs to verify, places."""
    import numpy as np

    from probmetric.data.manifest import read_table, values_of
    from probmetric.data.places import COLUMNS
    from probmetric.evaluation.places import Places
    from probmetric.evaluation.verification import Pairs

    table, metadata = read_table(folder, ["index"], optional=("ambiguity", *COLUMNS))
    known: dict[str, Any] = {}
    if "ambiguity" in table.column_names:
        known["ambiguity"] = values_of(table, "ambiguity")
    if set(COLUMNS) <= set(table.column_names):
        known["places"] = Places({name: values_of(table, name) for name in COLUMNS})
    if metadata.get("pairs"):
        pairs = np.array(metadata["pairs"], dtype=np.int64)
        known["pairs"] = Pairs(pairs[:, :2], pairs[:, 2].astype(bool))
    return known


def _prepared(settings: EncoderSettings) -> Path:
    return Path(settings.prepared) / settings.data
