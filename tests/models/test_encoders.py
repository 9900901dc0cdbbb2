"""What holds for every registered backbone, and the layer sizes the papers state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from probmetric.io import FileError, sha256_file, write_tensors
from probmetric.models import REGISTRY, create_encoder, register
from probmetric.models._base import Encoder
from probmetric.registry import OptionValueError, RegistrationError, UnknownNameError
from probmetric.testing import BackboneContract, cases, isolated_components

TINY = {"timm": {"tag": "test_resnet.r160_in1k"}}
SMALL_IMAGE = {"timm": 64}


def create(name: str, dim: int = 8, in_channels: int = 3, **options: Any) -> Encoder:
    torch.manual_seed(0)
    size = SMALL_IMAGE.get(name, 32)
    return create_encoder(name, dim=dim, in_channels=in_channels, image_size=size, **TINY.get(name, {}), **options)


def images(name: str, count: int = 4, channels: int = 3) -> torch.Tensor:
    size = SMALL_IMAGE.get(name, 32)
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


for _name in REGISTRY.names():
    size = {"image_size": SMALL_IMAGE.get(_name, 32), "options": TINY.get(_name, {})}
    globals().update(cases(BackboneContract, [_name], **size))


@pytest.fixture(params=REGISTRY.names())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_frozen_batch_norm_keeps_its_statistics_but_trains(name: str) -> None:
    encoder = create(name)
    encoder.set_batch_norm("frozen")
    encoder.train()
    before = {key: value.clone() for key, value in encoder.named_buffers()}
    output = encoder(images(name))
    assert all(torch.equal(value, before[key]) for key, value in encoder.named_buffers())
    norms = [m for m in encoder.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    if norms:
        output.square().sum().backward()
        assert all(m.weight.grad is not None for m in norms)
        encoder.set_batch_norm("train")
        encoder(images(name))
        assert any(not torch.equal(value, before[key]) for key, value in encoder.named_buffers())


def test_weight_file_of_a_run_is_taken_over(name: str, tmp_path: Path) -> None:
    if name == "pixels":
        pytest.skip("has no weights")
    source, path = create(name), tmp_path / "model.safetensors"
    stored = {f"encoder.{key}": value + 1 for key, value in source.state_dict().items()}
    write_tensors(path, stored | {"loss.proxies": torch.zeros(3)})
    same = create(name, pretrained=path)
    assert all(torch.equal(value, stored[f"encoder.{key}"]) for key, value in same.state_dict().items())
    assert same.pretrained_digest == sha256_file(path)
    assert len(list(same.pretrained_parameters())) == len(list(same.parameters()))
    other = create(name, dim=5, pretrained=path)
    fresh = {id(p) for p in other.parameters()} - {id(p) for p in other.pretrained_parameters()}
    assert other.head is not None
    assert fresh == {id(p) for p in other.head.parameters()}


@pytest.mark.parametrize(
    ("backbone", "size", "features"),
    [("lam_fashion", 28, 9216), ("lam_cifar", 32, 1024), ("lenet_vmf", 28, 120), ("pixels", 32, 3072)],
)
def test_feature_sizes_of_the_papers(backbone: str, size: int, features: int) -> None:
    channels = 1 if size == 28 else 3
    encoder = create_encoder(backbone, dim=3, in_channels=channels, image_size=size).eval()
    assert encoder.num_features == features
    assert encoder.features(torch.zeros(1, channels, size, size)).shape == (1, features)


@pytest.mark.parametrize("backbone", ["lam_fashion", "lam_cifar", "lenet_vmf", "compact"])
@pytest.mark.parametrize("size", [28, 32, 45])
def test_any_image_size(backbone: str, size: int) -> None:
    encoder = create_encoder(backbone, dim=3, in_channels=1, image_size=size).eval()
    assert encoder(torch.zeros(2, 1, size, size)).shape == (2, 3)


PLANNED = [(name, {}) for name in REGISTRY.names() if name != "timm"]
PLANNED += [("timm", {"tag": tag}) for tag in ("tf_efficientnet_lite0", "vit_small_patch16_224.dino", "levit_128s")]


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize(("backbone", "options"), PLANNED)
def test_one_image_of_any_number_of_channels(backbone: str, options: dict[str, Any], channels: int) -> None:
    """Batch normalisation of maps of one pixel trains on two images and embeds one; 3 channels are in the contract."""
    size = 64 if backbone == "timm" else 32
    torch.manual_seed(0)
    encoder = create_encoder(backbone, dim=4, in_channels=channels, image_size=size, **options)
    batch = torch.rand(2, channels, size, size)
    with torch.no_grad():
        encoder.train()(batch)
        alone = encoder.eval()(batch[:1])
    assert alone.shape == (1, encoder.dim)
    assert torch.isfinite(alone).all()


def test_lenet_starts_from_xavier_and_zero_biases() -> None:
    encoder = create("lenet_vmf", in_channels=1)
    layers = [m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers:
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
        bound = (6.0 / (fan_in + fan_out)) ** 0.5
        assert 0.8 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert not layer.bias.detach().any()


@pytest.mark.parametrize("backbone", ["lam_fashion", "lam_cifar", "compact"])
def test_dropout_acts_in_training_only(backbone: str) -> None:
    encoder = create(backbone, dropout=0.5)
    batch = images(backbone)
    assert not torch.equal(encoder(batch), encoder(batch))
    encoder.eval()
    assert torch.equal(encoder(batch), encoder(batch))


def test_a_backbone_that_does_not_say_its_sizes_is_told_which() -> None:
    class Sizeless(Encoder):
        def __init__(self, *, dim: int, in_channels: int, image_size: int) -> None:
            super().__init__()
            self.dim = dim

    with isolated_components():
        register("sizeless")(Sizeless)
        with pytest.raises(RegistrationError, match="backbone 'sizeless' sets no num_features; its `__init__` sets"):
            create_encoder("sizeless", dim=4)


def test_unknown_names_and_options_are_answered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'compact'"):
        create_encoder("compct", dim=4)
    with pytest.raises(UnknownNameError, match="did you mean 'width'"):
        create_encoder("compact", dim=4, widht=3)
    with pytest.raises(ValueError, match=r"'pool' is 'mean'; allowed: 'flatten'"):
        create_encoder("compact", dim=4, pool="mean")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_bad_weight_files_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    with pytest.raises(FileError, match=f"weights{suffix} is missing"):
        create("compact", pretrained=path)
    path.write_bytes(b"\x80\x04 not weights")
    with pytest.raises(FileError, match=f"weights{suffix}"):
        create("compact", pretrained=path)


def test_a_folder_in_place_of_a_weight_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").mkdir()
    with pytest.raises(FileError, match=r"weights\.pth cannot be read: Is a directory"):
        create("compact", pretrained=tmp_path / "weights.pth")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("backbone", "taken", "refused"),
    [
        ("lam_cifar", 18, 17),
        ("lam_fashion", 6, 5),
        ("lenet_vmf", 4, 3),
        ("bn_inception", 31, 30),
        ("bn_inception", 224, 240),  # a map of 15 x 15 cannot be halved in both ways
    ],
)
def test_images_of_a_size_that_a_network_cannot_take_are_refused(backbone: str, taken: int, refused: int) -> None:
    encoder = create_encoder(backbone, dim=3, image_size=taken).eval()
    assert encoder(torch.zeros(2, 3, taken, taken)).shape == (2, 3)
    with pytest.raises(OptionValueError, match=rf"takes no images of {refused} x {refused} pixels .* view\.size"):
        create_encoder(backbone, dim=3, image_size=refused)


def test_weights_of_another_net_are_refused(tmp_path: Path) -> None:
    torch.save(create("compact", width=8).state_dict(), tmp_path / "wide.pth")
    with pytest.raises(FileError, match=r"does not fit backbone Compact: it has layers.*shape"):
        create("compact", width=4, pretrained=tmp_path / "wide.pth")
    with pytest.raises(FileError, match="publishes no weights"):
        create("compact", pretrained=True)


def test_names_and_options_need_no_torch() -> None:
    code = (
        "import sys; from probmetric.models import REGISTRY; REGISTRY.options('timm'); REGISTRY.names();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert REGISTRY.options("compact")["pool"].choices == ("flatten", "average", "max", "average_max", "gem")


@pytest.mark.parametrize("sizes", [{"dim": 0}, {"dim": None}, {"dim": 8.0}, {"dim": "8"}, {"image_size": 0}])
def test_sizes_are_integers_from_one_on(sizes: dict[str, Any]) -> None:
    """A head as wide as the features is asked for by name, not by 0."""
    ((name, value),) = sizes.items()
    with pytest.raises(OptionValueError, match=f"{name} is {value!r}; allowed: an integer from 1 on"):
        create_encoder("compact", **{"dim": 8, "in_channels": 1, "image_size": 32} | sizes)
