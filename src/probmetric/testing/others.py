"""Contracts of backbones, views, metrics and sources."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from probmetric import metrics
from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.data.sources import Source
from probmetric.data.views import REGISTRY as VIEWS
from probmetric.data.views import View, create_view, source_view
from probmetric.models import REGISTRY as BACKBONES
from probmetric.models import Encoder, create_encoder
from probmetric.testing.contract import Contract


class BackboneContract(Contract):
    """Tests of the registered backbone `name`, created with `options` for images of `image_size`."""

    registry = BACKBONES
    options: ClassVar[dict[str, Any]] = {}
    image_size: ClassVar[int] = 32

    def create(self, dim: int = 8) -> Encoder:
        """Return the encoder, from a fixed seed."""
        torch.manual_seed(0)
        return create_encoder(self.name, dim=dim, in_channels=3, image_size=self.image_size, **self.options)

    def images(self, count: int = 4) -> Tensor:
        """Return random images (count, 3, S, S)."""
        size = self.image_size
        return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))

    def test_embedding_is_the_head_of_the_features(self) -> None:
        """Check that `encoder(x) == encoder.head(encoder.features(x))`, and that the class declares its head."""
        encoder = self.create().eval()
        embeddings, features = encoder(self.images()), encoder.features(self.images())
        assert embeddings.shape == (4, encoder.dim)
        assert features.shape == (4, encoder.num_features)
        assert (encoder.head is not None) == BACKBONES.holds(self.name, "has_head", self.options)
        if encoder.head is None:
            assert torch.equal(embeddings, features)
        else:
            assert encoder.dim == 8
            assert isinstance(encoder.head, nn.Linear)
            assert torch.equal(embeddings, encoder.head(features))

    def test_embeddings_do_not_depend_on_the_batch(self) -> None:
        """Check that an image has the same embedding alone and in a batch."""
        encoder = self.create().eval()
        one_by_one = torch.cat([encoder(image[None]) for image in self.images()])
        torch.testing.assert_close(encoder(self.images()), one_by_one, rtol=1e-4, atol=1e-5)

    def test_every_parameter_is_trained_once(self) -> None:
        """Check that optimiser groups cover all parameters, and each receives a gradient."""
        encoder = self.create().train()
        grouped = [id(p) for group in encoder.optimizer_groups() for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in encoder.parameters())
        if grouped:
            encoder(self.images()).square().sum().backward()
            assert all(p.grad is not None for p in encoder.parameters())

    def test_weights_come_from_torch_seed_only(self) -> None:
        """Check that the same seed gives the same weights."""
        first, second = self.create().state_dict(), self.create().state_dict()
        assert all(torch.equal(value, second[key]) for key, value in first.items())


def _images(sizes: list[tuple[int, int]], rows: np.ndarray) -> list[np.ndarray]:
    """Return pixels (H, W, 3) uint8 of the rows (B,) of images of these sizes."""
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    return [images[row] for row in rows]


class ViewContract(Contract):
    """Tests of the registered view `name`, created with `options`, on images of the given `sizes`."""

    registry = VIEWS
    options: ClassVar[dict[str, Any]] = {}
    sizes: ClassVar[list[tuple[int, int]]] = [(32, 32)] * 6

    def trained(self, view: View, rows: np.ndarray, epoch: int = 0) -> Tensor:
        """Return network input (B, C, H, W) of stored images while training."""
        return view(view.load(_images(self.sizes, rows), rows, seed=0, epoch=epoch), rows, seed=0, epoch=epoch)

    def test_what_is_drawn_depends_on_seed_epoch_and_image_only(self) -> None:
        """Check that an image looks the same in any batch."""
        view, rows = create_view(self.name, **self.options), np.arange(6)
        whole = self.trained(view, rows)
        assert whole.dtype == torch.float32
        assert torch.isfinite(whole).all()
        parts = torch.cat([self.trained(view, rows[:2]), self.trained(view, rows[2:])])
        assert torch.equal(whole, parts)

    def test_evaluation_augments_nothing(self) -> None:
        """Check that two epochs give the same input, equal to that of `load_plain` and `normalise`."""
        view, rows = create_view(self.name, **self.options).evaluation(), np.arange(6)
        assert view.evaluation() == view
        assert torch.equal(self.trained(view, rows), self.trained(view, rows, epoch=1))
        plain = view.normalise(view.load_plain(_images(self.sizes, rows)))
        assert torch.equal(self.trained(view, rows), plain)

    def test_the_input_has_the_declared_side(self) -> None:
        """Check that `side` is the side of the network's input."""
        view = create_view(self.name, **self.options)
        assert self.trained(view, np.arange(2)).shape[-1] == (view.side or self.sizes[0][0])


class MetricContract(Contract):
    """Tests of the registered metric `name` on random test embeddings."""

    registry = metrics.REGISTRY

    def test_it_is_a_number_with_a_direction(self) -> None:
        """Check for a float, or NaN where it is not defined, and a declared direction."""
        generator = np.random.default_rng(0)
        rows = generator.normal(size=(20, 3, 4)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=2, keepdims=True)
        probabilities = generator.dirichlet(np.ones(4), size=20).astype(np.float32)
        test = {"mean": rows[:, 0], "uncertainty": generator.random(20), "label": np.arange(20) % 4}
        test |= {"index": np.arange(20), "samples": rows, "probabilities": probabilities, "concentration": np.ones(20)}
        value = metrics.REGISTRY.get(self.name)(test)
        assert math.isnan(value) or isinstance(float(value), float)
        assert metrics.REGISTRY.constant(self.name, "direction") in ("higher", "lower", "none")


class SourceContract(Contract):
    """Tests of the registered source `name` that do not need its files."""

    registry = SOURCES

    def test_it_is_a_source_whose_view_exists(self) -> None:
        """Check for a `Source`, with views that can be created for every recipe."""
        component: Any = SOURCES.get(self.name)
        assert issubclass(component, Source)
        assert SOURCES.constant(self.name, "views").keys() <= {"vmf", "lam"}
        for recipe in ("standard", "vmf", "lam"):
            view = source_view(self.name, recipe)
            if view is not None:
                assert create_view(view["name"], **view["options"]).evaluation()
