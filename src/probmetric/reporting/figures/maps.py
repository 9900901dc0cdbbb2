"""Maps of embeddings: a map with the images themselves, and a sphere for embeddings of three dimensions."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from mpl_toolkits.mplot3d import Axes3D

from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.figures.montages import Album
from probmetric.reporting.words import group_title, listed
from probmetric.runs.folder import RunFolder

_POINTS, _CLASSES, _SIZE = 800, 40, 0.025
_EXACT = 300  # rows: below, exact t-SNE is quicker, and needs no threads that wait for one another
_SPHERE_POINTS, _SPHERE_COLUMNS = 2000, 3


@register("embedding_map")
def embedding_map(context: ReportContext) -> _style.Drawing:
    """Draw a t-SNE map per dataset, for the method with the best first metric, its first seed (paper 004, figure 5)."""
    album = Album(context.prepared)
    best = _data.best_runs(context, "mean", "label", "index")
    runs = {data: run for data, run in best.items() if album.has(run.key.data)}
    names = listed([run.key.run for run in runs.values()])
    words = _style.Words(
        "Map of the embedding space",
        f"t-SNE of test embeddings (up to {_POINTS} images of up to {_CLASSES} classes), each point with its image "
        f"where there is room; {names}. Images near one another are similar to the method. Distances between groups "
        "mean little in such a map.",
        "no finished run has test embeddings whose prepared dataset is present.",
        photographs=True,
    )
    if not runs:
        return words.nothing()
    columns = min(2, len(runs))
    figure, axes = _style.panels(len(runs), columns, panel_height=3.6 if columns == 2 else 6.5)
    for axis, (data, run) in zip(axes, runs.items(), strict=True):
        test = run.tensors("test", "mean", "index", "label")
        rows = _some_rows(test["label"])
        _map(axis, project(test["mean"][rows]), album.tiles(run.key.data, test["index"][rows]), _SIZE * columns)
        axis.set_title(f"{group_title(data)}: {context.label(run.key.variant)}")
    return words.drawing(figure, f"Images placed by similarity, of {names}.")


def _some_rows(label: np.ndarray) -> np.ndarray:
    """Return rows of `label` (N,) to show: of some classes, all or a sample."""
    generator = np.random.default_rng(0)
    classes = generator.permutation(np.unique(label))[:_CLASSES]
    rows = np.flatnonzero(np.isin(label, classes))
    return np.sort(generator.permutation(rows)[:_POINTS])


def project(mean: np.ndarray) -> np.ndarray:
    """Map unit rows (N, M) to the unit square (N, 2) by t-SNE; few rows keep their first two axes."""
    places = mean[:, :2].astype(np.float64)
    if len(mean) > 10:
        from sklearn.manifold import TSNE

        perplexity, method = min(30.0, (len(mean) - 1) / 3), "exact" if len(mean) <= _EXACT else "barnes_hut"
        places = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1, method=method).fit_transform(mean)
    low, high = places.min(axis=0), places.max(axis=0)
    return (places - low) / np.maximum(high - low, 1e-12)


def _map(axis: Axes, places: np.ndarray, tiles: list[np.ndarray], size: float) -> None:
    """Draw points, and images where they do not cover each other."""
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


@register("sphere")
def sphere(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset and method with three-dimensional embeddings, its first seed (paper 002, figure 4)."""
    words = _style.Words(
        "Embeddings in three dimensions",
        f"Test embeddings (up to {_SPHERE_POINTS:,}; first seed): direction times concentration, which for methods "
        "that take the norm as concentration is the embedding before normalisation; on the unit sphere for methods "
        "without one. One colour per class, its number beyond the class mean; circles at the median length. Losses on "
        "the sphere tell classes apart by direction alone; along a ray only the norm varies.",
        "no finished run has three-dimensional embeddings; set `dim: 3`.",
    )
    runs = _data.first_runs(context, "mean", "label")
    runs = {place: run for place, run in runs.items() if run.tensors("test", "mean")["mean"].shape[1] == 3}
    if not runs:
        return words.nothing()
    figure, axes = _style.panels(len(runs), _SPHERE_COLUMNS, panel_height=2.6, subplot_kw={"projection": "3d"})
    parts = []
    for axis, ((data, variant), run) in zip(axes, runs.items(), strict=True):
        points, labels = _raw_embeddings(run)
        _scatter(axis, points, labels)  # type: ignore[arg-type]
        axis.set_title(f"{group_title(data)}\n{context.label(variant)}", fontsize=7.5)
        length = np.linalg.norm(points, axis=1)
        where = f"{group_title(data)}, {context.label(variant)}"
        parts.append(f"{where}: lengths {length.min():.3g} to {length.max():.3g}")
    return words.drawing(figure, f"Scatter plots in three dimensions. {'; '.join(parts)}.")


def _raw_embeddings(run: RunFolder) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings before normalisation (N, 3) and labels (N,)."""
    test = run.tensors("test", "mean", "label", "concentration")
    keep = np.sort(np.random.default_rng(0).permutation(len(test["label"]))[:_SPHERE_POINTS])
    points = test["mean"][keep].astype(np.float64)
    if "concentration" in test:
        points *= test["concentration"][keep, None]
    return points, test["label"][keep]


def _scatter(axis: Axes3D, points: np.ndarray, labels: np.ndarray) -> None:
    names = np.unique(labels)
    colours = mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(names)))
    reach = np.quantile(np.abs(points), 0.998) or 1.0
    for name, colour in zip(names, colours, strict=True):
        members = points[labels == name]
        axis.scatter(*members.T, s=6, color=colour, alpha=0.75, linewidths=0, rasterized=True)
        if len(names) <= 20:
            direction = members.mean(axis=0)
            place = 1.12 * direction * np.linalg.norm(members, axis=1).mean() / (np.linalg.norm(direction) or 1.0)
            axis.text(*place, str(name), fontsize=7.5, fontweight="bold", ha="center", va="center")
    _great_circles(axis, float(np.median(np.linalg.norm(points, axis=1))))
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    axis.set_box_aspect((1, 1, 1), zoom=1.5)
    axis.set_axis_off()


def _great_circles(axis: Axes3D, radius: float) -> None:
    """Draw three circles on the sphere of the median norm."""
    turn = np.linspace(0, 2 * np.pi, 121)
    circle = radius * np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)])
    for shift in range(3):
        axis.plot(*np.roll(circle, shift, axis=0), color="#BBBBBB", linewidth=0.6, zorder=0)
