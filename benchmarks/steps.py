"""A step of the demo's net: the training loop beside a bare loop with the same forward, loss, backward and update.

    python benchmarks/steps.py [--dataset glyphs] [--losses proxy_anchor contrastive] [--steps 50] [--rounds 9]

Three contenders take turns, the least round counts. `bare` repeats encoder, loss, backward pass and PyTorch's optimiser
on one batch that is in memory; `loop` is the training loop on that same batch (rates, seeds, checks, gradient norm,
progress); `whole` draws and augments its batches as well. Milliseconds of processor time on a CPU, of the wall on an
accelerator. Target: `whole` at most 1.15 times `bare`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _machine import hardware, keep, parser
from tqdm import tqdm

from probmetric.config import Training
from probmetric.data import prepare_dataset
from probmetric.losses import create_loss
from probmetric.models import create_encoder
from probmetric.training.backend import backend
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.loop import Conduct, Trainer
from training import Synthetic, synchronise

DIM = 64


def trainer(prepared: Path, settings: Training, loss_name: str, device: torch.device) -> Trainer:
    """The training loop of the demo's net; it writes nothing."""
    torch.manual_seed(0)
    data = TrainingData(training_images(prepared, settings), settings, seed=0, device=device)
    encoder = create_encoder("compact", dim=DIM, in_channels=data.in_channels, image_size=data.image_size)
    encoder = encoder.to(device).to(memory_format=torch.channels_last)
    loss = create_loss(loss_name, num_classes=data.num_classes, dim=DIM).to(device)
    checkpoints = Checkpoints(Path(tempfile.gettempdir()) / "unused")
    return Trainer(encoder, loss, data, Conduct(checkpoints, "", checkpoint_steps=1 << 60, progress_bar=False))


def seconds(of: Trainer, device: torch.device) -> float:
    """Of an epoch, per step."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    of.progress.step_in_epoch, start = 0, clock()
    of.train_epoch(tqdm(disable=True))
    synchronise(device)
    return (clock() - start) / of.data.steps_per_epoch


def bare_loop(of: Trainer, steps: int, device: torch.device) -> Callable[[], float]:
    """Function that trains the network of `of` for `steps` steps on its first batch and returns seconds per step."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    _, images, labels = next(of.data.epoch_batches(0))
    generator = torch.Generator(device)

    def run() -> float:
        start = clock()
        for _ in range(steps):
            of.loss(of.encoder(images), labels, generator=generator).backward()
            of.optimizer.step()
            of.optimizer.zero_grad()
        synchronise(device)
        return (clock() - start) / steps

    of.encoder.train()
    return run


def compare(prepared: Path, options: argparse.Namespace, loss: str, device: torch.device) -> dict[str, Any]:
    """Least milliseconds per step of the three contenders, and the two loops' ratios to the bare one."""
    sizes: dict[str, Any] = {"batch_size": 96, "images_per_class": 4, "steps_per_epoch": options.steps}
    settings = Training(epochs=1000, schedule="constant", **sizes)
    whole, loop, alone = (trainer(prepared, settings, loss, device) for _ in range(3))
    loop.data = Synthetic(training_images(prepared, settings), settings, seed=0, device=device)
    bare = bare_loop(alone, options.steps, device)
    contenders = {"bare": bare, "loop": lambda: seconds(loop, device), "whole": lambda: seconds(whole, device)}
    least = dict.fromkeys(contenders, float("inf"))
    for turn in range(options.rounds + 1):
        for name, run in contenders.items():
            found = run()
            least[name] = min(least[name], found) if turn else least[name]
    ratios = {f"{name} / bare": least[name] / least["bare"] for name in ("loop", "whole")}
    return {"loss": loss} | {f"{name}, ms": 1e3 * value for name, value in least.items()} | ratios


def main() -> None:
    """Measure, print and write the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--dataset", default="glyphs", help="an embedded dataset")
    arguments.add_argument("--losses", nargs="+", default=["proxy_anchor", "contrastive", "arcface"])
    arguments.add_argument("--steps", type=int, default=50, help="of a round")
    arguments.add_argument("--rounds", type=int, default=9)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    device, records = torch.device(options.device), []
    with tempfile.TemporaryDirectory() as folder, backend(deterministic=False):
        prepared = prepare_dataset(options.dataset, Path(folder) / options.dataset, progress=False)
        for loss in options.losses:
            records.append(compare(prepared, options, loss, device))
            print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else str(v) for k, v in records[-1].items()))
    keep({"hardware": hardware("torch", device=device), "dataset": options.dataset, "runs": records}, options.output)


if __name__ == "__main__":
    main()
