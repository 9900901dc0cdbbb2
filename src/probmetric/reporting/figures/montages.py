"""Pictures made of test images: most and least certain, by norm, by class, queries with their nearest images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image, ImageOps

from probmetric.data import open_images
from probmetric.data.manifest import MANIFEST, read_summary
from probmetric.io import present
from probmetric.metrics import label
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.words import group_title, listed
from probmetric.runs.folder import Embeddings, RunFolder

TILE = 72
_GAP, _FRAME = 4, 5
RIGHT, WRONG, QUERY = _style.BLUE, _style.ORANGE, "#333333"
CERTAIN = 10  # images in a row of the most or least certain ones
_COLUMNS, _TILES, _MOST_BANDS = 8, 16, 8
CLASSES, IN_CLASS = 4, 12
_QUERIES, _NEAREST = 6, 5
_NO_IMAGES = "no finished run has test embeddings whose prepared dataset is present."
_NO_CONCENTRATIONS = "no finished run has concentrations and a prepared dataset to show images of."
Picture = tuple[str, np.ndarray]  # text above it, (H, W, 3) bytes
Bands = dict[tuple[str, str], list[Picture]]  # (dataset, method) -> pictures side by side
Runs = dict[tuple[str, str], RunFolder]
Shown = tuple[list[Picture], str]  # pictures side by side, and their words in the text alternative


class Album:
    """Images of prepared datasets by their manifest row."""

    def __init__(self, prepared: Path) -> None:
        self.prepared = prepared
        self._open = functools.cache(lambda data: open_images(prepared / data))

    def has(self, data: str) -> bool:
        """Return whether dataset `data` is prepared and consists of images."""
        folder = self.prepared / data
        return present(folder / MANIFEST) and "dimensions" not in read_summary(folder)

    def tile(self, data: str, index: int) -> np.ndarray:
        """Return the square middle of an image, (TILE, TILE, 3) bytes; small images keep hard pixels."""
        pixels = np.asarray(self._open(data)[index])
        if pixels.ndim == 3 and pixels.shape[-1] == 1:
            pixels = pixels[..., 0]
        image = Image.fromarray(pixels).convert("RGB")
        small = max(image.size) < TILE
        filtering = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
        return np.asarray(ImageOps.fit(image, (TILE, TILE), filtering))

    def tiles(self, data: str, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Return the tiles of several images."""
        return [self.tile(data, int(index)) for index in indices]


@register("image_grid")
def certain_and_uncertain(context: ReportContext) -> _style.Drawing:
    """Draw two rows of images per dataset, for the method with the best first metric (its first seed)."""
    album = Album(context.prepared)
    runs = _best(context, album, "uncertainty", "index")
    words = _style.Words(
        "Most and least certain test images",
        "Test images in the order of their uncertainty: the lowest above, the highest below, ascending, of "
        f"{listed([run.key.run for run in runs.values()])}: the method with the best mean {label(context.metrics[0])} "
        "on each dataset. The lower row should show the images that are hard for a person too.",
        _NO_IMAGES,
        f"Rows of {CERTAIN} test images with the lowest and the highest uncertainty. ",
        photographs=True,
    )

    def show(run: RunFolder) -> Shown:
        tiles, doubt = certain_ends(run, album)
        certain, uncertain = np.split(doubt, 2)
        title = f"{certain[0]:.3g} to {certain[-1]:.3g} above, {uncertain[0]:.3g} to {uncertain[-1]:.3g} below"
        return [(title, montage(tiles, len(certain)))], title

    return _drawing(context, words, runs, show)


def certain_ends(run: RunFolder, album: Album) -> tuple[list[np.ndarray], np.ndarray]:
    """Return tiles (2 * CERTAIN) of the most, then of the least certain test images, and their uncertainty, ascending.

    If there are fewer images than CERTAIN, both rows show all.
    """
    test = run.tensors("test", "uncertainty", "index")
    order = np.argsort(test["uncertainty"], kind="stable")
    ends = np.concatenate([order[:CERTAIN], order[-CERTAIN:]])
    return album.tiles(run.key.data, test["index"][ends]), test["uncertainty"][ends]


@register("norm_grid")
def norms(context: ReportContext) -> _style.Drawing:
    """Draw two blocks of images per dataset and method (its first seed), by concentration: mostly the embedding's norm.

    Paper 002, figures 1, 3 and 6 to 10; paper 000, figures 6 and 10.
    """
    album = Album(context.prepared)
    runs, cut = _first_bands(context, album, "concentration", "index")
    words = _style.Words(
        "Images with the smallest and the largest norm",
        "Test images with the smallest (left) and the largest concentration (right), ascending, first seed of each "
        "method. The concentration is the norm of the embedding, or is estimated where a method draws samples. Where "
        f"it tells how sure the method is, images that are hard for a person stand on the left.{cut}",
        _NO_CONCENTRATIONS,
        f"Blocks of {_TILES} test images each. Concentrations: ",
        photographs=True,
    )

    def show(run: RunFolder) -> Shown:
        test = run.tensors("test", "concentration", "index")
        order = np.argsort(test["concentration"], kind="stable")
        pictures: list[Picture] = []
        for name, end in (("smallest", order[:_TILES]), ("largest", order[-_TILES:])):
            low, high = test["concentration"][end[[0, -1]]]
            tiles = album.tiles(run.key.data, test["index"][end])
            pictures.append((f"{name} concentrations: {low:.3g} to {high:.3g}", montage(tiles, _COLUMNS)))
        return pictures, f"median {np.median(test['concentration']):.3g}"

    return _drawing(context, words, runs, show)


@register("uncertainty_grid")
def strangers(context: ReportContext) -> _style.Drawing:
    """Draw two blocks of framed images per dataset and method, its first seed (paper 003, figures 8 and 9)."""
    album = Album(context.prepared)
    runs, cut = _first_bands(context, album, "uncertainty", "index")
    words = _style.Words(
        "Images with the lowest and the highest uncertainty",
        "Images with the lowest (left) and the highest uncertainty (right) among the test images and those of other "
        "datasets, ascending, first seed of each method. A trustworthy uncertainty puts orange frames on the right "
        f"only.{cut}",
        _NO_IMAGES,
        "Blocks of images. ",
        photographs=True,
    )

    def show(run: RunFolder) -> Shown:
        doubt, homes, rows = pooled(run, album)
        order = np.argsort(doubt, kind="stable")
        pictures: list[Picture] = []
        for name, end in (("lowest", order[:_TILES]), ("highest", order[-_TILES:])):
            tiles = [album.tile(homes[place], int(rows[place])) for place in end]
            frames = [RIGHT if homes[place] == run.key.data else WRONG for place in end]
            text = f"{name} uncertainty: {frames.count(WRONG)} of {len(end)} out of distribution"
            pictures.append((text, montage(tiles, _COLUMNS, frames)))
        return pictures, ", ".join(name for name, _ in pictures)

    return _drawing(context, words, runs, show, {RIGHT: "test image", WRONG: "out-of-distribution image"})


def pooled(run: RunFolder, album: Album) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Return uncertainty (N,), dataset and manifest row (N,) of the test and OOD images that can be shown."""
    test = run.tensors("test", "uncertainty", "index")
    ood = run.tensors("ood", "uncertainty", "index", "source")
    doubt, rows = [test["uncertainty"]], [test["index"]]
    homes = [run.key.data] * len(test["index"])
    about = Embeddings({}, run.metadata("ood"), run.embeddings_file("ood"))
    for number, name in enumerate(about.said("sources", list[str], [])):
        chosen = ood["source"] == number
        if album.has(name) and chosen.any():
            doubt.append(ood["uncertainty"][chosen])
            rows.append(ood["index"][chosen])
            homes += [name] * int(chosen.sum())
    return np.concatenate(doubt), homes, np.concatenate(rows)


@register("class_norm_grid")
def classes(context: ReportContext) -> _style.Drawing:
    """Draw four classes per dataset, one row each, for the best method with concentrations (paper 000, figure 11)."""
    words = _style.Words(
        "Classes in the order of their norms",
        f"Each row: {IN_CLASS} test images of one class, evenly spaced in the order of their concentration (norm), "
        f"lowest on the left; {CLASSES} classes drawn at random. Method with the best first metric of those with "
        "concentrations, first seed. If the norm measures ambiguity, a row runs from unusual or damaged images to "
        "typical ones.",
        _NO_CONCENTRATIONS,
        "Rows of images. ",
        photographs=True,
    )
    album = Album(context.prepared)

    def show(run: RunFolder) -> Shown:
        test = run.tensors("test", "concentration", "index", "label")
        rows = np.concatenate(rows_of_classes(test["label"], test["concentration"]))
        title = f"concentrations from {test['concentration'].min():.3g} to {test['concentration'].max():.3g}"
        return [(title, montage(album.tiles(run.key.data, test["index"][rows]), IN_CLASS))], title

    return _drawing(context, words, _best(context, album, "concentration", "index", "label"), show)


def rows_of_classes(label: np.ndarray, concentration: np.ndarray) -> list[np.ndarray]:
    """Return rows (IN_CLASS,) of `label` (N,) by ascending `concentration` (N,), for classes with as many images."""
    names, counts = np.unique(label, return_counts=True)
    large = names[counts >= IN_CLASS]
    candidates = large if len(large) else names[np.argsort(-counts, kind="stable")]
    picked = np.random.default_rng(0).permutation(candidates)[:CLASSES]
    rows = []
    for name in picked:
        members = np.flatnonzero(label == name)
        members = members[np.argsort(concentration[members], kind="stable")]
        rows.append(members[np.linspace(0, len(members) - 1, IN_CLASS).round().astype(int)])
    return rows


@register("retrieval_examples")
def queries(context: ReportContext) -> _style.Drawing:
    """Draw random queries per dataset with their nearest images, for the best method (paper 004, figure 4)."""
    words = _style.Words(
        "Queries and their nearest images",
        f"Test images drawn at random, each followed by the {_NEAREST} test images nearest to it, nearest first: blue "
        "if of the same class, orange if not; where the data have queries and a gallery, a query and images of the "
        "gallery. Method with the best first metric, first seed; nobody chose the queries.",
        _NO_IMAGES,
        "Rows of images. ",
        photographs=True,
    )
    album = Album(context.prepared)

    def show(run: RunFolder) -> Shown:
        lines = _query_lines(context, run, album)
        pictures: list[Picture] = []
        for half in (lines[0::2], lines[1::2]):
            tiles = [tile for line in half for tile in line[0]]
            colours = [colour for line in half for colour in line[1]]
            pictures.append(("", montage(tiles, 1 + _NEAREST, colours)))
        right = sum(colour == RIGHT for line in lines for colour in line[1])
        return pictures, f"{right} of {_QUERIES * _NEAREST} images are of the query's class"

    frames = {QUERY: "query", RIGHT: "of the same class", WRONG: "of another class"}
    return _drawing(context, words, _best(context, album, "mean", "label", "index"), show, frames)


def _query_lines(context: ReportContext, run: RunFolder, album: Album) -> list[tuple[list[np.ndarray], list[str]]]:
    """Return tiles and frame colours of each query and its nearest images."""
    test = run.tensors("test", "mean", "label", "index")
    labels, protocol = test["label"], _data.sides(context, run.key.data, test)
    chosen = np.random.default_rng(0).permutation(protocol.queries)[:_QUERIES]
    lines = []
    for query, others in zip(chosen, _data.nearest(test["mean"], protocol, chosen, _NEAREST)[0], strict=True):
        same = labels[others] == labels[query]
        tiles = album.tiles(run.key.data, test["index"][[query, *others]])
        lines.append((tiles, [QUERY, *(RIGHT if each else WRONG for each in same)]))
    return lines


def _best(context: ReportContext, album: Album, *names: str) -> Runs:
    """Return the best run of every dataset whose images can be shown."""
    runs = _data.best_runs(context, *names)
    return {(data, run.key.variant): run for data, run in runs.items() if album.has(run.key.data)}


def _first_bands(context: ReportContext, album: Album, *names: str) -> tuple[Runs, str]:
    """Return the first runs whose images can be shown, as many as fit, and a sentence if others are left out."""
    runs = {place: run for place, run in _data.first_runs(context, *names).items() if album.has(run.key.data)}
    shown = dict(list(runs.items())[:_MOST_BANDS])
    return shown, f" Shown: {len(shown)} of {len(runs)} combinations." if len(shown) < len(runs) else ""


def montage(tiles: Sequence[np.ndarray], columns: int, frames: Sequence[str | None] = ()) -> np.ndarray:
    """Set tiles (T, T, 3) row by row, `columns` in a row, as one picture (H, W, 3); `frames` are colours or None."""
    rows = -(-len(tiles) // columns)
    step = TILE + 2 * _FRAME + _GAP
    picture = np.full((rows * step - _GAP, columns * step - _GAP, 3), 255, dtype=np.uint8)
    for place, tile in enumerate(tiles):
        top, left = place // columns * step, place % columns * step
        if place < len(frames) and (colour := frames[place]):
            side = TILE + 2 * _FRAME
            picture[top : top + side, left : left + side] = [round(255 * part) for part in to_rgb(colour)]
        picture[top + _FRAME : top + _FRAME + TILE, left + _FRAME : left + _FRAME + TILE] = tile
    return picture


def _drawing(
    context: ReportContext,
    words: _style.Words,
    runs: Runs,
    show: Callable[[RunFolder], Shown],
    frames: Mapping[str, str] | None = None,
) -> _style.Drawing:
    """Draw the pictures that `show` returns for every run; `frames` are colour -> meaning."""
    if not runs:
        return words.nothing()
    bands, clauses = Bands(), []
    for (data, variant), run in runs.items():
        bands[data, variant], clause = show(run)
        clauses.append(f"{group_title(data)}, {context.label(variant)}: {clause}")
    return words.drawing(_bands(context, bands, frames or {}), f"{words.alt}{'; '.join(clauses)}.")


def _bands(context: ReportContext, bands: Bands, frames: Mapping[str, str]) -> Figure:
    """Draw one band per dataset and method: title, pictures side by side; a legend of `frames`, colour -> meaning."""
    wide = max(len(pictures) for pictures in bands.values())
    shapes = [max(picture.shape[0] / picture.shape[1] for _, picture in pictures) for pictures in bands.values()]
    named = any(name for pictures in bands.values() for name, _ in pictures)
    heights = [(0.5 if named else 0.34) + (_style.WIDTH - 0.2) / wide * shape for shape in shapes]
    below = 0.3 if frames else 0.0
    total = sum(heights) + below
    figure = Figure(figsize=(_style.WIDTH, total), layout="constrained")
    figure.get_layout_engine().set(rect=(0, below / total, 1, 1 - below / total), wspace=0.03)  # type: ignore[union-attr,call-arg]
    parts = figure.subfigures(len(bands), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, ((data, variant), pictures) in zip(parts, bands.items(), strict=True):
        for axis, (name, picture) in zip(part.subplots(1, wide, squeeze=False)[0], pictures, strict=False):
            axis.imshow(picture, interpolation="antialiased")
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            axis.set_frame_on(False)
            if name:
                axis.set_title(name, fontsize=7.5, fontweight="normal", pad=3)
        title = f"{group_title(data)}: {context.label(variant)}"
        part.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold")
    if frames:
        patches = [Patch(facecolor="white", edgecolor=colour, linewidth=2) for colour in frames]
        _style.legend(figure, patches, list(frames.values()))
    return figure
