"""The same training on a CUDA device, where there is one: `pytest -m gpu`, or with the speed as well `make gpu`."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import quick_settings

from probmetric.config import EncoderSettings, Training
from probmetric.io import read_tensors, read_yaml
from probmetric.losses import create_loss, list_losses
from probmetric.models import create_encoder
from probmetric.training.assemble import load_encoder
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.diagnosis import TrainingError
from probmetric.training.forward import embed, resolve_precision
from probmetric.training.loop import Conduct, Trainer, TrainingStoppedError
from probmetric.training.optimizer import create_optimizer
from probmetric.training.run import train_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

REPOSITORY = Path(__file__).parents[2]


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def train(settings: EncoderSettings, prepared: Path, folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    train_run(settings, prepared_folder=prepared, run_folder=folder, state_folder=folder / "state", **options)
    return read_tensors(folder / "model_last.safetensors", framework="torch")[0]


def stop_after_an_epoch(row: dict[str, Any]) -> None:
    if row["epoch"] == 1:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("loss", ["proxy_anchor", "contrastive", "vmf", "potential_field"])
def test_training_learns_and_resumes(digits: Path, tmp_path: Path, precision: str, loss: str) -> None:
    settings = quick_settings(epochs=6, steps_per_epoch=None, learning_rate=3e-3, precision=precision, loss=loss)
    with pytest.raises(TrainingStoppedError):
        train(settings, digits, tmp_path, on_epoch=stop_after_an_epoch)
    epochs: list[float] = []
    train(settings, digits, tmp_path, on_epoch=lambda row: epochs.append(row["epoch"]))
    assert epochs == [2, 3, 4, 5]
    record = read_yaml(tmp_path / "encoder.yaml")
    assert record["hardware"]["device"] == "cuda"
    first = next(csv.DictReader((tmp_path / "history.csv").open()))["val_metric"]
    assert record["training"]["selected_value"] > float(first) + 0.1
    encoder, _, _ = load_encoder(tmp_path, "cuda")
    assert torch.isfinite(encoder(torch.rand(2, 1, 32, 32, device="cuda"))).all()


@pytest.mark.parametrize("objective", ["laplace_online", "hib", "mc_dropout"])
def test_objectives_train(digits: Path, tmp_path: Path, objective: str) -> None:
    tensors = train(quick_settings(loss="contrastive", objective=objective), digits, tmp_path)
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


@pytest.mark.parametrize("name", list_losses())
def test_losses_agree_with_the_cpu(name: str) -> None:
    """Value and gradient of every loss that draws nothing; the others are finite, with finite gradients."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(24, 16), torch.arange(8).repeat_interleave(3)
    values, gradients = [], []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        loss = create_loss(name, num_classes=8, dim=16).to(device)
        points = embeddings.clone().to(device).requires_grad_()
        value = loss(points, labels.to(device), generator=torch.Generator(device).manual_seed(2))
        value.backward()
        values.append(float(value.detach()))
        gradients.append(points.grad.cpu())
    assert torch.isfinite(gradients[1]).all()
    if name not in {"el_nivmf", "margin", "vmf", "nir"}:
        assert values[1] == pytest.approx(values[0], rel=1e-3, abs=1e-4)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=1e-3 * float(gradients[0].abs().max()))


def test_first_steps_agree_with_the_cpu(digits: Path, tmp_path: Path) -> None:
    """In float32 without TF32, five plain gradient steps end in nearly the same weights."""
    settings = quick_settings(epochs=1, steps_per_epoch=5, precision="float32", optimizer="sgd", loss="cosine")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        found, expected = (train(settings, digits, tmp_path / d, device=d) for d in ("cuda", "cpu"))
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-2, atol=1e-3, msg=lambda m, k=name: f"{k}: {m}")


def test_deterministic_training_gives_the_same_bits_again(digits: Path, tmp_path: Path) -> None:
    settings = quick_settings(loss="proxy_anchor", deterministic=True)
    first, again = (train(settings, digits, tmp_path / name) for name in "ab")
    assert all(torch.equal(again[name], value) for name, value in first.items())


@pytest.mark.parametrize("name", list_losses())
def test_deterministic_kernels_exist_or_the_loss_is_named(name: str, digits: Path, tmp_path: Path) -> None:
    """A loss without deterministic kernels says so; none may silently use others."""
    try:
        train(quick_settings(loss=name, deterministic=True, epochs=1), digits, tmp_path)
    except TrainingError as error:
        assert "training.deterministic" in str(error)  # noqa: PT017


def test_compiled_training_learns_under_the_same_names(digits: Path, tmp_path: Path) -> None:
    settings = quick_settings(loss="proxy_anchor", epochs=6, steps_per_epoch=None, learning_rate=3e-3)
    plain = train(settings, digits, tmp_path / "plain")
    compiled = settings.model_copy(update={"training": settings.training.model_copy(update={"compile": True})})
    assert train(compiled, digits, tmp_path / "compiled").keys() == plain.keys()
    records = [read_yaml(tmp_path / name / "encoder.yaml")["training"] for name in ("plain", "compiled")]
    assert records[1]["selected_value"] == pytest.approx(records[0]["selected_value"], abs=0.1)


def test_the_encoder_computes_in_bf16_and_channels_last_and_answers_in_float32() -> None:
    encoder = create_encoder("compact", dim=8, in_channels=3).to(cuda(), memory_format=torch.channels_last)
    seen: list[tuple[torch.dtype, bool]] = []
    encoder.layers[4].register_forward_hook(
        lambda _m, _i, out: seen.append((out.dtype, out.is_contiguous(memory_format=torch.channels_last)))
    )
    images = torch.rand(4, 3, 32, 32, device=cuda()).contiguous(memory_format=torch.channels_last)
    assert resolve_precision("auto", cuda()) == (
        torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    )
    assert embed(encoder, images, torch.bfloat16).dtype == torch.float32
    assert seen == [(torch.bfloat16, True)]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_optimizers_are_fused(name: Any) -> None:
    encoder = create_encoder("compact", dim=8).to(cuda())
    loss = create_loss("proxy_anchor", num_classes=4, dim=8).to(cuda())
    assert create_optimizer(Training(optimizer=name), encoder, loss).defaults["fused"]


def test_images_read_ahead_arrive_pinned_and_on_the_right_device(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing held in memory, threads load; each works on this process's device, and copies from pinned memory."""
    monkeypatch.setattr("probmetric.training.data.IN_MEMORY_BYTES", 0)
    current: list[int] = []
    pin = torch.Tensor.pin_memory

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        current.append(torch.cuda.current_device())
        return pin(tensor)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    data = TrainingData(training_images(digits, Training(batch_size=32)), Training(batch_size=32), seed=0, device=last)
    devices = {images.device for _, images, _ in data.epoch_batches(0)}
    assert devices == {last}
    assert set(current) == {last.index}


def test_a_step_synchronises_once(digits: Path, tmp_path: Path) -> None:
    """Between batch and update, only the loss, the norm and the stop flag are read back."""
    settings = Training(epochs=1, steps_per_epoch=3, batch_size=32)
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=cuda())
    encoder = create_encoder("compact", dim=8, in_channels=1).to(cuda(), memory_format=torch.channels_last)
    loss = create_loss("proxy_anchor", num_classes=data.num_classes, dim=8).to(cuda())
    trainer = Trainer(encoder, loss, data, Conduct(Checkpoints(tmp_path), "x", progress_bar=False))
    trainer.fit()
    positions, images, labels = next(data.epoch_batches(0))
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchronizing CUDA operation") as caught:
            trainer._step(positions, images, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "synchronizing CUDA operation" in str(w.message)]) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices_compute_the_run_of_one(digits: Path, tmp_path: Path) -> None:
    """NCCL, SyncBatchNorm and two processes against one: the loss of the first epoch and what is learnt."""
    code = (
        "import json, os, sys; from pathlib import Path; from probmetric.config import EncoderSettings\n"
        "from probmetric.launch import take_place; from probmetric.training.run import train_run\n"
        "from probmetric.training.processes import joined\n"
        "place = take_place(int(os.environ['WORLD_SIZE']), []); folder = Path(sys.argv[2])\n"
        "with joined(place) as processes:\n"
        "    train_run(EncoderSettings(**json.loads(sys.argv[3])), prepared_folder=sys.argv[1], run_folder=folder,\n"
        "              state_folder=folder / 'state', processes=processes)\n"
    )
    settings = quick_settings(loss="proxy_anchor", epochs=6, steps_per_epoch=None, learning_rate=3e-3)
    script = tmp_path / "train.py"
    script.write_text(code)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    arguments = [str(digits), str(tmp_path / "two"), EncoderSettings.model_dump_json(settings)]
    subprocess.run([*launcher, *arguments], check=True, cwd=REPOSITORY)
    train(settings, digits, tmp_path / "one")
    records = [read_yaml(tmp_path / name / "encoder.yaml")["training"]["selected_value"] for name in ("one", "two")]
    assert min(records) > 0.9
    histories = [(tmp_path / name / "history.csv").read_text().splitlines()[1].split(",")[2] for name in ("one", "two")]
    assert float(histories[1]) == pytest.approx(float(histories[0]), rel=0.02)
