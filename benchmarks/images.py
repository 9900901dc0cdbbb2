"""Image input: training views per second and core, and preparation against reading and hashing the same bytes.

    python benchmarks/images.py [--images 400] [--rounds 5] [--products 120053] [--output images.json]

Input. Peer: torchvision's ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize on the same
files, one thread, in the same run; the contenders take turns and the median round counts, in processor time. The images
are synthetic photographs of 500x375 pixels, about 80 KB each (smooth structure plus noise), the size of CUB's.
`uint8` leaves normalisation to the device, `normalised` does it on the CPU as well.

Preparation. SOP's layout with its number of files (about 20 KB each, written here), and the photographs above, by one
process; the floor reads and hashes (SHA-256) the same files. Both take turns, the fewest processor seconds count: wall
time is the neighbours' on a busy machine. Preparing also writes the bytes and hashes what it wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _machine import hardware

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image

from probmetric.data import ImageStore, open_images
from probmetric.data.views.photos import Photos

BATCH = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--products", type=int, default=120_053)
    parser.add_argument("--output", type=Path, help="write the results to this JSON file too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        results = {
            "hardware": hardware("torch", "torchvision", "pillow", "numpy"),
            "input": training_input(Path(temporary), options.images, options.rounds),
            "preparation": [
                preparation(Path(temporary), "cub", "pixels"),
                preparation(Path(temporary), "cub", "files"),
                *([] if not options.products else [products(Path(temporary), options.products)]),
            ],
        }
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


def training_input(root: Path, count: int, rounds: int) -> dict[str, Any]:
    """Images per second of every contender on `count` files."""
    size = write_photographs(root / "cub-raw", count)
    folder = root / "cub-raw" / "CUB_200_2011" / "images"
    for store in ("files", "pixels"):
        prepare(root, "cub", store)
    stores = {store: open_images(root / store / "cub") for store in ("files", "pixels")}
    contenders = {
        "torchvision ImageFolder, v1 transforms": torchvision_v1(folder),
        "originals in images.bin: uint8": ours(stores["files"], normalise=False),
        "originals in images.bin: normalised": ours(stores["files"], normalise=True),
        "256-pixel cache: uint8": ours(stores["pixels"], normalise=False),
        "256-pixel cache: normalised": ours(stores["pixels"], normalise=True),
    }
    rates = {name: count / statistics.median(seconds) for name, seconds in turns(contenders, rounds).items()}
    peer = next(iter(rates.values()))
    print(f"{count} JPEG files of 500x375, mean {size / count / 1000:.0f} KB; one thread; median of {rounds} rounds")
    for name, rate in rates.items():
        print(f"  {name:<40} {rate:8.0f} images/s   {rate / peer:5.2f} x")
    return {
        "images": count,
        "mean_kb": size / count / 1000,
        "rounds": rounds,
        "images_per_second": rates,
        "times_the_peer": {name: rate / peer for name, rate in rates.items()},
    }


def products(root: Path, count: int) -> dict[str, Any]:
    """Preparation of `count` files in SOP's layout, as they are."""
    write_products(root / "sop-raw", count)
    return preparation(root, "sop", "files")


def preparation(root: Path, name: str, store: str, repeats: int = 3) -> dict[str, Any]:
    """Preparing against reading and hashing, in turns; the fewest processor seconds of either."""
    floors, prepared = [], []
    for _ in range(repeats):
        floors.append(read_and_hash(root / f"{name}-raw"))
        prepared.append(prepare(root, name, store))
    files, size, floor = min(floors, key=lambda found: found[2])
    seconds, peak = min(prepared)
    row = {
        "dataset": name, "store": store, "files": files, "mb": size / 1e6, "floor_cpu_s": floor, "cpu_s": seconds,
        "floor_mb_per_s": size / 1e6 / floor, "mb_per_s": size / 1e6 / seconds, "times_the_floor": seconds / floor,
        "peak_mb": peak,
    }  # fmt: skip
    print(
        f"  prepare {name}, store={store:<7} {files:,} files, {row['mb']:,.0f} MB: {row['mb_per_s']:.0f} MB/s a core, "
        f"floor {row['floor_mb_per_s']:.0f} MB/s ({row['times_the_floor']:.1f} x), peak {peak:.0f} MB"
    )
    return row


def read_and_hash(folder: Path) -> tuple[int, int, float]:
    """The floor: (files, bytes, processor seconds)."""
    start, files, size = time.process_time(), 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith(".jpg"):
                with open(f"{place}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - the least that can be done
                    data = file.read()
                hashlib.sha256(data).hexdigest()
                files, size = files + 1, size + len(data)
    return files, size, time.process_time() - start


def write_products(root: Path, count: int) -> None:
    """Files and lists in SOP's layout: a dozen pictures, each copy told apart by a comment in its header."""
    rng, top = np.random.default_rng(0), root / "Stanford_Online_Products"
    pictures = []
    for _ in range(12):
        height, width = rng.integers(280, 500, 2).tolist()
        coarse = Image.fromarray((255 * rng.random((10, 12, 3))).astype(np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
        buffer = io.BytesIO()
        noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(buffer, "JPEG", quality=80)
        pictures.append(buffer.getvalue())
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for i in range(count):
        number, kind = i * 22_634 // count + 1, f"kind{i * 22_634 // count % 12}_final"
        path = top / kind / f"{number}_{i}.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        comment = b"\xff\xfe\x00\x0e" + f"{i:012d}".encode()
        path.write_bytes(pictures[i % 12][:2] + comment + pictures[i % 12][2:])
        lists["train" if number <= 11_318 else "test"].append(f"{i + 1} {number} 1 {kind}/{path.name}\n")
    for part, lines in lists.items():
        (top / f"Ebay_{part}.txt").write_text("image_id class_id super_class_id path\n" + "".join(lines))


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
    transform, epochs = Photos(), iter(range(10**6))

    def once() -> None:
        epoch = next(epochs)
        for start in range(0, len(store), BATCH):
            rows = np.arange(start, min(start + BATCH, len(store)))
            views = transform.load(store.load(rows), rows, seed=0, epoch=epoch)
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
name, raw, folder, store = sys.argv[1:]
prepare_dataset("digits", folder + "-warm", progress=False)
start = time.process_time()
prepare_dataset(name, folder, raw=raw, workers=1, progress=False, subset=True, store=store)
seconds = time.process_time() - start
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1000)
"""


def prepare(root: Path, name: str, store: str) -> tuple[float, float]:
    """Prepare in a fresh process with one worker: (processor seconds after its imports, peak memory in MB)."""
    arguments = [name, str(root / f"{name}-raw"), str(root / store / name), store]
    result = subprocess.run([sys.executable, "-c", PREPARE, *arguments], check=True, capture_output=True, text=True)
    seconds, peak = result.stdout.split()
    return float(seconds), float(peak)


if __name__ == "__main__":
    main()
