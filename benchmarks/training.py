"""A training step of ResNet-50 at 224 pixels: images per second from the image cache beside synthetic ones, and shares.

    python benchmarks/training.py [--device cuda] [--batch 112] [--steps 60] [--size 224] [--images 2000] [--compile]
    python benchmarks/training.py --only input --batch 16 --steps 2 --images 64      minutes on a CPU

Both contenders run the real training loop, in turns: `cache` crops, flips and normalises random views of photographs
stored at 256 pixels, `synthetic` finds its batch on the device already; the median round counts. Then: each proxy
loss, forward and backward, at 112 images as a share of the step (scaled to as many images); online LAM against the
contrastive loss it wraps; recall over as many embeddings as Stanford Online Products has. On a CPU batches are small
unless asked otherwise; the targets are a GPU's. Results go to benchmarks/results/training-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from _machine import hardware
from images import write_photographs
from torch import Tensor

from probmetric.config import Training
from probmetric.data import prepare_dataset
from probmetric.losses import create_loss
from probmetric.models import create_encoder
from probmetric.retrieval import retrieval_metrics
from probmetric.training.backend import backend
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.loop import Conduct, Trainer
from probmetric.uncertainty.laplace_online import OnlineLaplace

PROXY_LOSSES = (
    *("proxy_nca", "proxy_nca_pp", "proxy_anchor", "proxy_anchor_nca", "soft_triple", "cosine", "arcface"),
    *("vmf", "sample_proxy", "el_nivmf", "nir", "potential_field"),
)
PARTS = ("input", "online", "losses", "evaluation")
ROUNDS = 3
LOSS_BATCH = 112


class Synthetic(TrainingData):
    """The first batch over and over, on the device."""

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """`steps_per_epoch` times the same batch."""
        if not hasattr(self, "_first"):
            self._first = next(super().epoch_batches(0))
        for _ in range(self.steps_per_epoch - start):
            yield self._first


def main() -> None:
    """Measure, print and write the results."""
    options = arguments()
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder, backend(deterministic=False):
        write_photographs(Path(folder) / "raw", options.images)
        prepared = Path(folder) / "cub"
        prepare_dataset("cub", prepared, raw=Path(folder) / "raw", progress=False, subset=True, store="pixels")
        step, found = throughput(options, prepared, device)
        if "online" in options.only:
            found |= online_overhead(options, prepared, device)
    if "losses" in options.only:
        found |= loss_shares(options, device, step)
    if "evaluation" in options.only:
        found |= evaluation_seconds(options, device)
    targets = {"cache / synthetic": "at least 0.9", "online LAM / contrastive": "below 1.3"}
    targets |= {name: "below 2 %" for name in found if name.startswith("share")}
    targets |= {name: "below 1 s" for name in found if name.startswith("recall")}
    for name, value in found.items():
        print(f"  {name:<44} {value:10.3f}   {targets.get(name, '')}")
    write(options, device, found)


def arguments() -> argparse.Namespace:
    """Options; their defaults are smaller on a CPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    gpu = parser.parse_known_args()[0].device.startswith("cuda")
    parser.add_argument("--batch", type=int, default=112 if gpu else 4, help="images of the measured step")
    parser.add_argument("--steps", type=int, default=60 if gpu else 1, help="of a round")
    parser.add_argument("--size", type=int, default=224, help="side of the network's input")
    parser.add_argument("--images", type=int, default=2000 if gpu else 100, help="photographs in the cache")
    parser.add_argument("--classes", type=int, default=11318, help="of the proxy losses")
    parser.add_argument("--rows", type=int, default=60502 if gpu else 6000, help="embeddings to search")
    parser.add_argument("--tag", default="resnet50.tv_in1k", help="timm's name of the backbone")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="`input` is always measured")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def trainer_for(options: argparse.Namespace, data: TrainingData, device: torch.device, loss_name: str) -> Trainer:
    """The loop with ResNet-50 and a loss; `laplace_online` is the contrastive loss under that objective."""
    encoder = create_encoder("timm", dim=512, image_size=options.size, tag=options.tag)
    encoder = encoder.to(device).to(memory_format=torch.channels_last)
    base = "contrastive" if loss_name == "laplace_online" else loss_name
    loss = create_loss(base, num_classes=data.num_classes, dim=512).to(device)
    if loss_name == "laplace_online":
        loss = OnlineLaplace().objective(encoder, loss, num_images=len(data.labels)).to(device)
    checkpoints = Checkpoints(Path(tempfile.gettempdir()) / "unused")
    return Trainer(encoder, loss, data, Conduct(checkpoints, "", checkpoint_steps=1 << 60, progress_bar=False))


def seconds_per_step(trainer: Trainer, device: torch.device) -> float:
    """Of one round of the training loop, validation and checkpoints left out."""
    progress = trainer.progress
    progress.step_in_epoch, progress.seconds = 0, 0.0
    from tqdm import tqdm

    trainer.train_epoch(tqdm(disable=True))
    synchronise(device)
    return progress.seconds / trainer.data.steps_per_epoch


def in_turns(trainers: dict[str, Trainer], device: torch.device) -> dict[str, float]:
    """Median seconds per step of each, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(ROUNDS + 1):
        for name, trainer in trainers.items():
            seconds = seconds_per_step(trainer, device)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def settings_for(options: argparse.Namespace) -> Training:
    """Epochs of `--steps` steps."""
    sizes: dict[str, Any] = {"batch_size": options.batch, "images_per_class": 4, "steps_per_epoch": options.steps}
    return Training(epochs=100, schedule="constant", learning_rate=1e-5, compile=options.compile, **sizes)


def throughput(options: argparse.Namespace, prepared: Path, device: torch.device) -> tuple[float, dict[str, float]]:
    """Seconds of a synthetic step, and images per second of both sources."""
    settings, trainers = settings_for(options), {}
    for name, kind in {"cache": TrainingData, "synthetic": Synthetic}.items():
        data = kind(training_images(prepared, settings), settings, seed=0, device=device)
        trainers[name] = trainer_for(options, data, device, "proxy_anchor")
    seconds = in_turns(trainers, device)
    rates = {f"{name}: images per second": options.batch / value for name, value in seconds.items()}
    return seconds["synthetic"], rates | {"cache / synthetic": seconds["synthetic"] / seconds["cache"]}


def online_overhead(options: argparse.Namespace, prepared: Path, device: torch.device) -> dict[str, float]:
    """Step with the online posterior over the step with its inner loss."""
    settings = settings_for(options)
    data = Synthetic(training_images(prepared, settings), settings, seed=0, device=device)
    trainers = {name: trainer_for(options, data, device, name) for name in ("contrastive", "laplace_online")}
    seconds = in_turns(trainers, device)
    return {"online LAM / contrastive": seconds["laplace_online"] / seconds["contrastive"]}


def loss_shares(options: argparse.Namespace, device: torch.device, step: float) -> dict[str, float]:
    """Forward and backward of every proxy loss in percent of a step, at `LOSS_BATCH` images both."""
    labels = torch.arange(LOSS_BATCH, device=device) // 4
    embeddings = torch.randn(LOSS_BATCH, 512, device=device, requires_grad=True)
    whole_step = step * LOSS_BATCH / options.batch
    shares = {}
    for name in PROXY_LOSSES:
        loss = create_loss(name, num_classes=options.classes, dim=512).to(device)
        generator = torch.Generator(device)

        def once(loss: Any = loss, generator: torch.Generator = generator) -> None:
            loss(embeddings, labels, generator=generator).backward()

        shares[f"share of the step in %: {name}"] = 100 * median_seconds(once, device) / whole_step
    return shares


def evaluation_seconds(options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Recall and mean average precision over `--rows` embeddings of 512 dimensions, five to a class."""
    rows = torch.nn.functional.normalize(torch.randn(options.rows, 512, device=device), dim=1)
    searched = rows if device.type == "cuda" else rows.numpy()
    labels = (torch.arange(options.rows) // 5).numpy()
    seconds = median_seconds(lambda: retrieval_metrics(searched, labels, ks=(1, 10, 100, 1000)), device)
    return {f"recall over {options.rows:,} embeddings, s": seconds}


def median_seconds(once: Callable[[], Any], device: torch.device) -> float:
    """Median of `ROUNDS` timed calls after one that does not count."""
    times = []
    for turn in range(ROUNDS + 1):
        synchronise(device)
        start = time.perf_counter()
        once()
        synchronise(device)
        if turn:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write(options: argparse.Namespace, device: torch.device, found: dict[str, float]) -> None:
    """Name the hardware, with the load it was under, and keep the numbers."""
    measured_on = hardware("torch", device=device)
    chosen = {
        name: getattr(options, name) for name in ("batch", "steps", "size", "images", "classes", "tag", "compile")
    }
    path = options.output or Path(__file__).parent / "results" / f"training-{device.type}.json"
    path.write_text(json.dumps({"hardware": measured_on, "settings": chosen, "results": found}, indent=1) + "\n")
    print(f"{measured_on}; batch {options.batch}, {options.size} pixels -> {path}")


if __name__ == "__main__":
    main()
