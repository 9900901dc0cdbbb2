"""Figures of a report: one file per kind of figure, each figure found by the name it is registered with.

A figure is a function `@register("name")` of a context, which returns a `Drawing`; `draw(name, context)` writes
figures/<name>.png, .pdf, .json (title, caption, text alternative) and .tex (to be included in a paper) into the
experiment's report folder. The same results give the same bytes.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.io import atomic_path, read_json, write_json, write_text
from probmetric.lazy import exported
from probmetric.registry import RegistrationError, Registry
from probmetric.reporting.words import escape_latex

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.figures._style import Drawing

REGISTRY = Registry(
    "figure",
    "probmetric.reporting.figures",
    context=("context",),
    hint="t-SNE and UMAP are embedding_map.",
)
register, list_figures = REGISTRY.register, REGISTRY.names
__getattr__ = exported(__name__)

STANDING = ("risk_coverage", "p_right")  # in every report, beside the figures that an experiment names
_LATEX = r"""\begin{{figure}}
\centering
\includegraphics[width=\linewidth]{{{name}}}
\caption{{{caption}}}
\label{{fig:{name}}}
\end{{figure}}
"""
_METADATA = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


def draw(name: str, context: ReportContext) -> list[Path]:
    """Draw figure `name` of an experiment.

    If the experiment's runs hold no data for it, the files say so in words.

    Returns:
        Paths of the files written: png, pdf, json, tex.
    """
    component, folder = REGISTRY.get(name), context.folder / "figures"
    paths = save(name, folder, lambda: component(context))
    caption = escape_latex(read_json(paths[-1], "draw the figure again")["caption"])
    write_text(folder / f"{name}.tex", _LATEX.format(name=name, caption=caption))
    return [*paths, folder / f"{name}.tex"]


def draw_all(context: ReportContext, processes: int = 1) -> list[Path]:
    """Draw the standing figures and those the experiment names, in `processes` processes if the system can fork."""
    (context.folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn: Callable[[str], list[Path]] = functools.partial(draw, context=context)
    names = list(dict.fromkeys((*STANDING, *context.figures)))
    processes = min(processes, len(names))
    if processes < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [path for name in names for path in drawn(name)]
    from probmetric.reporting.figures import _style

    fork = multiprocessing.get_context("fork")
    with _style.style(), ProcessPoolExecutor(processes, fork) as pool:  # the style imports what all figures need
        return [path for paths in pool.map(drawn, names) for path in paths]


def save(name: str, folder: Path, build: Callable[[], Drawing]) -> list[Path]:
    """Write the drawing of `build` in the reports' style as <folder>/<name>.png, .pdf and .json; return the paths."""
    from probmetric.reporting.figures import _style

    with _style.style():
        drawing = build()
        if not isinstance(drawing, _style.Drawing):
            raise RegistrationError(
                f"figure {name!r} returned {type(drawing).__name__}; expected Drawing(figure, title, caption, alt) of "
                "probmetric.reporting.figures."
            )
        _fix_places(drawing.figure)
        paths = [folder / f"{name}.{suffix}" for suffix in _METADATA]
        for path, metadata in zip(paths, _METADATA.values(), strict=True):
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                drawing.figure.savefig(file, format=path.suffix[1:], dpi=_style.DPI, metadata=metadata)
    words = {"title": drawing.title, "caption": drawing.caption, "alt": drawing.alt, "empty": drawing.empty}
    write_json(folder / f"{name}.json", words | {"photographs": "yes" if drawing.photographs else ""})
    return [*paths, folder / f"{name}.json"]


def _fix_places(figure: Figure) -> None:
    """Lay out a figure once for both files, with rounded places: the solver's last digits differ between calls."""
    import numpy as np
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(Bbox(np.round(axes.get_position(original=True).get_points(), 6)))
