"""Search with a trained run: for each image the nearest images of a gallery, and how far the answer can be trusted.

An image's doubt is placed among the run's validation images: "less sure than 97 % of them" means that only 3 % had a
higher uncertainty. Above a chosen share the answer is withheld, which is what the sparsification curve of the run's
report promises to pay.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probmetric.embedder import Embedder, prepared_folder
from probmetric.errors import ProbMetricError
from probmetric.io import present
from probmetric.run_folder import RunFolder

if TYPE_CHECKING:
    from probmetric.data.decode import Mode
    from probmetric.planning.runs import Run

IMAGE_FILES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class SearchError(ProbMetricError, ValueError):
    """A search cannot be made; the message says what to change."""


@dataclass(frozen=True)
class Match:
    """A gallery image: its path in the dataset, its class and its cosine with the image asked about."""

    path: str
    class_name: str
    similarity: float


@dataclass(frozen=True)
class Answer:
    """What was found for one image; `doubt` is the share of validation images that were surer."""

    image: Path
    doubt: float
    withheld: bool
    matches: tuple[Match, ...]


class FileImages:
    """Image files as a store of pixels (H, W, C), for `load_fitted`."""

    shape = None

    def __init__(self, paths: Sequence[Path], mode: Mode) -> None:
        self.paths, self.mode = list(paths), mode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Pixels of one file."""
        from probmetric.data.decode import decode_file

        return decode_file(self.paths[index], mode=self.mode).pixels


def image_files(places: Sequence[Path]) -> list[Path]:
    """The files named, and those of folders named, by suffix, in order.

    Raises:
        SearchError: a place does not exist, or there is no image.
    """
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise SearchError(f"{place} does not exist; name image files or folders with images.")
        inside = sorted(path for path in place.rglob("*") if path.suffix.lower() in IMAGE_FILES)
        found += [place] if place.is_file() else inside
    if not found:
        raise SearchError(f"{', '.join(map(str, places))}: no image files ({', '.join(IMAGE_FILES)}).")
    return found


def search(run: Run, images: Sequence[Path], *, k: int = 5, withhold: float = 1.0) -> list[Answer]:
    """Nearest test images of the run's dataset for each of `images`.

    Args:
        run: a finished run.
        images: image files.
        k: matches per image.
        withhold: answers are withheld for images less sure than this share of the validation images.

    Raises:
        SearchError: `withhold` is no share, or the run is not embedded yet.
        FileError: a file of the run is damaged.
    """
    from probmetric.evaluation import nearest_neighbours
    from probmetric.training import claim_device
    from probmetric.training.processes import ALONE

    if not 0 <= withhold <= 1:
        raise SearchError(f"withhold is {withhold:g}; it is a share of the validation images, 0 to 1.")
    folder = RunFolder.named(run.name)
    if not all(present(folder.embeddings_file(split)) for split in ("test", "val")):
        raise SearchError(
            f"run {run.name} is not embedded yet, so there is nothing to search in; "
            f"`snakemake --cores all {folder.metrics_file}` finishes it."
        )
    gallery, known = folder.embeddings("test"), folder.embeddings("val")
    with claim_device("auto") as device:
        embedder = Embedder(run.name, run.encoder, run.settings, device, ALONE, which="selected")
        asked = embedder.directional(FileImages(images, "L" if embedder.shape[0] == 1 else "RGB"))
    found = nearest_neighbours(asked.mean.numpy(), gallery["mean"], k=min(k, len(gallery["mean"])))
    doubts = doubt_among(asked.uncertainty.numpy(), known["uncertainty"])
    rows = gallery["index"][found.indices]
    names = _names(prepared_folder(run.settings))
    return [
        Answer(image, float(doubt), bool(doubt > withhold), _matches(names, places, cosines))
        for image, doubt, places, cosines in zip(images, doubts, rows, found.similarity, strict=True)
    ]


def doubt_among(uncertainty: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Share (N,) of the `known` uncertainties (V,) that are below each of `uncertainty` (N,); ties count half."""
    ordered = np.sort(known)
    below = np.searchsorted(ordered, uncertainty, side="left") + np.searchsorted(ordered, uncertainty, side="right")
    return below / (2 * len(ordered))


def _names(folder: Path) -> tuple[list[str], list[str]]:
    from probmetric.data import load_columns

    columns = load_columns(folder, ["path", "class_name"])
    return list(columns["path"]), list(columns["class_name"])


def _matches(names: tuple[list[str], list[str]], rows: np.ndarray, cosines: np.ndarray) -> tuple[Match, ...]:
    paths, classes = names
    return tuple(Match(paths[row], classes[row], float(cosine)) for row, cosine in zip(rows, cosines, strict=True))


def as_text(answers: Sequence[Answer]) -> str:
    """A paragraph per image, for reading."""
    lines = []
    for answer in answers:
        verdict = "answer withheld" if answer.withheld else "nearest:"
        lines.append(f"{answer.image}   less sure than {100 * answer.doubt:.0f} % of the validation images; {verdict}")
        shown = () if answer.withheld else answer.matches
        lines += [f"  {match.similarity:6.3f}  {match.class_name}  ({match.path})" for match in shown]
    return "\n".join(lines)


def as_csv(answers: Sequence[Answer]) -> str:
    """One row per image and match, for programs; withheld answers are marked, not left out."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "doubt", "withheld", "rank", "similarity", "class_name", "path"])
    for answer in answers:
        for rank, match in enumerate(answer.matches, 1):
            place = [rank, f"{match.similarity:.6f}", match.class_name, match.path]
            writer.writerow([answer.image, f"{answer.doubt:.4f}", int(answer.withheld), *place])
    return text.getvalue()
