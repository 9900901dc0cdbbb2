"""Queries and the test images nearest to them (paper 004, figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _images, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Queries and their nearest images"
_QUERIES, _NEAREST = 6, 5
_QUERY = "#333333"
_FRAMES = {_QUERY: "query", _images.RIGHT: "of the same class", _images.WRONG: "of another class"}


@register
def draw(context: ReportContext) -> _style.Drawing:
    """Random queries per dataset, each with its nearest images, for the method with the best first metric."""
    album = _images.Album(context.prepared)
    runs = {data: run for data, run in _data.best_runs(context, "mean", "label", "index").items() if album.has(data)}
    if not runs:
        return _style.nothing(TITLE, "no finished run has test embeddings whose prepared dataset is present.")
    bands, parts = {}, []
    for data, run in runs.items():
        lines = _lines(run, album)
        blocks = []
        for half in (lines[0::2], lines[1::2]):
            tiles = [tile for line in half for tile in line[0]]
            frames = [frame for line in half for frame in line[1]]
            blocks.append(("", _images.montage(tiles, 1 + _NEAREST, frames)))
        bands[data, run.key.variant] = blocks
        right = sum(frame == _images.RIGHT for line in lines for frame in line[1])
        where = f"{_data.group_title(data)}, {context.label(run.key.variant)}"
        parts.append(f"{where}: {right} of {_QUERIES * _NEAREST} images are of the query's class")
    caption = (
        f"Test images drawn at random (dark frame) and the {_NEAREST} test images nearest to each, nearest first: blue "
        "if of the same class, orange if not. Method with the best first metric, first seed; nobody chose the queries."
    )
    figure = _images.bands(context, bands, legend=_FRAMES)
    return _style.Drawing(figure, TITLE, caption, f"Rows of images. {'; '.join(parts)}.")


def _lines(run: RunFolder, album: _images.Album) -> list[tuple[list[np.ndarray], list[str]]]:
    """Tiles and frame colours of each query and its nearest images."""
    from probmetric.retrieval import search

    found = run.tensors("test", "mean", "label", "index")
    label = found["label"]
    queries = np.random.default_rng(0).permutation(len(label))[:_QUERIES]
    listed = search(found["mean"][queries], found["mean"], k=min(len(label), _NEAREST + 1)).rows
    lines = []
    for query, row in zip(queries, listed, strict=True):
        nearest = row[row != query][:_NEAREST]
        tiles = [album.tile(run.key.data, int(found["index"][place])) for place in (query, *nearest)]
        right = label[nearest] == label[query]
        lines.append((tiles, [_QUERY, *(_images.RIGHT if same else _images.WRONG for same in right)]))
    return lines
