"""A map of the embedding space: t-SNE of test embeddings, with the images themselves (paper 004, figure 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _images, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Map of the embedding space"
_POINTS = 800
_CLASSES = 40
_SIZE = 0.025


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One map per dataset, for the method with the best first metric (its first seed)."""
    album = _images.Album(context.prepared)
    runs = {data: run for data, run in _data.best_runs(context, "mean", "label", "index").items() if album.has(data)}
    if not runs:
        return _style.nothing(TITLE, "no finished run has test embeddings whose prepared dataset is present.")
    columns = min(2, len(runs))
    figure, axes = _style.grid(-(-len(runs) // columns), columns, panel_height=3.6 if columns == 2 else 6.5)
    for axis, (data, run) in zip(_style.trim(axes, len(runs)), runs.items(), strict=True):
        rows = chosen_rows(run)
        found = run.tensors("test", "mean", "index")
        places = project(found["mean"][rows])
        _map(axis, places, [album.tile(data, int(row)) for row in found["index"][rows]], _SIZE * columns)
        axis.set_title(f"{_data.group_title(data)}: {context.label(run.key.variant)}")
    names = _data.listed([run.key.run for run in runs.values()])
    caption = (
        f"t-SNE of test embeddings (up to {_POINTS} images of up to {_CLASSES} classes), each point with its image "
        f"where there is room; {names}. Images that lie near one another are similar to the method; distances between "
        "groups mean little in such a map."
    )
    return _style.Drawing(figure, TITLE, caption, f"Images placed by similarity, of {names}.")


def chosen_rows(run: RunFolder) -> np.ndarray:
    """Rows of the test embeddings to show: of some classes, all or a sample."""
    label = run.tensors("test", "label")["label"]
    generator = np.random.default_rng(0)
    classes = generator.permutation(np.unique(label))[:_CLASSES]
    rows = np.flatnonzero(np.isin(label, classes))
    return np.sort(generator.permutation(rows)[:_POINTS])


def project(mean: np.ndarray) -> np.ndarray:
    """t-SNE of unit rows (N, M) to the unit square, (N, 2); the first two axes as they are if there are few rows."""
    places = mean[:, :2].astype(np.float64)
    if len(mean) > 10:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(mean) - 1) / 3)
        places = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(mean)
    low, high = places.min(axis=0), places.max(axis=0)
    return (places - low) / np.maximum(high - low, 1e-12)


def _map(axis: Axes, places: np.ndarray, tiles: list[np.ndarray], size: float) -> None:
    """Points with the images that do not cover one another, drawn into one picture."""
    axis.plot(*places.T, ".", markersize=2, color="#BBBBBB", zorder=1)
    taken: list[np.ndarray] = []
    for place, tile in zip(places, tiles, strict=True):
        if any(np.abs(place - other).max() < 1.05 * size for other in taken):
            continue
        taken.append(place)
        (x, y), half = place, size / 2
        axis.imshow(tile, extent=(x - half, x + half, y - half, y + half), zorder=2, interpolation="antialiased")
    axis.set(xlim=(-size, 1 + size), ylim=(-size, 1 + size), xticks=[], yticks=[], aspect="equal")
    axis.grid(visible=False)
