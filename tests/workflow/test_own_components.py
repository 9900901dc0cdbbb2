"""A user's package beside params.yaml: its loss is trained, its metric measured and shown; nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probmetric.io import read_json, read_yaml, write_yaml

BIN = Path(sys.executable).parent
RUN = "shop/ours/seed0"
LOSS = '''
"""Circles."""
from probmetric.losses import ProxyLoss, cosine_similarities, register


@register
class Circle(ProxyLoss):
    """Hinge on the cosine to the own proxy."""

    def __init__(self, *, num_classes: int, dim: int, margin: float = 0.4, proxy_lr: float = 0.01) -> None:
        super().__init__(num_classes=num_classes, dim=dim, proxy_lr=proxy_lr)
        self.margin = margin

    def compute(self, embeddings, labels, generator):
        """Mean hinge over the batch."""
        cosine = cosine_similarities(embeddings, self.proxies)
        own = cosine.gather(1, labels[:, None])
        return (cosine - own + self.margin).clamp_min(0.0).mean()
'''
METRIC = '''
from probmetric.metrics import metric


@metric(direction="lower")
def median_doubt(test):
    """Median uncertainty of the test images."""
    return float(sorted(test["uncertainty"])[len(test["uncertainty"]) // 2])
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of params.yaml, one experiment, a package and a folder of photographs."""
    root = tmp_path_factory.mktemp("project")
    for name, text in {"__init__": "", "circle": LOSS, "measures": METRIC}.items():
        (root / "mylab").mkdir(exist_ok=True)
        (root / "mylab" / f"{name}.py").write_text(text)
    generator = np.random.default_rng(0)
    for number in range(8):
        (root / "photos" / f"thing {number}").mkdir(parents=True)
        for image in range(6):
            pixels = generator.integers(0, 256, (36, 44, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / f"thing {number}" / f"{image}.png")
    method = {
        "loss": {"name": "circle", "margin": 0.3},
        "backbone": {"name": "compact", "width": 4},
        "dim": 8,
        "view": {"size": 24},
        "training": {"epochs": 1, "batch_size": 8, "images_per_class": 2},
    }
    write_yaml(
        root / "params.yaml",
        {
            "experiments": ["mine"],
            "plugins": ["mylab"],
            "datasets": ["digits"],
            "data": {"on_request": {"shop": {"source": "folder", "raw": "photos"}}},
            "methods": {"ours": method},
        },
    )
    grid = {"datasets": ["shop"], "methods": ["ours"], "seeds": [0]}
    write_yaml(
        root / "workflow" / "experiments" / "mine.yaml",
        {"title": "Mine", "runs": [grid], "metrics": ["retrieval/recall_at_1", "own/median_doubt"], "figures": []},
    )
    return root


def command(project: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        ["probmetric", *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0 or not check, result.stderr[-4000:]
    return result


@pytest.mark.slow
@pytest.mark.processes
def test_a_loss_a_metric_and_photographs_of_ones_own(project):
    command(project, "prepare", "shop")
    command(project, "run", RUN)
    folder = project / "results" / RUN
    settings = read_yaml(folder / "run.yaml")["settings"]
    assert settings["loss"] == {"name": "circle", "options": {"margin": 0.3}}
    assert settings["view"] == {"name": "photos", "options": {"size": 24}}
    assert isinstance(read_json(folder / "metrics.json")["own/median_doubt"], float)
    command(project, "report", "mine")
    head = (project / "reports" / "mine" / "table.md").read_text()
    assert "Recall@1 ↑" in head
    assert "Median doubt ↓" in head


@pytest.mark.slow
def test_a_mistake_in_ones_own_options_stops_before_any_job(project):
    params = read_yaml(project / "params.yaml")
    params["methods"]["ours"]["loss"] = {"name": "circle", "margni": 0.3}
    (project / "other").mkdir(exist_ok=True)
    write_yaml(project / "other" / "params.yaml", params)
    (project / "other" / "mylab").symlink_to(project / "mylab")
    result = command(project / "other", "run", RUN, check=False)
    assert result.returncode == 2
    assert "loss 'circle' has no option 'margni': did you mean 'margin'" in result.stderr
    assert "Traceback" not in result.stderr
