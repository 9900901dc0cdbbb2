"""Any backbone of the timm library by its tag, with a local weight file or timm's own weights.

A tag such as `resnet50.tv_in1k` names architecture and weight set; a bare architecture name is not reproducible once
weights are loaded, so the digest of the weight file is recorded with the run. The classifier is replaced by a
linear head (-> M). Convolutional nets can be pooled by average, max, average_max (papers 001 and 004) or GeM
(paper 003: exponent without weight decay, at 10 times the learning rate); "default" keeps the architecture's own
pooling, the only choice for transformers. `head_scale` multiplies the head's initial weight, not its bias: paper
000 sets the starting concentration |z| of its ResNet-50 encoders that way. `head: none` leaves the features as they
are, for published networks that are measured without training.
"""

from __future__ import annotations

import difflib
import socket
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from probmetric.io import FileError
from probmetric.models import register
from probmetric.models._base import Encoder, read_state
from probmetric.models._heads import GeM, create_pooling
from probmetric.registry import Flag, Positive, Share, UnknownNameError


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
        self.tag = tag
        self.backbone: Any = _create(tag, in_channels, image_size)
        self.pool = None if pool == "default" else create_pooling(pool)
        if self.pool is not None and not _is_convolutional(self.backbone, in_channels, image_size):
            raise ValueError(
                f"backbone timm: pool={pool!r} needs a feature map (B, D, H, W), {tag} gives none; use pool='default'."
            )
        self.dropout = nn.Dropout(drop_rate)
        self.num_features, self.dim = int(self.backbone.num_features), dim
        if head == "linear":
            with torch.no_grad():
                self._attach_head(self.num_features, dim).weight.mul_(head_scale)
        elif dim != self.num_features:
            raise ValueError(f"backbone timm: without head dim is that of the features of {tag}, {self.num_features}.")

    @classmethod
    def input_statistics(
        cls, *, tag: str = "resnet50.tv_in1k", **options: Any
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What timm's weights of `tag` were trained with."""
        published = _library(tag).get_pretrained_cfg(tag)
        return tuple(published.mean), tuple(published.std)

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D), after pooling and dropout."""
        maps = self.backbone.forward_features(images)
        pooled = self.backbone.forward_head(maps, pre_logits=True) if self.pool is None else self.pool(maps)
        return self.dropout(pooled)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """One group; a GeM exponent has its own, without weight decay and at 10 times the learning rate."""
        if not isinstance(self.pool, GeM):
            return super().optimizer_groups()
        others = [parameter for parameter in self.parameters() if parameter is not self.pool.p]
        return [{"params": others}, {"params": [self.pool.p], "lr_multiplier": 10.0, "weight_decay": 0.0}]

    def load_pretrained(self, source: str | Path | bool) -> None:
        """Load timm's published weights (True), a weight file of the architecture, or a run's `model.safetensors`.

        Raises:
            FileError: no network and nothing cached, or the file is missing, damaged or of another architecture.
        """
        if source is True:
            source = _published_weights(self.tag, self.backbone.pretrained_cfg.get("hf_hub_id"))
        state = read_state(source)
        if any(name.startswith(("encoder.", "backbone.")) for name in state):
            super().load_pretrained(source)
            return
        self._take(self.backbone, self._without_classifier(state), source, may_lack=())

    def _without_classifier(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights in timm's names for this model, without the classifier the file was trained with."""
        from timm.models import adapt_input_conv

        classifiers = self.backbone.pretrained_cfg.get("classifier") or ()
        classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
        kept = {name: value for name, value in state.items() if name.rpartition(".")[0] not in classifiers}
        stem = f"{self.backbone.pretrained_cfg.get('first_conv')}.weight"
        own = self.backbone.state_dict()
        if stem in kept and stem in own and kept[stem].shape[1] == 3 != own[stem].shape[1]:
            kept[stem] = adapt_input_conv(own[stem].shape[1], kept[stem])
        return kept


def _published_weights(tag: str, repository: str | None) -> Path:
    """Weight file of `tag` from the Hugging Face cache, else downloaded; fails fast where there is no network."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if not repository:
        raise FileError(f"{tag} has no published weights; name a tag with weights or set `pretrained` to a file.")
    try:
        return Path(hf_hub_download(repository, "model.safetensors", local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        _require_network()
        return Path(hf_hub_download(repository, "model.safetensors"))
    except Exception as error:
        raise FileError(
            f"the weights of {tag} are not in the local cache and cannot be downloaded here ({error}). Fetch "
            f"model.safetensors of {repository} on a machine with a network and set `pretrained` to that file."
        ) from error


def _require_network() -> None:
    """Raise `OSError` within seconds if the weight server cannot be reached; the client itself retries for long."""
    from huggingface_hub.constants import ENDPOINT

    if not urllib.request.getproxies():
        with socket.create_connection((urllib.parse.urlsplit(ENDPOINT).hostname or "", 443), timeout=5):
            pass


def _create(tag: str, in_channels: int, image_size: int) -> Any:
    """The timm model `tag` without classifier; fixed-size architectures are told `image_size`."""
    timm = _library(tag)
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": in_channels}
    try:
        return timm.create_model(tag, img_size=image_size, **options)
    except TypeError:
        return timm.create_model(tag, **options)


def _library(tag: str) -> Any:
    """The timm package, if it knows the model `tag`."""
    try:
        import timm
    except ImportError as error:
        raise FileError("backbone timm needs the package timm: pip install 'probmetric[models]'.") from error

    if not timm.is_model(tag):
        known = timm.list_models() + timm.list_pretrained()
        close = difflib.get_close_matches(tag, known, n=3, cutoff=0.5)
        hint = f" Nearest: {', '.join(close)}." if close else ""
        raise UnknownNameError(f"backbone timm: timm {timm.__version__} has no model {tag!r}.{hint}")
    return timm


def _is_convolutional(backbone: Any, in_channels: int, image_size: int) -> bool:
    """Whether `forward_features` gives a map with the channels first."""
    was_training = backbone.training
    with torch.no_grad():
        maps = backbone.eval().forward_features(torch.zeros(1, in_channels, image_size, image_size))
    backbone.train(was_training)
    return bool(maps.ndim == 4 and maps.shape[1] == backbone.num_features)
