"""Image input: training views per second and core, and preparation against reading and hashing the same bytes.

    python benchmarks/images.py [--images 400] [--rounds 5]

Peer: torchvision's ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize on the same files,
one thread, in the same run; the contenders take turns and the median round counts, in processor time. The images are
synthetic photographs of 500x375 pixels, about 80 KB each (smooth structure plus noise), the size of CUB's.
`uint8` leaves normalisation to the device, `normalised` does it on the CPU as well.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image

from probmetric.data import ImageStore, open_images
from probmetric.data.large import LargeImages

BATCH = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary), options.images, options.rounds)


def run(root: Path, count: int, rounds: int) -> None:
    """Measure everything on `count` files under `root` and print it."""
    size = write_photographs(root / "raw", count)
    print(f"{count} JPEG files of 500x375, mean {size / count / 1000:.0f} KB; one thread; median of {rounds} rounds")
    folder = root / "raw" / "CUB_200_2011" / "images"
    measured = {store: prepared(root, store) for store in ("files", "pixels")}
    stores = {store: open_images(root / store / "cub") for store in measured}
    contenders = {
        "torchvision ImageFolder, v1 transforms": torchvision_v1(folder),
        "originals in images.bin: uint8": ours(stores["files"], normalise=False),
        "originals in images.bin: normalised": ours(stores["files"], normalise=True),
        "256-pixel cache: uint8": ours(stores["pixels"], normalise=False),
        "256-pixel cache: normalised": ours(stores["pixels"], normalise=True),
    }
    rates = {name: count / statistics.median(seconds) for name, seconds in turns(contenders, rounds).items()}
    peer = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"  {name:<40} {rate:8.0f} images/s   {rate / peer:5.2f} x")
    start = time.perf_counter()
    for path in sorted(folder.rglob("*.jpg")):
        hashlib.sha256(path.read_bytes()).hexdigest()
    floor = time.perf_counter() - start
    print(f"reading and hashing the files: {size / floor / 1e6:.0f} MB/s")
    for store, (seconds, peak) in measured.items():
        print(
            f"  prepare, store={store:<7} {size / seconds / 1e6:6.0f} MB/s  {count / seconds:6.0f} images/s  "
            f"{seconds / floor:5.1f} x the floor  peak {peak:.0f} MB"
        )


def write_photographs(root: Path, count: int) -> int:
    """Files in CUB's layout; returns their total size in bytes."""
    rng, total = np.random.default_rng(0), 0
    for i in range(count):
        coarse = rng.random((12, 16, 3))
        smooth = np.asarray(
            Image.fromarray((255 * coarse).astype(np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        )
        noisy = np.asarray(smooth) + rng.normal(0, 16, (375, 500, 3))
        number = i % 200 + 1
        path = root / "CUB_200_2011" / "images" / f"{number:03d}.Bird" / f"Bird_{i:04d}_{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(path, quality=88)
        total += path.stat().st_size
    return total


def torchvision_v1(folder: Path) -> Callable[[], None]:
    """One epoch of the peer."""
    from torchvision import datasets, transforms

    steps = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    images = datasets.ImageFolder(str(folder), transforms.Compose(steps))

    def once() -> None:
        for start in range(0, len(images), BATCH):
            torch.stack([images[i][0] for i in range(start, min(start + BATCH, len(images)))])

    return once


def ours(store: ImageStore, *, normalise: bool) -> Callable[[], None]:
    """One epoch of ours."""
    transform, epochs = LargeImages(), iter(range(10**6))

    def once() -> None:
        epoch = next(epochs)
        for start in range(0, len(store), BATCH):
            rows = np.arange(start, min(start + BATCH, len(store)))
            views = transform.load(store, rows, seed=0, epoch=epoch)
            if normalise:
                transform(views, rows, seed=0, epoch=epoch)

    return once


def turns(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds per round; the contenders take turns, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, once in contenders.items():
            start = time.process_time()
            once()
            if turn:
                seconds[name].append(time.process_time() - start)
    return seconds


PREPARE = """
import sys, time
from pathlib import Path
from probmetric.data import prepare_dataset
start = time.perf_counter()
prepare_dataset("cub", sys.argv[2], raw=sys.argv[1], workers=1, progress=False, subset=True, store=sys.argv[3])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(time.perf_counter() - start, int(peak.split()[1]) / 1000)
"""


def prepared(root: Path, store: str) -> tuple[float, float]:
    """Prepare in a fresh process with one worker: (seconds, peak memory in MB)."""
    command = [sys.executable, "-c", PREPARE, str(root / "raw"), str(root / store / "cub"), store]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(peak)


if __name__ == "__main__":
    main()
