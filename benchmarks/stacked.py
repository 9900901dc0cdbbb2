"""Seeds trained as one stacked model beside the same seeds one after the other: milliseconds per step of all of them.

    python benchmarks/stacked.py [--device cuda] [--seeds 1 4 16] [--steps 30] [--losses proxy_anchor vmf]

Both contenders run the real training loop on the demo's net (`digits`, batches of 96, 64 dimensions, Adam), in turns;
the least round counts. `stack / one` is the time of K stacked seeds over that of one seed alone: the target on a GPU is
2 at K = 16. A CPU is timed by the processor time it uses, an accelerator by the wall.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _machine import hardware
from tqdm import tqdm

from probmetric.config import Training
from probmetric.data import prepare_dataset
from probmetric.losses import create_loss
from probmetric.models import create_encoder
from probmetric.training.backend import backend
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.loop import Trainer
from probmetric.training.stack import train_epoch

ROUNDS = 3
DIM = 64


def trainer(prepared: Path, settings: Training, loss_name: str, seed: int, device: torch.device) -> Trainer:
    """The loop of one seed; it writes nothing."""
    torch.manual_seed(seed)
    data = TrainingData(training_images(prepared, settings), settings, seed=seed, device=device)
    encoder = create_encoder("compact", dim=DIM, in_channels=data.in_channels, image_size=data.image_size)
    encoder = encoder.to(device).to(memory_format=torch.channels_last)
    loss = create_loss(loss_name, num_classes=data.num_classes, dim=DIM).to(device)
    checkpoints = Checkpoints(Path(tempfile.gettempdir()) / "unused")
    quiet: dict[str, Any] = {"seed": seed, "device": device, "checkpoints": checkpoints, "identity": ""}
    return Trainer(settings, encoder, loss, data, progress_bar=False, checkpoint_steps=1 << 60, **quiet)


def seconds(group: list[Trainer], device: torch.device) -> float:
    """Of an epoch of `group`, per step."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for each in group:
        each.progress.step_in_epoch = 0
    start = clock()
    if failed := train_epoch(group, tqdm(disable=True)):
        raise RuntimeError(f"seed {failed[0].seed} failed")
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (clock() - start) / group[0].data.steps_per_epoch


def compare(
    prepared: Path, options: argparse.Namespace, loss: str, count: int, device: torch.device
) -> dict[str, object]:
    """Least seconds per step of `count` seeds, stacked and one after the other, and of one seed."""
    settings = Training(
        epochs=100, batch_size=96, images_per_class=4, steps_per_epoch=options.steps, schedule="constant"
    )
    stacked, alone = ([trainer(prepared, settings, loss, seed, device) for seed in range(count)] for _ in range(2))
    least = dict.fromkeys(("stacked", "one by one", "one"), float("inf"))
    for turn in range(ROUNDS + 1):
        each = [seconds([one], device) for one in alone]
        found = {"stacked": seconds(stacked, device), "one by one": sum(each), "one": min(each)}
        least = {name: min(least[name], found[name]) if turn else least[name] for name in least}
    ratios = {"stack / one": least["stacked"] / least["one"], "gain": least["one by one"] / least["stacked"]}
    return {"loss": loss, "seeds": count} | {f"{name}, ms": 1e3 * value for name, value in least.items()} | ratios


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    gpu = parser.parse_known_args()[0].device.startswith("cuda")
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 16] if gpu else [2, 4])
    parser.add_argument("--losses", nargs="+", default=["proxy_anchor", "contrastive", "vmf"])
    parser.add_argument("--steps", type=int, default=50 if gpu else 10, help="of a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file (benchmarks/results/stacked-<device>.json)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, records = torch.device(options.device), []
    with tempfile.TemporaryDirectory() as folder, backend(deterministic=False):
        prepared = prepare_dataset("digits", Path(folder) / "digits", progress=False)
        print(f"{'loss':16}{'seeds':>6}{'stacked ms':>12}{'one by one':>12}{'one':>8}{'stack / one':>13}{'gain':>7}")
        for loss in options.losses:
            for count in options.seeds:
                records.append(compare(prepared, options, loss, count, device))
                name, seeds, stacked, each, one, ratio, gain = records[-1].values()
                print(f"{name:16}{seeds:>6}{stacked:>12.2f}{each:>12.2f}{one:>8.2f}{ratio:>13.2f}{gain:>7.2f}")
    output = options.output or Path(__file__).parent / "results" / f"stacked-{device.type}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"hardware": hardware("torch", device=device), "runs": records}, indent=1) + "\n")
    print(f"written: {output}")


if __name__ == "__main__":
    main()
