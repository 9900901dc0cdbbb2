"""Images per second of a training step, for every backbone and image size of the papers' experiments.

    python benchmarks/throughput.py [--device cuda] [--steps 20] [--batch 0] [--only lenet_vmf] [--output FILE]

`probmetric experiments` reads benchmarks/results/throughput.json to estimate hours. A step is forward, cosine softmax,
backward and update at the experiment's own batch size, in the training's precision, on images that are on the device
already: reading them is not part of it (benchmarks/training.py compares both), so hours are a lower bound where reading
is the slower half. The median step counts, after three to warm up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from probmetric.config import Params, load
from probmetric.io import write_json
from probmetric.losses import create_loss
from probmetric.models import create_encoder
from probmetric.planning.expansion import plan_experiment
from probmetric.planning.experiments import experiment_names
from probmetric.planning.overview import THROUGHPUT, kind
from probmetric.runs.plan import Run
from probmetric.training.forward import embed, resolve_precision
from probmetric.training.optimizer import create_optimizer
from probmetric.training.provenance import hardware

WARM_UP = 3
SMALL = {"mnist": (1, 28), "fashion_mnist": (1, 28), "cifar10": (3, 32), "cifar100": (3, 32), "svhn": (3, 32)}
EMBEDDED = {"digits": (1, 32), "digits_open": (1, 32), "glyphs": (1, 32)}


def main() -> None:
    """Parse the options, measure every kind once and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=0, help="images per step (default: the experiment's)")
    parser.add_argument("--only", default="", help="measure kinds whose name holds this text")
    parser.add_argument("--output", type=Path, default=THROUGHPUT)
    options = parser.parse_args()
    device = torch.device(options.device)
    measured = {}
    for name, run in kinds().items():
        if options.only in name:
            measured[name] = round(images_per_second(name, run, device, options.steps, options.batch), 1)
            print(f"{measured[name]:10.1f}  {name}")
    write_json(options.output, {"hardware": hardware(device), "images_per_second": measured})


def kinds() -> dict[str, Run]:
    """One training run of every kind that experiments ask for."""
    params: Params = load(Params, "params.yaml")
    planned = (plan_experiment(params, name) for name in experiment_names())
    runs = (run for experiment in planned for run in experiment.runs if run.trains and run.settings.loss)
    return {kind(params, run): run for run in runs}


def images_per_second(name: str, run: Run, device: torch.device, steps: int, batch: int) -> float:
    """Images per second of one kind, at the median step."""
    settings = run.settings
    training, size = settings.training, batch or settings.training.batch_size
    channels, side = (SMALL | EMBEDDED).get(name.rpartition(", ")[2], (3, 227 if training.augment == "lam" else 224))
    encoder = create_encoder(
        settings.backbone.name, dim=settings.dim, in_channels=channels, image_size=side, **settings.backbone.options
    )
    encoder.set_batch_norm(training.batch_norm)
    encoder = encoder.to(device).to(memory_format=torch.channels_last).train()
    loss = create_loss("cosine", num_classes=100, dim=settings.dim).to(device)
    optimizer = create_optimizer(training, encoder, loss)
    images = torch.rand(size, channels, side, side, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(size, device=device) % 100
    precision = resolve_precision(training.precision, device)
    seconds = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(embed(encoder, images, precision), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return size / statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    main()
