"""Images of prepared datasets as one picture: tiles side by side, each with an optional coloured frame."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.io import present

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probmetric.reporting.experiment import ReportContext

TILE = 72
_GAP = 4
_FRAME = 5
RIGHT, WRONG = "#0072B2", "#D55E00"


class Album:
    """Images of prepared datasets by their manifest row."""

    def __init__(self, prepared: Path) -> None:
        self.prepared = prepared
        self._open = functools.cache(self._store)

    def has(self, data: str) -> bool:
        """Whether dataset `data` is prepared."""
        return present(self.prepared / data / "manifest.parquet")

    def tile(self, data: str, index: int) -> np.ndarray:
        """The square middle of image `index` of dataset `data`, (TILE, TILE, 3) bytes; small ones keep hard pixels."""
        from PIL import Image, ImageOps

        pixels = np.asarray(self._open(data)[index])
        if pixels.ndim == 3 and pixels.shape[-1] == 1:
            pixels = pixels[..., 0]
        image = Image.fromarray(pixels).convert("RGB")
        small = max(image.size) < TILE
        filtering = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
        return np.asarray(ImageOps.fit(image, (TILE, TILE), filtering))

    def _store(self, data: str) -> Any:
        from probmetric.data import open_images

        return open_images(self.prepared / data)


def montage(tiles: Sequence[np.ndarray], columns: int, frames: Sequence[str | None] = ()) -> np.ndarray:
    """Tiles (T, T, 3) row by row, `columns` in a row, as one picture (H, W, 3); `frames` are colours or None."""
    from matplotlib.colors import to_rgb

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


def show(axis: Axes, picture: np.ndarray, name: str = "") -> None:
    """Draw a picture without axes, `name` above it."""
    axis.imshow(picture, interpolation="antialiased")
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.set_frame_on(False)
    if name:
        axis.set_title(name, fontsize=7.5, fontweight="normal", pad=3)


def frame_legend(figure: Figure, names: dict[str, str]) -> None:
    """Legend of frame colours: colour -> what it means."""
    from matplotlib.patches import Patch

    from probmetric.reporting.figures import _style

    handles = [Patch(facecolor="white", edgecolor=colour, linewidth=2) for colour in names]
    _style.legend(figure, handles, list(names.values()))


def bands(
    context: ReportContext,
    pairs: Mapping[tuple[str, str], Sequence[tuple[str, np.ndarray]]],  # (dataset, method) -> (name, picture) each
    *,
    legend: dict[str, str] | None = None,
) -> Figure:
    """One band per dataset and method: its title, and its pictures side by side."""
    from matplotlib.figure import Figure

    from probmetric.reporting.figures import _data, _style

    wide = max(len(pictures) for pictures in pairs.values())
    shapes = [max(picture.shape[0] / picture.shape[1] for _, picture in found) for found in pairs.values()]
    named = any(name for pictures in pairs.values() for name, _ in pictures)
    heights = [(0.5 if named else 0.34) + (_style.WIDTH - 0.2) / wide * shape for shape in shapes]
    below = 0.3 if legend else 0.0
    total = sum(heights) + below
    figure = Figure(figsize=(_style.WIDTH, total), layout="constrained")
    figure.get_layout_engine().set(rect=(0, below / total, 1, 1 - below / total), wspace=0.03)  # type: ignore[union-attr,call-arg]
    parts = figure.subfigures(len(pairs), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, ((data, variant), pictures) in zip(parts, pairs.items(), strict=True):
        for axis, (name, picture) in zip(part.subplots(1, wide, squeeze=False)[0], pictures, strict=False):
            show(axis, picture, name)
        title = f"{_data.group_title(data)}: {context.label(variant)}"
        part.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold")
    if legend:
        frame_legend(figure, legend)
    return figure
