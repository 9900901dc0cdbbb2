"""The test images of smallest and largest concentration, for every method that has one: the embedding's norm, mostly.

Paper 002, figures 1, 3 and 6 to 10; paper 000, figures 6 and 10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _images, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Images with the smallest and the largest norm"
_COLUMNS, _ROWS = 8, 2
_BANDS = 8


@register
def draw(context: ReportContext) -> _style.Drawing:
    """Two blocks of images per dataset and method (its first seed)."""
    album = _images.Album(context.prepared)
    runs = _data.first_runs(context, "concentration", "index")
    runs = {place: run for place, run in runs.items() if album.has(place[0])}
    if not runs:
        return _style.nothing(TITLE, "no finished run has concentrations and a prepared dataset to show images of.")
    shown = dict(list(runs.items())[:_BANDS])
    bands, parts = {}, []
    for (data, variant), run in shown.items():
        found = run.tensors("test", "concentration", "index")
        order = np.argsort(found["concentration"], kind="stable")
        blocks = []
        for name, end in (("smallest", order[: _ROWS * _COLUMNS]), ("largest", order[-_ROWS * _COLUMNS :])):
            tiles = [album.tile(data, int(row)) for row in found["index"][end]]
            low, high = found["concentration"][end[[0, -1]]]
            blocks.append((f"{name} concentrations: {low:.3g} to {high:.3g}", _images.montage(tiles, _COLUMNS)))
        bands[data, variant] = blocks
        middle = float(np.median(found["concentration"]))
        parts.append(f"{_data.group_title(data)}, {context.label(variant)}: median {middle:.3g}")
    rest = f" Shown: {len(shown)} of {len(runs)} combinations." if len(shown) < len(runs) else ""
    caption = (
        "Test images with the smallest (left) and the largest concentration (right), ascending, first seed of each "
        "method. The concentration is the norm of the embedding, or is estimated where a method draws samples. Where "
        f"it tells how sure the method is, images that are hard for a person stand on the left.{rest}"
    )
    alt = f"Blocks of {_ROWS * _COLUMNS} test images each. Concentrations: {'; '.join(parts)}."
    return _style.Drawing(_images.bands(context, bands), TITLE, caption, alt)
