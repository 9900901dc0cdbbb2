"""Memory and time of preparing and opening a dataset of any size, in the layout of Mapillary Street-Level Sequences.

    python benchmarks/streets.py [--images 50000] [--store files pixels] [--workers 2] [--folder DIR] [--output FILE]

The published set has about 1.6 million images: `--images 1600000` writes 7 GB of files below `--folder` and removes
them in the end. Cities, lists and keys are as published, positions lie along streets; the images are 32x24 pixels, all
different but for a few repeats, which preparation must find.

Memory is the resident size of a process, in MB: of the preparing process at its peak as the kernel counts it, and of it
with its workers, by looking every 0.2 s. Opening is what training does before its first batch, without the imports.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from probmetric.data.sources.msls import CITIES, ROLES

LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", dtype=np.uint8)
LARGE = {"melbourne": 5.0, "tokyo": 3.0, "london": 2.0, "boston": 2.0, "saopaulo": 2.0}
FRAMES, REPEATED = 32, 2000


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--store", nargs="+", default=["files"], choices=["files", "pixels"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files go; by default a temporary folder")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        root = Path(temporary)
        size = write_streets(root / "raw", options.images)
        rows = [measured(root, options.images, size, store, options.workers) for store in options.store]
        if options.output:
            found = {"cores": os.cpu_count(), "load_1_min": os.getloadavg()[0], "results": rows}
            options.output.write_text(json.dumps(found, indent=1) + "\n")


def write_streets(root: Path, count: int) -> int:
    """`count` images with their lists; returns the images' bytes."""
    rng = np.random.default_rng(0)
    cities = [(split, city) for split, names in CITIES.items() for city in names]
    share = np.array([LARGE.get(city, 1.0 if split != "test" else 0.3) for split, city in cities])
    ends = np.round(np.cumsum(share) / share.sum() * count).astype(int)
    number, total = 0, 0
    for (split, city), end in zip(cities, ends, strict=True):
        images = np.diff([number, number + (end - number) // 3, end])
        corner = rng.integers([200_000, 1_000_000], [800_000, 8_000_000])
        streets = np.column_stack([8000 * rng.random((end - number) // 400 + 4) for _ in range(3)])
        for role, there in zip(ROLES, images.tolist(), strict=True):
            folder = root / ("test" if split == "test" else "train_val") / city / role
            (folder / "images").mkdir(parents=True)
            keys = write_lists(folder, there, corner, streets, rng, far=0.03 * (role == "query"))
            for key in keys:
                data = jpeg(number if number % REPEATED else 0)
                with open(f"{folder}/images/{key}.jpg", "wb", buffering=0) as file:  # noqa: PTH123 - a million times
                    file.write(data)
                number, total = number + 1, total + len(data)
    return total


def write_lists(
    folder: Path, count: int, corner: np.ndarray, streets: np.ndarray, rng: np.random.Generator, far: float
) -> list[str]:
    """The three CSV files of `count` images along `streets` (S, 3): where they begin and their direction; the keys."""
    keys, sequences = names(rng, count), names(rng, count // FRAMES + 1)
    sequence, frame = np.divmod(np.arange(count), FRAMES)
    x, y, angle = streets[sequence % len(streets)].T
    along = 600 * rng.random(len(sequences))[sequence] + 9.0 * frame
    east = corner[0] + x + along * np.cos(angle) + rng.normal(0, 2, count) + 40_000.0 * (rng.random(count) < far)
    north = corner[1] + y + along * np.sin(angle) + rng.normal(0, 2, count)
    night, pano = rng.random(count) < 0.1, rng.random(count) < 0.02
    with (folder / "postprocessed.csv").open("w") as file:
        file.write(",key,easting,northing,unique_cluster,night,control_panel,view_direction\n")
        places = zip(keys, east.tolist(), north.tolist(), night.tolist(), strict=True)
        file.writelines(
            f"{i},{key},{e},{n},{i // 5},{dark},False,Forward\n" for i, (key, e, n, dark) in enumerate(places)
        )
    with (folder / "raw.csv").open("w") as file:
        file.write(",key,lon,lat,ca,captured_at,pano\n")
        seen = zip(keys, pano.tolist(), strict=True)
        file.writelines(
            f"{i},{key},10.4031234,63.4123456,90.5,2019-01-01,{wide}\n" for i, (key, wide) in enumerate(seen)
        )
    with (folder / "seq_info.csv").open("w") as file:
        file.write(",key,sequence_key,frame_number\n")
        file.writelines(f"{i},{key},{sequences[i // FRAMES]},{i % FRAMES}\n" for i, key in enumerate(keys))
    return keys


def names(rng: np.random.Generator, count: int) -> list[str]:
    """Keys of 22 characters."""
    return [key.decode() for key in LETTERS[rng.integers(0, 64, (count, 22))].view("S22").reshape(-1).tolist()]


def jpeg(number: int) -> bytes:
    """A small picture: the number's bits in dark and light squares."""
    bits = (number >> np.arange(24) & 1).reshape(4, 6, 1)
    squares = (60 + 120 * bits + number % 13 * np.arange(1, 4)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(squares).resize((32, 24), Image.Resampling.NEAREST).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


PREPARE = """
import sys, time
from pathlib import Path
from probmetric.data import prepare_dataset
if __name__ == "__main__":
    raw, folder, store, workers = sys.argv[1:]
    start = time.perf_counter()
    prepare_dataset("msls", folder, raw=raw, workers=int(workers), progress=False, store=store)
    seconds = time.perf_counter() - start
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(seconds, int(peak.split()[1]) / 1000)
"""
OPEN = """
import sys, time
from pathlib import Path
import pyarrow.parquet, scipy.spatial, torch, torchvision.io
from probmetric.config import Training
from probmetric.training.data import TrainingData, training_images
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
before, start = resident(), time.perf_counter()
settings = Training(sampler=sys.argv[2])
data = TrainingData(training_images(Path(sys.argv[1]), settings), settings, seed=0, device=torch.device("cpu"))
seconds = time.perf_counter() - start
print(seconds, resident() - before)
"""


def measured(root: Path, count: int, size: int, store: str, workers: int) -> dict[str, Any]:
    """Prepare in a fresh process, then open in another for either way to make batches of streets."""
    (root / "prepare.py").write_text(PREPARE)
    folder = root / store / "msls"
    command = [str(root / "prepare.py"), str(root / "raw"), str(folder), store, str(workers)]
    (seconds, peak), most = watched(command)
    row: dict[str, Any] = {
        "images": count, "mb": size / 1e6, "store": store, "workers": workers, "seconds": seconds, "peak_mb": peak,
        "peak_with_workers_mb": most, "manifest_mb": (folder / "manifest.parquet").stat().st_size / 1e6,
    }  # fmt: skip
    print(
        f"prepare {count:,} images, {size / 1e6:,.0f} MB, store={store}, {workers} worker(s): {seconds:.0f} s, "
        f"{count / seconds:,.0f} images/s, {size / 1e6 / seconds:.1f} MB/s; peak {peak:.0f} MB, with workers {most:.0f}"
    )
    for sampler in ("balanced", "pairs"):
        (seconds, grown), _ = watched(["-c", OPEN, str(folder), sampler])
        row[f"open_{sampler}"] = {"seconds": seconds, "mb": grown}
        print(f"  open for training, sampler {sampler}: {seconds:.1f} s, {grown:.0f} MB")
    return row


def watched(command: list[str]) -> tuple[tuple[float, float], float]:
    """Run Python: the two numbers it prints, and the most memory it and its children held together, in MB."""
    most = 0.0
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, together(process.pid))
            time.sleep(0.2)
        output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{command[0]} failed")
    first, second = map(float, output.split())
    return (first, second), most


def together(number: int) -> float:
    """Resident memory of a process and of its children, in MB."""
    try:
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        own = int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    except (OSError, IndexError):
        return 0.0
    return own + sum(together(int(child)) for child in children)


if __name__ == "__main__":
    main()
