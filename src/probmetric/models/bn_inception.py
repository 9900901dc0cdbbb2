"""BN-Inception ("IBN" in the papers' tables): Inception with batch normalisation, Ioffe and Szegedy 2015.

Layer sizes, names and biases are those of the Caffe model whose converted ImageNet weights all papers use
(`bn_inception-52deb4733.pth`); timm has no such network. `pretrained: true` loads this file from torch's checkpoint
folder; a path loads a copy of it from elsewhere.

The weights expect BGR values from 0 to 255 less (104, 117, 128). Colour images arrive with ImageNet statistics, as for
every other backbone, and are converted here.

Inception block, four branches concatenated (-> n: convolution to n channels, normalisation, ReLU):

    1x1 -> a        1x1 -> b, 3x3 -> c        1x1 -> d, 3x3 -> e, 3x3 -> e        pool 3x3, 1x1 -> p
    a = 0: the block halves the resolution; its two 3x3 branches end with stride 2, its pool passes all channels on
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from probmetric.io import FileError
from probmetric.models import register
from probmetric.models._base import Encoder, read_state
from probmetric.models._heads import create_pooling

WEIGHTS = "bn_inception-52deb4733.pth"
SOURCE = "data.lip6.fr/cadene/pretrainedmodels"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CAFFE_BGR = (104.0, 117.0, 128.0)

# name: (a, b, c, d, e, p, pool)
BLOCKS: dict[str, tuple[int, int, int, int, int, int, str]] = {
    "3a": (64, 64, 64, 64, 96, 32, "average"),
    "3b": (64, 64, 96, 64, 96, 64, "average"),
    "3c": (0, 128, 160, 64, 96, 0, "max"),
    "4a": (224, 64, 96, 96, 128, 128, "average"),
    "4b": (192, 96, 128, 96, 128, 128, "average"),
    "4c": (160, 128, 160, 128, 160, 128, "average"),
    "4d": (96, 128, 192, 160, 192, 128, "average"),
    "4e": (0, 128, 192, 192, 256, 0, "max"),
    "5a": (352, 192, 320, 160, 224, 128, "average"),
    "5b": (352, 192, 320, 192, 224, 128, "max"),
}


class Trunk(nn.Module):
    """The convolutional part; its layers have the names of the published weights."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", in_channels, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, (a, b, c, d, e, p, _) in BLOCKS.items():
            block, stride = f"inception_{name}", 1 if a else 2
            if a:
                self._add(f"{block}_1x1", channels, a, 1)
                self._add(f"{block}_pool_proj", channels, p, 1)
            self._add(f"{block}_3x3_reduce", channels, b, 1)
            self._add(f"{block}_3x3", b, c, 3, stride)
            self._add(f"{block}_double_3x3_reduce", channels, d, 1)
            self._add(f"{block}_double_3x3_1", d, e, 3)
            self._add(f"{block}_double_3x3_2", e, e, 3, stride)
            channels = a + c + e + (p or channels)

    def _add(self, name: str, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, size, stride, padding=size // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _apply_layer(self, name: str, maps: Tensor) -> Tensor:
        return torch.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(maps)))

    def _chain(self, names: tuple[str, ...], maps: Tensor) -> Tensor:
        for name in names:
            maps = self._apply_layer(name, maps)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, 1024, H/32, W/32)."""
        maps = _halve(self._apply_layer("conv1_7x7_s2", images))
        maps = _halve(self._chain(("conv2_3x3_reduce", "conv2_3x3"), maps))
        for name in BLOCKS:
            maps = self._block(name, maps)
        return maps

    def _block(self, name: str, maps: Tensor) -> Tensor:
        block = f"inception_{name}"
        branches = [
            self._chain((f"{block}_3x3_reduce", f"{block}_3x3"), maps),
            self._chain((f"{block}_double_3x3_reduce", f"{block}_double_3x3_1", f"{block}_double_3x3_2"), maps),
        ]
        if not BLOCKS[name][0]:
            return torch.cat([*branches, _halve(maps)], dim=1)
        pool = nn.functional.avg_pool2d if BLOCKS[name][6] == "average" else nn.functional.max_pool2d
        pooled = self._apply_layer(f"{block}_pool_proj", pool(maps, 3, 1, 1))
        return torch.cat([self._apply_layer(f"{block}_1x1", maps), *branches, pooled], dim=1)


def _halve(maps: Tensor) -> Tensor:
    """Return a max-pool of 3x3 windows with stride 2, rounding up."""
    return nn.functional.max_pool2d(maps, 3, 2, ceil_mode=True)


@register
class BNInception(Encoder):
    """BN-Inception with a linear head."""

    wants_statistics_of: ClassVar[str] = "imagenet"
    _scale: Tensor
    _shift: Tensor

    def __init__(
        self,
        *,
        dim: int,
        in_channels: int,
        image_size: int,
        pool: Literal["average", "max", "average_max", "gem"] = "average",
    ) -> None:
        super().__init__()
        self.trunk = Trunk(in_channels)
        self.pool = create_pooling(pool)
        self.colour = in_channels == 3
        mean, std = (torch.tensor(values).flip(0).view(1, 3, 1, 1) for values in _IMAGENET)
        self.register_buffer("_scale", 255 * std, persistent=False)
        self.register_buffer("_shift", 255 * mean - torch.tensor(_CAFFE_BGR).view(1, 3, 1, 1), persistent=False)
        self._attach_head(self._width_of(self.trunk, in_channels, image_size), dim)

    def features(self, images: Tensor) -> Tensor:
        """Return features (B, 1024) of images (B, C, H, W) with ImageNet statistics."""
        if self.colour:
            images = torch.addcmul(self._shift, images.flip(1), self._scale)
        return self.pool(self.trunk(images))

    def load_pretrained(self, source: str | Path | bool) -> None:
        """Load the converted Caffe weights (True: from torch's checkpoint folder), or a run's `model.safetensors`.

        Raises:
            FileError: the file is missing, damaged or of another architecture.
        """
        if source is True:
            source = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
            if not source.is_file():
                raise FileError(f"weight file {source} is missing; put it there (from {SOURCE}).")
        state = read_state(source)
        if any(name.startswith(("encoder.", "trunk.")) for name in state):
            super().load_pretrained(source)
            return
        kept = {name: value for name, value in state.items() if not name.startswith(("last_linear.", "fc."))}
        flat = {name: value.flatten() if "_bn." in name else value for name, value in kept.items()}
        counters = {name: value.reshape(()) for name, value in flat.items() if name.endswith("num_batches_tracked")}
        absent = tuple(name for name in self.trunk.state_dict() if name.endswith("num_batches_tracked"))
        self._take(self.trunk, flat | counters, source, may_lack=absent)  # older weight files have no batch counters
