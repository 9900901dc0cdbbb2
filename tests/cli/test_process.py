"""Ctrl-C and SIGTERM: one line, the status a shell expects, no temporary file, no program left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from probmetric.process import call, interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LINE = "interrupted; run the same command again to go on.\n"
# A command of which one part is replaced: what it does until the signal comes. It sleeps in short pieces: Python
# hears a signal that comes just before a sleep only after it.
COMMAND = """
import signal, sys, time
import probmetric.cli.reports as upkeep
from pathlib import Path
from probmetric import cli
from probmetric.process import call
from probmetric.io import atomic_path

def work(options):
    {body}

upkeep.schema = work
sys.exit(cli.main(["schema"]))
"""
WRITES = """
    with atomic_path("whole.txt") as path:
        path.write_text("half")
        Path("ready").touch()
        [time.sleep(0.01) for _ in range(6000)]
"""
IMPORTS = """
    Path("swallows.py").write_text("try:\\n import waits\\nexcept BaseException:\\n pass\\n")
    program = "import pathlib, time; pathlib.Path('ready').touch()\\n[time.sleep(0.01) for _ in range(6000)]"
    Path("waits.py").write_text(program)
    sys.path.insert(0, ".")
    import swallows
"""
CALLS = """
    program = "import pathlib, time\\ntry:\\n pathlib.Path('ready').touch(); [time.sleep(0.01) for _ in range(6000)]\\n"
    program += "except KeyboardInterrupt:\\n time.sleep(0.5); pathlib.Path('in order').touch()"
    call([sys.executable, "-c", program])
"""


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("body", [WRITES, IMPORTS, CALLS], ids=["writes", "imports", "calls"])
def test_a_command_is_interrupted(body, number, tmp_path):
    command = [sys.executable, "-c", COMMAND.format(body=body)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        while not (tmp_path / "ready").exists() and process.poll() is None:
            time.sleep(0.01)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # a terminal tells all processes
        said = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + number, said
    assert said.endswith(LINE)
    assert said.count("\n") == 1
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
    assert (tmp_path / "in order").exists() == (body == CALLS)


def test_what_listens_already_is_left_alone():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_programs_beside_this_python_are_found_without_an_activated_environment(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert call(["probmetric", "--version"]) == 0
