"""A small experiment on disk, fabricated for tests only: run folders and prepared datasets in their real form."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probmetric.io import write_json, write_tensors, write_yaml
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import collect, write_results
from probmetric.runs.names import RunKey

METRICS = ("retrieval/recall_at_1", "retrieval/map_at_r", "ood/symbols/auroc", "sparsification/ausc", "calibration/ece")
FIGURES = (
    "metric_per_method",
    "learning_curves",
    "sparsification",
    "roc",
    "reliability",
    "image_grid",
    "noise_robustness",
    "severity",
)
LABELS = {"proxy_nca": "ProxyNCA++", "laplace": "Laplace (post-hoc)", "raw_pixels": "Raw pixels (floor)"}
LEVELS = {"contrastive": 0.72, "proxy_nca": 0.78, "arcface": 0.77, "laplace": 0.73, "raw_pixels": 0.31}
HISTORY = (
    *("epoch", "step", "train_loss", "lr", "val_metric", "seconds", "images_per_second", "peak_memory_mb"),
    *("grad_norm", "skipped_steps"),
)
DATA = ("digits", "glyphs", "glyphs+noise0.2")
RUNS = tuple(f"{data}/{method}/seed{seed}" for data in DATA for method in LEVELS for seed in range(3))
NOT_RUN = ("digits/arcface/seed2", *(f"glyphs+noise0.2/arcface/seed{seed}" for seed in range(3)))


def gathered(context: ReportContext) -> ReportContext:
    """The context, with the long table of its runs as they are now."""
    write_results(collect([context.results / key.run for key in context.expected]), context.folder)
    return replace(context)


def context_of(name: str, runs, metrics, folder: str | Path, **rest: object) -> ReportContext:
    """The context of run folders (absolute, or below the results folder)."""
    expected = tuple(dict.fromkeys(RunKey.parse(run) for run in runs))
    return ReportContext(name, expected, tuple(metrics), Path(folder), **rest)


@dataclass
class Workspace:
    """Folders of a fabricated repository and what lies in them."""

    root: Path
    runs: tuple[str, ...] = RUNS

    def context(self, name: str = "study", **rest: object) -> ReportContext:
        options = {
            "results": self.root / "results",
            "prepared": self.root / "data" / "prepared",
            "title": "Embedded study",
            "description": "Fabricated numbers for tests.",
            "figures": FIGURES,
            "labels": LABELS,
        }
        options |= rest
        runs = options.pop("runs", self.runs)
        metrics = options.pop("metrics", METRICS)
        return context_of(name, runs, metrics, self.root / "reports" / name, **options)

    @property
    def folders(self) -> list[Path]:
        return [self.root / "results" / run for run in self.runs]


def write_run(root: Path, run: str, metrics: dict[str, float | None], *, epochs: int = 4, images: int = 40) -> Path:
    """Write one run folder as the contracts describe it."""
    folder = root / "results" / run
    key = RunKey.parse(folder)
    generator = np.random.default_rng(abs(hash_of(run)))
    settings = {
        "dataset": key.dataset,
        "noise": key.noise,
        "method": key.method,
        "seed": key.seed,
        "fidelity": "as_published" if "as_published" in key.overrides else "corrected",
        "loss": {"name": key.method, "options": {"scale": 32.0}},
        "dim": 64,
        "training": {"epochs": epochs, "learning_rate": 0.001, "selection_metric": "recall_at_1"},
    }
    versions = {"probmetric": "0.1.0", "git": "0123456789ab", "python": "3.11.9", "torch": "2.15.0"}
    hardware = {"machine": "x86_64", "cpus": 2, "device": "cpu"}
    made = {"data_digest": "ab" * 32, "versions": versions, "hardware": hardware, "training": {"selected_epoch": 3}}
    record = made | {"run": run, "encoder": run, "settings": settings}
    write_yaml(folder / "run.yaml", record)
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "curves.json", _curves(metrics))
    if key.method != "raw_pixels":
        _write_history(folder / "history.csv", epochs, metrics["retrieval/recall_at_1"] or 0.5, generator)
    write_tensors(folder / "model.safetensors", {"encoder.weight": generator.normal(size=(3, 2)).astype(np.float32)})
    mean = generator.normal(size=(images, 4)).astype(np.float32)
    tensors = {
        "mean": mean / np.linalg.norm(mean, axis=1, keepdims=True),
        "uncertainty": generator.random(images).astype(np.float32),
        "label": np.arange(images) % 5,
        "index": np.arange(images)[::-1].copy(),
    }
    write_tensors(folder / "embeddings" / "test.safetensors", tensors, {"dataset": key.data, "split": "test"})
    return folder


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[-8:], "big") + len(text)


def _curves(metrics: dict[str, float | None]) -> dict[str, object]:
    places = np.linspace(0, 1, 41)
    start = metrics["retrieval/recall_at_1"] or 0.5
    area = metrics.get("sparsification/ausc") or start
    accuracy = start + 2 * (area - start) * places
    curves: dict[str, object] = {
        "sparsification": {"removed": (places * 0.98).tolist(), "accuracy": accuracy.tolist()},
    }
    if (auroc := metrics.get("ood/symbols/auroc")) is not None:
        power = max(1e-3, 1 / auroc - 1)
        curves["roc/symbols"] = {"fpr": places.tolist(), "tpr": (places**power).tolist()}
    if metrics.get("calibration/ece") is not None:
        confidence = np.linspace(0.2, 1, 10)
        curves["reliability"] = {
            "confidence": confidence.tolist(),
            "accuracy": (confidence - metrics["calibration/ece"]).tolist(),
            "count": [20] * 10,
        }
    strength = np.linspace(0.1, 0.8, 8)
    for name in ("blur", "distortion"):
        wrong = ((1 - start) * 2 * strength).tolist()
        severity = {"strength": strength.tolist(), "wrong": wrong, "stated": [1 - start] * 8, "rank": strength.tolist()}
        curves[f"severity/{name}"] = severity | {"answers": [5.0] * 8}
    return curves


def _write_history(path: Path, epochs: int, final: float, generator: np.random.Generator) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HISTORY)
        for epoch in range(epochs):
            loss = 3.0 * 0.6**epoch + 0.05 * generator.random()
            value = final * (1 - 0.4 * 0.5**epoch)
            writer.writerow([epoch, 10 * (epoch + 1), loss, 0.001, value, 1.5, 900.0, "", 1.2, 0])


def write_prepared(root: Path, name: str, images: int = 40) -> None:
    """Write the image store and manifest of a prepared dataset, with the library's own manifest writer."""
    from probmetric.data.manifest import write_manifest

    folder = root / "data" / "prepared" / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.arange(images)
    pixels = (np.add.outer(np.arange(8), np.arange(8))[None] * 12 + rows[:, None, None] * 2).astype(np.uint8)
    (folder / "images.bin").write_bytes(pixels.tobytes())
    columns = {
        "index": rows,
        "path": np.array([f"{name}/{row}.png" for row in rows]),
        "label": rows % 5,
        "class_name": np.array([f"class {row % 5}" for row in rows]),
        "split": np.array(["test"] * images),
        "sha256": np.array([f"{row:064d}" for row in rows]),
        "offset": rows * 64,
        **{side: np.full(images, 8, dtype=np.int32) for side in ("height", "width")},
        "channels": np.ones(images, dtype=np.int32),
    }
    write_manifest(folder / "manifest.parquet", columns, {"images": "."})
    splits = {"train": {"images": 400, "classes": 20}, "val": {"images": 80, "classes": 4}}
    summary = {"protocol": "open_set", "splits": splits | {"test": {"images": images, "classes": 5}}, "image_size": 8}
    write_json(folder / "summary.json", summary | {"notes": ["3 left out"]})
    (folder / "digest").write_text(f"{'cd' * 32}  manifest.parquet\n", encoding="utf-8")


def study_metrics(dataset: str, noise: float, method: str, seed: int) -> dict[str, float | None]:
    generator = np.random.default_rng([seed, len(dataset), len(method), int(10 * noise)])
    level = LEVELS.get(method.partition("+")[0], 0.7) - (0.1 if dataset == "glyphs" else 0) - 0.4 * noise
    recall = level + 0.012 * generator.normal()
    closed = dataset == "digits"
    return {
        "retrieval/recall_at_1": recall,
        "retrieval/map_at_r": recall - 0.2,
        "val/retrieval/recall_at_1": recall + 0.02,
        "last/retrieval/recall_at_1": recall - 0.01,
        "clustering/nmi": 0.8 * recall,
        "ood/symbols/auroc": 0.55 + (0.3 if method == "laplace" else 0.02) + 0.01 * generator.normal(),
        "sparsification/ausc": recall + (0.12 if method == "laplace" else 0.004) + 0.004 * generator.normal(),
        "calibration/ece": 0.06 + 0.01 * generator.random() if closed else None,
    }


def build_workspace(root: Path) -> None:
    """Five methods x digits, glyphs and glyphs with noise x three seeds, but for those in `NOT_RUN`."""
    for run in RUNS:
        if run not in NOT_RUN:
            key = RunKey.parse(f"results/{run}")
            write_run(root, run, study_metrics(key.dataset, key.noise, key.method, key.seed))
    for name in DATA:
        write_prepared(root, name)
