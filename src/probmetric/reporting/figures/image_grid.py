"""The test images a method is most and least sure of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.metrics import label
from probmetric.reporting.figures import _data, _images, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Most and least certain test images"
_IMAGES = 10


@register
def draw(context: ReportContext) -> _style.Drawing:
    """Two rows of images per dataset, for the method with the best first metric (its first seed)."""
    from matplotlib.figure import Figure

    album = _images.Album(context.prepared)
    chosen = {data: run for data, run in _data.best_runs(context, "uncertainty", "index").items() if album.has(data)}
    strips = {data: _strip(run, album) for data, run in chosen.items()}
    if not strips:
        return _style.nothing(TITLE, "no finished run has test embeddings whose prepared dataset is present.")
    figure = Figure(figsize=(_style.WIDTH, 1.85 * len(strips)), layout="constrained")
    parts = figure.subfigures(len(strips), 1, squeeze=False)[:, 0]
    for part, (data, (certain, uncertain)) in zip(parts, strips.items(), strict=True):
        axes = part.subplots(2, _IMAGES)
        _row(axes[0], certain, "most\ncertain")
        _row(axes[1], uncertain, "least\ncertain")
        title = f"{_data.group_title(data)}: {context.label(chosen[data].key.variant)}"
        part.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold")
    names = _data.listed([f"{chosen[data].key.run}" for data in strips])
    caption = (
        f"Test images in the order of their uncertainty (number below each image), lowest first and highest first, of "
        f"{names}: the method with the best mean {label(context.metrics[0])} on each dataset. "
        "Images that are hard for a person, too, should stand in the lower row."
    )
    alt = f"Rows of {_IMAGES} test images with the lowest and the highest uncertainty, from {names}."
    return _style.Drawing(figure, TITLE, caption, alt)


def _strip(run: RunFolder, album: _images.Album) -> tuple[list[Any], list[Any]]:
    """(image, uncertainty) pairs of the most and of the least certain images."""
    found = run.tensors("test", "uncertainty", "index")
    order = np.argsort(found["uncertainty"], kind="stable")
    certain, uncertain = (
        [(album.tile(run.key.data, int(found["index"][i])), float(found["uncertainty"][i])) for i in end]
        for end in (order[:_IMAGES], order[::-1][:_IMAGES])
    )
    return certain, uncertain


def _row(axes: list[Axes], images: list[Any], name: str) -> None:
    for axis, (image, uncertainty) in zip(axes, images, strict=False):
        axis.imshow(image)
        axis.set_xlabel(f"{uncertainty:.3g}", fontsize=6.5, labelpad=1.5)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
        axis.set_visible(bool(axis.images))
    axes[0].set_ylabel(name, fontsize=7)
