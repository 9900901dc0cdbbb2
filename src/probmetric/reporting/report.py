"""Make a report in one process: read the runs once, write the long table, tables, plots, figures and the page.

The files that `dvc metrics` and `dvc plots` read have the same names in every revision:

    metrics/<data>--<method>.json              metric of the table -> mean
    plots/means.csv                            name, one column per metric of the table (template bar_horizontal)
    plots/validation/<data>--<method>.csv      epoch, validation_metric, mean over seeds
    plots/sparsification/<data>--<method>.csv  removed, accuracy, mean over seeds
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from probmetric.io import json_text, present, write_text
from probmetric.reporting import claims, published, tables
from probmetric.reporting.answers import in_numbers
from probmetric.reporting.claims import board
from probmetric.reporting.claims.testing import evaluate_claims
from probmetric.reporting.experiment import ReportContext, sign, stale_runs
from probmetric.reporting.figures import draw_all
from probmetric.reporting.figures._data import mean_curve
from probmetric.reporting.page import Contents, render
from probmetric.reporting.results import collect, method_file_name, write_results
from probmetric.reporting.words import templates
from probmetric.runs.folder import STEPS, RunFolder

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan

KINDS = ("validation", "sparsification")


def make_report(plan: ReportPlan, processes: int = 1) -> Path:
    """Make the report of a planned experiment from the runs that fit their plans; return its page.

    A missing run is shown as not run. A run whose results do not fit its plan is left out, with the reason.

    Args:
        plan: the experiment.
        processes: how many draw figures at once.

    Raises:
        FileError: a file of a run is damaged, or a link that leads nowhere.
    """
    verdicts = plan.verdicts()
    stale = stale_runs(verdicts)
    for name in (name for name, verdict in verdicts.items() if verdict.state == "missing"):
        _check_links(RunFolder.named(name))
    context = ReportContext.of(plan, stale)
    page = write_report(context, [name for name, verdict in verdicts.items() if verdict.usable], processes)
    sign(context.folder, stale)
    return page


def _check_links(run: RunFolder) -> None:
    """Raise `FileError` if a file of the run is a broken link, which would look like an unfinished run."""
    for file in (file for step in STEPS for file in run.step_files(step)):
        present(file)


def write_report(context: ReportContext, runs: list[str] | None = None, processes: int = 1) -> Path:
    """Write all files of a report but its signature; return the page.

    Args:
        context: the experiment.
        runs: names of the runs to read; by default those the experiment expects.
        processes: how many draw figures at once.
    """
    names = [key.run for key in context.expected] if runs is None else runs
    write_results(collect([context.results / name for name in names]), context.folder)
    contents = contents_of(context)
    write_tables(contents)
    _keep_only(draw_all(context, processes), context.folder / "figures", "png", "pdf", "json", "tex")
    return write_page(contents)


def _keep_only(paths: Iterable[Path], folder: Path, *suffixes: str) -> None:
    """Remove an earlier report's files with these `suffixes` from a folder: all but `paths`."""
    kept = set(paths)
    for path in (path for suffix in suffixes for path in folder.glob(f"*.{suffix}")):
        if path not in kept:
            path.unlink()


def contents_of(context: ReportContext) -> Contents:
    """Return the contents of a report from the long table: metrics by method, claims, published numbers beside ours."""
    return Contents(
        context,
        tables.result_table(context),
        evaluate_claims(context, claims.load_claims()),
        published.compare_published(context, published.load_published()),
    )


def write_tables(contents: Contents) -> list[Path]:
    """Write table.md, .csv and .tex, claims.csv, published.csv, headline.json and DVC's files; return the paths."""
    context, table = contents.context, contents.table
    texts = {
        "table.md": markdown(contents),
        "table.csv": tables.csv_text(table),
        "table.tex": tables.latex(table, context.title or context.name),
        "claims.csv": board.csv_text(contents.findings),
        "published.csv": published.csv_text(contents.published),
        "headline.json": json_text(in_numbers(context.metrics[0], contents.answers)),
        **_means_by_method(table),
        "plots/means.csv": _csv_text(_means(context, table)),
        **_curves(context),
    }
    paths = {context.folder / name: text for name, text in texts.items()}
    for path, text in paths.items():
        write_text(path, text)
    _keep_only(paths, context.folder / "metrics", "json")
    for kind in KINDS:
        (context.folder / "plots" / kind).mkdir(exist_ok=True)  # DVC wants them, also where nothing was trained
        _keep_only(paths, context.folder / "plots" / kind, "csv")
    return list(paths)


def _means_by_method(table: pd.DataFrame) -> dict[str, str]:
    """Return name -> text of a file for each dataset and method of the table, with the means of its metrics."""
    measured = table[table["status"] == "measured"]
    return {
        f"metrics/{method_file_name(str(data), str(method))}.json": json_text(
            dict(zip(rows["metric"], rows["mean"], strict=True))
        )
        for (data, method), rows in measured.groupby(["data", "method"], sort=False)
    }


def _curves(context: ReportContext) -> dict[str, str]:
    """Return name -> text of a file of points for each dataset, method and kind of curve."""
    files = {}
    for data, methods in context.methods.items():
        for variant, runs in methods.items():
            for kind, points in {"validation": _validation(runs), "sparsification": _sparsification(runs)}.items():
                if len(points):
                    files[f"plots/{kind}/{method_file_name(data, variant)}.csv"] = _csv_text(points)
    return files


def markdown(contents: Contents) -> str:
    """Return GitHub-flavoured Markdown: a table per dataset and noise rate, published numbers, claims if any ran."""
    context, template = contents.context, templates().get_template("table.md.j2")
    return template.render(
        contents=contents,
        context=context,
        claims=board.board(context, contents.findings),
        tables=tables,
        numbers=published,
        texts=board,
    )


def write_page(contents: Contents) -> Path:
    """Write index.html with the drawn figures; it names figures that are missing."""
    path = contents.context.folder / "index.html"
    write_text(path, render(contents))
    return path


def _means(context: ReportContext, table: pd.DataFrame) -> pd.DataFrame:
    finished = table[table["finished"] > 0]
    names = finished["data"] + "/" + finished["method"]
    means = finished.assign(name=names).pivot(index="name", columns="metric", values="mean")
    means = means.reindex(index=names.unique(), columns=list(context.metrics)).dropna(how="all").reset_index()
    return means.rename(columns=lambda name: name.replace("/", "_"))


def _validation(runs: Sequence[RunFolder]) -> pd.DataFrame:
    rows = [(row.get("epoch"), row.get("val_metric")) for run in runs for row in run.history]
    points = pd.DataFrame(rows, columns=["epoch", "validation_metric"], dtype=float).dropna()
    return points.astype({"epoch": int}).groupby("epoch", as_index=False).mean()


def _sparsification(runs: Sequence[RunFolder]) -> pd.DataFrame:
    curve = mean_curve([run.curves.get("sparsification") for run in runs], "removed", "accuracy", points=50)
    removed, accuracy = ([], []) if curve is None else curve
    return pd.DataFrame({"removed": removed, "accuracy": accuracy})


def _csv_text(points: pd.DataFrame) -> str:
    return points.to_csv(index=False, lineterminator="\n")
