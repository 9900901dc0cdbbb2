"""The tools send nothing anywhere: how that is switched off, and a whole workflow watched while it runs."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probmetric.io import read_yaml, write_yaml
from probmetric.process import TELEMETRY_OFF
from probmetric.tracking import ui_command

ROOT = Path(__file__).parents[2]

# In every Python process of the workflow: write down who is called, and let nobody answer but this machine.
WATCH = """
import os, sys

def watch(event, arguments):
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[-1], tuple):
        host = arguments[-1][0]
    else:
        return
    if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", b"localhost"):
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{event} {host!r} {sys.argv[:3]}\\n")
        raise OSError("no network here")

sys.addaudithook(watch)
"""


def watched(folder: Path) -> dict[str, str]:
    """Environment in which Python processes report calls to other machines to `calls`; telemetry at its default."""
    (folder / "watch").mkdir()
    (folder / "watch/sitecustomize.py").write_text(WATCH)
    plain = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}
    return plain | {"PYTHONPATH": str(folder / "watch"), "WATCHED": str(folder / "calls")}


def test_the_watch_sees(tmp_path):
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    done = subprocess.run([sys.executable, "-c", code], env=watched(tmp_path), check=False, capture_output=True)
    assert done.returncode == 1
    assert "192.0.2.1" in (tmp_path / "calls").read_text()


@pytest.mark.slow
@pytest.mark.workflow
def test_a_workflow_calls_nobody(tmp_path):
    """Data through DVC, training, evaluation, tables, figures, page and MLflow, from a bare environment."""
    workspace = tmp_path / "workspace"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(workspace)], check=True)
    params = read_yaml(workspace / "params.yaml")
    write_yaml(workspace / "params.yaml", params | {"experiments": ["quiet"], "ood": {}})
    experiment = {
        "title": "Quiet",
        "description": "One run.",
        "runs": [{"datasets": ["digits"], "methods": ["contrastive"], "seeds": [0], "set": {"training.epochs": 1}}],
        "metrics": ["retrieval/recall_at_1"],
        "figures": ["learning_curves"],
    }
    write_yaml(workspace / "workflow/experiments/quiet.yaml", experiment)
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    done = subprocess.run(command, cwd=workspace, env=watched(tmp_path), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (workspace / "state/tracked/quiet.json").exists()
    assert not (tmp_path / "calls").exists(), (tmp_path / "calls").read_text()


@pytest.mark.slow
@pytest.mark.processes
def test_how_it_is_switched_off():
    """By environment variables in every command and in the workflow, and by DVC's own configuration."""
    assert TELEMETRY_OFF["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert TELEMETRY_OFF["DO_NOT_TRACK"] == "true"
    assert re.search(r"^\s*analytics = false$", (ROOT / ".dvc/config").read_text(), flags=re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}
    for code in (
        "from probmetric.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\nmain(['experiments'])",
        "from probmetric.planning.workflow import prepare_environment; prepare_environment()",
    ):
        shown = f"{code}\nimport os, sys\nsys.stderr.write(repr(dict(os.environ)))"
        done = subprocess.run(
            [sys.executable, "-c", shown], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        )
        for name, value in TELEMETRY_OFF.items():
            assert f"'{name}': '{value}'" in done.stderr


@pytest.mark.slow
def test_mlflow_and_dvc_see_it():
    """The packages' own answer to the question whether they may report."""
    code = (
        "from probmetric.process import switch_telemetry_off; switch_telemetry_off()\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "from dvc.analytics import is_enabled\n"
        "print(is_telemetry_disabled(), is_enabled())"
    )
    environment = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF | {"CI": ""}}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True
    )
    assert done.stdout.decode().split() == ["True", "False"]


def test_the_ui_is_for_this_machine():
    command = ui_command("sqlite:///mlflow.db", 5123)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--allowed-hosts") + 1] == "127.0.0.1:5123,localhost:5123"
    assert "MLFLOW_DISABLE_TELEMETRY=true" in command


@pytest.mark.slow
@pytest.mark.processes
def test_the_ui_answers_only_to_its_own_name(tmp_path):
    """A page elsewhere that resolves its name to 127.0.0.1 (DNS rebinding) gets nothing; no other address listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            ui_command("sqlite:///mlflow.db", port),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 180
        while status(port, f"127.0.0.1:{port}") != 200:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.3)
        assert status(port, f"localhost:{port}") == 200
        assert status(port, "evil.example.org") == 403
        assert listening(port) == {"0100007F"}, "127.0.0.1 as the kernel writes it"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def status(port: int, host: str) -> int:
    """Status of the experiments' page asked for under the name `host`; 0 if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/api/2.0/mlflow/experiments/get?experiment_id=0", headers={"Host": host})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def listening(port: int) -> set[str]:
    """Addresses that listen on the port, IPv4 and IPv6."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
