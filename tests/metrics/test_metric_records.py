"""One record per metric: what is computed has one, what has one is computed, and a user's own has its direction."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from probmetric import metrics
from probmetric.registry import RegistrationError, UnknownNameError
from probmetric.runs import evaluate as evaluation
from probmetric.runs.evaluate import evaluate_run
from probmetric.testing import isolated_components

PAGE = Path(__file__).parents[2] / "docs/reference/evaluation.md"


@pytest.fixture(autouse=True)
def _forget():
    with isolated_components():
        yield


@pytest.fixture
def run(tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 4)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    tensors = {"mean": rows, "uncertainty": generator.random(20).astype(np.float32), "index": np.arange(20)}
    (tmp_path / "embeddings").mkdir()
    save_file(tensors | {"label": np.repeat(np.arange(4), 5)}, tmp_path / "embeddings" / "test.safetensors", {})
    return tmp_path


def test_a_users_metric_is_computed_and_has_its_direction(run):
    @metrics.metric(direction="lower", group="norms", unit="s")
    def mean_doubt(test):
        """Mean uncertainty.

        More.
        """
        return test["uncertainty"].mean()

    @metrics.metric(direction="higher", needs=("samples",))
    def spread(test):
        return test["samples"].std()

    found, _ = evaluate_run(run)
    assert found["norms/mean_doubt"] == pytest.approx(0.5, abs=0.2)
    assert "own/spread" not in found
    assert {"norms/mean_doubt", "own/spread"} <= set(metrics.metric_names((1,)))
    record = metrics.find("norms/mean_doubt")
    assert (record.direction, record.unit, record.definition) == ("lower", "s", "Mean uncertainty.")
    assert record.computed == __name__
    assert metrics.heading("norms/mean_doubt") == "Mean doubt ↓"
    assert metrics.better("norms/mean_doubt", 1.0, 2.0)


def test_a_users_metric_may_be_undefined_but_not_fail(run):
    @metrics.metric(direction="none")
    def undefined(test):
        return float("nan")

    assert evaluate_run(run)[0]["own/undefined"] is None

    @metrics.metric(direction="none")
    def broken(test):
        return test["no such tensor"]

    with pytest.raises(metrics.MetricError, match=r"metric 'own/broken' \(test_metric_records\): KeyError"):
        evaluate_run(run)


@pytest.mark.parametrize("given", [{}, {"direction": "up"}])
def test_a_forgotten_direction_is_an_error(given):
    with pytest.raises(RegistrationError, match=r"metric 'own/f' has direction .*: 'higher', 'lower', 'none'"):

        @metrics.metric(**given)
        def f(test): ...


@pytest.mark.parametrize(("group", "name"), [("retrieval", "recall_at_7"), ("ood", "auroc")])
def test_a_users_metric_does_not_hide_the_librarys(group, name):
    def function(test): ...

    function.__name__ = name
    with pytest.raises(RegistrationError, match=f"the library has a metric '{group}/{name}'"):
        metrics.metric(direction="higher", group=group)(function)


def test_a_number_without_a_record_is_an_error(run, monkeypatch):
    summarize = evaluation.summarize
    monkeypatch.setattr(evaluation, "summarize", lambda values: summarize(values) | {"recal": 1.0})
    with pytest.raises(UnknownNameError, match="unknown metric 'retrieval/recal': did you mean 'retrieval/"):
        evaluate_run(run)


def test_every_record_says_what_it_is():
    names = [(group, record.name) for record in metrics.METRICS for group in record.groups]
    assert len(names) == len(set(names))
    for record in metrics.METRICS:
        assert record.definition, record.name
        assert record.direction in ("higher", "lower", "none")
        __import__(record.computed)


def test_the_documentation_lists_every_record():
    text = PAGE.read_text(encoding="utf-8")
    for record in metrics.METRICS:
        name = record.name.replace("{k}", "k").replace("{score}", "<score>")
        assert any(f"`{home}{name}`" in text for home in ("", f"{record.groups[0]}/")), name


def test_metrics_and_trust_load_no_torch():
    code = (
        "import sys, probmetric.metrics as m, probmetric.trust.certificates, probmetric.retrieval; "
        "m.heading('ood/cub/auroc'); sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
