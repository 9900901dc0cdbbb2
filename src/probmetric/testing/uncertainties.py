"""Contract of the uncertainties."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from probmetric.losses import create_loss
from probmetric.testing.contract import Contract, raises
from probmetric.uncertainty import REGISTRY, create_uncertainty
from probmetric.uncertainty.ensemble import EncoderEnsemble


class TinyEncoder(nn.Module):
    """Flatten -> Linear -> Tanh features of size D, Linear head to M dimensions."""

    def __init__(self, inputs: int = 12, features: int = 6, dim: int = 4, bias: bool = True, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(inputs, features), nn.BatchNorm1d(features), nn.Tanh())
            self.head = nn.Linear(features, dim, bias=bias)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Return features (B, D) of images (B, ...)."""
        return self.trunk(images)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return embeddings (B, M) of images (B, ...)."""
        return self.head(self.features(images))


def tiny_batches(
    count: int = 3, size: int = 16, classes: int = 4, seed: int = 1
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of images (B, 3, 2, 2) clustered by class, and labels (B,)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 3, 2, 2, generator=generator)
    batches = []
    for _ in range(count):
        labels = torch.arange(size) % classes
        batches.append((centres[labels] + 0.5 * torch.randn(size, 3, 2, 2, generator=generator), labels))
    return batches


def trained_objective(uncertainty: Any, encoder: Any) -> Any:
    """Return the loss of a training: the uncertainty's objective after three steps, or a plain classifier."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = create_loss("cosine", num_classes=4, dim=4)
        objective = uncertainty.objective(encoder, loss, num_images=48)
    if objective is None:
        return loss
    generator = torch.Generator().manual_seed(0)
    groups = [{"params": group["params"]} for group in objective.optimizer_groups()]
    optimizer = torch.optim.SGD([{"params": list(encoder.parameters())}, *groups], lr=0.01)
    encoder.train()
    objective.train()
    for images, labels in tiny_batches():
        value = objective.from_features(encoder.features(images), encoder.head, labels, generator=generator)
        assert value.ndim == 0
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return objective


def fitted(uncertainty: Any, encoder: Any, loss: Any) -> Any:
    """Return the posterior of small batches, or None for an uncertainty that fits nothing."""
    if not uncertainty.fits:
        return None
    generator, validation = torch.Generator().manual_seed(0), tiny_batches(1)
    return uncertainty.fit(encoder, tiny_batches(), loss=loss, generator=generator, validation=validation)


class UncertaintyContract(Contract):
    """Tests of the registered uncertainty `name`, created with `options`, on a small encoder."""

    registry = REGISTRY
    options: ClassVar[dict[str, Any]] = {}

    def prepared(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return encoder, uncertainty and the arguments of `bind`: posterior (None where it does not fit) and loss."""
        uncertainty = create_uncertainty(self.name, **self.options)
        members: list[Any] = [TinyEncoder(seed=seed) for seed in range(uncertainty.members)]
        encoder: Any = EncoderEnsemble(members) if len(members) > 1 else members[0]
        loss = trained_objective(uncertainty, encoder)
        return encoder, uncertainty, {"posterior": fitted(uncertainty, encoder, loss), "loss": loss}

    def test_embedding_is_a_directional_distribution(self) -> None:
        """Check for unit means and one doubt per image, all finite float32."""
        encoder, uncertainty, arguments = self.prepared()
        images = tiny_batches(1)[0][0]
        batch = uncertainty.bind(encoder, **arguments, seed=0)(images)
        size = len(images)
        assert len(batch) == size
        assert batch.mean.ndim == 2
        assert torch.allclose(batch.mean.norm(dim=1), torch.ones(size), atol=1e-5)
        assert batch.uncertainty.shape == (size,)
        assert batch.uncertainty.std() > 0
        for value in batch.tensors().values():
            assert value.shape[0] == size
            assert torch.isfinite(value).all()
            assert value.dtype == torch.float32
            assert not value.requires_grad

    def test_class_probabilities_are_predictive_or_absent(self) -> None:
        """Check for the classifier's probabilities of the embedding, or, which differs, their mean over the draws."""
        encoder, uncertainty, arguments = self.prepared()
        images = tiny_batches(1)[0][0]
        draws = hasattr(uncertainty, "keep_samples")
        if draws:
            uncertainty.keep_samples = True
        batch = uncertainty.bind(encoder, **arguments, seed=0)(images)
        probabilities = batch.probabilities
        if probabilities is None:
            return
        assert probabilities.min() >= 0
        assert torch.allclose(probabilities.sum(1), torch.ones(len(images)), atol=1e-4)
        encoder.eval()
        with torch.no_grad():  # the classifier of `cosine` reads directions only
            plain = arguments["loss"].probabilities(encoder(images))
            if not draws:
                order = torch.argsort(plain, dim=1)  # a temperature keeps the order of the classes
                assert (torch.gather(probabilities, 1, order).diff(dim=1) >= -1e-6).all()
                return
            samples = batch.samples
            assert samples is not None
            each = [arguments["loss"].probabilities(samples[:, draw]) for draw in range(samples.shape[1])]
        assert torch.allclose(probabilities, torch.stack(each).mean(0), atol=1e-4)
        assert not torch.allclose(probabilities, plain, atol=1e-6)

    def test_a_loss_without_a_classifier_gives_no_class_probabilities(self) -> None:
        """Check that an uncertainty does not invent class probabilities either."""
        uncertainty = create_uncertainty(self.name, **self.options)
        if type(uncertainty).needs_classifier or uncertainty.trains_encoder or uncertainty.members > 1:
            return
        encoder: Any = TinyEncoder()
        loss = create_loss("contrastive", num_classes=4, dim=4)
        posterior = fitted(uncertainty, encoder, loss)
        batch = uncertainty.bind(encoder, loss=loss, posterior=posterior, seed=0)(tiny_batches(1)[0][0])
        assert batch.probabilities is None

    def test_same_seed_same_record_for_any_batch_size(self) -> None:
        """Check that draws depend on the seed only."""
        encoder, uncertainty, arguments = self.prepared()
        images = tiny_batches(1)[0][0]
        whole = uncertainty.bind(encoder, **arguments, seed=1)(images)
        parts = uncertainty.bind(encoder, **arguments, seed=1)(images.split(5))
        for key, value in whole.tensors().items():
            assert torch.allclose(value, parts.tensors()[key], rtol=1e-3, atol=1e-5), key

    def test_embedding_changes_nothing(self) -> None:
        """Check that neither weights, modes nor the global generator change."""
        encoder, uncertainty, arguments = self.prepared()
        encoder.train()
        images = tiny_batches(1)[0][0]
        before = {key: value.clone() for key, value in encoder.state_dict().items()}
        state = torch.get_rng_state()
        arguments["loss"].train()
        uncertainty.bind(encoder, **arguments, seed=0)(images)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(module.training for part in (encoder, arguments["loss"]) for module in part.modules())
        assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())

    def test_fitting_depends_on_the_generator_only(self) -> None:
        """Check that two fits from one seed are equal."""
        uncertainty = create_uncertainty(self.name, **self.options)
        if not uncertainty.fits:
            tiny: Any = TinyEncoder()
            with raises(TypeError, "fits nothing"):
                uncertainty.fit(tiny, tiny_batches(), generator=torch.Generator())
            return
        first = self.prepared()[2]["posterior"]
        torch.rand(3)
        second = self.prepared()[2]["posterior"]
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) and first[key].device.type == "cpu" for key in first)
        assert all(first[key].is_contiguous() for key in first)
