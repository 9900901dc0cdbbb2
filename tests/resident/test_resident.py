"""Commands run by a server: they see, say and end what they would as processes of their own, and so does who kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from resident_helpers import THREADS, until

from probmetric.resident import owner
from probmetric.resident.starting import FOLDER
from probmetric.resident.usage import correct_rows

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
TERMINATED = 128 + signal.SIGTERM


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_command_sees_what_a_process_of_its_own_sees(office, threads):
    variables = {"SPY": "tell", "COLOUR": "blue ü"} | dict.fromkeys(THREADS, threads)
    seen = []
    for served in (True, False):
        mask, before = os.umask(0o027), signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            status, output, errors = office.run("report", "nothing", served=served, **variables)
        finally:
            os.umask(mask)
            signal.signal(signal.SIGHUP, before)
        seen.append({"status": status, "errors": errors} | json.loads(output))
    found, expected = seen
    assert not set(found.pop("random")) & set(expected.pop("random"))
    for name, value in expected.items():
        assert found[name] == value, name
    assert found["torch"] == int(threads)
    assert office.servers()


def test_no_two_commands_draw_the_same_numbers(office):
    draws = [json.loads(office.run("report", "nothing", SPY="tell")[1])["random"] for _ in range(2)]
    assert not set(draws[0]) & set(draws[1])


@pytest.mark.parametrize("wish", ["", "fail", "text", "seven", "die", "crash"])
def test_ends_are_those_of_a_process_of_its_own(office, wish):
    found, expected = (office.run("report", "nothing", served=served, SPY=wish) for served in (True, False))
    assert found == expected
    assert found[0] == {"": 2, "fail": 2, "text": 1, "seven": 7, "die": -9, "crash": -6}[wish]


def waiting(office, command="report"):
    process = office.start(command, "nothing", SPY="wait")
    assert process.stdout.readline() == "waiting\n"
    assert office.jobs()
    return process


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, 130), (signal.SIGUSR1, -10)]
)
def test_signals_reach_the_command(office, number, status):
    process = waiting(office)
    process.send_signal(number)
    _output, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert ("interrupted" in errors) == (number != signal.SIGUSR1)
    assert not office.jobs()


def test_the_command_stops_and_goes_on_with_its_client(office):
    process = waiting(office)
    job = office.jobs()[0]
    process.send_signal(signal.SIGTSTP)
    until(lambda: job.status() == "stopped")
    process.send_signal(signal.SIGCONT)
    until(lambda: job.status() == "sleeping")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == TERMINATED


def test_the_command_dies_with_its_client(office):
    process = waiting(office)
    process.kill()
    until(lambda: not office.jobs())
    assert office.servers()


def test_several_commands_at_once_end_apart(office):
    first, second = waiting(office), waiting(office)
    second.terminate()
    assert second.wait(60) == TERMINATED
    assert len(office.jobs()) == 1
    first.terminate()
    assert first.wait(60) == TERMINATED


def test_its_usage_is_noted_and_corrects_the_benchmark_row(office, monkeypatch):
    monkeypatch.chdir(office.root / "project")
    header = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time"
    with Path("logs/tables.log").open("w") as log:
        process = office.start("report", "nothing", SPY="spend")
        process.communicate()
        environment = os.environ | office.settled | {FOLDER: str(office.folder), "SPY": "spend"}
        subprocess.run([*process.args], stdout=log, stderr=log, env=environment, check=False)
    row = Path("benchmarks/jobs/tables.tsv")
    row.parent.mkdir(parents=True)
    row.write_text(f"{header}\n2.0\t0:00:02\t1.0\t2.0\t3.0\t4.0\t0.0\t0.0\t0.00\t0.01\n")
    ended = row.stat().st_mtime_ns
    time.sleep(0.05)
    assert correct_rows(office.folder) == 1
    assert row.stat().st_mtime_ns == ended  # by which the next workflow knows that the job was none of its own
    found = dict(zip(header.split("\t"), row.read_text().splitlines()[1].split("\t"), strict=True))
    assert float(found["cpu_time"]) > 0.5
    assert float(found["mean_load"]) == pytest.approx(50 * float(found["cpu_time"]), abs=1)
    assert float(found["max_rss"]) > 100
    assert (found["s"], found["max_uss"]) == ("2.0", "NA")


def test_data_is_prepared_while_the_server_still_starts(doomed):
    alone = doomed.start("prepare", "nothing", SPY="wait")
    assert alone.stdout.readline() == "waiting\n"
    assert doomed.servers()
    assert not doomed.jobs()
    assert doomed.run("report", "nothing")[0] == 2
    waiting(doomed, "prepare")
    assert len(doomed.jobs()) == 1


def test_edited_code_is_what_the_next_command_runs(doomed):
    assert doomed.run("report", "nothing")[0] == 2
    before = {server.pid for server in doomed.servers()}
    cli = doomed.package / "cli/__init__.py"
    cli.write_text(cli.read_text().replace("EXIT_CONFIG = 2", "EXIT_CONFIG = 22"))
    assert doomed.run("report", "nothing")[0] == 22
    assert {server.pid for server in doomed.servers()} > before


def test_without_its_server_a_command_runs_itself(doomed):
    """Killed in the middle of a command, then gone."""
    process = waiting(doomed)
    doomed.servers()[0].kill()
    assert process.stdout.readline() == "waiting\n"
    assert not doomed.servers()
    process.terminate()
    assert process.wait(60) == TERMINATED
    assert doomed.run("report", "nothing")[0] == 2
    assert not doomed.servers()


def test_the_server_ends_with_its_owner_and_lets_commands_finish(doomed):
    process = waiting(doomed)
    doomed.owner.kill()
    doomed.owner.wait()
    assert doomed.run("report", "nothing")[0] == 2
    assert doomed.jobs()
    process.terminate()
    assert process.wait(60) == TERMINATED
    until(lambda: not doomed.servers())


def test_a_folder_no_socket_can_be_in_costs_nothing_but_time(office, tmp_path):
    folder = tmp_path / "999999999"
    folder.write_text("")
    assert office.run("report", "nothing", **{FOLDER: str(folder)})[0] == 2


def test_a_killed_workflow_s_folder_is_tidied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER, "")
    Path("state/resident/4194304").mkdir(parents=True)
    owner.offer()
    folders = list(Path("state/resident").iterdir())
    assert [folder.name for folder in folders] == [str(os.getpid())]
    assert folders[0].stat().st_mode & 0o777 == 0o700
    assert Path(os.environ[FOLDER]).samefile(folders[0])


def test_rules_name_logs_and_benchmark_rows_alike():
    """By its log a command's benchmark row is found."""
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        text = file.read_text()
        rows = re.findall(r'benchmark:\s+"benchmarks/jobs/(.*)\.tsv"', text)
        logs = re.findall(r'log:\s+"logs/(.*)\.log",\s+benchmark', text)
        assert rows == logs
