"""Commands answer with one paragraph, not with a traceback, and tell the workflow by their exit status."""

import subprocess
import sys
from pathlib import Path

import pytest

from probmetric.cli import EXIT_CONFIG, main
from probmetric.io import write_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_help_names_every_step(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    steps = "prepare noise doctor data run figure report track experiments"
    assert set(steps.split()) <= listed


@pytest.mark.parametrize(("module", "said"), [("faiss", True), ("probmetric.gone", False)])
def test_a_module_that_is_not_installed_is_named_with_what_installs_it(monkeypatch, capsys, module, said):
    def missing(options):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("probmetric.cli.runs.experiments", missing)
    if said:
        assert main(["experiments"]) == EXIT_CONFIG
        assert "the module faiss is not installed; pip install 'probmetric[all]'" in capsys.readouterr().err
    else:
        with pytest.raises(ModuleNotFoundError):
            main(["experiments"])


def test_help_imports_nothing_heavy():
    heavy = "{'numpy', 'pandas', 'pydantic', 'torch', 'yaml'}"
    code = f"import sys; import probmetric.cli as c; c.parser(); print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_neither_planning_nor_a_run_imports_tables():
    """Every run is a process; pandas and PyArrow cost each of them a second."""
    heavy, modules = "{'matplotlib', 'pandas', 'pyarrow', 'torch'}", "probmetric.cli.runs, probmetric.planning.workflow"
    code = f"import sys; import {modules}; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "digits/cosin/seed0"], "did you mean 'cosine'"),
        (["run", "nothing"], "is not a run"),
        (
            ["run", "digits/cosine/seed0", "--plan", "state/plans/none.json"],
            "state/plans/none.json is missing; plan again",
        ),
        (
            ["run", "glyphs/nosuch/seed77", "--plan", "{run}"],
            "is the plan of digits/cosine/seed0, not",
        ),
        (["report", "demo", "--plan", "{report}"], "is the plan of smoke, not of demo; give that of demo"),
        (["track", "demo", "--plan", "{report}"], "is the plan of smoke, not of demo"),
        (["monitor", "c.json", "log.csv", "--labelled", "--patience", "3"], "--patience says nothing of labelled"),
        (["monitor", "c.json", "log.csv", "--labelled", "--unordered"], "--unordered says nothing of labelled"),
        (["monitor", "c.json", "log.csv", "--false-alarms", "0.1"], "--false-alarms says nothing of doubts"),
        (["report", "dmo"], "did you mean 'demo'"),
        (["prepare", "digit"], "did you mean 'digits'"),
        (["prepare", "glyphs+split1"], "`probmetric data ensure glyphs+split1` makes both"),
        (["prepare", "glyphs+noise0.2"], "`probmetric data ensure glyphs+noise0.2` makes both"),
        (["doctor", "no/such/folder"], "no/such/folder"),
        (["doctor", "not\udcffutf8"], "not\\udcffutf8"),
        (["status", ""], "an argument is empty"),
        (["search", "digits/cosine/seed0", " "], "an argument is empty"),
    ],
)
def test_errors_are_one_paragraph_and_exit_two(capsys, tmp_path, arguments, expected):
    plans = {name: tmp_path / f"{name}.json" for name in ("run", "report")}
    settings = {"method": "cosine", "dataset": "digits", "loss": {"name": "cosine"}, "backbone": {"name": "compact"}}
    run = {"run": "digits/cosine/seed0", "encoder": "digits/cosine/seed0", "settings": settings, "store": ""}
    write_json(plans["run"], run | {"plugins": []})
    report = {"experiment": "smoke", "shown": [], "runs": {}, "report": {}, "tracking": {}}
    write_json(plans["report"], report | {"plugins": []})
    assert main([argument.format(**plans) for argument in arguments]) == EXIT_CONFIG
    output = capsys.readouterr()
    text = output.out + output.err
    assert expected in text
    assert "Traceback" not in text
    assert len(text) < 1500


@pytest.mark.parametrize(
    "given",
    [
        ["run", "digits/cosine/seed0", "--threads", "0"],
        ["run", "digits/cosine/seed0", "--threads", "-3"],
        ["ui", "--port", "70000"],
        ["ui", "--port", "http"],
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(capsys, given):
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert f"argument {given[-2]}: " in (said := capsys.readouterr().err)
    assert given[-1] in said


def test_a_certificate_made_by_hand_says_that_reports_do_not_know_it(monkeypatch, capsys):
    monkeypatch.setattr("probmetric.runs.steps.certify", lambda run, **rules: Path("certificate.md"))
    assert main(["certificate", "glyphs/a/seed0", "--risk", "0.4"]) == 0
    said = capsys.readouterr()
    assert said.out == "certificate.md\n"
    assert "when they are made again: `probmetric report <experiment>`" in said.err


def test_experiments_are_listed_with_their_runs(capsys):
    assert main(["experiments"]) == 0
    lines = capsys.readouterr().out.splitlines()
    demo = next(line for line in lines if line.startswith("demo "))
    assert {"digits", "glyphs"} <= {name.rstrip("*") for name in demo.split()}
    assert demo.split()[1] == "17"
