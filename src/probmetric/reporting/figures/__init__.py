"""Figures of a report: one file per kind of figure, each figure found by the name it is registered with.

A figure is a function `@register("name")` of a context, which returns a `Drawing`; `draw(name, context)` writes
figures/<name>.png, .pdf and .json (title, caption and text alternative) into the experiment's report folder. The same
results give the same bytes.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.io import atomic_path, write_json
from probmetric.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.figures._style import Drawing

REGISTRY = Registry("figure", "probmetric.reporting.figures", context=("context",), several=True)
register, list_figures = REGISTRY.register, REGISTRY.names

_METADATA = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


def draw(name: str, context: ReportContext) -> list[Path]:
    """Draw figure `name` of an experiment.

    Where the experiment's runs hold nothing to draw, the files say so in words.

    Returns:
        Paths of the files written: png, pdf, json.
    """
    component = REGISTRY.get(name)
    return save(name, context.folder / "figures", lambda: component(context))


def draw_all(context: ReportContext, processes: int = 1) -> list[Path]:
    """Draw every figure the experiment names, by so many `processes` where these can be forked."""
    (context.folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn: Callable[[str], list[Path]] = functools.partial(draw, context=context)
    processes = min(processes, len(context.figures))
    if processes < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [path for name in context.figures for path in drawn(name)]
    from probmetric.reporting.figures import _style

    fork = multiprocessing.get_context("fork")
    with _style.style(), ProcessPoolExecutor(processes, fork) as pool:  # the style imports what all figures need
        return [path for paths in pool.map(drawn, context.figures) for path in paths]


def save(name: str, folder: Path, build: Callable[[], Drawing]) -> list[Path]:
    """Write what `build` draws in the reports' style as <folder>/<name>.png, .pdf and .json; return these paths."""
    from probmetric.reporting.figures import _style

    with _style.style():
        drawing = build()
        _fix_places(drawing.figure)
        paths = [folder / f"{name}.{suffix}" for suffix in _METADATA]
        for path, metadata in zip(paths, _METADATA.values(), strict=True):
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                drawing.figure.savefig(file, format=path.suffix[1:], dpi=_style.DPI, metadata=metadata)
    words = {"title": drawing.title, "caption": drawing.caption, "alt": drawing.alt, "empty": drawing.empty}
    write_json(folder / f"{name}.json", words)
    return [*paths, folder / f"{name}.json"]


def _fix_places(figure: Figure) -> None:
    """Lay a figure out once for both files. The solver's last digits differ between calls; the places are rounded."""
    import numpy as np
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(Bbox(np.round(axes.get_position(original=True).get_points(), 6)))
