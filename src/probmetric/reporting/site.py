"""A static site of all reports: one page that lists the experiments, their pages, and the theory figures.

It is made from the files of `reports/` alone and needs no network or server. Every link is relative and stays inside
the folder, which you can open from disk, pack into an archive or put on any web server.

    reports/<experiment>/index.html -> <site>/<experiment>/index.html, with the files its links name
    reports/theory/<name>.json      -> <site>/theory/<name>.{png,pdf}
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from probmetric.io import FileError, read_json, read_text, write_text
from probmetric.io.folders import check_replaceable, new_folder
from probmetric.reporting.experiment import PAGE, signed_record
from probmetric.reporting.page import environment
from probmetric.reporting.results import REPORT

GENERATOR = "probmetric publish"
SITE = "site of reports"
LOCAL = "data-local"  # marks links that lead out of the reports, to files of this machine
_LOCAL = re.compile(rf' {LOCAL} href="[^"]*"')
_SUFFIX = " – ProbMetric"
_DRAW = "draw the theory figures again (`python examples/theory/draw.py`)"


@dataclass
class Page(HTMLParser):
    """Title, `<meta>` values and relative links of an HTML page."""

    title: str = ""
    meta: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    _in_title: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def read(cls, path: Path) -> Page:
        """Return the page in a file."""
        page = cls()
        page.feed(read_text(path, REPORT))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record names, contents and links of a tag."""
        values = {name: value or "" for name, value in attrs}
        self._in_title = tag == "title"
        if tag == "meta" and "name" in values:
            self.meta[values["name"]] = values.get("content", "")
        self.links += (
            [] if LOCAL in values else [values[name] for name in ("href", "src") if _is_relative(values.get(name, ""))]
        )

    def handle_data(self, data: str) -> None:
        """Record the title."""
        if self._in_title:
            self.title, self._in_title = data.strip(), False


def _is_relative(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.path) and not parts.scheme and not parts.netloc


def target(page: Path, link: str) -> Path:
    """Return the file that a relative link of a page names."""
    return page.parent / unquote(urlsplit(link).path)


def write_site(reports: Path, site: Path) -> Path:
    """Write the site of all pages below `reports` into the folder `site`, whole or not at all; return its first page.

    Raises:
        FileError: there is no report yet, a page links to a missing or damaged file, or `site` holds something else.
    """
    pages = sorted(reports.rglob("index.html"))
    figures = sorted(path for path in (reports / "theory").glob("[!.]*.json") if path.name != PAGE)
    if not pages and not figures:
        raise FileError(f"{reports} holds no page yet; `snakemake` makes those of the experiments in params.yaml.")
    check_replaceable(site, SITE, [reports])
    signed_record(reports / "theory", _DRAW)
    for page in pages:
        signed_record(page.parent)
    with new_folder(site, SITE, [reports]) as new:
        experiments = [_experiment(page, reports, new) for page in pages]
        theory = [_figure(words, reports, new) for words in figures]
        template = environment().get_template("site.html.j2")
        write_text(new / "index.html", template.render(generator=GENERATOR, experiments=experiments, theory=theory))
    return site / "index.html"


def _experiment(page: Path, reports: Path, site: Path) -> dict[str, str]:
    """Copy a page and the files it links to, without links to run folders; return the page's entry in the list."""
    said = Page.read(page)
    for link in said.links:
        if not target(page, link).is_file():
            raise FileError(f"{page} links to {link}, which is not there; {REPORT}.")
        _copy(target(page, link), reports, site)
    write_text(site / page.relative_to(reports), _LOCAL.sub("", read_text(page)))
    place = page.relative_to(reports)
    return {
        "name": str(place.parent),
        "path": str(place),
        "title": said.title.removesuffix(_SUFFIX),
        "description": said.meta.get("description", ""),
    }


def _figure(words: Path, reports: Path, site: Path) -> dict[str, Any]:
    """Copy a theory figure; return its words and paths."""
    image, paper = words.with_suffix(".png"), words.with_suffix(".pdf")
    for path in (image, paper):
        _copy(path, reports, site)
    said = read_json(words, _DRAW, dict[str, str])
    return said | {"image": str(image.relative_to(reports)), "pdf": str(paper.relative_to(reports))}


def _copy(path: Path, reports: Path, site: Path) -> None:
    copy = site / path.relative_to(reports)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)
