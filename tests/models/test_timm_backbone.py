"""timm backbones with local weight files; no network is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from probmetric.io import FileError, sha256_file, write_tensors
from probmetric.models import create_encoder
from probmetric.registry import UnknownNameError

TAG = "test_resnet.r160_in1k"


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    torch.manual_seed(3)
    return timm.create_model(TAG, pretrained=False).eval()


@pytest.fixture
def weights(reference: torch.nn.Module, tmp_path: Path) -> Path:
    """A weight file as published: backbone and classifier."""
    path = tmp_path / "test_resnet.safetensors"
    write_tensors(path, reference.state_dict())
    return path


def test_features_are_the_published_nets(reference: torch.nn.Module, weights: Path) -> None:
    encoder = create_encoder("timm", dim=6, image_size=64, pretrained=weights, tag=TAG).eval()
    images = torch.randn(2, 3, 64, 64)
    expected = reference.forward_head(reference.forward_features(images), pre_logits=True)
    torch.testing.assert_close(encoder.features(images), expected)
    assert encoder.pretrained_digest == sha256_file(weights)
    fresh = {n for n, p in encoder.named_parameters() if all(p is not q for q in encoder.pretrained_parameters())}
    assert fresh == {"head.weight", "head.bias"}


def test_grey_images_get_the_summed_stem(reference: torch.nn.Module, weights: Path) -> None:
    """A grey image gives the same features as the same image in three equal channels."""
    encoder = create_encoder("timm", dim=6, in_channels=1, image_size=64, pretrained=weights, tag=TAG).eval()
    grey = torch.randn(2, 1, 64, 64)
    colour = reference.forward_features(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(encoder.backbone.forward_features(grey), colour, rtol=1e-4, atol=1e-5)


def test_gem_exponent_has_its_own_group(weights: Path) -> None:
    encoder = create_encoder("timm", dim=6, image_size=64, pretrained=weights, tag=TAG, pool="gem")
    backbone, exponent = encoder.optimizer_groups()
    assert exponent["lr_multiplier"] == 10.0
    assert exponent["weight_decay"] == 0.0
    assert [p.shape for p in exponent["params"]] == [()]
    assert len(backbone["params"]) == len(list(encoder.parameters())) - 1


def test_head_scale_multiplies_the_weight_not_the_bias() -> None:
    encoders = []
    for scale in (1.0, 50.0):
        torch.manual_seed(0)
        encoders.append(create_encoder("timm", dim=6, image_size=64, tag=TAG, head_scale=scale))
    torch.testing.assert_close(encoders[1].head.weight, encoders[0].head.weight * 50.0)
    assert torch.equal(encoders[1].head.bias, encoders[0].head.bias)


def test_transformers_take_the_image_size_and_their_own_pooling() -> None:
    encoder = create_encoder("timm", dim=6, image_size=48, tag="test_vit.r160_in1k").eval()
    assert encoder(torch.zeros(2, 3, 48, 48)).shape == (2, 6)
    with pytest.raises(ValueError, match=r"pool='gem' needs a feature map.*use pool='default'"):
        create_encoder("timm", dim=6, image_size=48, tag="test_vit.r160_in1k", pool="gem")


def test_wrong_files_and_tags_are_answered(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no model 'resnet5.tv_in1k'.*resnet50\.tv_in1k"):
        create_encoder("timm", dim=6, tag="resnet5.tv_in1k")
    with pytest.raises(FileError, match=r"does not fit backbone Timm.*Use weights of the same backbone"):
        create_encoder("timm", dim=6, image_size=64, tag="test_vit.r160_in1k", pretrained=weights)
    (tmp_path / "cut.safetensors").write_bytes(weights.read_bytes()[:500])
    with pytest.raises(FileError, match=r"cut\.safetensors is damaged"):
        create_encoder("timm", dim=6, image_size=64, tag=TAG, pretrained=tmp_path / "cut.safetensors")


def test_published_weights_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address that refuses connections stands for the missing network; the answer comes at once."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileError, match=r"cannot be downloaded here.*set `pretrained` to that file"):
        create_encoder("timm", dim=6, image_size=64, tag=TAG, pretrained=True)


def test_without_head_the_embedding_is_the_published_features(reference: torch.nn.Module, weights: Path) -> None:
    dim = reference.num_features
    encoder = create_encoder("timm", dim=dim, image_size=64, pretrained=weights, tag=TAG, head="none").eval()
    images = torch.randn(2, 3, 64, 64)
    expected = reference.forward_head(reference.forward_features(images), pre_logits=True)
    torch.testing.assert_close(encoder(images), expected)
    with pytest.raises(ValueError, match=f"features of {TAG}, {dim}"):
        create_encoder("timm", dim=dim + 1, image_size=64, tag=TAG, head="none")
