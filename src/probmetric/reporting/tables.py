"""An experiment's table as a DataFrame, one row per dataset, method and metric, and as Markdown and LaTeX.

Methods are grouped by dataset and noise rate; columns of a shown table are the experiment's metrics. A cell is the mean
over seeds ± the half-width of the 95 % interval. The best method of a group is bold. Methods that are not significantly
worse than any other have an asterisk; methods that could not be tested against the best have a dagger. A method without
a finished run is shown as "not run".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from probmetric.io import cell_text
from probmetric.metrics import better, direction, heading
from probmetric.reporting.comparison import Cell, compare, other_lengths
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.settings import frozen_baselines
from probmetric.reporting.words import escape_latex, escape_markdown, group_title, one_line, plus_minus
from probmetric.runs.names import noise_text, split_data_name

NOT_RUN, NOT_MEASURED = "not run", "–"
LEGEND = (
    "Bold: best mean of its group; where none is bold, methods are not compared. *: not significantly worse than any. "
    "No mark: significantly worse than some other method, so not the best (t-tests over shared seeds, Holm-corrected "
    "over all pairs of methods, 5 % level; with 8 methods or more their spreads over seeds are pooled). [0.06]: not "
    "decided; a true difference to the best below 0.06 would often be missed. †: not tested against the best, because "
    "they share fewer than three seeds. ‡: trained for longer or shorter than the others, so not compared. ▼: below "
    "the frozen features, by the first metric. ↑ higher is better, ↓ lower is better. –: not defined for this method. "
    "Numbers: mean ± half-width of the 95 % interval. It covers seeds (splits of the classes, where there are several; "
    "each split counts once, with the mean over its seeds). Where runs kept the values of test classes, it covers "
    "these too (test images, where these are of training classes; walks for places)."
)
CSV_COLUMNS = (
    *("dataset", "noise", "method", "label", "fidelity", "tuning_runs", "metric", "direction", "mean"),
    *("ci95_half_width", "seeds", "seeds_expected", "against_best", "p_holm", "detectable", "status", "below_frozen"),
)


def result_table(context: ReportContext) -> pd.DataFrame:
    """Return the experiment's table, a row per dataset, method and metric, in the experiment's order.

    Its columns are those of table.csv (`CSV_COLUMNS`), and for readers: `data`, `title` of the group, `heading` of the
    metric, `digits` for values of its size, `finished` and `runs_expected` of the method. `seeds` counts values: seeds,
    or splits if the classes are split in several ways.
    """
    rows = [row for data in context.data for row in _group(context, data)]
    table = pd.DataFrame(rows)
    largest = table.groupby("metric")["mean"].transform(lambda means: means.abs().max()).fillna(1.0)
    table["digits"] = [1 if size >= 100 else 2 if size >= 10 else 3 if size >= 0.1 else 4 for size in largest]
    return table


def _group(context: ReportContext, data: str) -> Iterator[dict[str, Any]]:
    expected = [key for key in context.expected if key.group == data]
    measured = context.table[context.table["data"] == data]
    unranked = other_lengths(expected)
    cells = {metric: compare(metric, context.series(data, metric), unranked=unranked) for metric in context.metrics}
    first, by_split = context.metrics[0], context.by_split(data)
    frozen = cells[first].get(frozen_baselines(context).get(data, ""))
    for variant in dict.fromkeys(key.variant for key in expected):
        runs = measured[measured["variant"] == variant].drop_duplicates("run")
        keys = [key for key in expected if key.variant == variant]
        method = {
            "data": data,
            "title": group_title(data),
            "dataset": split_data_name(data)[0],
            "noise": noise_text(data),
            "method": variant,
            "label": context.label(variant),
            "fidelity": runs["fidelity"].iloc[-1] if len(runs) else "",
            "tuning_runs": context.budgets.get(variant.partition("+")[0], 0),
            "finished": len(runs),
            "runs_expected": len(keys),
            "seeds_expected": len({key.class_split if by_split else key.seed for key in keys}),
            "below_frozen": bool(
                frozen and (cell := cells[first].get(variant)) and better(first, frozen.mean, cell.mean)
            ),
        }
        for metric in context.metrics:
            yield method | _measurement(metric, cells[metric].get(variant), finished=len(runs) > 0)


def _measurement(metric: str, cell: Cell | None, *, finished: bool) -> dict[str, Any]:
    """Return the columns of one metric of one method."""
    status = "measured" if cell else "not defined" if finished else NOT_RUN
    numbers = asdict(cell or Cell(float("nan"), None, 0))
    names = {"half_width": "ci95_half_width", "n": "seeds", "state": "against_best", "p_value": "p_holm"}
    row = {names.get(name, name): value for name, value in numbers.items()}
    return row | {"metric": metric, "heading": heading(metric), "direction": direction(metric), "status": status}


def csv_text(table: pd.DataFrame) -> str:
    """Return one line per method and metric, full precision, readable by a spreadsheet or pandas."""
    shown = table.assign(label=table["label"].map(cell_text))
    return shown.to_csv(columns=list(CSV_COLUMNS), index=False, lineterminator="\n")


def groups(table: pd.DataFrame) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the title of each dataset and its methods: a list of cells each, rows of the table in order of metrics."""
    for title, group in table.groupby("title", sort=False):
        yield str(title), [list(cells.itertuples()) for _, cells in group.groupby("method", sort=False)]


def number(cell: Any) -> str:
    """Return `0.712 ± 0.004`, with the digits of the metric; no half-width with a single seed."""
    return f"{cell.mean:.{cell.digits}f}{plus_minus(cell.ci95_half_width, cell.digits)}"


def missed(cell: Any) -> str:
    """Return ` [0.31]`, the difference to the best that the test can find, for a method with state `no power`."""
    return f" [{cell.detectable:.{cell.digits}f}]" if cell.against_best == "no power" else ""


def seeds_text(cell: Any) -> str:
    """Return `3`, or `2 of 3` if runs are missing."""
    return str(cell.finished) if cell.finished == cell.runs_expected else f"{cell.finished} of {cell.runs_expected}"


def optional_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns to show: `Fidelity` if a method ran as published, `Tuning runs` if one was tuned."""
    published = bool((~table["fidelity"].isin(["", "corrected"])).any())
    return [*(["Fidelity"] if published else []), *(["Tuning runs"] if table["tuning_runs"].any() else [])]


@dataclass(frozen=True)
class Format:
    """How a format writes text and cells: escapes, the best cell, marks of other states, undefined values."""

    escape: Callable[[str], str]
    best: Callable[[str], str]
    other: Callable[[str], str]
    marks: dict[str, str]
    undefined: str = NOT_MEASURED
    below_frozen: str = " ▼"

    def cell(self, cell: Any) -> str:
        """Return the text of a cell with its mark."""
        if cell.status != "measured":
            return NOT_RUN if cell.status == NOT_RUN else self.undefined
        text = number(cell)
        if cell.against_best == "best":
            return self.best(text)
        return self.other(f"{text}{self.marks.get(cell.against_best, '')}{missed(cell)}")

    def head(self, table: pd.DataFrame) -> list[str]:
        """Return the names of the columns."""
        return ["Method", *optional_columns(table), *map(self.escape, table["heading"].unique()), "Seeds"]

    def row(self, cells: Sequence[Any], optional: Sequence[str]) -> list[str]:
        """Return the texts of a method's row."""
        first = cells[0]
        shown = {"Fidelity": first.fidelity.replace("_", " ") or NOT_MEASURED, "Tuning runs": str(first.tuning_runs)}
        extra = [self.escape(shown[name]) for name in optional]
        label = self.escape(first.label) + (self.below_frozen if first.below_frozen else "")
        return [label, *extra, *map(self.cell, cells), seeds_text(first)]


MARKDOWN = Format(escape_markdown, "**{}**".format, str, {"not worse": " \\*", "untested": " †", "other length": " ‡"})


def _math(text: str, *, bold: bool = False) -> str:
    text = text.replace("±", r"\pm")
    return rf"$\mathbf{{{text}}}$" if bold else f"${text}$"


_LATEX = Format(
    escape_latex,
    lambda text: _math(text, bold=True),
    _math,
    {"not worse": "^{*}", "untested": r"^{\dagger}", "other length": r"^{\ddagger}"},
    undefined="--",
    below_frozen=r" $\bigtriangledown$",
)


def latex(table: pd.DataFrame, title: str) -> str:
    r"""Return a `tabular` in the booktabs style (`\usepackage{booktabs}`), a block per dataset and noise rate."""
    head, optional = _LATEX.head(table), optional_columns(table)
    left = 1 + ("Fidelity" in optional)
    lines = [f"% {one_line(title)}", rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(head) - left)}}}", r"\toprule"]
    lines.append(" & ".join(head) + r" \\")
    for name, methods in groups(table):
        lines += [r"\midrule", rf"\multicolumn{{{len(head)}}}{{l}}{{\textit{{{escape_latex(name)}}}}} \\"]
        lines += [" & ".join(_LATEX.row(cells, optional)) + r" \\" for cells in methods]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", f"% {LEGEND}"]) + "\n"
