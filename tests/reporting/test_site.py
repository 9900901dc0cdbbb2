"""`probmetric publish`: a folder that can be carried away and opened anywhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from fabricated_runs import RUNS, Workspace, gathered

from probmetric.cli import main
from probmetric.io import FileError
from probmetric.reporting.experiment import sign
from probmetric.reporting.figures import draw
from probmetric.reporting.report import contents_of, write_page, write_tables
from probmetric.reporting.site import Page, target, write_site

THEORY = Path(__file__).parents[2] / "reports/theory"


@pytest.fixture(scope="module")
def made(built_workspace, tmp_path_factory) -> Path:
    """Reports of two experiments, one below a paper's name, and the theory figures. Do not change it: `reports`."""
    root = tmp_path_factory.mktemp("site") / "repository"
    shutil.copytree(built_workspace, root)
    workspace = Workspace(root, tuple(run for run in RUNS if run.startswith("digits")))
    for name in ("study", "pfml/table2"):
        context = workspace.context(name, figures=("sparsification",), title=f"All of {name}", description="`A < B`.")
        context = gathered(context)
        write_tables(contents_of(context))
        draw("sparsification", context)
        write_page(contents_of(context))
    shutil.copytree(THEORY, root / "reports/theory")
    return root / "reports"


@pytest.fixture
def reports(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "reports"))


def check_links(site: Path) -> int:
    """Follow every link of every page; returns how many there are."""
    pages = [Page.read(path) for path in site.rglob("*.html")]
    links = [(path, link) for path, page in zip(site.rglob("*.html"), pages, strict=True) for link in page.links]
    for path in site.rglob("*.html"):
        assert not re.search("data-local|results/", path.read_text(encoding="utf-8")), path
    for path, link in links:
        found = target(path, link).resolve()
        assert found.is_file(), (path, link)
        assert found.is_relative_to(site.resolve()), (path, link)
    return len(links)


def test_every_link_resolves_wherever_the_folder_lies(reports, tmp_path):
    assert "data-local" in (reports / "study/index.html").read_text(encoding="utf-8")
    write_site(reports, tmp_path / "site")
    (tmp_path / "site").rename(tmp_path / "elsewhere")
    shutil.rmtree(reports)
    assert check_links(tmp_path / "elsewhere") > 10


def test_the_first_page_lists_every_experiment_and_theory_figure(reports, tmp_path):
    first = write_site(reports, tmp_path / "site")
    text, page = first.read_text(encoding="utf-8"), Page.read(first)
    for name in ("study", "pfml/table2"):
        assert f"{name}/index.html" in page.links
        assert f"All of {name}</a>" in text
    assert text.count("<code>A &lt; B</code>.") == 2
    drawn = {path.stem for path in THEORY.glob("*.png")}
    assert {link for link in page.links if link.startswith("theory/")} == {
        f"theory/{name}.{kind}" for name in drawn for kind in ("png", "pdf")
    }
    assert "http" not in text


def test_only_what_pages_link_to_is_carried_along(reports, tmp_path):
    (reports / "study/notes.txt").write_text("private")
    write_site(reports, tmp_path / "site")
    assert (tmp_path / "site/study/table.csv").exists()
    assert not (tmp_path / "site/study/notes.txt").exists()


def test_a_second_time_leaves_nothing_of_the_first(reports, tmp_path):
    write_site(reports, tmp_path / "site")
    shutil.rmtree(reports / "pfml")
    write_site(reports, tmp_path / "site")
    assert not (tmp_path / "site/pfml").exists()
    assert check_links(tmp_path / "site") > 5


def test_what_is_not_a_site_is_never_removed(reports, tmp_path):
    precious = tmp_path / "site/index.html"
    precious.parent.mkdir()
    precious.write_text("<title>My own page</title>")
    with pytest.raises(FileError, match=r"as its site of reports: index\.html"):
        write_site(reports, tmp_path / "site")
    assert precious.exists()


def test_a_page_whose_files_are_gone_is_named(reports, tmp_path):
    (reports / "study/table.csv").unlink()
    with pytest.raises(FileError, match=r"study/index\.html links to table\.csv, .* make .* report again"):
        write_site(reports, tmp_path / "site")
    assert not (tmp_path / "site").exists(), "no part of a site stays"


def test_a_damaged_theory_figure_is_named(reports, tmp_path):
    figure = reports / "theory/bessel_ratio.pdf"
    figure.write_bytes(figure.read_bytes()[:-9])
    with pytest.raises(FileError, match=r"bessel_ratio\.pdf was damaged or edited .*; draw the theory figures again"):
        write_site(reports, tmp_path / "site")


@pytest.mark.parametrize("name", ["index.html", "table.csv", "figures/sparsification.pdf", "page.json"])
def test_what_was_damaged_since_the_report_was_signed_is_named(reports, tmp_path, name):
    sign(reports / "pfml/table2")
    write_site(reports, tmp_path / "site")
    damaged = reports / "pfml/table2" / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(FileError, match=rf"pfml/table2/{name} .*damaged.*; make the experiment's report again"):
        write_site(reports, tmp_path / "site")
    assert (tmp_path / "site/index.html").exists(), "the site before stays"


def test_without_reports_the_command_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["publish"]) == 2
    assert "reports holds no page yet; `snakemake` makes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("link", "relative"),
    [
        *(("table.md", True), ("../a%20b.pdf#x", True), ("#top", False), ("data:image/png;base64,AA", False)),
        *(("https://example.org/a", False), ("//example.org/a", False), ("mailto:a@b", False)),
    ],
)
def test_which_links_are_followed(tmp_path, link, relative):
    (tmp_path / "page.html").write_text(f'<title>T</title><a href="{link}">x</a>')
    assert Page.read(tmp_path / "page.html").links == ([link] if relative else [])
