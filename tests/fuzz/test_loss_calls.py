"""Losses and uncertainties called with what people hand over: a finite number, or a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls import outcome
from torch import Tensor

from probmetric.losses import REGISTRY, create_loss, list_losses
from probmetric.testing.uncertainties import UncertaintyContract, tiny_batches
from probmetric.uncertainty import REGISTRY as UNCERTAINTIES
from probmetric.uncertainty import create_uncertainty, list_uncertainties

C, M = 5, 6
LABELS = torch.tensor([0, 2, 1, 2, 0, 3, 2, 1, 1])
EMBEDDINGS = torch.randn(9, M, generator=torch.Generator().manual_seed(0))

BATCHES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "float64": lambda: (EMBEDDINGS.double(), LABELS),
    "half": lambda: (EMBEDDINGS.half(), LABELS),
    "bfloat16": lambda: (EMBEDDINGS.bfloat16(), LABELS),
    "uint8": lambda: ((EMBEDDINGS.abs() * 50).to(torch.uint8), LABELS),
    "NumPy labels": lambda: (EMBEDDINGS.clone(), LABELS.numpy()),
    "list of labels": lambda: (EMBEDDINGS.clone(), LABELS.tolist()),
    "short labels": lambda: (EMBEDDINGS.clone(), LABELS.to(torch.uint8)),
    "one image": lambda: (EMBEDDINGS[:1].clone(), LABELS[:1]),
    "one class": lambda: (EMBEDDINGS.clone(), torch.zeros(9, dtype=torch.int64)),
    "all equal": lambda: (torch.ones(1, M).expand(9, M), LABELS),
    "not contiguous": lambda: (EMBEDDINGS.T.contiguous().T, LABELS),
    "1e10": lambda: (EMBEDDINGS * 1e10, LABELS),
    "1e20": lambda: (EMBEDDINGS * 1e20, LABELS),
    "1e30": lambda: (EMBEDDINGS * 1e30, LABELS),
}
REFUSED = {
    "array": (EMBEDDINGS.numpy(), LABELS),
    "empty": (EMBEDDINGS[:0], LABELS[:0]),
    "an axis more": (EMBEDDINGS[None], LABELS),
    "labels that are floats": (EMBEDDINGS, LABELS.double()),
}


@pytest.mark.parametrize("name", list_losses())
def test_a_loss_and_its_gradient_are_finite(name: str) -> None:
    for kind, batch in BATCHES.items():
        torch.manual_seed(0)
        loss, (z, y) = create_loss(name, num_classes=C, dim=M), batch()
        z = z.detach().requires_grad_() if z.is_floating_point() else z
        value = loss(z, y, generator=torch.Generator().manual_seed(1))
        assert torch.isfinite(value), kind
        if z.requires_grad:
            value.backward()
            assert torch.isfinite(z.grad).all(), kind


@pytest.mark.parametrize("name", list_losses())
def test_what_is_no_batch_is_refused_in_a_sentence(name: str) -> None:
    loss = create_loss(name, num_classes=C, dim=M)
    for kind, batch in REFUSED.items():
        assert outcome(loss, *batch)[0] == "refused", kind


SIZES = (0, 1, 1e-300, 1e-15, 1e-10, 1e-6, 1e3, 1e6, 1e10, 1e15, 1e20, 10**400, math.nan, math.inf)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option.name)
        for name in list_losses()
        for option in REGISTRY.options(name).values()
        if "float" in option.types
    ],
)
def test_every_number_an_option_takes_makes_a_finite_loss(name: str, option: str) -> None:
    for size in SIZES:
        kind, loss = outcome(create_loss, name, num_classes=C, dim=M, **{option: size})
        if kind == "refused":
            continue
        z = EMBEDDINGS.clone().requires_grad_()
        value = loss(z, LABELS, generator=torch.Generator().manual_seed(1))
        value.backward()
        assert torch.isfinite(value), size
        assert torch.isfinite(z.grad).all(), size


@pytest.mark.parametrize(
    ("name", "option", "largest", "beside"),
    [
        (name, option.name, int(option.range.high), {key: values[0] for key, values in option.when.items()})
        for name in list_losses()
        for option in REGISTRY.options(name).values()
        if "int" in option.types
    ],
)
def test_the_largest_count_an_option_takes_can_be_afforded(
    name: str, option: str, largest: int, beside: dict[str, Any]
) -> None:
    kind, loss = outcome(create_loss, name, num_classes=C, dim=M, **beside, **{option: largest})
    assert kind == "result"
    kind, value = outcome(loss, EMBEDDINGS, LABELS, generator=torch.Generator().manual_seed(1))
    assert kind == "result"
    assert torch.isfinite(value)
    kind, message = outcome(create_loss, name, num_classes=C, dim=M, **beside, **{option: largest + 1})
    assert kind == "refused"
    assert f"at most {largest}" in message


def images() -> Tensor:
    return tiny_batches(1)[0][0]


IMAGES: dict[str, Callable[[], Any]] = {
    "float64": lambda: images().double(),
    "half": lambda: images().half(),
    "one": lambda: images()[:1],
    "none": lambda: images()[:0],
    "all equal": lambda: images()[:1].expand(5, 3, 2, 2),
    "not contiguous": lambda: images().transpose(2, 3),
    "a last batch of one": lambda: [images()[:5], images()[5:6]],
    "1e6": lambda: images() * 1e6,
    "1e20": lambda: images() * 1e20,
    "1e30": lambda: images() * 1e30,
}


@pytest.mark.parametrize("name", list_uncertainties())
def test_every_number_of_a_record_is_finite(name: str) -> None:
    contract = UncertaintyContract()
    contract.name = name
    encoder, uncertainty, arguments = contract.prepared()
    predictor = uncertainty.bind(encoder, **arguments, seed=0)
    for kind, made in IMAGES.items():
        record = predictor(made())
        assert all(torch.isfinite(value).all() for value in record.tensors().values()), kind
    torch.testing.assert_close(predictor(images().double()).uncertainty, predictor(images()).uncertainty)
    unread = [images()[0], images()[0, 0, 0], images()[:, :2], images() * torch.nan, images() / 0]  # shapes, numbers
    for wrong in ([], (images() * 50).to(torch.uint8), images() > 0, images().numpy(), [images().numpy()], *unread):
        assert outcome(predictor, wrong)[0] == "refused"


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name in list_uncertainties()
        for option in ("samples", "train_samples")
        if option in UNCERTAINTIES.options(name)
    ],
)
def test_as_many_draws_as_an_option_takes_can_be_afforded(name: str, option: str) -> None:
    contract, largest = UncertaintyContract(), int(UNCERTAINTIES.options(name)[option].range.high)
    contract.name, contract.options = name, {option: largest}  # type: ignore[misc]
    encoder, uncertainty, arguments = contract.prepared()
    kind, record = outcome(uncertainty.bind(encoder, **arguments, seed=0), images()[:4])
    assert kind == "result"
    assert torch.isfinite(record.uncertainty).all()
    kind, message = outcome(create_uncertainty, name, **{option: largest + 1})
    assert kind == "refused"
    assert f"at most {largest}" in message


@pytest.mark.parametrize("name", [name for name in list_uncertainties() if create_uncertainty(name).fits])
def test_a_posterior_is_fitted_to_images_of_any_precision(name: str) -> None:
    contract = UncertaintyContract()
    contract.name = name

    def fitted(dtype: torch.dtype) -> tuple[str, Any]:
        encoder, uncertainty, arguments = contract.prepared()
        batches = [(images.to(dtype), labels) for images, labels in tiny_batches()]
        generator = torch.Generator().manual_seed(0)
        return outcome(
            uncertainty.fit, encoder, batches, loss=arguments["loss"], generator=generator, validation=batches
        )

    torch.testing.assert_close(fitted(torch.float64)[1], fitted(torch.float32)[1])
    assert fitted(torch.float16)[0] == "result"
    if name != "hib":  # learns nothing after training
        assert fitted(torch.uint8)[0] == "refused"


@pytest.mark.parametrize("name", ["mc_dropout", "laplace", "norm", "head_inputs"])
def test_embeddings_of_one_number_have_finite_doubts(name: str) -> None:
    from probmetric.testing.uncertainties import TinyEncoder

    encoder, uncertainty = TinyEncoder(dim=1), create_uncertainty(name)
    posterior = uncertainty.fit(encoder, tiny_batches(), generator=torch.Generator()) if uncertainty.fits else None
    record = uncertainty.bind(encoder, posterior=posterior, seed=0)(images())
    assert torch.isfinite(record.uncertainty).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in list_losses()]
    + [(name, {"fidelity": "as_published"}) for name in ("el_nivmf", "vmf")]
    + [("nir", {"self_regularisation": "generate"})],
)
def test_a_loss_in_float64_draws_what_it_draws_in_float32(name: str, options: dict[str, Any]) -> None:
    """Only rounding differs: a seed has the same draws in every type."""
    for seed, (count, dim, images) in enumerate(((5, 6, 9), (64, 16, 3), (3, 3, 7), (8, 2, 10), (6, 64, 4))):
        made = torch.Generator().manual_seed(seed)
        z, y = torch.randn(images, dim, generator=made), torch.randint(0, count, (images,), generator=made)
        torch.manual_seed(seed)
        loss = create_loss(name, num_classes=count, dim=dim, **options)
        single = loss(z, y, generator=torch.Generator().manual_seed(100))
        double = loss.double()(z.double(), y, generator=torch.Generator().manual_seed(100))
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)
