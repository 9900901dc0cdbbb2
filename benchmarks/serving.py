"""Own images from end to end: preparation, one query warm and cold, strangers, a report on vectors.

    python benchmarks/serving.py query                      seconds: a model of 224-pixel photographs on 600 of them
    python benchmarks/serving.py prepare --images 3000      minutes: JPEGs of 800 x 600, against decoding them alone
    python benchmarks/serving.py broken --images 40000      minutes: small JPEGs, three of which are none
    python benchmarks/serving.py vectors --rows 100000      minutes: 100,000 x 768 by `source: embeddings`, to a report

Seconds are processor time (user and system) of the process and those it waited for, so that other work on the machine
counts little; the load is recorded. A query is compared with the encoder's forward pass on the image once it is
loaded, the median of many, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _machine import hardware

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "benchmarks/results/serving.json"
CLASSES = 20


def main() -> None:
    """Measure one part, print it, and keep it beside the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    machine = hardware()
    with tempfile.TemporaryDirectory() as folder:
        found = PARTS[options.part](Path(folder), options) | machine
    print(json.dumps(found, indent=1))
    known = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.write_text(json.dumps(known | {options.part: found}, indent=1) + "\n")


def processor() -> float:
    """Processor seconds so far, of this process and of those it waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@contextlib.contextmanager
def timed(found: dict[str, Any], name: str) -> Iterator[None]:
    """Add the processor seconds of the block to `found`."""
    before = processor()
    yield
    found[name] = round(processor() - before, 3)


def photographs(folder: Path, count: int, size: tuple[int, int] = (500, 375)) -> Path:
    """Noise, shapes and a colour per class as JPEG files in class folders."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        name = number % CLASSES
        place = folder / f"class {name}"
        place.mkdir(parents=True, exist_ok=True)
        ground = rng.integers(60, 200, (size[1] // 6, size[0] // 6, 3), dtype=np.uint8)
        image = Image.fromarray(ground).resize(size)
        colour = tuple(int(value) for value in np.random.default_rng(name).integers(0, 255, 3))
        left, top = int(rng.integers(0, size[0] // 2)), int(rng.integers(0, size[1] // 2))
        image.paste(colour, (left, top, left + size[0] // 2, top + size[1] // 2))
        image.save(place / f"{number}.jpg", quality=90)
    return folder


def query(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One image asked of a gallery: warm, and by a new process."""
    import torch

    import probmetric
    from probmetric.uncertainty import Predictor

    torch.set_num_threads(1)
    photos = photographs(folder / "photos", options.images)
    model = exported(folder, photos)
    gallery = probmetric.Gallery.create(model, photos)
    gallery.save(folder / "gallery")
    paths = sorted(photos.rglob("*.jpg"))[:30]
    image = np.zeros((256, 256, 3), np.uint8)
    predictor: Predictor = model.predictor
    view = model.eye.view.normalise(model.eye.load(image))
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: predictor(view),
        "array": lambda: model.search(gallery, image, any_image=True),
        "file": lambda: model.search(gallery, paths[0]),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(31):
        for name, call in calls.items():
            before = time.process_time()
            call()
            times[name].append(time.process_time() - before)
    found: dict[str, Any] = {f"{name}_ms": round(1000 * statistics.median(values), 2) for name, values in times.items()}
    found["array_over_forward"] = round(found["array_ms"] / found["forward_ms"], 2)
    found["file_over_forward"] = round(found["file_ms"] / found["forward_ms"], 2)
    with timed(found, "import_torch_s"):
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    with timed(found, "cold_search_s"):
        command = [sys.executable, "-m", "probmetric.cli", "search", folder / "model", folder / "gallery", paths[0]]
        subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return found | {"images": options.images, "backbone": "timm resnet18", "threads": 1}


def exported(folder: Path, photos: Path) -> Any:
    """A model folder of an untrained ResNet-18 at 224 pixels, made by the steps of the workflow."""
    import probmetric
    from probmetric import cli
    from probmetric.io import write_yaml

    shop = {"source": "folder", "raw": str(photos), "split": "by_image"}
    backbone = {"name": "timm", "tag": "resnet18.a1_in1k"}
    params = {
        "data": {"prepared": "data/prepared", "on_request": {"shop": shop}},
        "datasets": ["digits"],
        "defaults": {"dim": 64},
        "methods": {"plain": {"loss": "arcface", "backbone": backbone, "training": {"epochs": 0}}},
    }
    write_yaml(folder / "params.yaml", params)
    with contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        for command in (["prepare", "shop"], *([step, "shop/plain/seed0"] for step in ("train", "embed", "evaluate"))):
            if cli.main(command):
                raise SystemExit(f"{command} failed")
        return probmetric.load(probmetric.load("shop/plain/seed0", device="cpu").save(folder / "model"), device="cpu")


def prepare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Preparation of JPEGs to 256 pixels against PIL alone: decoding them, and decoding and reducing them.

    What is stored is reduced, so reducing is no overhead of ours.
    """
    from PIL import Image

    from probmetric.data import prepare_dataset

    photos = photographs(folder / "photos", options.images, (800, 600))
    found: dict[str, Any] = {"images": options.images}
    with timed(found, "decode_s"):
        for path in photos.rglob("*.jpg"):
            Image.open(path).load()
    with timed(found, "decode_and_reduce_s"):
        for path in photos.rglob("*.jpg"):
            image = Image.open(path)
            image.load()
            image.resize((341, 256), Image.Resampling.BILINEAR)
    with timed(found, "prepare_s"):
        prepare_dataset("folder", folder / "shop", raw=photos, split="by_image")
    return found | {"ratio": round(found["prepare_s"] / found["decode_and_reduce_s"], 2)}


def broken(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Many small JPEGs, three of which are empty, cut short and text: refused by name at once, then left out."""
    from probmetric.data import doctor, prepare_dataset
    from probmetric.data.manifest import DataError
    from probmetric.io import read_json

    photos = photographs(folder / "photos", options.images, (160, 120))
    bad = sorted(photos.rglob("*.jpg"))[:: options.images // 3][:3]
    for path, data in zip(bad, (b"", bad[1].read_bytes()[:2000], b"no image"), strict=True):
        path.write_bytes(data)
    found: dict[str, Any] = {"images": options.images}
    with timed(found, "refused_s"):
        try:
            prepare_dataset("folder", folder / "shop", raw=photos, split="by_image")
        except DataError as error:
            found["named"] = sum(str(path) in str(error) for path in bad)
    with timed(found, "skipped_s"):
        prepare_dataset("folder", folder / "shop", raw=photos, split="by_image", on_error="skip")
    summary = read_json(folder / "shop/summary.json")
    return found | {
        "left_out": len(summary["left_out"]),
        "prepared": summary["images"],
        "doctor": doctor(folder / "shop"),
    }


def vectors(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A file of vectors to a full report: `probmetric init` in an empty folder, then Snakemake.

    `report_s` is the processor time of Snakemake and the commands it calls, `jobs_s` that of the steps, which are
    children of a server of their own (docs/guide/workflow.md).
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, 768), dtype=np.float32)
    labels = rng.integers(0, len(centres), options.rows)
    rows = centres[labels] + 1.5 * rng.standard_normal((options.rows, 768), dtype=np.float32)
    np.savez(folder / "vectors.npz", vector=rows, label=labels)
    found: dict[str, Any] = {"rows": options.rows}
    started = time.perf_counter()
    with timed(found, "init_s"):
        subprocess.run(["probmetric", "init", "vectors.npz", "--name", "frozen"], cwd=folder, check=True)
    with timed(found, "report_s"):
        command = ["snakemake", "--cores", "2", "--config", "experiments=frozen"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    found["wall_s"] = round(time.perf_counter() - started, 1)
    found["jobs_s"] = {path.relative_to(folder / "benchmarks/jobs").parts[0]: 0.0 for path in _recorded(folder)}
    for path in _recorded(folder):
        with path.open(newline="") as file:
            last = list(csv.DictReader(file, delimiter="\t"))[-1]
        found["jobs_s"][path.relative_to(folder / "benchmarks/jobs").parts[0]] += float(last["cpu_time"])
    found["jobs_s"] = {name: round(seconds, 2) for name, seconds in found["jobs_s"].items()}
    found["all_s"] = round(found["init_s"] + found["report_s"] + sum(found["jobs_s"].values()), 1)
    return found


def _recorded(folder: Path) -> list[Path]:
    """What Snakemake recorded of every job."""
    return sorted((folder / "benchmarks/jobs").rglob("*.tsv"))


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "query": query,
    "prepare": prepare,
    "broken": broken,
    "vectors": vectors,
}

if __name__ == "__main__":
    main()
