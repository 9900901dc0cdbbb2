"""One self-contained HTML page per experiment: the answer, one table, how sure the answers are; details are folded.

A section is a template that shows the report's `Contents`, and a function of the same name for what else it shows.
Figures are embedded, the page fetches no files, and all text from results and configuration is escaped. The browser
runs only the page's own script, which sorts and filters tables and turns the pages of questions. The page holds no
date, so the same results give the same bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup, escape
from PIL import Image

from probmetric.data.manifest import SUMMARY, read_summary
from probmetric.io import FileError, check_readable, of_kind, present, read_json, read_text
from probmetric.reporting import published, questions, tables, uncertainty
from probmetric.reporting.answers import Answer, Held, answers, certificates, with_promises
from probmetric.reporting.claims import Finding, board
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import STANDING
from probmetric.reporting.recommended import Candidate, recommended
from probmetric.reporting.settings import HOW_TO_ADD_FROZEN, frozen_baselines, settings_of
from probmetric.reporting.words import (
    TEMPLATES,
    chance_words,
    group_title,
    override_words,
    repetition,
    templates,
    value_words,
)
from probmetric.runs.folder import flatten

LONGEST_WEBP = 16383
_SPLITS = dict[str, dict[Literal["images", "classes"], int]]
_FILES = {
    "table.md": "table as Markdown",
    "table.csv": "table as CSV, full precision",
    "table.tex": "table as LaTeX",
    "claims.csv": "the papers' claims, tested",
    "published.csv": "published numbers beside ours",
    "runs.parquet": "every metric of every run",
}
Values = dict[str, Any]


@dataclass(frozen=True)
class Contents:
    """The contents of a report: the table of its metrics, the papers' claims, published numbers beside ours."""

    context: ReportContext
    table: pd.DataFrame
    findings: Sequence[Finding]
    published: Sequence[published.PublishedComparison]

    @functools.cached_property
    def certificates(self) -> dict[str, dict[str, list[Held]]]:
        """Return title of the dataset -> label of the method -> certificates of its runs."""
        return certificates(self.context)

    @functools.cached_property
    def recommended(self) -> dict[str, Candidate]:
        """Return dataset -> the method that its validation images recommend."""
        return recommended(self.context)

    @functools.cached_property
    def answers(self) -> list[Answer]:
        """Return which method to take, for every dataset."""
        return with_promises(self.context, answers(self.table, self.recommended))

    @functools.cached_property
    def scores(self) -> dict[str, list[uncertainty.ScoreTable]]:
        """Return title of the dataset -> tables of the scores that tell a wrong answer."""
        return uncertainty.score_tables(self.context)

    @functools.cached_property
    def browsers(self) -> list[questions.Browser]:
        """Return questions to click through, for every dataset with pictures."""
        return questions.browsers(self.context, self.recommended)

    @functools.cached_property
    def cautions(self) -> dict[str, dict[str, str]]:
        """Return title of the dataset -> label of a method -> how many runs chose their epoch badly, and why."""
        reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
        runs: Counter[tuple[str, str]] = Counter()
        for run in self.context.runs:
            place = group_title(run.key.group), self.context.label(run.key.variant)
            runs[place] += 1
            if reason := run.find("training.selection_warning"):
                reasons[place].append(reason)
        cautions: dict[str, dict[str, str]] = defaultdict(dict)
        for (title, label), why in reasons.items():
            cautions[title][label] = f"Selection, {len(why)} of {runs[title, label]} runs: {why[0]}."
        return dict(cautions)

    @property
    def seeds(self) -> list[int]:
        """Return the seeds that the experiment asks for."""
        return sorted({key.seed for key in self.context.expected})


def render(contents: Contents) -> str:
    """Return the page as text."""
    pages, context = environment(), contents.context
    sections = []
    for name, (heading, folded, build) in SECTIONS.items():
        if (values := build(contents)) is not None:
            text = pages.get_template(f"{name}.html.j2").render(contents=contents, context=context, **values)
            sections.append((name, heading, folded, Markup(text)))
    page = pages.get_template("report.html.j2")
    return page.render(context=context, title=context.title or context.name, sections=sections, script=_script())


def environment() -> Environment:
    """Return the templates with the functions that the page's templates call."""
    pages = templates()
    pages.filters |= {"words": override_words, "chance": chance_words, "coded": _coded}
    pages.globals |= {"columns": questions.COLUMNS, "anchor": _anchor}
    pages.tests["missing"] = pd.isna
    return pages


def _coded(text: str) -> Markup:
    """Return escaped text, with `text in backticks` as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _anchor(variant: str) -> str:
    """Return the anchor of a method's settings on the page."""
    return f"settings-{quote(variant, safe='')}"


def _script() -> dict[str, str]:
    """Return the page's script and its digest; the page's security policy lets only this script run."""
    text = "".join(read_text(TEMPLATES / name) for name in ("tables.js", "questions.js"))
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "policy": f"sha256-{digest}"}


def _answer(contents: Contents) -> Values:
    return {
        "browsers": {browser.title: browser for browser in contents.browsers},
        "unprepared": [group_title(data) for data in contents.context.data if not _is_prepared(contents.context, data)],
        "unkept": sum(not present(run.embeddings_file("test")) for run in contents.context.runs),
        "how_to_add_frozen": "" if frozen_baselines(contents.context) else HOW_TO_ADD_FROZEN,
    }


def _browsers(contents: Contents) -> Values | None:
    return {"browsers": contents.browsers, "listed": questions.LISTED} if contents.browsers else None


def _uncertainty(contents: Contents) -> Values | None:
    judged = uncertainty.trust(contents.context)
    return {"trust": judged, "texts": uncertainty} if judged else None


def _added(contents: Contents) -> Values | None:
    errors = {title: table for title, tables in contents.scores.items() for table in tables if table.adds}
    return {"scores": errors} if errors else None


def _scores(contents: Contents) -> Values | None:
    return {"scores": contents.scores} if contents.scores else None


def _tables(contents: Contents) -> Values:
    headings = contents.table.drop_duplicates("metric")
    return {
        "columns": list(zip(headings["heading"], headings["direction"], strict=True)),
        "tables": tables,
        "folders": _folders(contents.context),
    }


def _folders(context: ReportContext) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return (dataset with its noise, method) -> (which run, folder relative to the page) of its finished runs."""
    folders: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for run in sorted(context.runs, key=lambda run: (run.key.class_split, run.key.seed)):
        folder = os.path.relpath(run.path, context.folder)
        folders[run.key.group, run.key.variant].append((repetition(run.key), f"{quote(folder, safe='/+=')}/"))
    return folders


def _claims(contents: Contents) -> Values | None:
    verdicts = board.board(contents.context, contents.findings)
    return {"board": verdicts, "texts": board} if verdicts.lines else None


def _published(contents: Contents) -> Values | None:
    measured = {item.published.title for item in contents.published if item.ours}
    shown = [item for item in contents.published if item.published.title in measured]
    return {"blocks": published.blocks(shown), "published": shown, "texts": published} if shown else None


def _sure(contents: Contents) -> Values | None:
    folder = contents.context.folder / "figures"
    drawn = [_figure(folder, name) for name in STANDING if present(folder / f"{name}.json")]
    drawn = [figure for figure in drawn if not figure["empty"]]
    return {"figures": drawn} if drawn else None


def _figures(contents: Contents) -> Values | None:
    context = contents.context
    drawn = [_figure(context.folder / "figures", name) for name in context.figures if name not in STANDING]
    return {"figures": drawn} if drawn else None


def _figure(folder: Path, name: str) -> Values:
    """Return the words of a figure and its picture, or a note that it is not drawn."""
    image, words = (folder / f"{name}.{suffix}" for suffix in ("png", "json"))
    if not present(image) or not present(words):
        return {"name": name, "title": name.replace("_", " ").capitalize(), "empty": "not drawn yet."}
    said = read_json(words, "draw the figures again", dict[str, str])
    return said | {"name": name, "data": embedded(image)}


def embedded(path: Path) -> str:
    """Return a PNG file as a data URL: as lossless WebP (40 % of the size), unless a side is too long for WebP."""
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


def _protocol(contents: Contents) -> Values:
    runs = contents.context.runs
    metrics = {run.find("settings.training.selection_metric", "training.selection_metric", default="") for run in runs}
    leaking = (run for run in runs if run.find("settings.training.selection") == "as_published")
    return {
        "selection": [str(name) for name in sorted(metrics) if name],
        "leaking": list(dict.fromkeys(contents.context.label(run.key.variant) for run in leaking)),
        "datasets": [_dataset(contents.context, data) for data in contents.context.data],
    }


def _is_prepared(context: ReportContext, data: str) -> bool:
    return present(context.prepared / data / SUMMARY)


def _dataset(context: ReportContext, data: str) -> Values:
    """Return protocol and counts of a prepared dataset, if it is present."""
    folder, fix = context.prepared / data, "prepare the dataset again"
    summary = read_summary(folder) if _is_prepared(context, data) else {"splits": {}}
    splits = of_kind(summary["splits"], _SPLITS, folder / SUMMARY, fix)
    noise = summary.get("noise")
    return {
        "title": group_title(data),
        "protocol": str(summary.get("protocol", "")).replace("_", " "),
        "splits": {
            name: f"{counts['images']:,} images, {counts['classes']} classes" for name, counts in splits.items()
        },
        "noise": ", ".join(f"{name.replace('_', ' ')} {value_words(value) or '–'}" for name, value in noise.items())
        if isinstance(noise, dict)
        else "",
        "notes": of_kind(summary.get("notes", []), list[str], folder / SUMMARY, fix),
        "digest": next((str(run.find("data_digest", default="")) for run in context.runs if run.key.data == data), ""),
    }


def _settings(contents: Contents) -> Values | None:
    settings = settings_of(contents.context)
    return {"settings": settings} if settings else None


def _not_run(contents: Contents) -> Values:
    """Return one line per method and dataset with missing runs: the seeds that were not run."""
    context = contents.context
    missing: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key in context.missing:
        missing[key.data, key.variant].append(key.seed)
    lines = []
    for (data, variant), seeds in missing.items():
        several = "seeds" if len(seeds) > 1 else "seed"
        lines.append(f"{group_title(data)}: {context.label(variant)}, {several} {', '.join(map(str, seeds))}")
    return {"missing": lines}


def _provenance(contents: Contents) -> Values:
    """Return name -> the values that the runs report; several values mean that the runs were not made alike."""
    provenance: dict[str, set[str]] = defaultdict(set)
    if contents.context.plan:
        provenance["plan"].add(_plan(contents.context))
    for run in contents.context.runs:
        around = {name: run.record.get(name) or {} for name in ("versions", "hardware")}
        for name, value in flatten(around).items():
            provenance[name.replace("versions.", "").replace("hardware.", "hardware: ")].add(str(value))
    return {"provenance": {name: ", ".join(sorted(values)) for name, values in provenance.items()}}


def _plan(context: ReportContext) -> str:
    """Return the digest of the plan and whether it was committed before there were results."""
    if not context.committed:
        return f"{context.plan} (not committed before)"
    same = "as committed" if context.committed == context.plan else f"not {context.committed}, as it was committed"
    return f"{context.plan} ({same} in the experiment file)"


def _files(contents: Contents) -> Values:
    """Return relative path -> what it is, for the files beside the page that hold more than a table's head."""
    names = dict.fromkeys((*STANDING, *contents.context.figures))
    files = _FILES | {f"figures/{name}.pdf": f"figure {name.replace('_', ' ')} as PDF" for name in names}
    shown = {name: text for name, text in files.items() if present(contents.context.folder / name)}
    if not contents.published:
        shown.pop("published.csv", None)
    return {"files": shown}


SECTIONS: dict[str, tuple[str, bool, Callable[[Contents], Values | None]]] = {
    "answer": ("Answer", False, _answer),
    "tables": ("Table", False, _tables),
    "sure": ("How sure", False, _sure),
    "added": ("What is added", False, _added),
    "claims": ("Claims", False, _claims),
    "published": ("Published", False, _published),
    "questions": ("Questions", False, _browsers),
    "labels": ("Labels", False, _browsers),
    "figures": ("Figures", False, _figures),
    "settings": ("Settings of every method", True, _settings),
    "uncertainty": ("Can the uncertainty be trusted?", True, _uncertainty),
    "scores": ("All scores, AUGRC, E-AURC", True, _scores),
    "protocol": ("Protocol", True, _protocol),
    "not-run": ("What was not run", True, _not_run),
    "provenance": ("Provenance", True, _provenance),
    "files": ("Files", True, _files),
}  # name of section and template -> heading, whether it is folded, what it shows
