"""What commands of the server used, and Snakemake's benchmark rows corrected by it.

Snakemake samples the processes below a job's shell, where the child of a server is not; the kernel's account of the
child is exact. `s`, the wall time, is right as it is; `max_vms`, `max_uss` and `max_pss` are not known of a child.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage, struct_rusage
from typing import Any

from probmetric.job_times import JOBS

LOGS = "logs"
_MEGABYTE, _BLOCK = 1024**2, 512
_UNKNOWN = ("max_vms", "max_uss", "max_pss")


def log_of(output: int, folder: int) -> str:
    """Path below `logs/` of a command's standard output, given it and its working folder; empty for other files."""
    path, root = (str(Path(f"/proc/self/fd/{number}").readlink()) for number in (output, folder))
    start = f"{root}/{LOGS}/"
    return path.removeprefix(start) if path.startswith(start) else ""


def note(folder: Path, log: str, used: struct_rusage, asked: float, started: float) -> None:
    """Keep what the command with this log used, when it was asked for and when it started."""
    facts = {
        "log": log,
        "asked": asked,
        "started": started,
        "max_rss": used.ru_maxrss * 1024 / _MEGABYTE,
        "io_in": used.ru_inblock * _BLOCK / _MEGABYTE,
        "io_out": used.ru_oublock * _BLOCK / _MEGABYTE,
        "cpu_time": used.ru_utime + used.ru_stime,
    }
    _append(folder / "usage.jsonl", facts)


def note_server(folder: Path) -> None:
    """Keep what this process, a server, used itself."""
    used = getrusage(RUSAGE_SELF)
    _append(folder / "servers.jsonl", {"cpu_time": used.ru_utime + used.ru_stime})


def _append(path: Path, facts: Mapping[str, Any]) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def noted(folder: Path) -> list[dict[str, Any]]:
    """What was noted of commands, in the order of their ends."""
    file = folder / "usage.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def start_seconds(folder: Path) -> dict[str, float]:
    """Rule -> mean seconds from asking for a command to its start."""
    found = defaultdict(list)
    for facts in noted(folder):
        found[facts["log"].partition("/")[0]].append(facts["started"] - facts["asked"])
    return {rule: sum(seconds) / len(seconds) for rule, seconds in found.items()}


def correct_rows(folder: Path) -> int:
    """Correct the benchmark rows of the commands noted in `folder`; returns how many."""
    latest = {facts["log"]: facts for facts in noted(folder)}
    return sum(_correct((JOBS / log).with_suffix(".tsv"), facts) for log, facts in latest.items())


def _correct(path: Path, facts: Mapping[str, Any]) -> bool:
    """Correct a row written since the command started; the file's time, which is the job's end, stays."""
    if not path.exists() or (written := path.stat()).st_mtime < facts["started"]:
        return False
    names, *_before, last = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    row = dict(zip(names, last, strict=True))
    row |= dict.fromkeys(_UNKNOWN, "NA") | {name: f"{facts[name]:.2f}" for name in row.keys() & facts.keys()}
    row["mean_load"] = f"{100 * facts['cpu_time'] / max(float(row['s']), 1e-3):.2f}"
    path.write_text("\t".join(names) + "\n" + "\t".join(row[name] for name in names) + "\n", encoding="utf-8")
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    return True
