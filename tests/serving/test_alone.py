"""A search imports what it needs: one architecture, of timm and of ours, and draws no weights it then loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from probmetric.serving._undrawn import Undrawn

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SCRIPT = """
import json, sys, torch
from probmetric.models import create_encoder
from probmetric.registry import UnknownNameError
from probmetric.serving._alone import timm_alone

def made(tag):
    torch.manual_seed(0)
    encoder = create_encoder("timm", dim=4, in_channels=3, image_size=64, tag=tag).eval()
    with torch.no_grad():
        return encoder(torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64))

def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules} & {"timm", "torchvision", "huggingface_hub"})

tags = ["resnet18.a1_in1k", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0.ra_in1k"]
with timm_alone(tags):
    alone = [made(tag) for tag in tags]
    inside, compiler = "timm.models.resnet" in sys.modules, "torch._dynamo" in sys.modules
after = loaded()
with timm_alone(["no_such_model"]):
    try:
        made("no_such_model")
    except UnknownNameError as error:
        unknown = str(error)
whole = loaded()
equal = [torch.equal(first, made(tag)) for first, tag in zip(alone, tags)]
print(json.dumps([inside, compiler, after, equal, unknown, whole]))
"""


def test_an_architecture_alone_is_the_same_and_leaves_no_trace():
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    inside, compiler, after, equal, unknown, whole = json.loads(done.stdout)
    assert inside
    assert not compiler
    assert after == []
    assert equal == [True] * 4
    assert "has no model 'no_such_model'" in unknown
    assert "timm" in whole


def test_a_search_imports_no_training_evaluation_or_planning():
    code = (
        "import sys; from probmetric.serving.commands import search; import probmetric.training.network; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"probmetric.training.run", "probmetric.runs.evaluate", "probmetric.planning.runs", "pandas", "timm"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("number", range(4))
def test_weights_that_will_be_loaded_are_not_drawn(number):
    made = (
        lambda: nn.Conv2d(3, 4, 3),
        lambda: nn.Embedding(9, 4),
        lambda: nn.init.kaiming_normal_(nn.Linear(4, 4).weight, mode="fan_out"),
        lambda: nn.init.trunc_normal_(nn.Linear(4, 4).weight, std=0.02),
    )[number]
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with Undrawn():
            made()
        assert torch.equal(torch.get_rng_state(), before)
        with Undrawn():
            noise = torch.empty(3).normal_()
        assert not torch.equal(torch.get_rng_state(), before)
        torch.set_rng_state(before)
        assert torch.equal(noise, torch.empty(3).normal_())
