"""SIGKILL, SIGTERM and lack of memory at random points of every step: the same command then ends as if undisturbed."""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fault_helpers import STEPS, TIMED, Tiny

pytestmark = pytest.mark.slow

# How many points of a step are hit; together with the out-of-memory ones more than fifty.
KILLS = {"train": 8} | dict.fromkeys(["prepare", "fit_posterior", "embed", "evaluate", "aggregate"], 5)
KILLS |= dict.fromkeys(["tables", "figures", "report", "track"], 4)
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


def comparable(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if Path(name).name not in TIMED}


def check_whole(tiny: Tiny, whole: Tiny) -> None:
    """Same files, same bytes; nothing left lying about; MLflow says the same."""
    found, expected = tiny.files(), whole.files()
    assert sorted(found) == sorted(expected)
    for name, content in comparable(expected).items():
        assert found[name] == content, f"{name} differs from the undisturbed one"
    assert tracked(tiny.folder) == tracked(whole.folder)


def tracked(folder: Path) -> list[tuple[object, ...]]:
    """Runs and final metrics in the MLflow store, whatever their ids."""
    question = (
        "select r.name, t.value, m.key, m.value from runs r join tags t on t.run_uuid = r.run_uuid"
        " join latest_metrics m on m.run_uuid = r.run_uuid"
        " where t.key = 'probmetric.run' and m.key not like '%seconds%' and m.key not like 'by_epoch%' order by 1, 2, 3"
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


@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere(step, whole, tmp_path):
    generator = random.Random(f"kill {step}")
    undisturbed = whole.copy(tmp_path / "undisturbed")
    undisturbed.remove_outputs(step)
    rehearsal = undisturbed.run(step)
    assert rehearsal.status == 0, rehearsal.output[-3000:]
    assert rehearsal.events > 5
    hits = 0
    for number in range(KILLS[step]):
        tiny = whole.copy(tmp_path / str(number))
        tiny.remove_outputs(step)
        sent = SIGNALS[number % 2]
        if number % 4 < 3:  # at a touch of the file system: reading, writing, renaming, locking
            outcome = tiny.run(step, signal=sent, event=generator.randint(1, rehearsal.events))
        else:  # or at any moment
            outcome = tiny.run(step, signal=sent, after=generator.uniform(0, rehearsal.seconds))
        stopped_in_order = step == "train" and outcome.status == 2 and "state is saved" in outcome.output
        hits += outcome.status == -sent or stopped_in_order
        assert outcome.status in (0, -sent) or stopped_in_order, outcome.output[-3000:]
        check_nothing_half_written(tiny, whole, step)
        again = tiny.run(step)
        assert again.status == 0, again.output[-3000:]
        check_whole(tiny, whole)
    assert hits >= KILLS[step] - 2, "the faults did not reach the step"


@pytest.mark.parametrize("step", ["prepare", "train", "fit_posterior", "embed", "evaluate", "figures"])
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
