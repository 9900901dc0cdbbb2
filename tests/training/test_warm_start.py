"""What a loss measures before the first step: the network as it will train, and nothing of the network changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import quick_settings

import probmetric
from probmetric.directional import mean_resultant_length
from probmetric.losses import create_loss
from probmetric.losses._base import Loss
from probmetric.models import create_encoder
from probmetric.models._base import Encoder
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.forward import embed_as_trained, embed_split
from probmetric.training.loop import Conduct, Trainer

CPU = torch.device("cpu")
DIM = 32
BACKBONES = [{"name": "compact"}, {"name": "compact", "dropout": 0.1}, {"name": "lenet_vmf"}]
SCALE_AWARE: dict[str, dict[str, Any]] = {
    "vmf": {"name": "vmf"},
    "el_nivmf": {"name": "el_nivmf", "guidance": "proxy_anchor"},
    **{
        distance: {"name": "sample_proxy", "distance": distance}
        for distance in ("l2", "nivmf", "b_vmf", "el_vmf", "kl_vmf")
    },
}


def network(data: TrainingData, backbone: dict[str, Any]) -> Encoder:
    torch.manual_seed(0)
    options = {key: value for key, value in backbone.items() if key != "name"}
    sizes = {"dim": DIM, "in_channels": data.in_channels, "image_size": data.image_size}
    return create_encoder(backbone["name"], **sizes, **options)


def prepared(folder: Path, **training: object) -> TrainingData:
    settings = quick_settings(batch_size=80, images_per_class=8, **training).training
    return TrainingData(training_images(folder, settings), settings, seed=0, device=CPU)


def trainer(data: TrainingData, encoder: Encoder, options: dict[str, Any], folder: Path) -> Trainer:
    torch.manual_seed(1)
    loss = create_loss(num_classes=data.num_classes, dim=DIM, **options)
    return Trainer(encoder, loss, data, Conduct(Checkpoints(folder), "warm"))


def first_batch(data: TrainingData, encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    _, images, labels = next(iter(data.epoch_batches(0)))
    encoder.train()
    torch.manual_seed(2)
    return encoder(images), labels


def mean_resultant(loss: Loss, embeddings: torch.Tensor) -> float:
    """Mean A_M(kappa) of the images as the loss reads them."""
    scale = getattr(loss, "alpha", getattr(loss, "embedding_scale", None))
    assert scale is not None
    return float(mean_resultant_length((scale * embeddings.detach().norm(dim=1)).double(), DIM).mean())


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
@pytest.mark.parametrize(("options", "wanted"), [({"name": "vmf"}, 0.4), ({"name": "el_nivmf"}, 0.7)], ids=str)
def test_concentrations_of_the_first_batch_are_those_asked_for(
    digits: Path, tmp_path: Path, backbone: dict[str, Any], options: dict[str, Any], wanted: float
) -> None:
    """Measured in evaluation mode, before batch normalisation has seen an image, A_M starts far above."""
    data = prepared(digits)
    encoder = network(data, backbone)
    run = trainer(data, encoder, options, tmp_path)
    run.loss.warm_start(embed_split(encoder, data, "train"), data.labels)
    assert mean_resultant(run.loss, first_batch(data, encoder)[0]) > wanted + 0.15
    run._warm_start()
    assert mean_resultant(run.loss, first_batch(data, encoder)[0]) == pytest.approx(wanted, abs=0.04)


def test_proxies_start_apart(digits: Path, tmp_path: Path) -> None:
    """Mean cosine between the proxies of two classes: the network's class means, not one common direction."""
    data = prepared(digits)
    encoder = network(data, BACKBONES[0])
    run = trainer(data, encoder, {"name": "el_nivmf"}, tmp_path)

    def likeness() -> float:
        directions, _ = run.loss.class_proxies() or (torch.empty(0), None)
        directions = directions.detach()
        return float((directions @ directions.T)[*torch.triu_indices(10, 10, 1)].mean())

    with torch.no_grad():
        run.loss.warm_start(embed_split(encoder, data, "train"), data.labels)
    assert likeness() > 0.9
    run._warm_start()
    assert likeness() < 0.8


@pytest.mark.parametrize("batch_norm", ["train", "frozen"])
def test_every_image_is_embedded_once_and_the_network_is_left_as_it_was(digits: Path, batch_norm: Any) -> None:
    data = prepared(digits)
    encoder = network(data, BACKBONES[0])
    encoder.set_batch_norm(batch_norm)
    encoder.eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    embeddings = embed_as_trained(encoder, data, torch.float32)
    assert not encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert torch.equal(embeddings, embed_as_trained(encoder, data, torch.float32)), "the same random batches"

    order = torch.cat([positions for positions, _ in data.own_images_shuffled()])
    assert torch.equal(order.sort().values, torch.arange(len(data.labels)))
    stored = embed_split(encoder, data, "train")
    assert torch.allclose(embeddings, stored, atol=1e-5) == (batch_norm == "frozen")
    expected, images = torch.empty_like(embeddings), torch.cat(list(data.plain_batches("train")))
    encoder.train()
    with torch.no_grad():
        for positions, _ in data.own_images_shuffled():
            expected[positions] = encoder(images[positions])
    torch.testing.assert_close(embeddings, expected)


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("name", SCALE_AWARE)
def test_the_size_of_the_last_layer_does_not_matter(digits: Path, tmp_path: Path, name: str, factor: float) -> None:
    """First loss and gradients are those of the unscaled network; the last layer's own are divided by the factor."""
    data = prepared(digits)

    def first_step(scale: float) -> tuple[float, torch.Tensor, torch.Tensor]:
        encoder = network(data, BACKBONES[0])
        assert encoder.head is not None
        with torch.no_grad():
            for parameter in encoder.head.parameters():
                parameter.mul_(scale)
        run = trainer(data, encoder, SCALE_AWARE[name], tmp_path)
        run._warm_start()
        embeddings, labels = first_batch(data, encoder)
        value = run.loss(embeddings, labels, generator=torch.Generator().manual_seed(0))
        value.backward()
        own = torch.stack([torch.as_tensor(p.grad).norm() for p in encoder.head.parameters()])
        others = [*encoder.layers.parameters(), *run.loss.parameters()]
        return value.item(), own * scale, torch.stack([torch.as_tensor(p.grad).norm() for p in others])

    (value, own, others), (value_scaled, own_scaled, others_scaled) = first_step(1.0), first_step(factor)
    assert value_scaled == pytest.approx(value, rel=1e-4)
    torch.testing.assert_close(own_scaled, own, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(others_scaled, others, rtol=1e-3, atol=1e-6)


def test_no_batch_has_one_image() -> None:
    """Three images in batches of two: one alone cannot be normalised by its batch."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    images = torch.utils.data.TensorDataset(torch.rand(3, 4), torch.tensor([0, 1, 0]))
    options = {"batch_size": 2, "sampler": "shuffle", "epochs": 1, "device": "cpu", "progress": False}
    assert probmetric.fit(images, network, loss="vmf", **options).embed([images[0][0]]).mean.isfinite().all()


def test_proxies_start_at_the_means_that_the_network_gives_its_classes(digits: Path, tmp_path: Path) -> None:
    """With frozen batch norm an image's embedding before the first step is the one that evaluation sees."""
    data = prepared(digits, proxy_init="class_means", batch_norm="frozen")
    encoder = network(data, BACKBONES[0])
    encoder.set_batch_norm("frozen")
    run = trainer(data, encoder, {"name": "proxy_anchor"}, tmp_path)
    run._warm_start()
    directions, classes = run.loss.class_proxies() or (torch.empty(0), torch.empty(0))
    embeddings = torch.nn.functional.normalize(embed_split(encoder, data, "train"))
    for direction, label in zip(directions.detach(), classes, strict=True):
        mean = torch.nn.functional.normalize(embeddings[data.labels == label].mean(dim=0), dim=0)
        torch.testing.assert_close(direction, mean, atol=1e-4, rtol=0)
