"""A tiny workspace in which every step has run once, and a nursery that runs single steps with a fault in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmetric.io import read_yaml, write_yaml

HERE = Path(__file__).parent
PREPARED = "data/prepared/digits"
RUN, ENCODER = "digits/tiny_laplace/seed0", "digits/tiny/seed0"

# Every rule's command, and what it writes.
STEPS: dict[str, tuple[list[str], list[str]]] = {
    "prepare": (["prepare", "digits"], [PREPARED]),
    "train": (["run", ENCODER, "--until", "train"], [f"results/{ENCODER}"]),
    "fit": (["run", RUN, "--until", "fit"], [f"results/{RUN}/posterior.safetensors"]),
    "embed": (["run", RUN, "--until", "embed"], [f"results/{RUN}/embeddings"]),
    "evaluate": (
        ["run", RUN],
        [f"results/{RUN}/{name}" for name in ("metrics.json", "curves.json", "matches.safetensors", "run.yaml")],
    ),
    "report": (["report", "tiny"], ["reports/tiny"]),
    "figures": (
        ["figure", "tiny", "learning_curves"],
        [f"reports/tiny/figures/learning_curves.{kind}" for kind in ("png", "pdf", "json", "tex")],
    ),
    "track": (["track", "tiny", "--receipt", "state/tracked.json"], ["state/tracked.json"]),
}
# What differs between two undisturbed runs: seconds, throughput and memory.
TIMED = ("history.csv", "encoder.yaml", "run.yaml", "tracked.json", "timing.json")


@dataclass(frozen=True)
class Outcome:
    """How a step ended: exit status (below 0: by that signal), what it printed, file-system touches, seconds."""

    status: int
    output: str
    events: int
    seconds: float


class Nursery:
    """The forking process."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "output.txt"
        command = [sys.executable, "-W", "ignore", str(HERE / "nursery.py")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        assert self.stdout.readline() == "ready\n"

    def run(self, folder: Path, *arguments: str, **fault: float) -> Outcome:
        command = {"folder": str(folder), "arguments": arguments, "output": str(self.output), "fault": fault}
        self.stdin.write(json.dumps(command) + "\n")
        self.stdin.flush()
        answer = json.loads(self.stdout.readline())
        return Outcome(answer["status"], self.output.read_text(errors="replace"), answer["events"], answer["seconds"])


@dataclass(frozen=True)
class Tiny:
    """A workspace: prepared digits, one encoder, one posterior, one report."""

    folder: Path
    nursery: Nursery

    def run(self, step: str, **fault: float) -> Outcome:
        return self.nursery.run(self.folder, *STEPS[step][0], **fault)

    def copy(self, folder: Path) -> Tiny:
        shutil.copytree(self.folder, folder, symlinks=True)
        return Tiny(folder, self.nursery)

    def remove_outputs(self, step: str) -> None:
        for name in STEPS[step][1]:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def files(self) -> dict[str, bytes]:
        """Name -> content of everything but the MLflow store, which is compared by what it says."""
        found = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        names = ((str(path.relative_to(self.folder)), path) for path in found)
        return {name: path.read_bytes() for name, path in names if not name.startswith(("mlflow.db", "mlartifacts"))}


def write_workspace(folder: Path) -> None:
    params: dict[str, Any] = read_yaml(HERE.parents[1] / "params.yaml")
    training = {"epochs": 3, "steps_per_epoch": 6, "batch_size": 20, "images_per_class": 4}
    params |= {
        "experiments": ["tiny"],
        "datasets": ["digits"],
        "noise": params["noise"] | {"datasets": []},
        "ood": {},
        "methods": {
            "tiny": {"loss": "contrastive", "backbone": {"name": "compact", "width": 4}, "training": training},
            "tiny_laplace": {"base": "tiny", "uncertainty": "laplace"},
        },
    }
    write_yaml(folder / "params.yaml", params)
    experiment = {
        "title": "Tiny",
        "description": "Every step in a second.",
        "runs": [{"datasets": ["digits"], "methods": ["tiny_laplace"], "seeds": [0]}],
        "metrics": ["retrieval/recall_at_1"],
        "figures": ["learning_curves"],
    }
    write_yaml(folder / "workflow/experiments/tiny.yaml", experiment)
