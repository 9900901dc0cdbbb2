"""Every table and figure of the papers can be planned; for each paper one table runs to its report on embedded data."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from probmetric.cli import main
from probmetric.config import ConfigError, Params, load
from probmetric.data import prepare_dataset
from probmetric.io import digest_of, read_json, read_yaml, write_yaml
from probmetric.losses import create_loss
from probmetric.metrics import metric_names
from probmetric.models import create_encoder
from probmetric.planning.declared import dataset_names
from probmetric.planning.expansion import find_run, plan_experiment
from probmetric.planning.experiments import every_method, experiment_names
from probmetric.planning.overview import experiment_overview
from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs.names import without_split
from probmetric.uncertainty import create_uncertainty

ROOT = Path(__file__).parents[2]
EXPERIMENTS = experiment_names(ROOT / "workflow/experiments")
PAPERS = {
    "nivmf": ["table1", "table2", "table4", "table5", *(f"figure{k}" for k in (4, 5, 6, 9, 10, 11))],
    "nir": [*(f"table{k}" for k in range(1, 6)), "figure3", "figure4"],
    "vmf": [*(f"table{k}" for k in range(1, 5)), *(f"figure{k}" for k in (1, 3, 4, 5, "6-10")), "runtime"],
    "lam": [*(f"table{k}" for k in range(1, 5)), *(f"figure{k}" for k in range(5, 11)), "runtime"],
    "pfml": [*(f"table{k}" for k in (*range(1, 8), 9)), "figure3", "figure4", "figure5"],
}
COMPLETE = ("nivmf/table2", "nir/table3", "vmf/table3", "lam/table3", "pfml/table3")


def place(folder: Path) -> Path:
    """A folder to work in: the repository's configuration, no data."""
    shutil.copy2(ROOT / "params.yaml", folder)
    (folder / "workflow").symlink_to(ROOT / "workflow")
    return folder


def declare_prepared(folder: Path) -> None:
    """Digest files of every dataset, of its noisy variants and other splits: all a plan looks at."""
    params: Params = load(Params, folder / "params.yaml")
    noises = ("", *(f"+{noise}" for noise in params.noise.variants))
    for name in dataset_names(params):
        for split, noise in itertools.product(("", "+split1", "+split2"), noises):
            digest = folder / params.data.prepared / f"{name}{split}{noise}" / "digest"
            digest.parent.mkdir(parents=True)
            digest.write_text("0 nothing\n")


@pytest.fixture
def prepared(tmp_path, monkeypatch) -> Path:
    """A working folder in which all data seem to be prepared."""
    declare_prepared(place(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*experiments: str) -> WorkflowPlan:
    return WorkflowPlan.from_config(read_yaml("params.yaml") | {"experiments": list(experiments)})


def test_every_table_and_figure_of_the_papers_has_its_file():
    wanted = {f"{paper}/{name}" for paper, names in PAPERS.items() for name in names}
    assert wanted <= set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_metrics_and_figures_of_every_experiment_are_valid(prepared, name):
    planned = plan(name)
    assert planned.run_names(name)
    assert planned.planned[name].spec.description
    for run in planned.runs.values():
        assert all(encoder in planned.runs for encoder in run.encoders)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if "/" in name])
def test_every_experiment_can_be_had_on_the_letters(prepared, name):
    substituted = f"{name}@glyphs+tiny"
    planned = plan(substituted).planned[substituted]
    assert all(without_split(run.settings.dataset) == "glyphs" for run in planned.runs)
    assert all("preset=tiny" in run.name for run in planned.runs)
    assert all(run.settings.backbone.name == "compact" and run.settings.pretrained is None for run in planned.runs)
    asked = {method for grid in load_original(name).runs for method in grid.methods}
    assert {run.settings.method for run in planned.runs} | set(planned.left_out) == asked
    assert "may be compared with a published number" in planned.spec.description


def load_original(name: str):
    return plan_experiment(load(Params, "params.yaml"), name).spec


def test_no_method_is_defined_twice_differently(prepared):
    assert len(every_method(load(Params, "params.yaml"))) > 150


def test_a_run_means_the_same_by_its_name_and_by_its_experiment(prepared):
    params = load(Params, "params.yaml")
    for name in ("vmf/table3", "lam/table2", "pfml/table6", "nir/table2@glyphs"):
        for run in plan_experiment(params, name).runs[::7]:
            assert find_run(params, run.name) == run


def test_ensembles_over_folds_wait_for_every_fold(prepared):
    planned = plan("pfml/table6")
    run = planned.runs["cars-mlrc1/pfml-pfml-mlrc_512/seed0"]
    assert run.encoders == tuple(f"cars-mlrc{fold}/pfml-pfml-mlrc_128/seed0" for fold in (1, 2, 3, 4))
    assert [planned.runs[name].settings.dataset for name in run.encoders] == [f"cars-mlrc{k}" for k in (1, 2, 3, 4)]


INPUTS = {"lenet_vmf": (1, 28), "lam_fashion": (1, 28), "lam_cifar": (3, 32), "resnet50_small": (3, 32)}


@pytest.mark.slow
def test_every_loss_uncertainty_and_backbone_can_be_created_as_asked(prepared):
    params = load(Params, "params.yaml")
    planned = [plan_experiment(params, name) for name in EXPERIMENTS if name.partition("/")[0] in PAPERS]
    runs = [run.settings for found in planned for run in (*found.runs, *found.encoders.values())]
    for name, options, dim in distinct((s.loss, s.dim) for s in runs if s.loss):
        create_loss(name, num_classes=4, dim=dim, **options)
    for name, options, _ in distinct((part, 0) for s in runs for part in (s.uncertainty, s.objective) if part):
        create_uncertainty(name, **options)
    for name, options, dim in distinct((s.backbone, s.dim) for s in runs):
        channels, size = INPUTS.get(name, (3, 224))
        create_encoder(name, dim=dim, in_channels=channels, image_size=size, **options)


def distinct(parts):
    """(name, options, dimension) of every different one of (component, dimension)."""
    found = {(part.name, digest_of(part.options), dim): (part.name, part.options, dim) for part, dim in parts}
    return list(found.values())


def test_what_cannot_run_on_the_substitute_is_named_with_its_reason(prepared):
    planned = plan("vmf/table3@glyphs").planned["vmf/table3@glyphs"]
    assert "vmf-vmf-temperature" in planned.left_out
    assert "holds out whole classes" in planned.left_out["vmf-vmf-temperature"]
    assert "Left out: vmf-softmax-temperature" in planned.spec.description


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pfml/table2@glyfs", "did you mean 'glyphs'"),
        ("pfml/tabel2@glyphs", "did you mean 'pfml/table2'"),
        ("pfml/table2@glyphs+smal", "did you mean 'small'"),
        ("pfml/table2@glyphs@small", "write <experiment>@<dataset>"),
        ("pfml/table2@digits_open", "'digits_open' to noise.on_request"),
    ],
)
def test_impossible_substitutions_are_answered_with_the_fix(prepared, name, message):
    with pytest.raises(ConfigError, match=message):
        plan(name)


def test_the_overview_lists_every_experiment_with_its_data(prepared):
    lines = experiment_overview(load(Params, "params.yaml")).splitlines()
    row = next(line for line in lines if line.startswith("pfml/table2 "))
    assert row.split()[1:3] == ["100", "0"]
    assert "cub cars cub+noise0.2 cars+noise0.2" in row
    assert lines[len(EXPERIMENTS) + 1] == ""


@pytest.mark.slow
def test_the_overview_tells_missing_archives_from_what_is_only_to_be_prepared(prepared):
    shutil.rmtree(prepared / "data/prepared")
    lines = experiment_overview(load(Params, "params.yaml")).splitlines()
    row = next(line for line in lines if line.startswith("wrong-labels "))
    assert {"digits*", "digits+noise0.2*"} <= set(row.split())
    row = next(line for line in lines if line.startswith("lam/t"))
    assert "lfw!" in row


@pytest.mark.workflow
@pytest.mark.slow
def test_snakemake_builds_one_graph_of_all_experiments(fresh):
    declare_prepared(fresh.folder)
    expected = set()
    for name in EXPERIMENTS:
        path = fresh.folder / f"workflow/experiments/{name}.yaml"
        spec = read_yaml(path)
        for grid in spec["runs"]:
            grid["seeds"] = [0]
        write_yaml(path, spec)
    params: Params = load(Params, fresh.folder / "params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(fresh.folder)
        for name in EXPERIMENTS:
            expected |= {run.name for run in plan_experiment(params, name).runs}
    fresh.edit_yaml("params.yaml", lambda values: values.update(experiments=EXPERIMENTS))
    output = fresh.command("snakemake", "-n", "--cores", "1").stdout
    assert {line.partition(": Run ")[2] for line in output.splitlines() if ": Run " in line} >= expected


@pytest.fixture(scope="module")
def embedded(tmp_path_factory) -> Path:
    """A working folder with the digits and, as images out of distribution, a few letters."""
    folder = place(tmp_path_factory.mktemp("tables"))
    prepare_dataset("digits", folder / "data/prepared/digits")
    prepare_dataset("glyphs", folder / "data/prepared/glyphs", per_class=2)
    return folder


def step(*arguments: str) -> None:
    assert main(arguments) == 0, arguments


@pytest.mark.parametrize("experiment", COMPLETE)
@pytest.mark.workflow
def test_a_table_of_every_paper_runs_to_its_report(embedded, monkeypatch, experiment):
    """The commands of the workflow's rules, in the order of its graph, in one process."""
    monkeypatch.chdir(embedded)
    name = f"{experiment}@digits+tiny"
    planned = plan(name)
    planned.write()
    for run, found in sorted(planned.runs.items(), key=lambda item: not item[1].trains):
        until = "evaluate" if run in planned.run_names(name) else "train"
        step("run", run, "--until", until, "--plan", str(planned.run_plan(found).path))
    step("report", name, "--plan", str(planned.report_plan(name).path))
    check_report(embedded / "reports" / name, planned, name)


def check_report(folder: Path, planned: WorkflowPlan, name: str) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "SUBSTITUTION: digits in place of" in page
    table = (folder / "table.csv").read_text(encoding="utf-8")
    assert all(run.settings.method in table for run in planned.planned[name].runs)
    for figure in planned.planned[name].spec.figures:
        assert (folder / "figures" / f"{figure}.png").stat().st_size > 0
    measured = {metric for run in planned.run_names(name) for metric in read_json(f"results/{run}/metrics.json")}
    assert {metric for metric in planned.planned[name].spec.metrics if not metric.startswith("ood/")} <= measured
    assert measured <= set(metric_names(planned.params.evaluation.ks, ["glyphs"]))
