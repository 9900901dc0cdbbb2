"""SIGKILL, SIGTERM, half-written files and lack of memory at random points of every step: the same command then ends as
if undisturbed. The points are touches of the file system and bytes of a file, never moments of a clock."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from fault_helpers import STEPS, TIMED, Outcome, Tiny

pytestmark = pytest.mark.slow

# How many points of a step are hit; together with the out-of-memory ones more than fifty.
KILLS = {"train": 8} | dict.fromkeys(["prepare", "fit", "embed", "evaluate", "report"], 5)
KILLS |= dict.fromkeys(["figures", "track"], 4)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def comparable(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files without those that hold times, and records without the digests of these."""
    return {name: untimed(name, content) for name, content in files.items() if Path(name).name not in TIMED}


def untimed(name: str, content: bytes) -> bytes:
    if Path(name).parent.name != "made":
        return content
    with suppress(json.JSONDecodeError):
        record = json.loads(content)
        record["files"] = {file: digest for file, digest in record["files"].items() if file not in TIMED}
        return json.dumps(record).encode()
    return content


def check_whole(tiny: Tiny, whole: Tiny) -> None:
    """Same files, same bytes; nothing left lying about; MLflow says the same."""
    found, expected = tiny.files(), whole.files()
    assert sorted(found) == sorted(expected)
    found = comparable(found)
    for name, content in comparable(expected).items():
        assert found[name] == content, f"{name} differs from the undisturbed one"
    assert tracked(tiny.folder) == tracked(whole.folder)


def tracked(folder: Path) -> list[tuple[object, ...]]:
    """Runs and final metrics in the MLflow store that are not deleted, whatever their ids."""
    question = (
        "select r.name, t.value, m.key, m.value from runs r join tags t on t.run_uuid = r.run_uuid"
        " join latest_metrics m on m.run_uuid = r.run_uuid"
        " where r.lifecycle_stage = 'active' and t.key = 'probmetric.run' and m.key not like '%seconds%'"
        " and m.key not like 'by_epoch%' order by 1, 2, 3"
    )
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return connection.execute(question).fetchall()


def check_nothing_half_written(tiny: Tiny, whole: Tiny, step: str) -> None:
    """Every output that is there already is the undisturbed one, down to the last byte."""
    expected = comparable(whole.files())
    for name, content in comparable(tiny.files()).items():
        visible = not any(part.startswith(".") for part in Path(name).parts)
        if visible and any(name == output or name.startswith(f"{output}/") for output in STEPS[step][1]):
            assert content == expected[name], f"{name} is half-written"


def faults(number: int, events: int, largest: int, generator: random.Random) -> dict[str, int]:
    """Mostly a signal at a touch of the file system (open, rename, lock, ...), else the end in the middle of a file."""
    if number % 4 == 3:
        return {"cut": generator.randrange(largest // 2)}
    return {"signal": SIGNALS[number % 4], "event": generator.randint(1, events)}


def check_reached(outcome: Outcome, fault: dict[str, int], step: str) -> None:
    """The fault ended the step, in one line where it can; training may have obeyed SIGTERM, or have been over."""
    sent = fault.get("signal", signal.SIGXFSZ)
    obeyed = outcome.status == 2 and "state is saved" in outcome.output
    late = outcome.status == 0 and outcome.events >= fault.get("event", 0)
    if sent == signal.SIGTERM and step == "train" and (obeyed or late):
        return
    told = sent in (signal.SIGTERM, signal.SIGINT)
    expected = 128 + sent if told else -sent
    assert outcome.status == expected, f"the fault did not reach the step: {fault}, {outcome.output[-3000:]}"
    if told:
        assert "interrupted; run the same command again" in outcome.output
        assert "Traceback" not in outcome.output


@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere(step, whole, tmp_path):
    generator = random.Random(f"kill {step}")
    undisturbed = whole.copy(tmp_path / "undisturbed")
    undisturbed.remove_outputs(step)
    before = undisturbed.files()
    rehearsal = undisturbed.run(step)
    assert rehearsal.status == 0, rehearsal.output[-3000:]
    assert rehearsal.events > 5
    largest = max(len(content) for name, content in undisturbed.files().items() if name not in before)
    for number in range(KILLS[step]):
        tiny = whole.copy(tmp_path / str(number))
        tiny.remove_outputs(step)
        fault = faults(number, rehearsal.events, largest, generator)
        check_reached(tiny.run(step, **fault), fault, step)
        check_nothing_half_written(tiny, whole, step)
        again = tiny.run(step)
        assert again.status == 0, again.output[-3000:]
        check_whole(tiny, whole)


@pytest.mark.parametrize("step", ["prepare", "train", "fit", "embed", "evaluate", "figures"])
def test_without_memory(step, whole, tmp_path):
    """From a random point on, no more memory: an error, nothing half-written, and with memory the right result."""
    generator = random.Random(f"memory {step}")
    tiny = whole.copy(tmp_path / "tiny")
    tiny.remove_outputs(step)
    outcome = tiny.run(step, memory=0, event=generator.randint(1, 40))
    assert outcome.status != 0 or "memory" not in outcome.output
    check_nothing_half_written(tiny, whole, step)
    again = tiny.run(step)
    assert again.status == 0, again.output[-3000:]
    check_whole(tiny, whole)
