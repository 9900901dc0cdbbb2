"""Two processes that keep only their rows of a loss's matrices compute the run of one, and really keep no more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import shard_worker
import torch
from process_worker import assert_same, facts, result
from shard_worker import RUNS, STOPPED_AFTER, train_sharded
from torch import nn
from training_helpers import quick_settings, run_as_ranks

from probmetric.losses import create_loss
from probmetric.training import network, run
from probmetric.training.checkpoint import Checkpoints, read_checkpoint
from probmetric.training.data import TrainingData, training_images
from probmetric.training.processes import ALONE, Processes
from probmetric.training.shards import SMALLEST, Shards

PROCESSES = 2


@pytest.fixture(scope="module")
def together(digits_open: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes computed with sharded matrices, and the rest of a run that one process had begun."""
    folder = tmp_path_factory.mktemp("sharded")
    train_sharded("potential_field", digits_open, folder / "resumed", ALONE, stop_after=STOPPED_AFTER)
    run_as_ranks(PROCESSES, Path(shard_worker.__file__), digits_open, folder)
    return folder


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", RUNS)
def test_sharded_runs_are_the_run_of_one(together: Path, digits_open: Path, tmp_path: Path, name: str) -> None:
    """Loss, gradients of the first step, norms and weights, with every optimiser and with clipping."""
    trainer = train_sharded(name, digits_open, tmp_path, ALONE)
    expected, (found, other) = facts(trainer), (result(together, name, rank) for rank in range(PROCESSES))
    assert found.keys() == expected.keys()
    assert_same(found, expected)
    for key in (key for key in found if key.startswith("weight/")):
        assert torch.equal(found[key], other[key]), f"{key} differs between the processes"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in RUNS if name != "laplace_online"])
def test_every_process_holds_its_rows_and_no_more(together: Path, digits_open: Path, tmp_path: Path, name: str) -> None:
    """Parameters and moments, down to their storage; the gathered matrices are gone before the update."""
    whole = train_sharded(name, digits_open, tmp_path, ALONE).held
    first, second = (result(together, f"held-{name}", rank) for rank in range(PROCESSES))
    assert first.pop("wholes") == second.pop("wholes") == 0
    assert whole.pop("wholes") == len(whole) > 0, "a single process keeps what it has"
    for key, expected in whole.items():
        assert torch.equal(first[key] + second[key], expected), key
        assert (first[key] - second[key])[:, 0].tolist() == [int(expected[0, 0]) % 2] * len(expected), key


@pytest.mark.slow
@pytest.mark.processes
def test_sharded_processes_go_on_with_the_run_of_one(together: Path, digits_open: Path, tmp_path: Path) -> None:
    expected = facts(train_sharded("potential_field", digits_open, tmp_path, ALONE))
    found = result(together, "resumed", 0)
    assert not any(key.startswith("gradient/") for key in found), "the first step is not repeated"
    assert_same(found, {key: value for key, value in expected.items() if not key.startswith("gradient/")})


@pytest.mark.slow
@pytest.mark.processes
def test_one_process_goes_on_with_a_sharded_run(together: Path, digits_open: Path, tmp_path: Path) -> None:
    shutil.copytree(together / "stopped-always", tmp_path / "stopped")
    found = facts(train_sharded("potential_field", digits_open, tmp_path / "stopped", ALONE))
    expected = facts(train_sharded("potential_field", digits_open, tmp_path / "whole", ALONE))
    assert not any(key.startswith("gradient/") for key in found), "the first step is not repeated"
    assert_same(found, {key: value for key, value in expected.items() if not key.startswith("gradient/")})


@pytest.mark.slow
@pytest.mark.processes
def test_checkpoints_do_not_tell_how_they_were_made(together: Path, digits_open: Path, tmp_path: Path) -> None:
    """The same entries, types, shapes and sizes of storage from one process, two, and two with rows only."""
    train_sharded("potential_field", digits_open, tmp_path, ALONE, stop_after=STOPPED_AFTER)
    folders = [tmp_path, together / "stopped-never", together / "stopped-always"]
    files = [Checkpoints(folder / "state").files() for folder in folders]
    assert [[path.name for path in found] for found in files] == [[f"step-{STOPPED_AFTER:09d}.checkpoint"]] * 3
    one, never, always = (read_checkpoint(found[0]) for found in files)
    for state in (never, always):
        assert_same(tensors_of(state), tensors_of(one))
    assert outline(always) == outline(never) == outline(one)


@pytest.mark.slow
@pytest.mark.processes
def test_a_checkpoint_one_process_wants_is_made_by_all(together: Path) -> None:
    """Their clocks differ, and none may wait for rows that the others do not send."""
    files = Checkpoints(together / "impatient" / "state").files()
    assert [path.stem for path in files] == ["step-000000005", "step-000000007"]


def tensors_of(state: object, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {name: state}
    items = state.items() if isinstance(state, dict) else ()
    return {key: found for part, value in items for key, found in tensors_of(value, f"{name}/{part}").items()}


def outline(state: object) -> object:
    """Names in their order; of tensors the type, shape and size of storage; of the rest the type."""
    if isinstance(state, torch.Tensor):
        return state.dtype, state.shape, state.stride(), state.untyped_storage().nbytes()
    if isinstance(state, dict):
        return [(name, outline(value)) for name, value in state.items()]
    return [outline(value) for value in state] if isinstance(state, list) else type(state)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "error"), [("Poisoned", "NonFiniteLossError"), ("Exploding", "NonFiniteGradientError")]
)
def test_what_one_process_finds_in_its_rows_all_of_them_tell(together: Path, kind: str, error: str) -> None:
    said = [(together / f"{kind}.{rank}.txt").read_text() for rank in range(PROCESSES)]
    assert said[0] == said[1]
    assert said[0].startswith(error)
    assert "loss.proxies" in said[0]


def test_one_process_and_small_matrices_are_left_alone() -> None:
    loss = create_loss("proxy_anchor", num_classes=5, dim=4)
    for processes, choice in ((ALONE, "always"), (Processes(1, 2), "auto"), (Processes(1, 2), "never")):
        proxies = loss.proxies
        shards = Shards(loss, processes, SMALLEST[choice])
        with shards.whole():
            assert loss.proxies is proxies
        assert proxies not in shards
        norm = torch.tensor(3.0)
        assert shards.norm(norm) is norm


def test_large_matrices_are_cut_by_themselves() -> None:
    """Each process has its half of the rows, of all parameters with two dimensions and enough entries."""
    loss = create_loss("el_nivmf", num_classes=5, dim=4)
    proxies, temperature = loss.proxies.detach().clone(), loss.temperature
    for rank in (0, 1):
        part = create_loss("el_nivmf", num_classes=5, dim=4)
        part.load_state_dict(loss.state_dict())
        shards = Shards(part, Processes(rank, 2), smallest=20)
        assert torch.equal(part.proxies, (proxies[:3], proxies[3:])[rank])
        assert part.proxies in shards
        assert part.concentration in shards
        assert part.temperature not in shards
        assert part.temperature.shape == temperature.shape
    assert len(Shards(loss, Processes(0, 2), smallest=21)._matrices) == 0


def test_a_matrix_that_stands_in_two_places_stays_one() -> None:
    first, second = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
    second.weight = first.weight
    Shards(nn.Sequential(first, second), Processes(0, 2), smallest=1)
    assert first.weight is second.weight
    assert first.weight.shape == (2, 3)


def test_sharding_is_no_part_of_what_a_run_is(digits_open: Path) -> None:
    """The default leaves no trace in the settings, and a checkpoint is continued whatever is chosen."""
    usual, always = (quick_settings(shard_proxies=choice) for choice in ("auto", "always"))
    assert "shard_proxies" not in usual.plain()["training"]
    assert type(usual)(**usual.plain()) == usual
    assert type(always)(**always.plain()) == always
    data = TrainingData(
        training_images(digits_open, usual.training), usual.training, seed=0, device=torch.device("cpu")
    )
    encoder, _ = network.create_network(usual, 1, data.image_size, data.num_classes, 10, torch.device("cpu"))
    assert run._identity(usual, data, encoder) == run._identity(always, data, encoder)
