"""What the workflow sets for its jobs, seen in a process that is started as they are."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PREPARED = "from probmetric.planning.workflow import prepare_environment; prepare_environment()\n"
JOB = "import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
FLAGS_OF_THE_HEAP = """
heap = open('/proc/self/smaps').read().partition('[heap]')[2]
print(heap.partition('VmFlags:')[2].splitlines()[0])
"""


def said_by_a_job(code: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"} | variables
    command = [sys.executable, "-c", PREPARED + JOB, code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(
    platform.libc_ver() < ("glibc", "2.35") or not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="needs glibc 2.35 and a kernel that gives huge pages on request",
)
def test_a_job_takes_its_memory_in_huge_pages():
    assert "hg" in said_by_a_job(FLAGS_OF_THE_HEAP).split()


def test_the_users_own_choice_stands():
    own = "glibc.malloc.hugetlb=0"
    assert said_by_a_job("import os; print(os.environ['GLIBC_TUNABLES'])", GLIBC_TUNABLES=own).strip() == own
