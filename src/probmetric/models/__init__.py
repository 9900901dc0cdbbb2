"""Encoders: images -> raw, un-normalised embeddings. Importing this package needs no PyTorch.

To write a backbone, use `from probmetric.models import Encoder, register`.
"""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from probmetric.lazy import exported
from probmetric.registry import OptionValueError, RegistrationError, Registry

if TYPE_CHECKING:
    from probmetric.models._base import Encoder

REGISTRY = Registry(
    "backbone",
    "probmetric.models",
    context=("dim", "in_channels", "image_size"),
    constants=("has_head", "wants_statistics_of"),
    hint="A network of timm is `{name: timm, tag: <its name>}`.",
)
register, list_backbones = REGISTRY.register, REGISTRY.names

AS_FEATURES = 0  # `dim` of a head that is as wide as the features
__all__ = [
    "REGISTRY",
    "Encoder",
    "create_encoder",
    "input_statistics",
    "list_backbones",
    "register",
]

__getattr__ = exported(__name__)


def create_encoder(
    backbone: str,
    *,
    dim: int | Literal["features"],
    in_channels: int = 3,
    image_size: int = 32,
    pretrained: str | Path | bool | None = None,
    **options: Any,
) -> Encoder:
    """Create the encoder registered as `backbone`; its weights are drawn from torch's global generator.

    Args:
        backbone: one of `list_backbones()`.
        dim: M, size of the embedding; "features": the number of features before the head.
        in_channels: channels of the images.
        image_size: height and width of the images.
        pretrained: a weight file (.safetensors, or a .pth state dict), a run's `model.safetensors`, or True for
            the weights a backbone publishes itself (timm; needs its cache or a network).
        options: keyword options of the backbone.

    Returns:
        `encoder(images (B, C, H, W)) -> (B, M)`.

    Raises:
        UnknownNameError: an unknown backbone or option.
        OptionValueError: a size or an option out of its range.
        FileError: weights that are not there.
    """
    context = {"dim": dim, "in_channels": in_channels, "image_size": image_size}
    for argument, number in context.items():
        if (argument, number) != ("dim", "features") and not (isinstance(number, Integral) and number >= 1):
            words = " or 'features'" * (argument == "dim")
            raise OptionValueError(f"{argument} is {number!r}; allowed: an integer from 1 on{words}.")
    context["dim"] = AS_FEATURES if dim == "features" else dim
    encoder: Encoder = REGISTRY.create(backbone, **context, **options)
    if lacking := [name for name in ("dim", "num_features") if not hasattr(encoder, name)]:
        raise RegistrationError(
            f"backbone {backbone!r} sets no {' and no '.join(lacking)}; its `__init__` sets `dim`, the size of its "
            "embedding, and `num_features`, that of its features."
        )
    if pretrained:
        encoder.load_pretrained(pretrained)
    return encoder


def input_statistics(backbone: str, **options: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and standard deviation per channel that `backbone` wants images normalised by, or None.

    Both depend on how its weights were trained: timm's `resnet50.tv_in1k` expects ImageNet's mean and deviation,
    `vit_small_patch16_224.augreg_in21k` 0.5 and 0.5.
    """
    component: Any = REGISTRY.get(backbone)
    REGISTRY.check_options(backbone, options)
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = component.input_statistics(**options)
    return statistics
