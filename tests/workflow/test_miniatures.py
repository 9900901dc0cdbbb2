"""From archives to report, on a miniature of each of the papers' ten datasets, with the real DVC and Snakemake."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import miniatures

from probmetric.reporting.results import read_results
from probmetric.reporting.words import group_title

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("miniatures"),
]

PAIRS = ("lfw", "msls")
DATASETS = {"cub-vmf", "cars", "sop", *PAIRS, "mnist+nearest0.2", "fashion_mnist", "cifar10", "cifar100", "svhn"}
EXPERIMENT = {
    "title": "Miniatures of the papers' datasets",
    "runs": [
        {
            "datasets": ["cub-vmf", "cars", "sop", "mnist+nearest0.2", *miniatures.NAMES[6:]],
            "methods": ["contrastive"],
            "seeds": [0],
            "set": {"preset": "miniature"},
        },
        {
            "datasets": list(PAIRS),
            "methods": ["contrastive"],
            "seeds": [0],
            "set": {"preset": "miniature", "training.sampler": "pairs"},
        },
    ],
    "metrics": ["retrieval/recall_at_1", "retrieval_day_to_night/recall_at_1", "verification/accuracy", "ood/auroc"],
    "figures": ["metric_per_method"],
}
PRESET = {
    "description": "two steps of a tiny network",
    "set": {"training.epochs": 1, "training.batch_size": 12, "training.images_per_class": 2, "dim": 8,
            "training.steps_per_epoch": 2},
}  # fmt: skip
"""Sets of another size and another number of channels than the data they are put beside."""
OOD = {"cub": ["cars"], "sop": ["mnist"], "mnist": ["svhn"], "cifar10": ["fashion_mnist"], "lfw": ["cifar100"]}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, new_workspace):
    workspace = new_workspace(tmp_path_factory.mktemp("miniatures") / "probmetric")
    for name in miniatures.NAMES:
        miniatures.build(name, workspace.folder / "data/raw" / name)

    def configure(params):
        for entry in params["data"]["on_request"].values():
            if entry["source"] in miniatures.NAMES:
                entry |= {"subset": True}
        params["ood"] = OOD
        params["presets"]["miniature"] = PRESET
        fewer = {"batch_size": 12, "images_per_class": 2, "steps_per_epoch": 2}
        params["presets"]["tiny"]["set"] |= {f"training.{key}": number for key, number in fewer.items()}

    workspace.edit_yaml("params.yaml", configure)
    (workspace.folder / "workflow/experiments/miniatures.yaml").write_text(json.dumps(EXPERIMENT))
    workspace.command("snakemake", "--cores", "2", "--config", "experiments=miniatures")
    return workspace


def rows(workspace) -> dict[str, dict[str, float]]:
    """Dataset -> metric -> value, from the report's own table of runs."""
    found: dict[str, dict[str, float]] = {}
    table = read_results(workspace.folder / "reports/miniatures")
    for row in table[table["value"].notna()].itertuples():
        found.setdefault(row.dataset, {})[row.metric] = row.value
    return found


def test_every_dataset_reaches_the_report(workspace):
    found = rows(workspace)
    assert set(found) == DATASETS
    for name, metrics in found.items():
        assert 0 <= metrics["retrieval/recall_at_1"] <= 1, name
    page = (workspace.folder / "reports/miniatures/index.html").read_text()
    table = (workspace.folder / "reports/miniatures/table.md").read_text()
    for name in found:
        title = group_title(name)
        assert title in page
        assert title.replace("_", r"\_") in table


def test_faces_are_verified_by_pairs_and_places_by_distance(workspace):
    found = rows(workspace)
    assert 0 <= found["lfw"]["verification/accuracy"] <= 1
    assert {"verification/auroc", "verification/eer"} < found["lfw"].keys()
    assert "retrieval_day_to_night/recall_at_1" in found["msls"]
    assert not any(metric.startswith(("clustering", "structure")) for metric in found["msls"])
    assert not any(metric.startswith("verification") for name in found if name != "lfw" for metric in found[name])
    assert "Accuracy (pairs)" in (workspace.folder / "reports/miniatures/table.md").read_text()


def test_out_of_distribution_images_of_another_shape_are_measured(workspace):
    found = rows(workspace)
    for name, other in [("cub-vmf", "cars"), ("sop", "mnist"), ("mnist+nearest0.2", "svhn"), ("lfw", "cifar100")]:
        assert 0 <= found[name][f"ood/{other}/auroc"] <= 1


def test_only_what_was_asked_for_was_prepared_and_nothing_is_left_to_do(workspace):
    prepared = {path.parent.name for path in (workspace.folder / "data/prepared").glob("*/digest")}
    assert prepared == {*rows(workspace), "mnist"}
    again = workspace.command("snakemake", "-n", "--cores", "2", "--config", "experiments=miniatures").stdout
    assert "Nothing to be done" in again
    stage = workspace.command("dvc", "repro", "data/dvc.yaml:prepare@cub-vmf").stdout
    assert "didn't change" in stage
    assert "Running" not in stage


def test_status_says_so(workspace):
    text = workspace.command("probmetric", "data", "status").stdout
    states = {line.split()[0]: line.split()[1] for line in text.splitlines() if line and not line[0].isspace()}
    assert all(states[name] == "prepared" for name in (*miniatures.NAMES[1:], "cub-vmf"))
    assert states["cub"] == states["cub-mlrc1"] == "ready"
    assert states["digits_open"] == "embedded"


def test_the_page_about_a_papers_table_says_what_works(workspace):
    page = (workspace.folder / "docs/examples/papers-table.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for line in "".join(blocks).replace("--cores all", "--cores 2").splitlines():
        printed = workspace.command(*line.split()).stdout
    finished, published = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert printed == finished
    assert published in (workspace.folder / "reports/pfml/table9@cars+tiny/table.md").read_text()
    assert (workspace.folder / "reports/pfml/table9@cars+tiny/index.html").exists()
