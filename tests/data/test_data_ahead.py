"""Images loaded ahead of whoever computes with them."""

from __future__ import annotations

import pytest
import torch

from probmetric.data import image_file
from probmetric.data.images import ahead_of, loading_threads

CPU = torch.device("cpu")


def test_threads_are_counted_where_processes_cannot_be_bound_to_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert image_file.workers_available() == 3
    assert loading_threads(CPU) == 3


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_order(threads: int) -> None:
    assert list(ahead_of(lambda item: item * item, range(20), threads, CPU)) == [item * item for item in range(20)]
