"""The backbones of the papers: sizes, pooling, embedding dimensions, batch normalisation, weight files. No network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from probmetric.io import FileError, write_tensors
from probmetric.models import create_encoder
from probmetric.models._base import Encoder
from probmetric.models.bn_inception import Trunk
from probmetric.registry import OptionValueError

RESNET, IMAGENET_VIT, DINO = "resnet50.tv_in1k", "vit_small_patch16_224.augreg_in21k", "vit_small_patch16_224.dino"
BACKBONES: dict[str, tuple[str, dict[str, Any], int, int]] = {  # backbone, options, D, million parameters without head
    "ResNet-50": ("timm", {"tag": RESNET}, 2048, 23),
    "BN-Inception": ("bn_inception", {}, 1024, 10),
    "ViT-S/16": ("timm", {"tag": IMAGENET_VIT}, 384, 21),
    "DINO ViT-S/16": ("timm", {"tag": DINO}, 384, 21),
}


def on_paper(name: str, dim: int = 64, **options: Any) -> Encoder:
    """The encoder at full size without memory for its weights: shapes only."""
    backbone, own, _, _ = BACKBONES[name]
    with torch.device("meta"):
        return create_encoder(backbone, dim=dim, image_size=224, **own, **options).eval()


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("dim", [64, 128, 384, 512, 2048])
def test_sizes_at_224(name: str, dim: int) -> None:
    encoder = on_paper(name, dim)
    _, _, features, millions = BACKBONES[name]
    assert encoder.num_features == features
    assert encoder(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, dim)
    head = features * dim + dim
    assert round((sum(p.numel() for p in encoder.parameters()) - head) / 1e6, 1) == pytest.approx(millions, abs=0.9)


@pytest.mark.parametrize("name", ["ResNet-50", "BN-Inception"])
@pytest.mark.parametrize("pool", ["average", "average_max", "gem"])
def test_convolutional_nets_pool_once_or_twice(name: str, pool: str) -> None:
    encoder = on_paper(name, pool=pool)
    assert encoder.features(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, BACKBONES[name][2])


@pytest.mark.parametrize("name", ["ViT-S/16", "DINO ViT-S/16"])
def test_transformers_keep_their_class_token_and_are_told_so(name: str) -> None:
    with pytest.raises(OptionValueError, match=r"needs a feature map.*use pool='default'"):
        on_paper(name, pool="average_max")


@pytest.mark.parametrize("name", BACKBONES)
def test_frozen_batch_norm_covers_every_layer(name: str) -> None:
    encoder = on_paper(name)
    encoder.set_batch_norm("frozen")
    encoder.train()
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    assert (len(norms) > 50) == ("ViT" not in name)
    assert not any(module.training for module in norms)
    assert all(module.weight.requires_grad for module in norms)


def test_dino_and_imagenet_vit_differ_in_weights_only(tmp_path: Path) -> None:
    """A file in timm's names, classifier or not, fits the tag it belongs to; the tag is looked up, not guessed."""
    cfgs = {tag: timm.create_model(tag, pretrained=False, num_classes=0).pretrained_cfg for tag in (DINO, IMAGENET_VIT)}
    assert cfgs[DINO]["tag"] == "dino"
    assert cfgs[DINO]["hf_hub_id"] != cfgs[IMAGENET_VIT]["hf_hub_id"]
    torch.manual_seed(0)
    published = timm.create_model(IMAGENET_VIT, pretrained=False, img_size=32, num_classes=3).eval()
    path = tmp_path / "vit.safetensors"
    write_tensors(path, published.state_dict())
    encoder = create_encoder("timm", dim=8, image_size=32, tag=IMAGENET_VIT, pretrained=path).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = published.forward_head(published.forward_features(images), pre_logits=True)
    torch.testing.assert_close(encoder.features(images), expected)


def test_a_file_for_another_image_size_has_its_positions_resampled(tmp_path: Path) -> None:
    path = tmp_path / "vit.safetensors"
    published = timm.create_model(DINO, pretrained=False, img_size=32, num_classes=0).state_dict()
    write_tensors(path, published)
    backbone = create_encoder("timm", dim=8, image_size=48, tag=DINO, pretrained=path).backbone
    assert backbone.pos_embed.shape == (1, 10, 384)
    torch.testing.assert_close(backbone.pos_embed[:, 0], published["pos_embed"][:, 0])
    torch.testing.assert_close(backbone.patch_embed.proj.weight, published["patch_embed.proj.weight"])


# ---- BN-Inception ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def converted() -> dict[str, torch.Tensor]:
    """Weights in the form of the converted Caffe file: row vectors in the normalisation, no counters, a classifier."""
    torch.manual_seed(0)
    state = {name: torch.rand_like(value) + 0.5 for name, value in Trunk(3).state_dict().items() if value.ndim}
    state = {name: value[None] if "_bn." in name else value * 0.02 for name, value in state.items()}
    return state | {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}


def test_bn_inception_has_the_published_layers(converted: dict[str, torch.Tensor]) -> None:
    """Names and sizes read off the converted file: first and last layers, and one of every kind of branch."""
    sizes = {
        "conv1_7x7_s2": (64, 3, 7, 7),
        "conv2_3x3": (192, 64, 3, 3),
        "inception_3a_1x1": (64, 192, 1, 1),
        "inception_3c_3x3": (160, 128, 3, 3),
        "inception_4a_pool_proj": (128, 576, 1, 1),
        "inception_4d_double_3x3_1": (192, 160, 3, 3),
        "inception_4e_double_3x3_2": (256, 256, 3, 3),
        "inception_5a_1x1": (352, 1056, 1, 1),
        "inception_5b_pool_proj": (128, 1024, 1, 1),
    }
    assert {name: tuple(converted[f"{name}.weight"].shape) for name in sizes} == sizes
    assert sum(name.endswith("_bn.weight") for name in converted) == 69


def test_bn_inception_halves_rounding_up() -> None:
    with torch.device("meta"):
        trunk = Trunk(3)
        assert trunk(torch.empty(1, 3, 224, 224)).shape == (1, 1024, 7, 7)


def test_bn_inception_takes_the_converted_file(converted: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / "bn_inception-52deb4733.pth"
    torch.save(converted, path)
    encoder = create_encoder("bn_inception", dim=8, image_size=32, pretrained=path)
    assert isinstance(encoder.trunk, Trunk)
    assert torch.equal(encoder.trunk.inception_5b_1x1.weight, converted["inception_5b_1x1.weight"])
    assert torch.equal(encoder.trunk.conv1_7x7_s2_bn.running_var, converted["conv1_7x7_s2_bn.running_var"][0])
    fresh = {n for n, p in encoder.named_parameters() if all(p is not q for q in encoder.pretrained_parameters())}
    assert fresh == {"head.weight", "head.bias"}
    with pytest.raises(FileError, match=r"bn_inception-52deb4733\.pth is missing; put it there"):
        create_encoder("bn_inception", dim=8, image_size=32, pretrained=True)


def test_bn_inception_sees_blue_green_red_less_the_mean() -> None:
    """An image of one colour, RGB (10, 100, 200), arrives as BGR (200, 100, 10) - (104, 117, 128)."""
    encoder = create_encoder("bn_inception", dim=8, image_size=32).eval()
    seen: list[torch.Tensor] = []
    encoder.trunk.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    colour = torch.tensor([10.0, 100.0, 200.0]) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    encoder(((colour - mean) / std).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    expected = torch.tensor([200.0 - 104, 100.0 - 117, 10.0 - 128])
    torch.testing.assert_close(seen[0][0, :, 5, 7], expected, rtol=0, atol=1e-3)
