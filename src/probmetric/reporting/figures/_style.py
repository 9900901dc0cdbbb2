"""How figures look: report width, legible type, one colour, dash and marker per method, embedded fonts."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probmetric.reporting.answers import is_floor
from probmetric.reporting.experiment import ReportContext

WIDTH = 7.2
DPI = 170
BLUE, ORANGE = "#0072B2", "#D55E00"
# The first seven are Okabe and Ito's without yellow and black: distinct for colour-blind readers and in print.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A3D9A", "#8C2D04")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
_GREYS = ("#555555", "#999999", "#777777", "#BBBBBB", "#333333")


@dataclass(frozen=True)
class Drawing:
    """A finished figure with its words.

    `empty` says why there was no data to draw; `photographs`: the figure shows photographs, whose colours must stay.
    """

    figure: Figure
    title: str
    caption: str
    alt: str
    empty: str = ""
    photographs: bool = False


@dataclass(frozen=True)
class Words:
    """The words about a figure.

    `empty` says why there is no figure if runs hold no data for it; `alt` begins the text alternative.
    """

    title: str
    caption: str
    empty: str
    alt: str = ""
    photographs: bool = False

    def drawing(self, figure: Figure, alt: str) -> Drawing:
        """Return the finished `figure` with these words and its text alternative."""
        return Drawing(figure, self.title, self.caption, alt, photographs=self.photographs)

    def nothing(self) -> Drawing:
        """Return a panel that states in words why there is no figure."""
        figure = Figure(figsize=(WIDTH, 0.9))
        figure.text(0.5, 0.5, f"{self.title}: {self.empty}", ha="center", va="center", color="#555555", wrap=True)
        alt = f"{self.title}: nothing to draw, {self.empty}"
        return Drawing(figure, self.title, self.empty, alt, empty=self.empty)


@dataclass(frozen=True)
class Look:
    """How one method is drawn in every figure."""

    colour: str
    dash: Any


def style() -> AbstractContextManager[None]:
    """Set Matplotlib's seaborn theme at the report's type size for a block."""
    return mpl.style.context(["seaborn-v0_8-whitegrid", "seaborn-v0_8-paper", _RC])


_RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.7,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markeredgewidth": 1.0,
    "lines.markersize": 4.8,
    "patch.edgecolor": "white",
    "patch.force_edgecolor": True,
    "patch.linewidth": 0.8,
    "figure.facecolor": "white",
    "savefig.bbox": None,
    "pdf.fonttype": 42,
    "svg.hashsalt": "probmetric",
}


def looks(variants: Iterable[str]) -> dict[str, Look]:
    """Return method -> look. A name keeps its colour in all reports, unless two names of one report collide.

    If there are more methods than colours, colours repeat with another dash.
    """
    chosen: dict[str, Look] = {}
    free: list[int] = []
    rounds = -1
    greys = iter(_GREYS * 9)
    for variant in sorted(set(variants)):
        if is_floor(variant):
            chosen[variant] = Look(next(greys), _DASHES[2])
            continue
        if not free:
            free, rounds = list(range(len(_PALETTE))), rounds + 1
        wanted = int.from_bytes(hashlib.sha256(variant.encode()).digest()[:4], "big") % len(_PALETTE)
        index = min(free, key=lambda place, wanted=wanted: (place - wanted) % len(_PALETTE))  # type: ignore[misc]
        free.remove(index)
        chosen[variant] = Look(_PALETTE[index], _DASHES[rounds % len(_DASHES)])
    return chosen


def grid(
    rows: int, columns: int, *, panel_height: float = 2.1, named: Sequence[str] = (), **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Make a figure of report width with `rows` x `columns` panels and room for a legend of `named` below."""
    below = 0.12 + 0.19 * math.ceil(len(named) / legend_columns(named)) if named else 0.02
    height = rows * panel_height + below
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))  # type: ignore[union-attr,call-arg]
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def legend_columns(labels: Sequence[str]) -> int:
    """Return the number of entries in a legend's line: three, or fewer if the labels are long."""
    widest = 0.6 + 0.068 * max(map(len, labels))  # inches: the line's sample, then letters of the legend's size
    return max(1, min(3, len(labels), int(WIDTH / widest)))


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Draw one legend below all panels."""
    if handles:
        figure.legend(
            handles, labels, loc="lower center", ncols=legend_columns(labels), handlelength=2.6, columnspacing=1.6
        )


def method_legend(figure: Figure, context: ReportContext, variants: Sequence[str], looks: Mapping[str, Look]) -> None:
    """Draw a legend of lines, one per method, in the experiment's order."""
    handles = [Line2D([], [], color=looks[v].colour, linestyle=looks[v].dash, linewidth=1.8) for v in variants]
    legend(figure, handles, [context.label(v) for v in variants])


def panels(count: int, columns: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels, at most `columns` in a row; `options` are those of `grid`."""
    columns = min(columns, count)
    figure, axes = grid(math.ceil(count / columns), columns, **options)
    return figure, first(list(itertools.chain(*axes)), count)


def first(axes: list[Axes], count: int) -> list[Axes]:
    """Return the first `count` panels and remove the others."""
    for axis in axes[count:]:
        axis.remove()
    return axes[:count]
