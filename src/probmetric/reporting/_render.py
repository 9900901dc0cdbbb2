"""A table as Markdown, CSV or LaTeX: the same cells, each format's own escapes."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probmetric.reporting._comparison import Cell
    from probmetric.reporting.claims.layout import Board
    from probmetric.reporting.published.comparing import PublishedComparison
    from probmetric.reporting.tables import Column, Group, ResultTable, Row

NOT_RUN = "not run"
NOT_MEASURED = "–"
LEGEND = (
    "Mean ± half-width of the 95 % interval over seeds and, where single images were kept, test images. Bold: best "
    "mean of its group. *: not significantly worse than the best; no mark: significantly worse (paired t-test over "
    "shared seeds, Holm-corrected over all pairs of methods, 5 % level). †: not tested against the best, fewer than "
    "three shared seeds. ‡: of another length of training, so not compared. "
    "↑ higher is better, ↓ lower is better. –: not defined for this method."
)

BUDGET = "Tuning runs"
_MD_MARKS = {"not worse": " \\*", "untested": " †", "other length": " ‡"}
_TEX_MARKS = {"not worse": "^{*}", "untested": r"^{\dagger}", "other length": r"^{\ddagger}"}


def number(column: Column, cell: Cell) -> tuple[str, str]:
    """(mean, half-width) with the digits of the column; no half-width with a single seed."""
    half_width = "" if cell.half_width is None else f"{cell.half_width:.{column.digits}f}"
    return f"{cell.mean:.{column.digits}f}", half_width


def seeds_text(row: Row) -> str:
    """`3`, or `2 of 3` where runs are missing."""
    return str(row.seeds) if row.seeds == row.expected_seeds else f"{row.seeds} of {row.expected_seeds}"


def markdown(
    table: ResultTable,
    claims: Board | None = None,
    published: Sequence[PublishedComparison] = (),
    label: Callable[[str], str] = str,
) -> str:
    """GitHub-flavoured Markdown: the claims, a table per dataset and noise rate, published numbers beside ours."""
    from probmetric.reporting.claims import layout as claims_layout
    from probmetric.reporting.published import layout

    blocks = [f"# {_md(table.title)}"]
    if claims is not None:
        blocks += ["## Claims", *claims_layout.markdown(claims, _md, label)]
    blocks += [*(_markdown_group(table, group) for group in table.groups), LEGEND]
    if published:
        blocks += ["## Published and ours", *layout.markdown(published, _md, label)]
    return "\n\n".join(blocks) + "\n"


def _markdown_group(table: ResultTable, group: Group) -> str:
    head = [
        "Method",
        *(["Fidelity"] if table.show_fidelity else []),
        *([BUDGET] if table.show_budget else []),
        *(_md(column.heading) for column in table.columns),
        "Seeds",
    ]
    lines = [f"## {_md(group.title)}", "", _md_line(head), _md_line(["---", *["---:"] * (len(head) - 1)])]
    for row in group.rows:
        cells = [_markdown_cell(row, *pair) for pair in zip(table.columns, row.cells, strict=True)]
        fidelity = [_md(row.fidelity.replace("_", " ") or NOT_MEASURED)] if table.show_fidelity else []
        budget = [str(row.budget)] if table.show_budget else []
        lines.append(_md_line([_md(row.label), *fidelity, *budget, *cells, seeds_text(row)]))
    return "\n".join(lines)


def _markdown_cell(row: Row, column: Column, cell: Cell | None) -> str:
    if cell is None:
        return NOT_RUN if row.not_run else NOT_MEASURED
    mean, half = number(column, cell)
    text = f"{mean} ± {half}" if half else mean
    return f"**{text}**" if cell.best else text + _MD_MARKS.get(cell.state, "")


def _md_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", _one_line(text))


_CSV_COLUMNS = (
    *(
        "dataset",
        "noise",
        "method",
        "label",
        "fidelity",
        "tuning_runs",
        "metric",
        "direction",
        "mean",
        "ci95_half_width",
    ),
    *("seeds", "seeds_expected", "against_best", "p_holm", "status"),
)


def _one_line(text: str) -> str:
    """`text` with every kind of line break as a space."""
    return " ".join(text.splitlines())


def plain_text(text: str) -> str:
    """`text` for a CSV file, with a quote in front if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def csv_text(table: ResultTable) -> str:
    """One line per method and metric, full precision, readable by a spreadsheet or pandas."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for group in table.groups:
        for row in group.rows:
            about = [row.method, plain_text(row.label), row.fidelity, row.budget]
            identity = [group.dataset, f"{group.noise:g}", *about]
            for column, cell in zip(table.columns, row.cells, strict=True):
                writer.writerow([*identity, *_csv_cell(row, column, cell)])
    return buffer.getvalue()


def _csv_cell(row: Row, column: Column, cell: Cell | None) -> list[object]:
    head: list[object] = [column.metric, column.direction]
    if cell is None:
        return [*head, "", "", 0, row.expected_seeds, "", "", "not run" if row.not_run else "not defined"]
    optional = [_optional(cell.half_width), _optional(cell.p_value)]
    return [*head, repr(cell.mean), optional[0], cell.n, row.expected_seeds, cell.state, optional[1], "measured"]


def _optional(value: float | None) -> str:
    return "" if value is None else repr(value)


def latex(table: ResultTable) -> str:
    r"""A `tabular` in the booktabs style (`\usepackage{booktabs}`), one block of rows per dataset and noise rate."""
    fidelity = ["Fidelity"] if table.show_fidelity else []
    budget = [BUDGET] if table.show_budget else []
    head = ["Method", *fidelity, *budget, *(_tex(column.heading) for column in table.columns), "Seeds"]
    columns = "l" * (1 + len(fidelity)) + "r" * (len(budget) + len(table.columns) + 1)
    lines = [
        f"% {_one_line(table.title)}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
    ]
    for group in table.groups:
        lines += [r"\midrule", rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{_tex(group.title)}}}}} \\"]
        for row in group.rows:
            shown = [_tex(row.fidelity.replace("_", " ") or NOT_MEASURED)] if fidelity else []
            shown += [str(row.budget)] if budget else []
            cells = [_latex_cell(row, *pair) for pair in zip(table.columns, row.cells, strict=True)]
            lines.append(" & ".join([_tex(row.label), *shown, *cells, seeds_text(row)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", f"% {LEGEND}"]) + "\n"


def _latex_cell(row: Row, column: Column, cell: Cell | None) -> str:
    if cell is None:
        return NOT_RUN if row.not_run else "--"
    mean, half = number(column, cell)
    text = rf"{mean} \pm {half}" if half else mean
    if cell.best:
        return rf"$\mathbf{{{text}}}$"
    return f"${text}{_TEX_MARKS.get(cell.state, '')}$"


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "×": r"$\times$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def _tex(text: str) -> str:
    escaped = (
        _TEX.get(character) or (f"\\{character}" if character in "&%$#_{}" else character)
        for character in _one_line(text)
    )
    return "".join(escaped)
