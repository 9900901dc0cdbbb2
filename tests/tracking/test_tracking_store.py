from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated_runs import study_metrics, write_run
from mlflow import MlflowClient

from probmetric.config import Params, parse
from probmetric.config.params import check_store
from probmetric.errors import ProbMetricError
from probmetric.io import FileError, read_yaml, sha256_file
from probmetric.planning.workflow import WorkflowPlan
from probmetric.serving import load
from probmetric.tracking import track, ui_addresses, ui_command
from probmetric.tracking.store import CHILD_OF, check_place

STORE = "sqlite:///mlflow.db"


@pytest.fixture
def few(tracked):
    """The repository as if it had two methods on one dataset; each run in a store costs a tenth of a second."""
    return replace(tracked, runs=tracked.runs[:4])


def project(space, experiment="study", folders=None, store="mlflow"):
    chosen = space.folders if folders is None else folders
    options = {"store_uri": f"sqlite:///{store}.db", "artifact_root": f"{store}-artifacts"}
    return track(experiment, chosen, f"reports/{experiment}", **options)


def connect(store: str = "mlflow") -> MlflowClient:
    address = f"sqlite:///{Path(f'{store}.db').resolve()}"
    return MlflowClient(tracking_uri=address, registry_uri=address)


def content(store: str = "mlflow") -> dict[str, object]:
    """Everything the store holds of active runs, apart from MLflow's own random identifiers."""
    client = connect(store)
    found = {}
    for experiment in client.search_experiments():
        runs = client.search_runs([experiment.experiment_id])
        names = {run.info.run_id: name_of(run) for run in runs}
        for run in runs:
            metrics = {
                name: sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run.info.run_id, name))
                for name in run.data.metrics
            }
            artifacts = Path(f"{store}-artifacts") / experiment.name / run.info.run_id / "artifacts"
            above = {name: names[value] for name, value in run.data.tags.items() if name == "mlflow.parentRunId"}
            found[experiment.name, name_of(run)] = {
                "name": run.info.run_name,
                "times": (run.info.start_time, run.info.end_time, run.info.status),
                "params": run.data.params,
                "tags": run.data.tags | above,
                "metrics": metrics,
                "datasets": [(d.dataset.name, d.dataset.digest) for d in run.inputs.dataset_inputs],
                "artifacts": {
                    str(p.relative_to(artifacts)): sha256_file(p) for p in artifacts.rglob("*") if p.is_file()
                },
            }
    return found


def name_of(run) -> str:
    tags = run.data.tags
    return tags["probmetric.parent" if tags.get("probmetric.kind") == "method" else "probmetric.run"]


def dataset_of(run: str) -> str:
    return run.partition("/")[0].partition("+")[0]


def parent_of(run: str) -> str:
    return run.rpartition("/")[0]


def find_run(name: str):
    client = connect()
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, f"tags.`probmetric.run` = '{name}'")
    assert len(runs) == 1
    return client, runs[0]


def test_the_store_says_what_the_files_say(tracked):
    Path("mlflow.db").unlink()
    receipt = project(tracked)
    assert sorted(receipt["written"]) == sorted([*tracked.runs, "reports/study"])
    assert receipt["unchanged"] == 0
    found = content()
    assert sorted(found) == sorted(
        [(dataset_of(run), run) for run in tracked.runs]
        + [(dataset_of(run), parent_of(run)) for run in tracked.runs if run.endswith("seed0")]
        + [("reports", "reports/study")]
    )
    for folder in tracked.folders:
        run = "/".join(folder.parts[-3:])
        entry = found[dataset_of(run), run]
        assert entry["tags"]["mlflow.parentRunId"] == parent_of(run)
        metrics = {name: value for name, value in json.loads((folder / "metrics.json").read_text()).items() if value}
        last = {name: rows[-1][2] for name, rows in entry["metrics"].items() if not name.startswith("by_epoch/")}
        assert last == metrics | {"training/selected_epoch": 3}
        with (folder / "history.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [(s, v) for s, _, v in entry["metrics"]["by_epoch/val_metric"]] == [
            (int(row["epoch"]), float(row["val_metric"])) for row in rows
        ]
        assert "by_epoch/peak_memory_mb" not in entry["metrics"]
        assert entry["params"]["loss.options.scale"] == "32.0"
        assert entry["params"]["training.epochs"] == "4"
        assert entry["tags"]["probmetric.fidelity"] == "corrected"
        assert entry["tags"]["probmetric.data_digest"] == "ab" * 32
        assert entry["tags"]["mlflow.source.git.commit"] == "0123456789ab"
        assert entry["tags"]["probmetric.weights"] == f"sha256:{sha256_file(folder / 'model.safetensors')}"
        assert entry["tags"]["probmetric.experiment.study"] == "true"
        assert entry["datasets"] == [(run.partition("/")[0], ("ab" * 32)[:36])]
        assert entry["times"][2] == "FINISHED"
        assert entry["times"][1] - entry["times"][0] == 6000
        assert set(entry["artifacts"]) == {"run.yaml", "metrics.json", "curves.json", "history.csv"}
    report = found["reports", "reports/study"]
    assert {"index.html", "table.md", "table.csv", "table.tex", "figures/sparsification.png"} <= set(
        report["artifacts"]
    )
    assert report["artifacts"]["index.html"] == sha256_file("reports/study/index.html")
    summaries = {path.stem: json.loads(path.read_text()) for path in Path("reports/study/metrics").iterdir()}
    expected = {f"{method}/{name}": value for method, means in summaries.items() for name, value in means.items()}
    assert {name: rows[-1][2] for name, rows in report["metrics"].items()} == expected


def test_a_parent_has_the_means_over_its_seeds(tracked):
    (tracked.folders[1] / "metrics.json").unlink()
    write_run(tracked.root, tracked.runs[1], study_metrics("digits", 0.0, "contrastive", 1) | {"own/spread": 0.3})
    project(tracked)
    found = content()
    seeds = [found["digits", f"digits/contrastive/seed{seed}"] for seed in (0, 1)]
    parent = found["digits", "digits/contrastive"]
    assert parent["name"] == "contrastive (2 seeds)"
    assert parent["params"] == {"noise": "0", "seeds": "0, 1"}
    assert parent["tags"]["probmetric.method"] == "contrastive"
    assert parent["tags"]["probmetric.experiment.study"] == "true"
    assert parent["times"][0] == min(seed["times"][0] for seed in seeds)
    assert parent["times"][1] == max(seed["times"][1] for seed in seeds)
    values = {name: [seed["metrics"][name][-1][2] for seed in seeds] for name in seeds[0]["metrics"]}
    means = {name: sum(pair) / 2 for name, pair in values.items() if not name.startswith("by_epoch/")}
    assert "own/spread" in seeds[1]["metrics"]
    assert {name: rows[0][2] for name, rows in parent["metrics"].items()} == pytest.approx(means)
    assert found["glyphs", "glyphs+noise0.2/laplace"]["name"] == "laplace noise0.2 (2 seeds)"


def test_splits_of_the_classes_and_kinds_of_noise_are_rows_of_one_experiment(tracked):
    """As in the report's tables; a split of two seeds counts as much as one of one."""
    values = {"glyphs+split1/a/seed0": 0.2, "glyphs+split1/a/seed1": 0.4, "glyphs/a/seed0": 0.9}
    values |= {"glyphs+nearest0.2/a/seed0": 0.5}
    for run, value in values.items():
        write_run(tracked.root, run, {"retrieval/recall_at_1": value})
    project(tracked, folders=[tracked.root / "results" / run for run in values])
    entries = {name: entry for (experiment, name), entry in content().items() if experiment == "glyphs"}
    assert set(entries) == {*values, "glyphs/a", "glyphs+nearest0.2/a"}
    assert entries["glyphs/a"]["name"] == "a (2 seeds of 2 splits)"
    assert entries["glyphs/a"]["metrics"]["retrieval/recall_at_1"][0][2] == pytest.approx(0.6)
    assert entries["glyphs+split1/a/seed0"]["name"] == "a seed0 split1"
    noise = {name: entry["params"]["noise"] for name, entry in entries.items()}
    assert {name: text for name, text in noise.items() if "nearest" in name} == dict.fromkeys(
        ("glyphs+nearest0.2/a/seed0", "glyphs+nearest0.2/a"), "nearest0.2"
    )
    assert noise["glyphs/a/seed0"] == noise["glyphs/a"] == "0"
    assert {entry["tags"]["probmetric.dataset"] for entry in entries.values()} == {"glyphs"}


def test_one_more_seed_renews_its_own_parent_alone(few):
    project(few)
    client, old = find_run(few.runs[0])
    parents = parent_ids(client)
    run = "digits/contrastive/seed7"
    write_run(few.root, run, study_metrics("digits", 0.0, "contrastive", 7))
    assert project(few, folders=[*few.folders, few.root / "results" / run])["written"] == [run]
    after = parent_ids(client)
    assert {name for name in after if after[name] != parents[name]} == {"digits/contrastive"}
    assert find_run(few.runs[0])[1].info.run_id == old.info.run_id
    children = client.search_runs([old.info.experiment_id], f"tags.`{CHILD_OF}` = '{after['digits/contrastive']}'")
    assert {child.data.tags["probmetric.run"] for child in children} == {*few.runs[:2], run}
    assert content()["digits", "digits/contrastive"]["params"]["seeds"] == "0, 1, 7"


def parent_ids(client) -> dict[str, str]:
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(ids, "tags.`probmetric.kind` = 'method'")
    assert len({name_of(run) for run in found}) == len(found)
    return {name_of(run): run.info.run_id for run in found}


def test_a_shared_run_has_one_parent_with_the_tags_of_all_reports(few):
    project(few)
    project(few, "other", few.folders[:1])
    tags = content()["digits", "digits/contrastive"]["tags"]
    assert {"probmetric.experiment.study", "probmetric.experiment.other"} <= tags.keys()
    project(few, "other", few.folders[2:3])
    assert "probmetric.experiment.other" not in content()["digits", "digits/contrastive"]["tags"]
    assert content()["digits", "digits/contrastive"]["params"]["seeds"] == "0, 1"


@pytest.mark.parametrize("lost", ["tag", "parent"])
def test_children_that_lost_their_parent_get_it_back(few, lost):
    project(few)
    before = content()
    client, child = find_run(few.runs[0])
    if lost == "tag":
        client.delete_tag(child.info.run_id, CHILD_OF)
    else:
        client.delete_run(child.data.tags[CHILD_OF])
    assert project(few)["written"] == []
    assert content() == before


def test_a_second_call_writes_nothing(few):
    project(few)
    before, stamp = content(), sha256_file("mlflow.db")
    assert project(few) == {"written": [], "unchanged": len(few.runs) + 1}
    assert sha256_file("mlflow.db") == stamp
    assert content() == before


@pytest.mark.slow
def test_an_empty_store_is_filled_with_the_same_content(tracked):
    project(tracked)
    project(tracked, "other", tracked.folders[:2])
    project(tracked, "other", tracked.folders[:2], store="rebuilt")
    project(tracked, store="rebuilt")
    assert content("rebuilt") == content()


def test_a_changed_run_replaces_its_old_self_and_stays_a_member(few):
    project(few)
    project(few, "other", few.folders[:2])
    run = few.runs[0]
    metrics = study_metrics("digits", 0.0, "contrastive", 0) | {"clustering/nmi": 0.123}
    write_run(few.root, run, metrics)
    assert project(few)["written"] == [run]
    client, found = find_run(run)
    assert found.data.metrics["clustering/nmi"] == 0.123
    assert found.data.tags["probmetric.experiment.other"] == "true"
    folders = {path.name for path in Path("mlflow-artifacts/digits").iterdir()}
    runs = client.search_runs([found.info.experiment_id], "tags.`probmetric.run` LIKE '%'")
    assert folders == {run.info.run_id for run in runs}


def test_membership_follows_the_experiment(few):
    project(few)
    project(few, "other", few.folders[:2])
    project(few, "other", few.folders[1:3])
    members = {run for (_, run), entry in content().items() if "probmetric.experiment.other" in entry["tags"]}
    assert members == {*few.runs[1:3], parent_of(few.runs[1]), parent_of(few.runs[2])}


@pytest.mark.slow
def test_an_interrupted_run_is_written_again(few):
    project(few)
    before = content()
    client, found = find_run(few.runs[3])
    client.delete_tag(found.info.run_id, "probmetric.digest")
    assert project(few)["written"] == [few.runs[3]]
    assert content() == before


@pytest.mark.parametrize("epochs", [301, 1003])
def test_every_point_of_a_curve_is_held(tracked, epochs):
    write_run(tracked.root, tracked.runs[0], study_metrics("digits", 0.0, "contrastive", 0), epochs=epochs)
    project(tracked, folders=tracked.folders[:1])
    client, found = find_run(tracked.runs[0])
    with (tracked.folders[0] / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("train_loss", "val_metric"):
        points = client.get_metric_history(found.info.run_id, f"by_epoch/{name}")
        assert [(point.step, point.value) for point in points] == [
            (int(row["epoch"]), float(row[name])) for row in rows
        ]


def test_of_many_metrics_the_headlines_are_held(tracked):
    """The others are in the run's artifact; what only the user's own code computes is held too."""
    held = {"retrieval/recall_at_1": 0.5, "ood/symbols/auroc": 0.6, "own/spread": 0.1, "trust/added": 0.2}
    left = {"retrieval/recall_at_1000": 0.9, "val/sparsification/aurc": 0.3, "ood/symbols/auroc_gap": 0.4}
    write_run(tracked.root, tracked.runs[0], held | left)
    project(tracked, folders=tracked.folders[:1])
    _client, found = find_run(tracked.runs[0])
    final = {name for name in found.data.metrics if not name.startswith(("by_epoch", "training"))}
    assert final == held.keys()


def test_unfinished_runs_are_left_out(few):
    (few.folders[0] / "metrics.json").unlink()
    assert few.runs[0] not in project(few)["written"]


_WRITER = """
import sys
from probmetric.tracking import track
experiment, *folders = sys.argv[1:]
track(experiment, folders, f"reports/{experiment}", store_uri="sqlite:///mlflow.db", artifact_root="mlflow-artifacts")
"""


@pytest.mark.slow
@pytest.mark.processes
def test_eight_writers_at_once_fill_an_empty_store(few):
    Path("mlflow.db").unlink()
    for number in range(4):
        shutil.copytree("reports/study", f"reports/study{number}")
    folders = [str(folder) for folder in few.folders]
    shares = [folders[number:] + folders[:number] for number in range(8)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, f"study{number % 4}", *share],
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for number, share in enumerate(shares)
    ]
    errors = [writer.communicate(timeout=300)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8, errors
    found = content()
    parents = {parent_of(run) for run in few.runs}
    assert {run for _, run in found} == {*few.runs, *parents, *(f"reports/study{number}" for number in range(4))}
    for (experiment, run), entry in found.items():
        assert entry["times"][2] == "FINISHED"
        if experiment == "reports":
            continue
        assert experiment == dataset_of(run)
        assert {f"probmetric.experiment.study{number}" for number in range(4)} <= set(entry["tags"])
    client = connect()
    assert sorted(e.name for e in client.search_experiments()) == ["Default", "digits", "reports"]
    assert client.search_runs(["0"]) == []


def test_a_broken_store_is_named_with_the_way_out(tracked):
    Path("mlflow.db").write_bytes(b"this is no database, but it is long enough to be read as one" * 40)
    with pytest.raises(FileError, match=r"mlflow\.db cannot be written or read.*probmetric track"):
        project(tracked)


@pytest.mark.parametrize(
    ("store", "artifacts", "reason"),
    [
        ("sqllite:///mlflow.db", "a", "'sqllite' is no kind of store: did you mean 'sqlite'"),
        ("sqlite//mlflow.db", "a", "'sqlite//mlflow.db' is no kind of store"),
        ("htp://host:5000", "a", "did you mean 'http'"),
        ("localhost:5000", "a", "'localhost' is no kind of store"),
        ("http://", "a", "it names no server"),
        ("sqlite://mlflow.db", "a", "is no file"),
        ("sqlite:///", "a", "is no file"),
        ("sqlite:///folder", "a", "folder is no file"),
        ("sqlite:///file/mlflow.db", "a", "file is no folder"),
        ("sqlite:///file/deeper/mlflow.db", "a", "file is no folder"),
        ("sqlite:///mlflow.db", "file", "file is no folder"),
        ("sqlite:///closed/mlflow.db", "a", "nothing may be written in .*closed"),
        ("sqlite:///closed.db", "a", "closed.db may not be written"),
        ("sqlite:///mlflow.db", "closed/a", "nothing may be written in .*closed"),
    ],
)
def test_a_store_that_cannot_be_is_refused_before_anything_runs(tmp_path, monkeypatch, store, artifacts, reason):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "closed"):
        Path(folder).mkdir()
    for file in ("file", "closed.db"):
        Path(file).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).name.startswith("closed"))  # root may all
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        FileError, match=rf"cannot be written: .*{reason}.*such as tracking\.store: sqlite:///mlflow\.db"
    ):
        check_place(store, artifacts)
    tracking = {"store": store, "artifacts": artifacts}
    monkeypatch.chdir(Path(__file__).parents[2])
    places = []
    monkeypatch.setattr("probmetric.planning.workflow.check_place", lambda *place: places.append(place))
    plan = WorkflowPlan.from_config(read_yaml("params.yaml") | {"experiments": ["smoke"], "tracking": tracking})
    plan.check_machine()
    assert places == [(store, artifacts)]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "store",
    [
        *("sqlite:///mlflow.db", "sqlite:///a/b/mlflow.db?timeout=5", "sqlite:////dev/shm/m.db", "https://host/x"),
        *(
            "postgresql+psycopg2://me@db/x",
            "mysql://db/x",
            "databricks",
            "http://[::1]:5000",
            "sqlite+pysqlite:///m.db",
        ),
    ],
)
def test_a_store_that_may_be_there_is_taken(tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    check_place(store, "a/b")
    assert not list(tmp_path.iterdir())


def test_artifacts_are_read_without_a_server(few):
    project(few)
    client, run = find_run(few.runs[0])
    path = client.download_artifacts(run.info.run_id, "metrics.json", str(few.root))
    assert sha256_file(path) == sha256_file(few.folders[0] / "metrics.json")


def test_a_moved_repository_is_written_again_where_it_is(few, tmp_path, monkeypatch):
    project(few)
    before = content()
    few.root.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    folders = [Path("results", run) for run in few.runs]
    assert len(project(few, folders=folders)["written"]) == len(few.runs) + 1
    assert content() == before
    run = find_run(few.runs[0])[1]
    assert run.info.artifact_uri.startswith((tmp_path / "elsewhere").as_uri())
    assert project(few, folders=folders)["written"] == []


@pytest.mark.processes
def test_a_server_that_never_answers_costs_ten_seconds(tracked, monkeypatch):
    for name in ("TIMEOUT", "MAX_RETRIES"):
        monkeypatch.delenv(f"MLFLOW_HTTP_REQUEST_{name}", raising=False)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.perf_counter()
        with pytest.raises(FileError, match=r"cannot be written or read.*results are safe"):
            track("study", tracked.folders[:1], "reports/study", store_uri=address, artifact_root="unused")
        assert time.perf_counter() - began < 12
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ


@pytest.mark.parametrize("name", ["HTTP_REQUEST_TIMEOUT", "HTTP_REQUEST_MAX_RETRIES", "HTTP_TCP_KEEPALIVE"])
def test_a_variable_that_mlflow_cannot_read_is_named(name, tracked, monkeypatch):
    monkeypatch.setenv(f"MLFLOW_{name}", "abc")
    for address in ("sqlite:///new.db", "http://127.0.0.1:9"):
        with pytest.raises(FileError, match=rf"MLFLOW_{name}.*abc.*unset that variable"):
            track("study", tracked.folders[:1], "reports/study", store_uri=address, artifact_root="unused")


@pytest.mark.parametrize(
    "address",
    [
        "http://me:" + "hunter22@127.0.0.1:9",
        "postgresql://me:" + "hunter22@db/mlflow",
        "https://" + "hunter22@example.org",
        "https://me:" + "s/hunter22@example.org",
        "https://example.org/x?access_token=" + "hunter22",
        "postgresql://me@db/mlflow?password=" + "hunter22",
        "https://example.org/x#access_token=" + "hunter22",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D" + "hunter22",
        "https:me:" + "hunter22@example.org",
        "me:" + "hunter22@example.org:5000",
        "//me:" + "hunter22@example.org/x",
        "https:/me:" + "hunter22@example.org",
        "https://example.org/x?sig=" + "hunter22",
        "https://example.org/x?X-Amz-Credential=" + "hunter22",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(tracked, address, monkeypatch):
    """It would stand in plans, logs and messages."""
    calls = [
        lambda: track("study", tracked.folders[:1], "reports/study", store_uri=address, artifact_root="unused"),
        lambda: parse(Params, {"datasets": ["digits"], "tracking": {"store": address}}, "params.yaml"),
    ]
    for call in calls:
        with pytest.raises(ProbMetricError, match=r"holds a password; .*MLFLOW_TRACKING_PASSWORD") as error:
            call()
        assert "hunter22" not in str(error.value)
    for wrong in ([address], {"store": [address]}, f"store:{address}"):
        with pytest.raises(ProbMetricError, match=r"\*\*\*") as error:
            parse(Params, {"datasets": ["digits"], "tracking": wrong}, "params.yaml")
        assert "hunter22" not in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(ProbMetricError, match="holds a password") as error:
        load("models:/shop/1")
    assert "hunter22" not in "".join(traceback.format_exception(error.value))
    assert not [path for path in tracked.root.rglob("*") if path.is_file() and b"hunter22" in path.read_bytes()]


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:///mlflow.db",
        "sqlite:////home/me@work:1/mlflow.db",
        "http://127.0.0.1:5000",
        "https://example.org:443/a@b",
        "postgresql://me@db:5432/mlflow?ssl=on",
    ],
)
def test_an_address_without_a_secret_is_taken(address):
    assert check_store(address) == address


def test_the_ui_is_for_this_machine_only(tracked):
    command = ui_command(STORE, 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == STORE
    with pytest.raises(FileError, match="open that address"):
        ui_command("http://127.0.0.1:5000", 5001)


def test_every_dataset_has_a_view_with_the_metrics_that_matter(tracked):
    """Kept by the store, told by `probmetric ui`; a description somebody wrote stays."""
    client = MlflowClient(tracking_uri=STORE)
    track("study", tracked.folders, "reports/study", store_uri=STORE, artifact_root="mlartifacts")
    digits = client.get_experiment_by_name("digits")
    client.set_experiment_tag(digits.experiment_id, "mlflow.note.content", "Ours.")
    track("study", tracked.folders, "reports/study", store_uri=STORE, artifact_root="mlartifacts")
    tags = client.get_experiment_by_name("digits").tags
    columns = json.loads(tags["mlflow.sharedViewState.probmetric"])["selectedColumns"]
    logged = {name for run in client.search_runs([digits.experiment_id]) for name in run.data.metrics}
    assert columns[0] == "metrics.`retrieval/recall_at_1`"
    assert "retrieval/recall_at_1" in logged
    assert tags["mlflow.note.content"] == "Ours."
    notes = {each.name: each.tags.get("mlflow.note.content", "") for each in client.search_experiments()}
    assert notes["glyphs"].startswith("Runs on glyphs. [Best methods](")
    assert "viewStateShareKey=probmetric" in notes["glyphs"]
    assert notes["reports"].startswith("Tables and figures")
    found = "\n".join(ui_addresses(STORE, 5001))
    assert f"  runs on digits: http://127.0.0.1:5001/#/experiments/{digits.experiment_id}/runs?" in found
    assert "runs on reports" not in found
    assert "no runs yet: `probmetric track <experiment>`" in ui_addresses("sqlite:///nothing.db", 5001)[1]
    shutil.copy("mlflow.db", "old.db")
    with sqlite3.connect("old.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'deadbeef'")
    with pytest.raises(FileError, match=r"cannot be written or read: Detected out-of-date database schema"):
        ui_addresses("sqlite:///old.db", 5001)


def test_the_ui_is_not_started_where_it_could_not_answer(tracked):
    Path("folder").mkdir()
    for place in ("sqlit:///mlflow.db", "sqlite:///folder"):
        with pytest.raises(FileError, match=r"cannot be written: .*tracking.store"):
            ui_command(place, 5001)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(FileError, match=f"something answers at port {port} already; .*--port {port + 1}"):
            ui_command(STORE, port)


def test_mlflow_is_imported_by_tracking_alone():
    script = "import sys, probmetric.tracking, probmetric.reporting.page; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
