"""The contracts that ship with the package judge an outsider's components, without pytest, and heed exemptions."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from probmetric.data.sources import Source, options
from probmetric.data.sources import register as source
from probmetric.data.views import create_view
from probmetric.losses import Loss, register
from probmetric.metrics import metric
from probmetric.registry import UnknownNameError
from probmetric.testing import LossContract, MetricContract, SourceContract, ViewContract, check


def loss(name, **members):
    def compute(self, embeddings, labels, generator):
        return (embeddings.detach().square() * embeddings).mean()

    return register(name)(type("Odd", (Loss,), {"__module__": __name__, "compute": compute} | members))


def test_a_sound_loss_passes_and_a_wrong_one_fails(project):
    loss("sound", compute=lambda self, z, y, generator: torch.tanh(z).square().mean())
    assert set(check(LossContract, "sound").values()) == {"passed"}
    loss("stops")
    with pytest.raises(AssertionError):
        check(LossContract, "stops")


def test_an_exemption_says_why(project):
    exempt = {
        "gradient_is_the_finite_difference": "its weights are constants",
        "degenerate_batches_stay_finite": "cubes",
    }
    loss("stops", exempt=exempt)
    found = check(LossContract, "stops")
    assert found["test_gradient_is_the_finite_difference"] == "stops is exempt: its weights are constants"
    assert found["test_trains_something"] == "passed"


def test_a_false_declaration_is_noticed(project):
    loss("boasts", compute=lambda self, z, y, generator: z.square().mean(), is_classifier=True)
    with pytest.raises(
        AssertionError, match=r"test_the_class_declares_what_it_can_do of boasts \(Check that `has_prox"
    ):
        check(LossContract, "boasts")


def test_a_metric_is_checked(project):
    @metric(direction="higher")
    def fine(test):
        return test["samples"].std()

    assert check(MetricContract, "fine") == {"test_it_is_a_number_with_a_direction": "passed"}


@pytest.mark.slow
def test_pytest_is_not_needed():
    code = "import sys, probmetric.testing as t; t.LossContract; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_code_of_the_documentation_keeps_the_contract(project):
    page = Path(__file__).parents[2] / "docs/guide/components.md"
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    assert set(check(names["TestCircle"], "circle").values()) == {"passed"}
    assert set(check(ViewContract, "centre").values()) == {"passed"}
    images = [np.arange(30 * 34, dtype=np.int64).reshape(30, 34, 1).astype(np.uint8)]
    assert create_view("centre", size=2).load_plain(images).tolist() == [[[[236, 237], [14, 15]]]]


def test_a_source_with_a_wrong_view_is_told(project):
    for name, declared in (("no_name", {"view": options(size=3)}), ("no_recipe", {"views": {"vfm": options()}})):
        source(name)(type("Odd", (Source,), {"__module__": __name__, "__qualname__": name, **declared}))
    with pytest.raises(UnknownNameError, match="unknown view ''"):
        check(SourceContract, "no_name")
    with pytest.raises(AssertionError, match="views that can be created"):
        check(SourceContract, "no_recipe")
