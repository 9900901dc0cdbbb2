"""A split embedded in shares is the split embedded by one process, to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from probmetric.config import ConfigError, Training
from probmetric.data.images import Eye, PreparedImages, batches
from probmetric.data.views import view_of
from probmetric.losses import create_loss
from probmetric.models import create_encoder
from probmetric.training.data import TrainingData, training_images
from probmetric.training.forward import embed, embed_split, represented, resolve_precision
from probmetric.training.processes import Processes
from probmetric.uncertainty import create_uncertainty

CPU = torch.device("cpu")
BATCHES = [torch.rand(size, 1, 32, 32, generator=torch.Generator().manual_seed(size)) for size in (6, 6, 6, 6, 3)]


def read(*, first: int = 0, step: int = 1) -> Iterator[torch.Tensor]:
    """Five batches, the last one smaller."""
    yield from BATCHES[first::step]


@dataclasses.dataclass(frozen=True)
class Noting(Processes):
    """A process that collects what the others sent to `shares` before; the first process comes last."""

    shares: list[Any] = dataclasses.field(default_factory=list)

    def collected(self, value: Any) -> list[Any]:
        self.shares.insert(0, value)
        return self.shares if self.first else []


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize(
    ("name", "options"),
    [("norm", {}), ("vmf", {"samples": 3}), ("mc_dropout", {"samples": 4, "rate": 0.3}), ("softmax", {})],
)
def test_shares_make_the_whole(name: str, options: dict[str, Any], count: int) -> None:
    torch.manual_seed(0)
    encoder = create_encoder("compact", dim=8, in_channels=1, width=4, dropout=0.2).eval()
    loss = create_loss("vmf", num_classes=5, dim=8)
    predictor = create_uncertainty(name, **options).bind(encoder, loss=loss, seed=3)
    alone = predictor(read())
    shares: list[Any] = []
    for rank in reversed(range(1, count)):
        assert represented(predictor, read, Noting(rank, count, shares)) == []
    together = predictor.describe(represented(predictor, read, Noting(0, count, shares)))
    assert together.tensors().keys() == alone.tensors().keys()
    for key, value in alone.tensors().items():
        assert torch.equal(together.tensors()[key], value), key


def test_items_are_taken_in_turn() -> None:
    assert Noting(0, 3, [[1, 4], [2, 5]]).in_turn([0, 3, 6]) == list(range(7))
    assert Noting(0, 3, [[], []]).in_turn([0]) == [0]
    assert Noting(1, 3, []).in_turn([1, 4]) == []


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_selection_sees_the_embeddings_of_the_finished_run(digits: Path, precision: Any) -> None:
    """To the bit, also where training steps compute in bfloat16."""
    torch.manual_seed(0)
    encoder = create_encoder("compact", dim=8, in_channels=1, width=4)
    data = TrainingData(
        training_images(digits, Training(precision=precision)), Training(precision=precision), seed=0, device=CPU
    )
    selected = embed_split(encoder, data, "val")
    assert encoder.training
    view = view_of(digits).evaluation()
    final = create_uncertainty("norm").bind(encoder, seed=0)(
        batches(PreparedImages.of_split(digits, "val"), Eye(view, (data.in_channels, data.image_size)))
    )
    assert torch.equal(selected / selected.norm(dim=-1, keepdim=True), final.mean)
    assert final.concentration is not None
    assert torch.equal(selected.norm(dim=-1), final.concentration)
    stepwise = embed(encoder.eval(), next(data.plain_batches("val")), resolve_precision(precision, CPU))
    assert torch.equal(stepwise, selected[: len(stepwise)]) == (precision == "float32")


def test_more_processes_than_images_of_a_batch_are_refused(digits: Path) -> None:
    settings = Training(batch_size=20, steps_per_epoch=2)
    shares = [
        TrainingData(training_images(digits, settings), settings, seed=0, device=CPU, processes=Processes(rank, 20))
        for rank in (0, 19)
    ]
    assert [len(next(data.epoch_batches(0))[1]) for data in shares] == [1, 1]
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU, processes=Processes(0, 21))
    with pytest.raises(ConfigError, match=r"a batch has 20 image\(s\), but 21 processes share it"):
        next(data.epoch_batches(0))
