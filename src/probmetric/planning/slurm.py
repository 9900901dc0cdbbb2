"""What the SLURM executor plugin (2.8) does not do by itself: outlast SLURM's daemons, keep tasks of an array apart.

The plugin drops every job of a status query that failed and then waits for ever for jobs that nobody watches. It takes
a slurmctld that is down for one that forgets finished jobs at once, and turns to accounting, which need not exist.

In an array every task but the first runs its own job inside a Snakemake that waits for the *first* job's outputs, and
that deletes them where they are late (snakemake-executor-plugin-slurm#447): one run that fails takes all others along.
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

PAUSES = (5, 10, 20, 40, 60)
"""Seconds between repeated queries; the last one again and again."""

Answer = tuple[dict[str, str] | None, float | None]


def outlast_outages(settings: Any) -> None:
    """Have Snakemake's SLURM executor, where it is loaded, wait for SLURM instead of losing its jobs.

    Args:
        settings: the executor's settings; without accounting its `status_command` becomes squeue.
    """
    plugin: Any = sys.modules.get("snakemake_executor_plugin_slurm")
    if plugin is None or not hasattr(settings, "status_command"):
        return
    if settings.status_command == "sacct" and not accounting():
        settings.status_command = "squeue"
    plugin.query_job_status = until_answered(plugin.query_job_status)
    plugin.get_min_job_age = last_known(plugin.get_min_job_age)


def accounting() -> bool:
    """Whether `sacct` answers."""
    try:
        return subprocess.run(["sacct", "-n", "-X"], check=False, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def until_answered(query: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
    """`query`, repeated until SLURM answers."""

    @functools.wraps(query)
    async def patient(command: str, logger: Any) -> Answer:
        failures = 0
        while (found := await query(command, logger))[0] is None:
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            logger.warning(f"SLURM does not answer `{command.split()[0]}`; Asking again in {pause} s.")
            failures += 1
            await asyncio.sleep(pause)
        if failures:
            logger.warning("SLURM answers again.")
        return found

    return patient


def last_known(read: Callable[[], int | None]) -> Callable[[], int | None]:
    """`read`, or what it last knew where it knows nothing now."""
    known = read()

    @functools.wraps(read)
    def remembering() -> int | None:
        nonlocal known
        known = known if (now := read()) is None else now
        return known

    return remembering


def separate_array_tasks() -> None:
    """In a job that is a task of an array: become this task's own Snakemake instead of waiting beside it."""
    plugin: Any = sys.modules.get("snakemake_executor_plugin_slurm_jobstep")
    if "SLURM_ARRAY_TASK_ID" in os.environ and hasattr(plugin, "_decompress_array_task_call"):
        plugin._decompress_array_task_call = instead(plugin._decompress_array_task_call)


def instead(command_of: Callable[..., str]) -> Callable[..., NoReturn]:
    """A function that replaces this process by the shell command that `command_of` returns."""

    @functools.wraps(command_of)
    def become(*arguments: Any) -> NoReturn:
        command = command_of(*arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv("/bin/sh", ["sh", "-c", command])

    return become
