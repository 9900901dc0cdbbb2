"""One self-contained HTML page per experiment: the answer first, then tables, figures, protocol and provenance.

Figures are embedded, nothing is fetched from anywhere, all text from results and configuration is escaped; the browser
runs no script but the page's own, which sorts and filters tables. The page holds no date, so the same results give the
same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from probmetric.data.manifest import SUMMARY, read_summary
from probmetric.io import FileError, check_readable, of_kind, present, read_json, read_text, write_text
from probmetric.reporting import _answers, _render, _scores
from probmetric.reporting._certificates import certificates
from probmetric.reporting._selection import cautions
from probmetric.reporting._words import group_title, override_words
from probmetric.reporting.claims import layout as claims_layout
from probmetric.reporting.claims import load_claims
from probmetric.reporting.claims.testing import evaluate_claims
from probmetric.reporting.published import layout, load_published
from probmetric.reporting.published.comparing import compare_published
from probmetric.reporting.tables import build_table, texts
from probmetric.runs.folder import flatten
from probmetric.runs.names import data_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import Environment
    from markupsafe import Markup

    from probmetric.reporting.experiment import ReportContext
    from probmetric.reporting.tables import Group, Row
    from probmetric.runs.folder import RunFolder

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_WEBP = 16383
TABLES = "run the tables step again"
_SPLITS = dict[str, dict[Literal["images", "classes"], int]]
_SETTINGS = {
    "loss.name": "Loss",
    "uncertainty.name": "Uncertainty",
    "backbone.name": "Backbone",
    "dim": "Dim",
    "training.epochs": "Epochs",
    "training.learning_rate": "Learning rate",
    "base": "Encoder of",
}


def write_report(context: ReportContext) -> Path:
    """Write index.html into the experiment's report folder.

    Needs runs.csv; figures that have been drawn are embedded, those that have not are named as missing.
    """
    path = context.folder / "index.html"
    write_text(path, render(context))
    return path


def environment() -> Environment:
    """The package's page templates; all text put into them is escaped, and a name they lack is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["words"] = override_words
    found.filters["coded"] = _coded
    return found


def _coded(text: str) -> Markup:
    """Escaped text, with `what stands in backticks` as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def render(context: ReportContext) -> str:
    """The page as text."""
    table, findings = build_table(context), evaluate_claims(context, load_claims())
    published = compare_published(context, load_published())
    _check_tables(context, texts(context, table, findings, published))
    trust = _answers.trust(context)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            context=context,
            title=context.title or context.name,
            table=table,
            render=_render,
            answers=_answers.answers(table),
            folders=_folders(context),
            script=_script(),
            trust={group_title(data): judged for data, judged in trust.items()},
            scores={group_title(data): tables for data, tables in _scores.score_tables(context).items()},
            trust_sentence=_answers.trust_sentence,
            certificates=certificates(context),
            questions=_answers.QUESTIONS,
            thresholds={"auroc": _answers.LEAST_AUROC, "ece": _answers.LARGEST_ECE},
            claims=claims_layout.board(context, findings),
            claims_layout=claims_layout,
            published=layout.blocks(published),
            layout=layout,
            figures=_figures(context),
            datasets=_datasets(context),
            methods=_methods(context),
            seeds=_seeds(context),
            selection=_selection(context),
            leaking=_leaking(context),
            cautions={group_title(data): found for data, found in cautions(context).items()},
            missing=_missing(context),
            provenance=_provenance(context),
            links=_links(context),
        )
    )


def _check_tables(context: ReportContext, expected: Mapping[str, str]) -> None:
    """Refuse to link to tables that say something else than the page.

    Raises:
        FileError: a table that is there is damaged, was edited or belongs to other results.
    """
    for name, text in expected.items():
        path = context.folder / name
        # as reading gives it, every line's end as one character: a CSV may hold names with others
        if present(path) and read_text(path, TABLES) != text.replace("\r\n", "\n").replace("\r", "\n"):
            raise FileError(f"{path} is not what the runs say: damaged, edited or out of date; {TABLES}.")


def _script() -> dict[str, str]:
    """The script of the page as it stands there, and its digest: the page's policy lets no other script run."""
    from markupsafe import Markup

    text = read_text(TEMPLATES / "tables.js")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "policy": f"sha256-{digest}"}


def _folders(context: ReportContext) -> Callable[[Group, Row], list[tuple[int, str]]]:
    """Function of a table's group and row: (seed, folder relative to the page) of its finished runs."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for run in context.runs:
        folder = os.path.relpath(run.path, context.folder)
        found[run.key.data, run.key.variant].append((run.key.seed, f"{quote(folder, safe='/+=')}/"))
    return lambda group, row: sorted(found[data_name(group.dataset, group.noise), row.method])


def _figures(context: ReportContext) -> list[dict[str, Any]]:
    found = []
    for name in context.figures:
        image, words = (context.folder / "figures" / f"{name}.{suffix}" for suffix in ("png", "json"))
        if not present(image) or not present(words):
            found.append({"name": name, "title": name.replace("_", " ").capitalize(), "empty": "not drawn yet."})
            continue
        said = read_json(words, "draw the figures again", dict[str, str])
        found.append(said | {"name": name, "data": _embedded(image)})
    return found


def _embedded(path: Path) -> str:
    """The PNG file as a data URL: as lossless WebP, which takes 40 % of the room, unless a side is too long for it."""
    from PIL import Image

    check_readable(path)
    kind, content = "png", path.read_bytes()
    try:
        image = Image.open(io.BytesIO(content)).convert("RGB")
    except (OSError, SyntaxError) as error:
        raise FileError(f"{path} is damaged ({error}); draw the figures again.") from error
    if max(image.size) <= LONGEST_WEBP:
        packed = io.BytesIO()
        image.save(packed, "webp", lossless=True)
        kind, content = "webp", packed.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _datasets(context: ReportContext) -> list[dict[str, Any]]:
    """Protocol and counts of each prepared dataset, where it is present."""
    found = []
    for data in context.data:
        folder = context.prepared / data
        summary = read_summary(folder) if present(folder / SUMMARY) else {"splits": {}}
        splits = of_kind(summary["splits"], _SPLITS, folder / SUMMARY, "prepare the dataset again")
        digest = next((str(run.find("data_digest", default="")) for run in context.runs if run.key.data == data), "")
        found.append(
            {
                "title": group_title(data),
                "protocol": str(summary.get("protocol", "")).replace("_", " "),
                "splits": {
                    name: f"{counts['images']:,} images, {counts['classes']} classes" for name, counts in splits.items()
                },
                "noise": _noise(summary.get("noise")),
                "notes": of_kind(summary.get("notes", []), list[str], folder / SUMMARY, "prepare the dataset again"),
                "digest": digest,
            }
        )
    return found


def _noise(value: Any) -> str:
    """How many training labels are wrong, as far as the dataset's summary says."""
    if not isinstance(value, dict):
        return ""
    return ", ".join(f"{name.replace('_', ' ')} {_shown(item)}" for name, item in value.items())


def _selection(context: ReportContext) -> list[str]:
    """Validation metrics that selected the weights."""
    names = ("settings.training.selection_metric", "training.selection_metric")
    found = {str(run.find(*names, default="")) for run in context.runs}
    return [name.replace("_", " ") for name in sorted(found) if name]


def _leaking(context: ReportContext) -> list[str]:
    """Methods whose epoch was chosen on test images."""
    published = "as_published"
    found = [run for run in context.runs if run.find("settings.training.selection") == published]
    return list(dict.fromkeys(context.label(run.key.variant) for run in found))


def _methods(context: ReportContext) -> dict[str, Any]:
    """Heads and rows of the table that says what each method is."""
    first: dict[str, RunFolder] = {}
    for run in context.runs:
        first.setdefault(run.key.variant, run)
    flat = {variant: flatten(run.record.get("settings", run.record)) for variant, run in first.items()}
    used = [name for name in _SETTINGS if any(values.get(name) is not None for values in flat.values())]
    rows = [
        {
            "label": context.label(variant),
            "fidelity": first[variant].fidelity.replace("_", " "),
            "values": [_shown(flat[variant].get(name)) for name in used],
        }
        for variant in context.variants
        if variant in flat
    ]
    return {"heads": [_SETTINGS[name] for name in used], "rows": rows}


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _seeds(context: ReportContext) -> str:
    seeds = sorted({key.seed for key in context.expected})
    return ", ".join(map(str, seeds))


def _missing(context: ReportContext) -> list[str]:
    """One line per method and dataset that lacks runs: which seeds were not run."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key in context.missing:
        found[key.data, key.variant].append(key.seed)
    lines = []
    for (data, variant), seeds in found.items():
        several = "seeds" if len(seeds) > 1 else "seed"
        lines.append(f"{group_title(data)}: {context.label(variant)}, {several} {', '.join(map(str, seeds))}")
    return lines


def _provenance(context: ReportContext) -> dict[str, str]:
    """Name -> the values the runs report; more than one value means the runs were not made alike."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in context.runs:
        around = {name: run.record.get(name) or {} for name in ("versions", "hardware")}
        for name, value in flatten(around).items():
            found[name.replace("versions.", "").replace("hardware.", "hardware: ")].add(str(value))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def _links(context: ReportContext) -> list[tuple[str, str]]:
    """(relative path, what it is) of the files beside the page."""
    known = [
        ("table.md", "table as Markdown"),
        ("table.csv", "table as CSV, full precision"),
        ("table.tex", "table as LaTeX"),
        ("claims.csv", "the papers' claims, tested"),
        ("published.csv", "published numbers beside ours"),
        ("runs.csv", "every metric of every run"),
        ("metrics.json", "means, as compared by dvc metrics diff"),
        *((f"figures/{name}.pdf", f"figure {name.replace('_', ' ')} as PDF") for name in context.figures),
    ]
    return [(name, text) for name, text in known if _says_something(context.folder / name)]


def _says_something(path: Path) -> bool:
    """Whether the file is there and holds more than a table's head."""
    return present(path) and (path.suffix != ".csv" or read_text(path).count("\n") > 1)
