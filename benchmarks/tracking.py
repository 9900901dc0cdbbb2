"""What MLflow costs: `track` of many finished runs into a new SQLite store, then again with nothing new.

    python benchmarks/tracking.py                     3,000 runs
    python benchmarks/tracking.py --runs 300

The runs have the files of real ones on unseen classes: 45 epochs, their metrics, curves of the usual size. Reported:
processor seconds, size of the store, and what `track` takes once more when one run was added.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _machine import hardware, keep, parser

from probmetric.config import Evaluation, Training
from probmetric.io import write_json, write_text, write_yaml
from probmetric.metrics import METRICS
from probmetric.tracking import track

EPOCHS = 45
GROUPS = (
    *("retrieval", "retrieval_euclidean", "val/retrieval", "last/retrieval", "clustering", "structure"),
    *("sparsification", "val/sparsification", "trust", "p_right", "p_right_val", "ood", "distortion"),
)
METHODS = ("arcface", "contrastive", "cosine", "laplace", "proxy_anchor")


def main() -> None:
    """Measure, print and perhaps keep the report."""
    command = parser(__doc__)
    command.add_argument("--runs", type=int, default=3000)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        runs = [write_run(number) for number in range(options.runs)]
        write_text("reports/study/table.md", "| method |\n")
        report: dict[str, Any] = {"runs": len(runs), **hardware()}
        report["first_seconds"] = seconds(lambda: call(runs))
        report["store_mb"] = round(Path("mlflow.db").stat().st_size / 1e6, 1)
        report["again_seconds"] = seconds(lambda: call(runs))
        report["one_more_seconds"] = seconds(lambda: call([*runs, write_run(options.runs)]))
    keep(report, options.output)


def call(runs: list[str]) -> None:
    """Bring the store up to date."""
    folders = [f"results/{run}" for run in runs]
    track("study", folders, "reports/study", store_uri="sqlite:///mlflow.db", artifact_root="mlartifacts")


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of this process while it works."""
    before = time.process_time()
    work()
    return round(time.process_time() - before, 1)


def write_run(number: int) -> str:
    """Write the files of a finished run; its name."""
    run = f"glyphs/{METHODS[number % len(METHODS)]}/seed{number // len(METHODS)}"
    folder = Path("results", run)
    names = {f"{group}/{metric.name}" for metric in METRICS for group in GROUPS if group in metric.groups}
    write_json(folder / "metrics.json", {name: 1 / (number + len(name)) for name in sorted(names)})
    write_json(folder / "curves.json", {"sparsification": {"accuracy": [0.1] * 1500}})
    header = "epoch,step,train_loss,lr,val_metric,seconds,images_per_second,peak_memory_mb,grad_norm,skipped_steps"
    rows = [f"{epoch},{26 * epoch},{1 / (epoch + 1)},0.001,0.5,1.5,4000,500,0.3,0" for epoch in range(EPOCHS)]
    write_text(folder / "history.csv", "\n".join([header, *rows]) + "\n")
    write_text(folder / "model.safetensors", "")
    settings = {"dataset": "glyphs", "noise": 0.0, "method": run.split("/")[1], "seed": number, "dim": 64}
    settings |= {"loss": {"name": "arcface", "options": {"margin": 0.5, "scale": 32.0}}, "data_digest": "ab" * 32}
    settings |= {"training": Training(epochs=EPOCHS, learning_rate=0.003).model_dump(mode="json")}
    settings |= {"evaluation": Evaluation(ks=(1, 5, 10)).model_dump(mode="json"), "backbone": {"name": "compact"}}
    around = {"versions": {"python": "3.12", "torch": "2.8", "git": "0123456789ab"}, "hardware": {"cpus": 2}}
    write_yaml(folder / "run.yaml", {"settings": settings, "run": run, "encoder": run, **around})
    return run


if __name__ == "__main__":
    main()
