"""A real search: Snakemake trains its runs, nothing looks at test images, and the second call trains nothing."""

import csv

import pytest

from probmetric.io import read_yaml, write_yaml
from probmetric.reporting.results import read_results

pytestmark = [pytest.mark.slow, pytest.mark.workflow]

SEARCH = {
    "title": "Try",
    "dataset": "digits",
    "methods": ["proxy_anchor", "cosine"],
    "trials": 2,
    "batch": 2,
    "set": {"training.epochs": 1},
    "ranges": {"training.learning_rate": {"low": 0.001, "high": 0.01, "log": True}},
    "studies": {
        "tuned-after": {"title": "After", "runs": [{"datasets": ["digits"], "methods": ["untrained"], "seeds": [0]}]},
    },
}


def test_a_search_trains_ordinary_runs_writes_methods_experiments_can_name_and_builds_its_studies(workspace):
    write_yaml(workspace.folder / "workflow/tuning/try.yaml", SEARCH)
    workspace.command("probmetric", "tune", "try", "--dry-run")
    assert not (workspace.folder / "reports/tuning/try").exists()
    said = workspace.command("probmetric", "tune", "try", "--cores", "2").stdout
    assert "proxy_anchor-tuned-try" in read_yaml(workspace.folder / "workflow/methods/tuned-try.yaml")
    with (workspace.folder / "reports/tuning/try/trials.csv").open(newline="") as file:
        runs = [row["runs"] for row in csv.DictReader(file)]
    assert len(runs) == 4
    for run in runs:
        assert (workspace.folder / "results" / run / "model.safetensors").exists()
        assert not (workspace.folder / "results" / run / "embeddings").exists()
    assert "ProxyAnchor | 2 | 0 |" in said
    assert "untrained" in set(read_results(workspace.folder / "reports/tuned-after")["method"])

    again = workspace.command("probmetric", "tune", "try", "--cores", "2").stdout
    assert "Train digits" not in again
    table, listed = (text.partition("# Try")[2].partition("Their experiments")[0] for text in (again, said))
    assert table == listed
