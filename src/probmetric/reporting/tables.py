"""runs.csv -> the experiment's table: one structure, rendered as Markdown, CSV and LaTeX.

Rows are methods, grouped by dataset and noise rate; columns are the experiment's metrics. A cell is the mean over
seeds ± the half-width of the 95 % interval. The best method of a group is bold; methods that are not significantly
worse than it carry an asterisk, those that could not be tested against it a dagger. A method without any finished run
is shown as "not run".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probmetric.io import write_text
from probmetric.metrics import direction, heading
from probmetric.reporting._comparison import Cell, compare
from probmetric.reporting._overrides import other_lengths
from probmetric.reporting._per_image import image_errors, image_values
from probmetric.reporting._words import group_title
from probmetric.runs.names import data_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from probmetric.reporting.claims.testing import Finding
    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.published.comparing import PublishedComparison


@dataclass(frozen=True)
class Column:
    """One metric: its name, what the reader sees, `higher`, `lower` or `none`, and the digits its size calls for."""

    metric: str
    heading: str
    direction: str
    digits: int = 3


@dataclass(frozen=True)
class Row:
    """One method of a group; `cells` holds None where a metric was not measured, `budget` the runs spent on tuning."""

    method: str
    label: str
    fidelity: str
    seeds: int
    expected_seeds: int
    cells: tuple[Cell | None, ...]
    budget: int = 0

    @property
    def not_run(self) -> bool:
        """No run of this method is finished."""
        return self.seeds == 0


@dataclass(frozen=True)
class Group:
    """The methods on one dataset at one noise rate."""

    dataset: str
    noise: float
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """`glyphs`, or `glyphs, 20 % label noise`."""
        return group_title(data_name(self.dataset, self.noise))


@dataclass(frozen=True)
class ResultTable:
    """The table of an experiment, ready for any renderer."""

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]

    @property
    def show_fidelity(self) -> bool:
        """Whether any method ran as published, so that the reader must be told."""
        return any(row.fidelity not in ("", "corrected") for group in self.groups for row in group.rows)

    @property
    def show_budget(self) -> bool:
        """Whether any method was tuned, so that the reader must see that all were, and equally."""
        return any(row.budget for group in self.groups for row in group.rows)


def build_table(context: ReportContext) -> ResultTable:
    """The experiment's table from its runs.csv."""
    groups = tuple(_group(context, data) for data in context.data)
    rows = [row for group in groups for row in group.rows]
    columns = tuple(
        _column(metric, [cell.mean for row in rows if (cell := row.cells[place])])
        for place, metric in enumerate(context.metrics)
    )
    return ResultTable(context.title or context.name, columns, groups)


def _column(metric: str, means: list[float]) -> Column:
    largest = max(map(abs, means), default=1.0)
    digits = 1 if largest >= 100 else 2 if largest >= 10 else 3 if largest >= 0.1 else 4
    return Column(metric, heading(metric), direction(metric), digits)


def _group(context: ReportContext, data: str) -> Group:
    expected = [key for key in context.expected if key.data == data]
    variants = list(dict.fromkeys(key.variant for key in expected))
    unranked = other_lengths(expected)
    values: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    fidelity: dict[str, str] = {}
    seeds: dict[str, set[int]] = defaultdict(set)
    for record in context.records:
        if record.key.data != data:
            continue
        seeds[record.key.variant].add(record.key.seed)
        fidelity[record.key.variant] = record.fidelity
        if record.value is not None:
            values[record.metric][record.key.variant][record.key.seed] = record.value
    compared = {
        metric: compare(
            metric,
            {name: values[metric][name] for name in variants if name in values[metric]},
            images=image_values(context, data, metric),
            image_errors=image_errors(context, data, metric),
            unranked=unranked,
        )
        for metric in context.metrics
    }
    rows = tuple(
        Row(
            method=name,
            label=context.label(name),
            fidelity=fidelity.get(name, ""),
            seeds=len(seeds[name]),
            expected_seeds=sum(key.variant == name for key in expected),
            cells=tuple(compared[metric].get(name) for metric in context.metrics),
            budget=context.budgets.get(name.partition("+")[0], 0),
        )
        for name in variants
    )
    return Group(expected[0].dataset, expected[0].noise, rows)


def texts(
    context: ReportContext, table: ResultTable, findings: Sequence[Finding], published: Sequence[PublishedComparison]
) -> dict[str, str]:
    """File name -> text of the table in three formats, of claims.csv and of published.csv."""
    from probmetric.reporting import _render
    from probmetric.reporting.claims import layout as claims_layout
    from probmetric.reporting.published import layout

    board = claims_layout.board(context, findings)
    return {
        "table.md": _render.markdown(table, board, published, context.label),
        "table.csv": _render.csv_text(table),
        "table.tex": _render.latex(table),
        "claims.csv": claims_layout.csv_text(findings),
        "published.csv": layout.csv_text(published),
    }


def write_tables(context: ReportContext) -> list[Path]:
    """Write table.md, .csv and .tex, claims.csv, published.csv and the CSV files `dvc plots` reads."""
    from probmetric.reporting.claims import load_claims
    from probmetric.reporting.claims.testing import evaluate_claims
    from probmetric.reporting.plots import write_plots
    from probmetric.reporting.published import load_published
    from probmetric.reporting.published.comparing import compare_published

    published = compare_published(context, load_published())
    found = texts(context, build_table(context), evaluate_claims(context, load_claims()), published)
    for name, text in found.items():
        write_text(context.folder / name, text)
    return [context.folder / name for name in found] + write_plots(context)
