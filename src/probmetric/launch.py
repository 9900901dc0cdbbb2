"""Start one command as several processes, and find out which of them this process is.

`--processes N` starts N processes on this machine (torchrun). Inside a SLURM allocation of N tasks, `srun` starts them
on the allocation's nodes. A process that torchrun or srun has started is one of the N. Importing this module does not
need PyTorch.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probmetric.config import ConfigError


@dataclass(frozen=True)
class Place:
    """This process is number `rank` of `count` processes; `neighbours` of them share the machine's CPUs."""

    rank: int = 0
    count: int = 1
    neighbours: int = 1

    def threads(self, of_job: int) -> int:
        """Return this process's part of the CPU threads of a job."""
        return max(1, of_job // self.neighbours)


ALONE = Place()


def take_place(processes: int, arguments: Sequence[str]) -> Place:
    """Return which of the `processes` this one is; if they are not started yet, replace this process by their starter.

    Args:
        processes: how many processes compute together.
        arguments: arguments of this command, without the program; every process gets them.

    Raises:
        ConfigError: the number of processes started is not the number asked for.
    """
    if processes < 1:
        raise ConfigError(f"--processes {processes}; give at least 1.")
    place = place_of(os.environ, processes)
    if place is None:
        command = start_command(os.environ, processes, arguments)
        os.execvp(command[0], command)
    if place.count != processes != 1:
        raise ConfigError(f"--processes {processes}, but {place.count} were started; make the numbers equal.")
    if place.count > 1 and "MASTER_ADDR" not in os.environ:
        os.environ |= meeting_point(os.environ)
    return place


def place_of(environment: Mapping[str, str], processes: int) -> Place | None:
    """Return this process's place, or None if the `processes` have still to be started."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE", *(("LOCAL_WORLD_SIZE",) if "LOCAL_WORLD_SIZE" in environment else ()))
        return _place(environment, *names)
    if processes == 1:
        return Place()
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "SLURM_PROCID" in environment:
        return _place(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return None


def _place(environment: Mapping[str, str], *names: str) -> Place:
    """Return the place that variables of these names hold: rank, count and perhaps neighbours.

    Raises:
        ConfigError: the variables hold no valid numbers.
    """
    values = {name: environment[name] for name in names}
    numbers = [_number(value) for value in values.values()]
    rank, count, *_ = numbers
    if not 0 <= rank < count or min(numbers[1:]) < 1:
        raise _no_place(values)
    return Place(*numbers)


def _number(text: str) -> int:
    """Return the number that a variable holds, or -1 if it holds none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1


def _no_place(values: Mapping[str, str]) -> ConfigError:
    shown = ", ".join(f"{name}={value[:40]!r}" for name, value in values.items())
    return ConfigError(
        f"the environment says {shown}, which is no place among processes; unset them, or start the command with "
        "torchrun or srun, which set them."
    )


def start_command(environment: Mapping[str, str], processes: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts `processes` of this program: srun where SLURM granted the tasks, else torchrun."""
    program = ["-m", "probmetric.cli", *arguments]
    if environment.get("SLURM_NTASKS") == str(processes) and shutil.which("srun"):
        per_task = environment.get("SLURM_CPUS_PER_TASK")
        cpus = [f"--cpus-per-task={per_task}"] if per_task else []
        return ["srun", f"--ntasks={processes}", *cpus, "--kill-on-bad-exit=1", sys.executable, *program]
    return [sys.executable, "-m", "probmetric.launch", str(processes), *program]


def meeting_point(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address and port where a SLURM step's processes meet: the step's first node and its own port.

    Raises:
        ConfigError: SLURM's variables are missing, or hold no valid numbers or names.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST")
    values = {"SLURM_STEP_ID": "0"} | {name: environment[name] for name in names if name in environment}
    job, step, nodes = (values.get(name, "") for name in names)
    if min(_number(job), _number(step)) < 0 or not re.match(r"[^\[,]+", nodes):
        raise _no_place(values)
    return {"MASTER_ADDR": first_node(nodes), "MASTER_PORT": str(20000 + (int(job) * 64 + int(step)) % 40000)}


def first_node(nodes: str) -> str:
    """Return the first host of a SLURM node list such as `gpu[03-05,9],cpu1`."""
    prefix, numbers, suffix = re.match(r"([^\[,]+)(?:\[([^\]]+)\])?([^,]*)", nodes).groups()  # type: ignore[union-attr]
    return prefix + (re.split("[-,]", numbers)[0] if numbers else "") + suffix


def torchrun(processes: int, program: Sequence[str]) -> None:
    """Run `program` as `processes` processes on this machine until all have ended; the first failure ends the others.

    Raises:
        SystemExit: a process failed, or a signal ended them; the message says which.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(["--standalone", f"--nproc-per-node={processes}", *program]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"failed (exit {failure.exitcode})"
        raise SystemExit(
            f"process {rank} of {processes} {how}, the others were stopped; messages are above. Training goes on from "
            "its last checkpoint when the command is run again."
        ) from None
    except SignalException as error:
        raise SystemExit(f"ended by {error.sigval.name}.") from None


if __name__ == "__main__":
    torchrun(int(sys.argv[1]), sys.argv[2:])
