"""Views: every dataset has the one its papers use, options change it, backbones decide its statistics."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from probmetric.data import prepare_dataset
from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.data.sources import Source, Table, register
from probmetric.data.views import REGISTRY, create_view, list_views, source_view, view_of
from probmetric.data.views.photos import Photos
from probmetric.data.views.small import Small
from probmetric.models import input_statistics, list_backbones
from probmetric.registry import UnknownNameError
from probmetric.testing import SourceContract, ViewContract, cases, isolated_components

globals().update(cases(SourceContract, SOURCES.names()))
globals().update(cases(ViewContract, ["small"], options={"shift": 2, "rotation": 9.0, "flip": True, "erase": 4}))
globals().update(
    cases(ViewContract, ["photos"], options={"size": 16, "jitter": [0.1, 0.1, 0.1, 0.1]}, sizes=[(40, 30)] * 6)
)

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CIFAR = {"shift": 4, "padding": "reflect", "flip": True, "erase": 8}
TEN = Small(**CIFAR, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
HUNDRED = Small(**CIFAR, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
PAPER, LAM, STREET = {"scale": (0.16, 1.0)}, Photos(size=227, resize=256), Photos(resize=0, crop=False, flip=False)
ALL = ("standard", "vmf", "lam")
VIEWS = {
    "digits": dict.fromkeys(ALL, Small(shift=2, rotation=10.0, scale=0.1)),
    "digits_open": dict.fromkeys(ALL, Small(shift=2, rotation=10.0, scale=0.1)),
    "glyphs": dict.fromkeys(ALL, Small(shift=3, rotation=10.0, scale=0.12)),
    "symbols": dict.fromkeys(ALL, Small()),
    "mnist": dict.fromkeys(ALL, Small()),
    "fashion_mnist": dict.fromkeys(ALL, Small()),
    "svhn": {"standard": Small(), "vmf": Small(), "lam": Small(**IMAGENET)},
    "cifar10": {"standard": TEN, "vmf": TEN, "lam": Small(**IMAGENET)},
    "cifar100": dict.fromkeys(ALL, HUNDRED),
    "cub": {"standard": Photos(), "vmf": Photos(**PAPER, jitter=(0.25, 0.25, 0.25, 0.0)), "lam": LAM},
    "cars": {
        "standard": Photos(),
        "vmf": Photos(**PAPER, ratio=(1.0, 1.0), square=True, jitter=(0.3, 0.3, 0.3, 0.1)),
        "lam": LAM,
    },
    "sop": {"standard": Photos(), "vmf": Photos(**PAPER, square=True), "lam": Photos()},
    "lfw": {"standard": Photos(), "vmf": Photos(), "lam": LAM},
    "msls": dict.fromkeys(ALL, STREET),
}


@pytest.mark.parametrize("source", VIEWS)
@pytest.mark.parametrize("recipe", ALL)
def test_the_datasets_of_the_papers_are_seen_as_there(source, recipe):
    view = source_view(source, recipe)
    assert create_view(view["name"], **view["options"]) == VIEWS[source][recipe]


@pytest.fixture
def prepared(tmp_path):
    """Prepares, as source "mine" with a declared view or none, one image of each (height, width)."""
    with isolated_components():

        def prepare(sizes, declared=None):
            pixels = [np.full((*size, 3), i, dtype=np.uint8) for i, size in enumerate(sizes)]
            paths = np.array([f"{i}.png" for i in range(len(sizes))], dtype=object)
            columns = {"path": paths, "label": np.arange(len(sizes)), "class_name": paths}
            columns["split"] = np.array(["train"] * len(sizes), dtype=object)

            @register("mine")
            class Mine(Source):
                view = declared or {}

                def read(self, files, *, seed):
                    return Table(dict(columns), pixels.__getitem__, "open_set", "made up")

            return prepare_dataset("mine", tmp_path / "mine", progress=False)

        yield prepare


@pytest.mark.parametrize(
    ("sizes", "kind"), [([(28, 28)] * 3, Small), ([(28, 30)] * 3, Photos), ([(28, 28), (90, 70)], Photos)]
)
def test_a_source_that_says_nothing_is_seen_by_its_sizes(prepared, sizes, kind):
    assert view_of(prepared(sizes)) == kind()


def test_a_run_may_name_its_view_and_leave_augmentation_out(prepared):
    folder = prepared([(40, 30)] * 2, {"name": "photos", "size": 32})
    chosen = {"name": "photos", "options": {"size": 128, "scale": [0.5, 1.0]}}
    view = view_of(folder, chosen=chosen)
    assert view == Photos(size=128, scale=(0.5, 1.0))
    assert (view.side, view.shorter) == (128, 146)
    assert view_of(folder, chosen=chosen, augment="none") == view.evaluation()
    assert view_of(folder, augment="lam") == Photos(size=32)
    with pytest.raises(UnknownNameError, match="view 'photos' has no option 'sise': did you mean 'size'"):
        view_of(folder, chosen={"name": "photos", "options": {"sise": 1}})


@pytest.mark.parametrize("size", [32, 128, 224, 384])
def test_any_size_has_the_margin_of_224_in_256(size):
    assert Photos(size=size).shorter == round(size * 256 / 224)


def test_a_backbone_decides_the_statistics_unless_the_view_does():
    half = input_statistics("timm", tag="vit_small_patch16_224.augreg_in21k")
    assert half == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    expected = (images / 255 - 0.5) / 0.5
    torch.testing.assert_close(Photos().for_backbone(half).normalise(images), expected, rtol=1e-5, atol=1e-6)
    named = Photos(normalisation="imagenet")
    assert named.for_backbone(half) == named
    own = Photos(mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    assert own.for_backbone(half) == own
    assert Small().for_backbone(half) == Small()


def test_imagenet_weights_are_normalised_as_before_to_the_bit():
    statistics = input_statistics("timm", tag="resnet50.tv_in1k")
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = Photos(normalisation="imagenet").normalise(images)
    assert torch.equal(Photos().for_backbone(statistics).normalise(images), before)
    assert torch.equal(Photos().normalise(images), before)


@pytest.mark.parametrize("backbone", [name for name in list_backbones() if name != "timm"])
def test_other_backbones_leave_it_open(backbone):
    assert input_statistics(backbone) is None


@pytest.mark.parametrize("name", list_views())
def test_every_option_of_a_view_can_be_written_in_yaml(name):
    defaults = {key: option.default for key, option in REGISTRY.options(name).items()}
    assert create_view(name, **defaults) == create_view(name)
    assert hash(create_view(name, **defaults)) == hash(create_view(name))


def test_views_are_checked_without_torch():
    code = "import sys, probmetric.data.views as v; v.source_view('cars', 'vmf'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
