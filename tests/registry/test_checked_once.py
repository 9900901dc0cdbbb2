"""An option is checked once where it is written down and once where the component is made, by one function."""

from __future__ import annotations

import pytest

from probmetric.config import ConfigError, Params, parse
from probmetric.losses import create_loss
from probmetric.planning.expansion import Point, find_run, resolve
from probmetric.registry import registry as registries
from probmetric.runs.plan import RunPlan

METHOD = {"loss": {"name": "contrastive", "margin": 0.6}}


@pytest.fixture
def checks(monkeypatch) -> list[str]:
    """The component of every check of a margin."""
    checked: list[str] = []
    check = registries.check_options

    def spy(where, options, values):
        if "margin" in values:
            checked.append(where)
        return check(where, options, values)

    monkeypatch.setattr(registries, "check_options", spy)
    return checked


def planned(**method) -> Params:
    return parse(Params, {"datasets": ["digits"], "methods": {"m": METHOD | method}}, "params.yaml")


def test_from_the_file_to_the_loss(project, checks):
    params = planned()
    run = resolve(params, params.methods, Point(dataset="digits", method="m"))
    plan = RunPlan(run).write()
    assert checks == ["loss 'contrastive'"], "planning"
    encoder = RunPlan.read(plan).run.settings.encoder()
    assert encoder.loss.options == {"margin": 0.6}
    assert checks == ["loss 'contrastive'"], "a job trusts its plan"
    loss = create_loss(encoder.loss.name, num_classes=3, dim=4, **encoder.loss.options)
    assert loss.margin == 0.6
    assert len(checks) == 2, "create"


def test_a_changed_component_is_checked_as_it_is_in_the_end(project, checks):
    params = planned(loss={"name": "margin", "margin": 0.2})
    changed = {"loss.cutoff": 1.4, "loss.upper_cutoff": 1.6}
    run = resolve(params, params.methods, Point(dataset="digits", method="m", overrides=changed))
    assert run.settings.loss.options == {"margin": 0.2, "cutoff": 1.4, "upper_cutoff": 1.6}
    assert checks == ["loss 'margin'"] * 2, "as the method has it, as the run has it"
    with pytest.raises(ConfigError, match=r"'upper_cutoff' is 1.1; .*above cutoff"):
        resolve(
            params, params.methods, Point(dataset="digits", method="m", overrides=changed | {"loss.upper_cutoff": 1.1})
        )


def test_integers_are_floats_from_planning_on(project):
    params = planned(loss={"name": "margin", "beta": 1})
    for name in ("digits/m/seed0", "digits/m+loss.beta=1/seed0"):
        options = find_run(params, name).settings.loss.options
        assert repr(options) == "{'beta': 1.0}"


@pytest.mark.parametrize(
    "key", ["seed", "method", "dataset", "noise", "base", "label", "prepared", "ood", "name", "training", "loss."]
)
def test_overrides_change_settings_that_a_name_can_mean(project, key):
    params = planned()
    with pytest.raises(ConfigError, match=rf"override '{key}' changes no setting\. .*Allowed: .*training.<key>"):
        find_run(params, f"digits/m+{key}=5/seed0")


def test_an_override_that_names_no_component_says_so(project):
    params = planned()
    with pytest.raises(ConfigError, match="override 'loss' is 5; write a name"):
        find_run(params, "digits/m+loss=5/seed0")
