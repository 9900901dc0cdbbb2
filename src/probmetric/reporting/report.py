"""Make a report in one process: read the runs once, write the long table, tables, plots, figures and the page."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.io import present, write_json, write_text
from probmetric.reporting import claims, published, tables
from probmetric.reporting.answers import in_numbers
from probmetric.reporting.claims import board
from probmetric.reporting.claims.testing import evaluate_claims
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import draw_all
from probmetric.reporting.page import Contents, render
from probmetric.reporting.plots import write_plots
from probmetric.reporting.published import comparing
from probmetric.reporting.record import sign
from probmetric.reporting.results import collect, write_results
from probmetric.reporting.words import escape_markdown
from probmetric.runs.folder import STEPS, RunFolder

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan

log = logging.getLogger(__name__)


def make_report(plan: ReportPlan, processes: int = 1) -> Path:
    """Make the report of a planned experiment, of the runs that are what their plans say; return its page.

    A run that is missing is shown as not run; one whose results are not what is planned is left out, with the reason.

    Args:
        plan: the experiment.
        processes: how many draw figures at once.

    Raises:
        FileError: a file of a run is damaged, or a link that leads nowhere.
    """
    judge = plan.judge()
    verdicts = {name: judge.run_verdict(name) for name in plan.shown}
    stale = {name: verdict.why for name, verdict in verdicts.items() if verdict.state == "stale"}
    for name in (name for name, verdict in verdicts.items() if verdict.state == "missing"):
        _check_links(RunFolder.named(name))
    context = ReportContext.of(plan, stale)
    page = write_report(context, [name for name, verdict in verdicts.items() if verdict.usable], processes)
    sign(context.folder, stale)
    if stale:
        name, why = next(iter(stale.items()))
        log.warning("%d of %d runs are left out, such as %s: %s", len(stale), len(verdicts), name, why)
    return page


def _check_links(run: RunFolder) -> None:
    """Raise `FileError` where a file of the run is a link that leads nowhere: such a run is not just unfinished."""
    for file in (file for step in STEPS for file in run.step_files(step)):
        present(file)


def write_report(context: ReportContext, runs: list[str] | None = None, processes: int = 1) -> Path:
    """Write everything of a report but its signature; return the page.

    Args:
        context: the experiment.
        runs: names of the runs to read; by default those the experiment expects.
        processes: how many draw figures at once.
    """
    names = [key.run for key in context.expected] if runs is None else runs
    write_results(collect([context.results / name for name in names]), context.folder, context.metrics)
    contents = contents_of(context)
    write_tables(contents)
    draw_all(context, processes)
    return write_page(contents)


def contents_of(context: ReportContext) -> Contents:
    """Return what a report finds in the long table: metrics by method, claims tested, published numbers beside ours."""
    return Contents(
        context,
        tables.result_table(context),
        evaluate_claims(context, claims.load_claims()),
        comparing.compare_published(context, published.load_published()),
    )


def write_tables(contents: Contents) -> list[Path]:
    """Write table.md, .csv and .tex, claims.csv, published.csv, and what DVC reads; return the paths."""
    context = contents.context
    texts = {
        "table.md": markdown(contents),
        "table.csv": tables.csv_text(contents.table),
        "table.tex": tables.latex(contents.table, context.title or context.name),
        "claims.csv": board.csv_text(contents.findings),
        "published.csv": comparing.csv_text(contents.published),
    }
    for name, text in texts.items():
        write_text(context.folder / name, text)
    write_json(context.folder / "headline.json", in_numbers(context, contents.table, contents.answers))
    return [context.folder / name for name in texts] + write_plots(context, contents.table)


def markdown(contents: Contents) -> str:
    """Return GitHub-flavoured Markdown: a table per dataset and noise rate, published numbers, claims if any ran."""
    context = contents.context
    blocks = [f"# {escape_markdown(context.title or context.name)}", *tables.markdown(contents.table)]
    if contents.published:
        blocks += ["## Published and ours", *comparing.markdown(contents.published, context.label)]
    claims = board.board(context, contents.findings)
    blocks += ["## Claims", *board.markdown(claims, context.label)] if claims.lines else []
    return "\n\n".join(blocks) + "\n"


def write_page(contents: Contents) -> Path:
    """Write index.html; figures that have been drawn are embedded, those that have not are named as missing."""
    path = contents.context.folder / "index.html"
    write_text(path, render(contents))
    return path
