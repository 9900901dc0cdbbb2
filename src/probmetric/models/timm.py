"""Any backbone of the timm library by its tag, with a local weight file or timm's own weights.

A tag such as `resnet50.tv_in1k` names architecture and weight set. An architecture alone does not fix the weights, so a
run records the digest of its weight file. A linear head (-> M) replaces the classifier.

`pool`: convolutional nets can be pooled by average, max, average_max (papers 001 and 004) or GeM (paper 003: exponent
without weight decay, at 10 times the learning rate). "default" keeps the architecture's own pooling, the only choice
for transformers. `head_scale` multiplies the head's initial weight, not its bias; paper 000 sets the starting
concentration |z| of its ResNet-50 encoders this way. `head: none` makes the features the embedding; M is then their
number, and `dim` is ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from probmetric.errors import ProbMetricError, nearest
from probmetric.io import FileError
from probmetric.models import register
from probmetric.models._base import Encoder, read_state
from probmetric.models._heads import GeM, create_pooling
from probmetric.models._weights import published_weights, renamed_by_position
from probmetric.registry import Flag, OptionValueError, Positive, Share, UnknownNameError


@register
class Timm(Encoder):
    """A timm backbone without its classifier, and a linear head."""

    has_head: ClassVar[Flag] = {"head": "linear"}

    def __init__(
        self,
        *,
        dim: int,
        in_channels: int,
        image_size: int,
        tag: str = "resnet50.tv_in1k",
        pool: Literal["default", "average", "max", "average_max", "gem"] = "default",
        head: Literal["linear", "none"] = "linear",
        head_scale: Positive = 1.0,
        drop_rate: Share = 0.0,
    ) -> None:
        super().__init__()
        self.tag, self._input = tag, (in_channels, image_size)
        try:
            self.backbone: Any = _create(tag, in_channels, image_size)
            maps, pooled = _shapes(self.backbone, in_channels, image_size)
        except ProbMetricError:
            raise
        except Exception as error:  # timm's networks say in many ways that an image does not fit
            reason = " ".join(str(error).split())[:150] or type(error).__name__
            side = _library(tag).get_pretrained_cfg(tag).input_size[-1]
            raise OptionValueError(
                f"backbone timm: {tag} gives no features of images of {image_size} x {image_size} pixels ({reason}); "
                f"choose another view.size, such as {side}, or another tag."
            ) from error
        self.pool = None if pool == "default" else create_pooling(pool)
        if self.pool is not None and not (len(maps) == 4 and maps[1] == self.backbone.num_features):
            raise OptionValueError(
                f"backbone timm: pool={pool!r} needs a feature map (B, D, H, W), {tag} gives none; use pool='default'."
            )
        self.dropout = nn.Dropout(drop_rate)
        self.num_features = pooled[1] if self.pool is None else maps[1]
        self.dim = self.num_features
        if head == "linear":
            with torch.no_grad():
                self._attach_head(self.num_features, dim).weight.mul_(head_scale)

    @classmethod
    def input_statistics(
        cls, *, tag: str = "resnet50.tv_in1k", **options: Any
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean and standard deviation per channel that timm's weights of `tag` were trained with."""
        published = _library(tag).get_pretrained_cfg(tag)
        return tuple(published.mean), tuple(published.std)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, C, H, W), after pooling and dropout."""
        maps = self.backbone.forward_features(images)
        pooled = self.backbone.forward_head(maps, pre_logits=True) if self.pool is None else self.pool(maps)
        return self.dropout(pooled)

    @property
    def layered(self) -> nn.Module:
        """Return the network of timm, which knows its layers."""
        network: nn.Module = self.backbone
        return network

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return one group; a GeM exponent has its own, without weight decay and at 10 times the learning rate."""
        if not isinstance(self.pool, GeM):
            return super().optimizer_groups()
        others = [parameter for parameter in self.parameters() if parameter is not self.pool.p]
        return [{"params": others}, {"params": [self.pool.p], "lr_multiplier": 10.0, "weight_decay": 0.0}]

    def load_pretrained(self, source: str | Path | bool) -> None:
        """Load published weights (True), a weight file of the architecture, or a run's `model.safetensors`.

        timm fits the weights to this model: it leaves out the classifier, resamples position embeddings that were
        trained at another image size, and adapts the first layer to the number of channels.

        Raises:
            FileError: no network and nothing cached, or the file is missing, damaged or of another architecture.
        """
        if source is True:
            source = published_weights(self.tag, self.backbone.pretrained_cfg.get("hf_hub_id"))
        state = read_state(source)
        if any(name.startswith("encoder.") for name in state) or state.keys() <= self.state_dict().keys():
            super().load_pretrained(source)
            return
        trunk = {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}
        state = trunk or state  # self-supervised training keeps heads of its own beside the backbone
        if "_conv_stem.weight" in state:
            state = renamed_by_position(state, _library(self.tag).create_model(self.tag).state_dict(), source)
        try:
            weights = {"state_dict": self._without_classifier(state), "num_classes": 0}
            fitted = _create(self.tag, *self._input, pretrained=True, pretrained_cfg_overlay=weights)
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise FileError(
                f"{source} does not fit backbone Timm with tag {self.tag}: {reason}. "
                "Use weights of the same backbone with the same options."
            ) from error
        self._take(self.backbone, fitted.state_dict(), source, may_lack=())

    def _without_classifier(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights without those of the classifier that the file was trained with."""
        classifiers = self.backbone.pretrained_cfg.get("classifier") or ()
        classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
        return {name: value for name, value in state.items() if name.rpartition(".")[0] not in classifiers}


def _create(tag: str, in_channels: int, image_size: int, **weights: Any) -> Any:
    """Return the timm model `tag` without classifier; an architecture of fixed size is made for `image_size`."""
    timm = _library(tag)
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": in_channels, **weights}
    try:
        model = timm.create_model(tag, img_size=image_size, **options)
    except TypeError:
        return timm.create_model(tag, **options)
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", 1)
    patch = patch if isinstance(patch, int) else patch[0]
    if image_size % patch == 0:
        return model
    whole = image_size + patch - image_size % patch
    try:  # images are padded to whole patches
        return timm.create_model(tag, img_size=whole, dynamic_img_size=True, dynamic_img_pad=True, **options)
    except TypeError as error:
        raise OptionValueError(
            f"backbone timm: {tag} takes images whose side is a multiple of {patch}; choose view.size {whole} in place "
            f"of {image_size}."
        ) from error


def _library(tag: str) -> Any:
    """Return the timm package, or raise an error if it has no model `tag`."""
    try:
        import timm
    except ImportError as error:
        raise FileError("backbone timm needs the package timm: pip install 'probmetric[train]'.") from error

    try:
        exists = timm.is_model(tag) and bool(timm.get_pretrained_cfg(tag) or "." not in tag)
    except RuntimeError:  # the architecture has no such weights
        exists = False
    if not exists:
        close = nearest(tag, timm.list_models() + timm.list_pretrained())
        raise UnknownNameError(f"backbone timm: timm {timm.__version__} has no model {tag!r}: {close}")
    return timm


def _shapes(backbone: Any, in_channels: int, image_size: int) -> tuple[torch.Size, torch.Size]:
    """Return the shapes of the feature map and of the features that the backbone gives for one image."""
    was_training = backbone.training
    with torch.no_grad():
        maps = backbone.eval().forward_features(torch.zeros(1, in_channels, image_size, image_size))
        pooled = backbone.forward_head(maps, pre_logits=True)
    backbone.train(was_training)
    return maps.shape, pooled.shape
