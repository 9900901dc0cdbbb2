"""Published numbers and ours as tables for readers: one per dataset, a line per published row, metrics side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probmetric.reporting.published import PublishedNumber
from probmetric.reporting.published.comparing import PublishedComparison

LEGEND = (
    "First number: as the paper prints it, with its ±. Measured: our mean ± half-width of the 95 % t-interval over "
    "seeds, then measured - published. Inside: our interval and that of the printed mean (its ± over five runs, or "
    "rounding) together explain the difference. Only runs on the same dataset, whole, at the same noise rate stand "
    "beside a published number; where the protocols differ, both are stated."
)


@dataclass(frozen=True)
class Line:
    """A row of the paper's table, and the method of ours beside it; `cells` holds None where nothing is printed."""

    row: str
    method: str
    cells: tuple[PublishedComparison | None, ...]


@dataclass(frozen=True)
class Block:
    """The published numbers on one dataset: a table with two columns per metric."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def measured(self) -> bool:
        """Whether any of it was measured here."""
        return any(item is not None and item.ours is not None for line in self.lines for item in line.cells)


def blocks(found: Sequence[PublishedComparison]) -> list[Block]:
    """One block per dataset and noise rate, in the paper's order."""
    return [_block(title, [item for item in found if item.published.title == title]) for title in _distinct(found)]


def _distinct(found: Sequence[PublishedComparison]) -> list[str]:
    return list(dict.fromkeys(item.published.title for item in found))


def _block(title: str, found: Sequence[PublishedComparison]) -> Block:
    headings = tuple(dict.fromkeys(item.published.heading for item in found))
    cells = {(item.published.row, item.method, item.published.heading): item for item in found}
    ours: dict[str, dict[str, None]] = {}
    for item in found:
        ours.setdefault(item.published.row, {})[item.method] = None
    lines = [
        Line(row, method, tuple(cells.get((row, method, heading)) for heading in headings))
        for row, methods in ours.items()
        for method in methods
    ]
    return Block(title, headings, tuple(lines))


def printed(number: PublishedNumber) -> str:
    """`66.7 ± 0.6`, as in print."""
    return number.text(number.value) + ("" if number.spread is None else f" ± {number.text(number.spread)}")


def ours(item: PublishedComparison) -> str:
    """`65.1 ± 1.2`, `not run` or `not measured`."""
    if item.ours is None:
        return item.verdict
    number, half_width = item.published, item.ours.half_width
    return number.text(item.ours.mean) + ("" if half_width is None else f" ± {number.text(half_width)}")


def judged(item: PublishedComparison) -> str:
    """`-1.6, inside`, with the protocols where they differ; empty without a run."""
    if item.difference is None:
        return ""
    text = f"{item.published.text(item.difference, signed=True)}, {item.verdict}"
    return f"{text}; {item.protocol}" if item.protocol else text


def markdown(
    found: Sequence[PublishedComparison], escape: Callable[[str], str], label: Callable[[str], str]
) -> list[str]:
    """Blocks of Markdown text, without the heading."""
    return [_markdown(block, escape, label) for block in blocks(found)] + [LEGEND]


def _markdown(block: Block, escape: Callable[[str], str], label: Callable[[str], str]) -> str:
    heads = [text for heading in block.headings for text in (escape(heading), "Measured")]
    rows = [["Published row", "Method run", *heads], ["---", "---", *["---:"] * len(heads)]]
    for line in block.lines:
        cells = [text for item in line.cells for text in _pair(item)]
        rows.append([escape(line.row), escape(label(line.method)) if line.method else "–", *cells])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"### {escape(block.title)}\n\n{table}"


def _pair(item: PublishedComparison | None) -> tuple[str, str]:
    if item is None:
        return "–", "–"
    judgement = judged(item)
    return printed(item.published), f"{ours(item)} ({judgement})" if judgement else ours(item)


_CSV_COLUMNS = (
    *("table", "row", "dataset", "noise", "metric", "published", "published_spread", "method", "ours"),
    *("ci95_half_width", "seeds", "difference", "published_in_interval", "protocol"),
)
_IN_INTERVAL: Mapping[str, str] = {"inside": "yes", "outside": "no"}


def csv_text(found: Sequence[PublishedComparison]) -> str:
    """One line per published number and method of ours, at full precision, in the unit of our metrics."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for item in found:
        number, cell = item.published, item.ours
        place = [number.table, number.row, " ".join(number.datasets), f"{number.noise:g}", number.metric]
        values = [f"{number.value:.6g}", "" if number.spread is None else f"{number.spread:.6g}", item.method]
        mine = ["", "", 0] if cell is None else [repr(cell.mean), _optional(cell.half_width), cell.n]
        verdict = _IN_INTERVAL.get(item.verdict, item.verdict)
        writer.writerow([*place, *values, *mine, _optional(item.difference), verdict, item.protocol])
    return buffer.getvalue()


def _optional(value: float | None) -> str:
    return "" if value is None else repr(value)
