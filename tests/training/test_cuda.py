"""The same training step on a CUDA device, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_helpers import quick_settings

from probmetric.io import read_yaml
from probmetric.training import load_encoder, train_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("loss", ["proxy_anchor", "contrastive"])
def test_cuda_training_learns_and_resumes(digits: Path, tmp_path: Path, precision: str, loss: str) -> None:
    settings = quick_settings(
        epochs=6, steps_per_epoch=None, learning_rate=3e-3, precision=precision, loss={"name": loss}
    )
    places = {"prepared_folder": digits, "run_folder": tmp_path / "run", "state_folder": tmp_path / "state"}

    class Stop(Exception):  # noqa: N818
        pass

    def stop(row: dict[str, float]) -> None:
        if row["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        train_run(settings, **places, on_epoch=stop)
    epochs: list[float] = []
    train_run(settings, **places, on_epoch=lambda row: epochs.append(row["epoch"]))
    assert epochs == [2, 3, 4, 5]
    record = read_yaml(tmp_path / "run" / "encoder.yaml")
    assert record["hardware"]["device"] == "cuda"
    assert record["training"]["selected_value"] > 0.9
    encoder, _, _ = load_encoder(tmp_path / "run", "cuda")
    assert torch.isfinite(encoder(torch.rand(2, 1, 32, 32, device="cuda"))).all()
