"""Memory that is not there is one sentence with the fix; other errors of PyTorch keep their traceback."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probmetric import cli

TOO_MUCH = 1 << 50


@pytest.mark.parametrize("allocate", [lambda: torch.empty(TOO_MUCH), lambda: np.empty(TOO_MUCH)])
def test_running_out_of_memory_is_said_in_one_sentence(monkeypatch, capsys, allocate):
    monkeypatch.setattr("probmetric.cli.reports.schema", lambda options: allocate())
    assert cli.main(["schema"]) == cli.EXIT_CONFIG
    message = capsys.readouterr().err
    assert "out of memory" in message
    assert "training.batch_size" in message
    assert "Traceback" not in message


def test_another_error_of_pytorch_is_not_mistaken_for_it(monkeypatch):
    monkeypatch.setattr("probmetric.cli.reports.schema", lambda options: torch.empty(2) @ torch.empty(3))
    with pytest.raises(RuntimeError, match="size"):
        cli.main(["schema"])
