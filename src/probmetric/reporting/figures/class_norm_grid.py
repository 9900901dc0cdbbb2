"""Images of a few classes in the order of their embedding norm (paper 000, figure 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _images, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Classes in the order of their norms"
_CLASSES, _COLUMNS = 4, 12


@register
def draw(context: ReportContext) -> _style.Drawing:
    """Four classes per dataset, one row each, for the best method that has concentrations."""
    album = _images.Album(context.prepared)
    runs = _data.best_runs(context, "concentration", "index", "label")
    runs = {data: run for data, run in runs.items() if album.has(data)}
    if not runs:
        return _style.nothing(TITLE, "no finished run has concentrations and a prepared dataset to show images of.")
    bands, parts = {}, []
    for data, run in runs.items():
        found = run.tensors("test", "concentration", "index", "label")
        tiles: list[np.ndarray] = []
        for rows in chosen_rows(found["label"], found["concentration"]):
            tiles += [album.tile(data, int(row)) for row in found["index"][rows]]
        low, high = float(found["concentration"].min()), float(found["concentration"].max())
        name = f"concentrations from {low:.3g} to {high:.3g}"
        bands[data, run.key.variant] = [(name, _images.montage(tiles, _COLUMNS))]
        parts.append(f"{_data.group_title(data)}: {context.label(run.key.variant)}")
    caption = (
        f"Each row: {_COLUMNS} test images of one class, evenly spaced in the order of their concentration (norm), "
        f"lowest on the left; {_CLASSES} classes drawn at random. Method with the best first metric of those with "
        "concentrations, first seed. If the norm measures ambiguity, a row runs from unusual or damaged images to "
        "typical ones."
    )
    return _style.Drawing(_images.bands(context, bands), TITLE, caption, f"Rows of images. {'; '.join(parts)}.")


def chosen_rows(label: np.ndarray, concentration: np.ndarray) -> list[np.ndarray]:
    """Rows (_COLUMNS,) of `label` (N,) by ascending `concentration` (N,), for classes that have as many images."""
    names, counts = np.unique(label, return_counts=True)
    large = names[counts >= _COLUMNS]
    classes = large if len(large) else names[np.argsort(-counts, kind="stable")]
    picked = np.random.default_rng(0).permutation(classes)[:_CLASSES]
    rows = []
    for name in picked:
        own = np.flatnonzero(label == name)
        own = own[np.argsort(concentration[own], kind="stable")]
        rows.append(own[np.linspace(0, len(own) - 1, _COLUMNS).round().astype(int)])
    return rows
