"""Which files a run's folder holds, and which step writes each. No other module names them.

results/<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>/
    model.safetensors       weights selected on the validation split, named encoder.* and loss.*
    model_last.safetensors  weights of the last epoch
    history.csv             one row per epoch
    encoder.yaml            how the weights were made: settings, data digest, versions, hardware
    posterior.safetensors   where the uncertainty is fitted
    embeddings/             <split>.safetensors for val, test, ood and last, and timing.json
    metrics.json            metric -> value, null where it is not defined
    curves.json             curves of the evaluation by name
    matches.safetensors     the match record: what was answered to each query, how near, how sure, and whether rightly
    run.yaml                the record of the finished run
    certificate.json        a threshold below which answers are right often enough, where one was asked for
    certificate.md          the same in words
    made/<step>.json        what the files of each step were made from
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probmetric.io import present

Step = Literal["train", "fit_posterior", "embed", "evaluate"]
STEPS: tuple[Step, ...] = ("train", "fit_posterior", "embed", "evaluate")
Which = Literal["selected", "last"]
Split = Literal["val", "test", "ood", "last"]


class RunFiles:
    """Paths of a run's files below `path`; nothing is read."""

    path: Path

    @property
    def history_file(self) -> Path:
        """One row per epoch."""
        return self.path / "history.csv"

    @property
    def encoder_file(self) -> Path:
        """How the weights were made."""
        return self.path / "encoder.yaml"

    @property
    def posterior_file(self) -> Path:
        """What the uncertainty was fitted to."""
        return self.path / "posterior.safetensors"

    @property
    def timing_file(self) -> Path:
        """What embedding took."""
        return self.path / "embeddings" / "timing.json"

    @property
    def metrics_file(self) -> Path:
        """Metric -> value."""
        return self.path / "metrics.json"

    @property
    def curves_file(self) -> Path:
        """Curves of the evaluation."""
        return self.path / "curves.json"

    @property
    def matches_file(self) -> Path:
        """The match record."""
        return self.path / "matches.safetensors"

    @property
    def certificate_file(self) -> Path:
        """What the answers of its test gallery are certified for."""
        return self.path / "certificate.json"

    @property
    def certificate_page(self) -> Path:
        """The same in words."""
        return self.path / "certificate.md"

    @property
    def record_file(self) -> Path:
        """The record of the finished run."""
        return self.path / "run.yaml"

    def weights_file(self, which: Which = "selected") -> Path:
        """Weights selected on the validation split, or those of the last epoch."""
        return self.path / {"selected": "model.safetensors", "last": "model_last.safetensors"}[which]

    def embeddings_file(self, split: Split) -> Path:
        """Embeddings of a split; "last" is the test split with the last weights."""
        return self.path / "embeddings" / f"{split}.safetensors"

    @property
    def text_files(self) -> dict[str, Path]:
        """Name -> path of the small files that are there: record, metrics, curves, history."""
        files = (self.record_file, self.metrics_file, self.curves_file, self.history_file)
        return {file.name: file for file in files if present(file)}

    def step_files(self, step: Step) -> tuple[Path, ...]:
        """Every file a step writes."""
        splits: tuple[Split, ...] = ("val", "test", "ood", "last")
        files: dict[Step, tuple[Path, ...]] = {
            "train": (self.weights_file("selected"), self.weights_file("last"), self.history_file, self.encoder_file),
            "fit_posterior": (self.posterior_file,),
            "embed": (*map(self.embeddings_file, splits), self.timing_file),
            "evaluate": (self.metrics_file, self.curves_file, self.matches_file, self.record_file),
        }
        return files[step]

    def step_results(self, step: Step) -> tuple[Path, ...]:
        """Those of a step's files that later steps compute with; the others hold times, versions and settings."""
        aside = (self.history_file, self.encoder_file, self.timing_file, self.record_file)
        return tuple(file for file in self.step_files(step) if file not in aside)

    def made_file(self, step: Step) -> Path:
        """The record of what a step's files were made from (`probmetric.made`)."""
        return self.path / "made" / f"{step}.json"

    @property
    def trained(self) -> bool:
        """Whether the encoder is trained: its record, written last, is there."""
        return present(self.encoder_file)

    @property
    def finished(self) -> bool:
        """Whether the run was evaluated: it has metrics.json."""
        return present(self.metrics_file)
