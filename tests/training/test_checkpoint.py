"""Damaged checkpoints are set aside, foreign ones ignored, and nothing in them is executed."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_helpers import quick_settings

from probmetric.io import FileError
from probmetric.training.checkpoint import Checkpoints, DamagedCheckpointError, read_checkpoint
from probmetric.training.diagnosis import NonFiniteLossError
from probmetric.training.run import train_run


def state(value: float) -> dict[str, object]:
    return {"identity": "a", "weights": {"w": torch.full((3,), value)}, "history": [{"epoch": 0, "loss": None}]}


def test_round_trip_keeps_the_newest_two(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for step in (1, 5, 10):
        store.save(step, state(float(step)))
    assert [path.name for path in store.files()] == ["step-000000005.checkpoint", "step-000000010.checkpoint"]
    loaded = store.load("a")
    assert loaded is not None
    assert torch.equal(loaded["weights"]["w"], torch.full((3,), 10.0))
    assert loaded["history"] == [{"epoch": 0, "loss": None}]


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_damaged_checkpoint_is_reported_and_the_previous_one_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, state(1.0))
    store.save(2, state(2.0))
    path = store.files()[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    replaced = {"truncate": content[:-10], "flip": content, "empty": b"", "garbage": b"no checkpoint\n" * 9}
    path.write_bytes(bytes(replaced[damage]))
    with caplog.at_level(logging.WARNING):
        loaded = store.load("a")
    assert loaded is not None
    assert torch.equal(loaded["weights"]["w"], torch.ones(3))
    assert str(path) in caplog.text
    assert path.with_suffix(".damaged").exists()
    assert not path.exists()


def test_two_damaged_checkpoints_mean_a_fresh_start(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for step in (1, 2):
        store.save(step, state(1.0))
        store.files()[-1].write_bytes(b"x")
    assert store.load("a") is None
    store.remove()
    assert not list(tmp_path.iterdir())


def test_what_a_process_left_that_was_killed_while_it_saved_goes_at_the_end(tmp_path: Path) -> None:
    """A training that goes on saves after other steps than the one that was killed."""
    store = Checkpoints(tmp_path / "state")
    store.remove()
    code = (
        "import os, signal, sys\n"
        "from probmetric.io import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    temporary.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for name in ("step-000000001.checkpoint", "step-000000002.checkpoint"):
        subprocess.run([sys.executable, "-c", code, str(store.folder / name)], check=False)
    store.save(3, state(1.0))
    assert len(list(store.folder.iterdir())) == 3
    store.remove()
    assert not list(store.folder.iterdir())


def test_checkpoint_of_other_settings_is_not_continued(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, state(1.0))
    assert store.load("b") is None
    assert not store.files()


def test_pickled_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w').close()",))

    path = tmp_path / "step-000000001.checkpoint"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DamagedCheckpointError, match="step-000000001"):
        read_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_training_survives_a_truncated_checkpoint(digits: Path, tmp_path: Path) -> None:
    """Interrupt a run, truncate its newest checkpoint, run again: the same bits as without any of it."""
    settings = quick_settings(epochs=4)
    places = {"prepared_folder": digits, "state_folder": tmp_path / "state", "run_folder": tmp_path / "run"}

    class Stop(Exception):  # noqa: N818
        pass

    def stop(row: dict[str, float]) -> None:
        if row["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        train_run(settings, **places, on_epoch=stop)
    newest = Checkpoints(tmp_path / "state").files()[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    train_run(settings, **places)
    train_run(settings, **places | {"run_folder": tmp_path / "whole"})
    weights = [(tmp_path / run / "model_last.safetensors").read_bytes() for run in ("run", "whole")]
    assert weights[0] == weights[1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("loss", ["proxy_anchor", "contrastive", "multi_similarity", "vmf", "el_nivmf"])
def test_non_finite_loss_names_step_images_and_tensor(digits: Path, tmp_path: Path, loss: str) -> None:
    """Also of a loss that passes non-finite embeddings over, and of one that draws samples."""
    settings = quick_settings(optimizer="sgd", epochs=50, loss={"name": loss})
    fatal = settings.training.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(NonFiniteLossError, match=r"epoch \d+, step \d+; not finite: .*manifest rows.*\d+, \d+"):
        train_run(
            settings.model_copy(update={"training": fatal}),
            prepared_folder=digits,
            run_folder=tmp_path / "run",
            state_folder=tmp_path / "state",
        )
    assert not list((tmp_path / "run").iterdir()), "nothing half-written is left"


def test_full_disk_names_the_file_and_leaves_what_was_good(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while the second checkpoint is written; with space again, training goes on from the first."""
    places = {"prepared_folder": digits, "run_folder": tmp_path / "run", "state_folder": tmp_path / "state"}
    settings, real_fsync = quick_settings(epochs=3), os.fsync

    def full(handle: int) -> None:
        if list((tmp_path / "state").glob("step-*.checkpoint")):
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FileError, match=r"step-0000000\d\d\.checkpoint.*disk is full.*run the same command"):
            train_run(settings, **places)
    left = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert left == ["step-000000006.checkpoint"]
    epochs: list[float] = []
    train_run(settings, **places, on_epoch=lambda row: epochs.append(row["epoch"]))
    assert epochs == [1, 2]
