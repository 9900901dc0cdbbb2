"""What the terminal shows of a running workflow: a line per finished run, with its metric."""

from __future__ import annotations

import logging
import re
import time
from types import SimpleNamespace

import pytest
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.common import LogEvent

from probmetric.config import Params, RunSettings
from probmetric.io import write_json, write_text
from probmetric.planning.console import Progress, failure_summary, finding, linked
from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs.plan import Run
from snakemake_logger_plugin_probmetric import LogHandler

SETTINGS = {
    "printshellcmds": False,
    "nocolor": True,
    "quiet": {Quietness.HOST, Quietness.REASON},
    "debug_dag": False,
    "verbose": False,
    "show_failed_logs": True,
    "stdout": False,
    "dryrun": False,
}
RUN = "digits/contrastive/seed0"


@pytest.fixture(autouse=True)
def no_results_here(tmp_path, monkeypatch):
    """A finished run's line reads `results/` of the working directory; a clone that ran the demo has some."""
    monkeypatch.chdir(tmp_path)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def handler(**settings) -> LogHandler:
    return LogHandler(SimpleNamespace(**SETTINGS | settings), None)


def message(text: str | None, level: int = logging.INFO, **said: object) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", level, __file__, 1, text, None, None)
    record.__dict__ |= said
    return record


def whole_run(jobs: dict[str, int]) -> list[logging.LogRecord]:
    """Snakemake's messages of a workflow with one job that makes `RUN`."""
    about = {"rule_msg": f"Run {RUN}", "rule_name": "run", "wildcards": {"run": RUN}, "reason": ""}
    return [
        message("Building DAG of jobs..."),
        message("Warning: the following output files of rule prepare were not present when ...", logging.WARNING),
        message("Touching output file state/train/glyphs/vmf/seed0."),
        message("Provided cores: 2", event=LogEvent.RESOURCES_INFO, cores=2),
        message("Job stats: ...", event=LogEvent.RUN_INFO, stats=jobs),
        message(" Rule: run", event=LogEvent.JOB_INFO, jobid=7, **about),
        message("Execute 1 jobs...", event=LogEvent.JOB_STARTED, jobs=[7]),
        message("Finished jobid: 7 (Rule: run)", event=LogEvent.JOB_FINISHED, job_id=7),
        message(None, event=LogEvent.PROGRESS, done=1, total=4),
    ]


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "results" / RUN / "metrics.json", {"clustering/nmi": 0.9, "retrieval/recall_at_1": 0.98123})


def test_a_finished_run_is_a_line_with_its_metric_and_jobs_are_none(evaluated, capsys):
    teller = handler()
    for record in whole_run({"prepare": 1, "run": 3, "all": 1, "total": 5}):
        teller.emit(record)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "4 jobs: 1 prepare, 3 run. Results come in as runs finish."
    assert re.fullmatch(rf"\[ {{2}}0:00\] results/{RUN}   Recall@1 0\.981   1 of 3 runs", lines[1])
    assert len(lines) == 2


@pytest.mark.parametrize("quiet", [Quietness.ALL, Quietness.PROGRESS])
def test_quiet_says_nothing_of_progress_and_never_hides_errors_but_for_all(evaluated, capsys, quiet):
    teller = handler(quiet={quiet})
    for record in whole_run({"run": 1}):
        teller.emit(record)
    assert capsys.readouterr().err == ""
    teller.emit(message("it broke", logging.ERROR))
    assert capsys.readouterr().err == ("" if quiet is Quietness.ALL else "it broke\n")


@pytest.mark.parametrize("asked", ["dryrun", "verbose", "printshellcmds"])
def test_whoever_asks_for_snakemakes_own_words_gets_them(evaluated, capsys, asked):
    teller = handler(**{asked: True})
    for record in whole_run({"run": 1}):
        teller.emit(record)
    said = capsys.readouterr().err
    assert f"Job 7: Run {RUN}" in said
    assert "Building DAG of jobs..." in said


def test_warnings_pass_whatever_they_begin_with(capsys):
    teller = handler()
    teller.emit(message("Building DAG of jobs failed", logging.WARNING))
    teller.emit(message("Submitted array job 5"))
    assert capsys.readouterr().err.splitlines() == ["Building DAG of jobs failed", "Submitted array job 5"]


def test_a_message_that_cannot_be_told_does_not_end_those_that_follow(capsys):
    teller = handler()
    teller.emit(message("broken", event=LogEvent.RUN_INFO, stats=None))
    teller.emit(message("and on"))
    assert capsys.readouterr().err.endswith("and on\n")


def test_a_run_without_readable_metrics_is_named_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert finding(RUN) == f"results/{RUN}"
    write_json(tmp_path / "results" / RUN / "metrics.json", {"own/spread": 1.0})
    assert finding(RUN) == f"results/{RUN}"


def test_other_jobs_have_their_lines():
    progress = Progress(Clock())
    progress.plan({"run": 2, "prepare": 1, "report": 1})
    told = {"prepare": {"data": "glyphs"}, "report": {"experiment": "demo"}}
    lines = []
    for job, (rule, wildcards) in enumerate([*told.items(), ("run", {"run": RUN}), ("run", {"run": RUN})]):
        progress.begin(job, rule, wildcards)
        lines += progress.end(job)
    assert [line.partition("] ")[2] for line in lines] == [
        "prepared glyphs",
        "page: reports/demo/index.html",
        f"results/{RUN}   1 of 2 runs",
        f"results/{RUN}   2 of 2 runs",
    ]


def test_a_minute_without_a_line_says_what_runs_and_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    progress = Progress(clock)
    for job in range(5):
        progress.begin(job, "run", {"run": f"shop/tuned/seed{job}"})
    log = tmp_path / "logs/run/shop/tuned/seed0.log"
    log.parent.mkdir(parents=True)
    log.write_text("epoch 2 of 10, validation map_at_r 0.5\nepoch 3 of 10, validation map_at_r 0.662\n")
    clock.now += 59
    assert list(progress.wait()) == []
    clock.now += 1
    assert list(progress.wait()) == [
        "[  1:00] running: shop/tuned/seed0 epoch 3 of 10, validation map_at_r 0.662; shop/tuned/seed1; "
        "shop/tuned/seed2, and 2 more"
    ]
    assert list(progress.wait()) == []
    clock.now += 60
    list(progress.end(0))
    progress.stop(1)
    clock.now += 60
    assert list(progress.wait()) == ["[  3:00] running: shop/tuned/seed2; shop/tuned/seed3; shop/tuned/seed4"]


def test_the_terminal_says_what_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("probmetric.planning.console.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("snakemake_logger_plugin_probmetric.SECONDS_BETWEEN_LOOKS", 0.01)
    teller = handler()
    for record in whole_run({"run": 1})[:-2]:
        teller.emit(record)
    said, until = "", time.monotonic() + 10
    while not said.endswith(f"running: {RUN}\n") and time.monotonic() < until:
        time.sleep(0.01)
        said += capsys.readouterr().err
    teller.close()
    teller.close()  # as logging does at the end of the process
    assert f"running: {RUN}\n" in said


def test_paths_are_links_in_a_terminal_and_only_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    text = f"log: logs/run/{RUN}.log, see reports/a/index.html. nologs/x /abs/logs/y"
    assert linked(text, terminal=False) == text
    shown = linked(text, terminal=True)
    assert re.sub("\033]8;;.*?\033\\\\", "", shown) == text
    targets = re.findall("\033]8;;(file.+?)\033\\\\", shown)
    assert targets == [(tmp_path / path).as_uri() for path in (f"logs/run/{RUN}.log", "reports/a/index.html")]
    monkeypatch.setenv("TERM", "dumb")
    assert linked(text, terminal=True) == text


def test_after_a_failure_only_what_the_workflow_should_make_counts_as_missing(tmp_path, monkeypatch):
    """With `until: train` a trained run is made, though it has no metrics, and there are no reports."""
    params = Params(datasets=["digits"], until="train")
    settings = RunSettings(dataset="digits", method="contrastive")
    runs = {name: Run(name, name, settings) for name in (RUN, f"{RUN}1")}
    plan = WorkflowPlan(params, {"shop": None}, runs)
    for made in ("data/prepared/digits/digest", f"state/train/{RUN}"):
        write_text(tmp_path / made, "")
    write_text(tmp_path / f"logs/run/{RUN}1.log", "no memory\n")
    said = failure_summary(plan, since=0.0).splitlines()
    assert said[1].startswith("1 job(s) failed")
    assert said[2:-1] == [f"  run {RUN}1", f"    log: logs/run/{RUN}1.log", "    no memory"]
