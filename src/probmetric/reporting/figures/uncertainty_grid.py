"""The images with the lowest and the highest uncertainty among test and out-of-distribution images, for every method.

Paper 003, figures 8 and 9.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _images, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Images with the lowest and the highest uncertainty"
_COLUMNS, _ROWS = 8, 2
_BANDS = 8
_COUNT = _COLUMNS * _ROWS
_FRAMES = {_images.RIGHT: "test image", _images.WRONG: "out-of-distribution image"}


@register
def draw(context: ReportContext) -> _style.Drawing:
    """Two blocks of framed images per dataset and method (its first seed)."""
    album = _images.Album(context.prepared)
    runs = _data.first_runs(context, "uncertainty", "index")
    runs = {place: run for place, run in runs.items() if album.has(place[0])}
    if not runs:
        return _style.nothing(TITLE, "no finished run has test embeddings whose prepared dataset is present.")
    shown = dict(list(runs.items())[:_BANDS])
    bands, parts = {}, []
    for (data, variant), run in shown.items():
        doubt, homes, rows = pooled(run, album)
        order = np.argsort(doubt, kind="stable")
        blocks = []
        for name, end in (("lowest", order[:_COUNT]), ("highest", order[-_COUNT:])):
            foreign = [homes[place] != data for place in end]
            tiles = [album.tile(homes[place], int(rows[place])) for place in end]
            frames = [_images.WRONG if strange else _images.RIGHT for strange in foreign]
            text = f"{name} uncertainty: {sum(foreign)} of {len(end)} out of distribution"
            blocks.append((text, _images.montage(tiles, _COLUMNS, frames)))
        bands[data, variant] = blocks
        parts.append(f"{_data.group_title(data)}, {context.label(variant)}: {', '.join(name for name, _ in blocks)}")
    rest = f" Shown: {len(shown)} of {len(runs)} combinations." if len(shown) < len(runs) else ""
    caption = (
        "Images with the lowest (left) and the highest uncertainty (right) among the test images and those of other "
        "datasets, ascending, first seed of each method. A trustworthy uncertainty puts orange frames on the right "
        f"only.{rest}"
    )
    figure = _images.bands(context, bands, legend=_FRAMES)
    return _style.Drawing(figure, TITLE, caption, f"Blocks of images. {'; '.join(parts)}.")


def pooled(run: RunFolder, album: _images.Album) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Uncertainty (N,), dataset and manifest row (N,) of the test images and of the OOD images that can be shown."""
    test = run.tensors("test", "uncertainty", "index")
    ood = run.tensors("ood", "uncertainty", "index", "source")
    doubt, rows = [test["uncertainty"]], [test["index"]]
    homes = [run.key.data] * len(test["index"])
    names = json.loads(run.metadata("ood").get("sources", "[]"))
    for number, name in enumerate(names):
        chosen = ood["source"] == number
        if album.has(name) and chosen.any():
            doubt.append(ood["uncertainty"][chosen])
            rows.append(ood["index"][chosen])
            homes += [name] * int(chosen.sum())
    return np.concatenate(doubt), homes, np.concatenate(rows)
