"""Names with quotes, newlines, markup, formulas and shell metacharacters, wherever somebody may choose them."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("reporting", "data")]

import miniatures
from fabricated_runs import Workspace, gathered, study_metrics, write_prepared, write_run

from probmetric.config import ConfigError, Params, load, parse
from probmetric.data import doctor, load_manifest, prepare_dataset
from probmetric.io import read_yaml
from probmetric.planning.expansion import Point, plan_experiment, resolve
from probmetric.reporting.figures import draw
from probmetric.reporting.page import TEMPLATES
from probmetric.reporting.report import contents_of, write_page, write_tables
from probmetric.runs.names import legal_name

ROOT = Path(__file__).parents[2]
HOSTILE = {
    "quotes": 'it\'s "quoted" `here`',
    "newline": "first\nsecond\r\nthird",
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "shell": "a; touch pwned & $(touch pwned) `touch pwned` | cat > pwned",
    "formula": '=HYPERLINK("http://example.org","click")',
    "formula after a sign": "-1+cmd|' /C calc'!A0",
    "at sign": "@SUM(1+1)*cmd|' /C calc'!A0",
    "TeX": r"\input{/etc/passwd} \write18{touch pwned} $x_{ % & # ~ ^ }",
    "unbalanced mathematics": "cost $5_{2 and ^",
    "Markdown": "| a | [link](javascript:alert(1)) ![x](http://example.org/x.png) *b* _c_",
    "format": "{wildcards.run} {0} %s %(x)s",
    "unicode": "Ünïcödé 名前 \u202eabc \u0000-free 🦉".replace("\u0000", ""),
}
NAMES = [*HOSTILE.values(), "../up", "a/b", "..", ".hidden", "-rf", "a+b", "a=b", "", "a b"]


@pytest.fixture(scope="module")
def params() -> Params:
    return load(Params, ROOT / "params.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_cannot_be_called_so(params, name):
    """Its name becomes a folder and a word of a command; what it is called in reports is its label."""
    changed = read_yaml(ROOT / "params.yaml")
    changed["methods"][name] = {"loss": "contrastive"}
    known = parse(Params, changed, "params.yaml")
    with pytest.raises(ConfigError, match="cannot name a folder"):
        resolve(known, known.methods, Point(dataset="digits", method=name))


@pytest.mark.parametrize("label", [HOSTILE["newline"], "bell \a", "\x1b[31mred"])
def test_a_label_is_one_line(label):
    changed = read_yaml(ROOT / "params.yaml")
    changed["methods"]["contrastive"]["label"] = label
    with pytest.raises(ConfigError, match="label"):
        parse(Params, changed, "params.yaml")


@pytest.mark.parametrize("value", [*HOSTILE.values(), "../up", "a/b", "a+b", "a=b", "", "a b", "a,b", "$HOME"])
def test_an_override_cannot_be_so(params, value):
    with pytest.raises(ConfigError):
        resolve(params, params.methods, Point(dataset="digits", method="contrastive", overrides={"pretrained": value}))


@pytest.mark.parametrize("name", [*NAMES, "smoke; touch pwned", "smoke@$(id)", "smoke@digits+`id`"])
def test_an_experiment_cannot_be_called_so(params, name, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((ConfigError, ValueError)):
        plan_experiment(params, name)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


RUNS = ("digits/contrastive/seed0", "digits/contrastive/seed1", "digits/proxy_nca/seed0", "digits/proxy_nca/seed1")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    for run in RUNS:
        _, method, seed = run.split("/")
        write_run(root, run, study_metrics("digits", 0.0, method, int(seed[-1])))
    write_prepared(root, "digits")
    return root


@pytest.mark.parametrize("case", HOSTILE)
def test_reports_say_it_and_do_not_do_it(results, tmp_path, case, monkeypatch):
    text = HOSTILE[case]
    root = tmp_path / "repository"
    shutil.copytree(results, root)
    monkeypatch.chdir(root)
    figures = ("learning_curves", "sparsification")
    context = Workspace(root, RUNS).context(
        "study", title=text, description=text, labels={"contrastive": text, "proxy_nca": "B"}, figures=figures
    )
    context = gathered(context)
    write_tables(contents_of(context))
    if case in ("TeX", "unbalanced mathematics"):
        for figure in figures:
            draw(figure, context)
    write_page(contents_of(context))
    assert not list(tmp_path.rglob("pwned"))
    _check_csv(context.folder / "table.csv", text)
    _check_tex((context.folder / "table.tex").read_text(encoding="utf-8"))
    _check_html((context.folder / "index.html").read_text(encoding="utf-8"))
    markdown = (context.folder / "table.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(", markdown)
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows if "Published" not in row}) == 1


def _check_csv(path: Path, text: str) -> None:
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
    assert {row["method"] for row in rows} == {"contrastive", "proxy_nca"}
    labels = {row["label"] for row in rows if row["method"] == "contrastive"}
    assert {label.removeprefix("'").split() == text.split() for label in labels} == {True}
    assert not any(str(value).startswith(("=", "+", "@", "\t", "\r")) for row in rows for value in row.values())
    assert not any(row["label"].startswith("-") for row in rows)


def _check_tex(text: str) -> None:
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert "\\input" not in code
    assert "\\write" not in code
    plain = re.sub(r"\\[{}$&%#_]", "", code)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0


def _check_html(text: str) -> None:
    tags = Tags(text).found
    scripts = re.findall(r"<script[^>]*>(.*?)</script", text, flags=re.DOTALL | re.IGNORECASE)
    (script,) = scripts
    for path in TEMPLATES.glob("*.js"):
        script = script.replace(path.read_text(encoding="utf-8"), "")
    assert not script.strip()
    assert len([tag for tag, _ in tags if tag == "script"]) == 1
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    links = [attributes.get("href") or attributes.get("src") or "" for _, attributes in tags]
    assert not any(link.startswith(("javascript:", "http:")) for link in links)


@pytest.mark.parametrize("case", HOSTILE)
def test_mlflow_names_are_legal(case):
    assert re.fullmatch(r"[\w\-. :/]*", legal_name(HOSTILE[case]), flags=re.ASCII)


@pytest.mark.parametrize("case", ["quotes", "markup", "shell", "formula", "newline", "unicode", "format"])
def test_class_and_file_names_of_a_data_set(tmp_path, case):
    """Folders named so are read, kept as they are called, and checked, without anything else happening."""
    name = HOSTILE[case].replace("/", "\u2215")
    raw = tmp_path / "raw"
    miniatures.build("cub", raw, "class_folders")
    (folder,) = (path for path in raw.rglob("*Laysan_Albatross") if path.is_dir())
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"{number} {name}.jpg")
    folder.rename(folder.with_name(folder.name.replace("Laysan_Albatross", name)))
    out = prepare_dataset("cub", tmp_path / "out/cub", raw=raw, progress=False, subset=True)
    manifest = load_manifest(out)
    assert any(name in found for found in manifest["class_name"])
    assert sum(name in path for path in manifest["path"]) == miniatures.PER_CLASS
    assert doctor(out) == []
    assert not list(tmp_path.rglob("pwned"))
