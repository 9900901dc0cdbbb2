"""Status queries that SLURM does not answer are asked again; tasks of an array do not wait for one another."""

import asyncio
import logging
import subprocess
import sys

from probmetric.planning import slurm


def test_a_failed_query_is_repeated_and_said(monkeypatch, caplog):
    monkeypatch.setattr(slurm, "PAUSES", (0.0,))
    answers = iter([(None, None), (None, None), ({"1": "RUNNING"}, 0.1)])

    async def query(command, logger):
        return next(answers)

    patient = slurm.until_answered(query)
    assert asyncio.run(patient("squeue --all", logging.getLogger())) == ({"1": "RUNNING"}, 0.1)
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "SLURM does not answer `squeue`",
        "SLURM does not answer `squeue`",
        "SLURM answers again.",
    ]


def test_what_the_daemon_said_is_remembered_while_it_is_silent():
    said = iter([300, None, 120, None])
    age = slurm.last_known(lambda: next(said))
    assert [age(), age(), age()] == [300, 120, 120]


def test_on_one_machine_nothing_is_changed():
    slurm.outlast_outages(None)
    slurm.separate_array_tasks()


TASK = """
from probmetric.planning.slurm import instead
print("before")
instead(lambda commands, index: f"echo {commands} {index}; exit 3")("task", 2)
print("never")
"""


def test_an_array_task_becomes_its_own_command():
    task = subprocess.run([sys.executable, "-c", TASK], check=False, capture_output=True, text=True)
    assert (task.returncode, task.stdout) == (3, "before\ntask 2\n")
