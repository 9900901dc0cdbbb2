"""A model under a name in MLflow, and embeddings as a table for vector databases."""

import importlib.util
import socket
import warnings
from pathlib import Path

import numpy as np
import pytest
from serving_helpers import LAPLACE, PLAIN

import probmetric
from probmetric import cli
from probmetric.errors import ProbMetricError
from probmetric.runs.folder import RunFolder


def tracking_tests():
    """What the tests of tracking share: the real server."""
    place = Path(__file__).parents[1] / "tracking/conftest.py"
    spec = importlib.util.spec_from_file_location("tracking_conftest", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shop(project, tmp_path, monkeypatch):
    """A project folder of this test's own; it has the runs of `project`."""
    for part in ("results", "data"):
        (tmp_path / part).symlink_to(project / part)
    (tmp_path / "params.yaml").write_text((project / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


@pytest.mark.slow
@pytest.mark.processes
def test_a_registered_model_is_loaded_by_name_and_only_once_registered(shop, photos, capsys):
    import mlflow
    import pandas as pd

    for _ in range(2):
        assert cli.main(["register", LAPLACE, "digits-reader"]) == 0
    assert capsys.readouterr().out.split() == ["models:/digits-reader/1"] * 2
    store = f"sqlite:///{shop}/mlflow.db"
    version = mlflow.MlflowClient(store, store).get_model_version("digits-reader", "1")
    assert version.description.startswith(f"# {probmetric.load(LAPLACE).name}\n"), "the card describes it"
    logged = mlflow.MlflowClient(store, store).search_logged_models(["1"])
    assert [(each.name, each.status.value) for each in logged] == [("digits-reader", "READY")]
    path = next(iter(photos[1]))
    expected = probmetric.load(LAPLACE).embed(path)
    found = probmetric.load("models:/digits-reader/1").embed(path)
    np.testing.assert_allclose(found.uncertainty.numpy(), expected.uncertainty.numpy(), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's, on its own types
        served = mlflow.pyfunc.load_model("models:/digits-reader/1")
    assert [each.name for each in served.metadata.signature.inputs] == ["image"]
    table = served.predict(pd.DataFrame({"image": [Path(path).read_bytes()]}))
    np.testing.assert_allclose(table["mean"][0], expected.mean[0].numpy(), atol=1e-6)
    assert cli.main(["register", PLAIN, "digits-reader"]) == 0
    assert capsys.readouterr().out.strip() == "models:/digits-reader/2"
    for licence, number in (("CC-BY-4.0", "3"), ("CC-BY-4.0", "3"), ("MIT", "4")):
        assert cli.main(["register", PLAIN, "digits-reader", "--license", licence]) == 0
        assert capsys.readouterr().out.strip() == f"models:/digits-reader/{number}"
        version = mlflow.MlflowClient(store, store).get_model_version("digits-reader", number)
        assert f"Licence: {licence}." in version.description
        assert probmetric.load(f"models:/digits-reader/{number}").record.license == licence


@pytest.mark.slow
@pytest.mark.processes
def test_a_server_gets_the_files_with_the_run(shop, exported, monkeypatch, capsys):
    from probmetric.tracking import ui_command

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tracking_tests().running_ui(
        ui_command(f"sqlite:///{shop}/server.db", port, shop / "artifacts"), port, shop
    ) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        text = (shop / "params.yaml").read_text()
        (shop / "params.yaml").write_text(f"{text}\ntracking: {{store: '{address}'}}\n")
        assert cli.main(["register", str(exported[PLAIN]), "plain"]) == 0
        assert probmetric.load("models:/plain/1").digest == probmetric.load(exported[PLAIN]).digest


@pytest.mark.parametrize("name", ["../../etc", "a b", "", "x" * 200, "models:/x"])
def test_a_name_that_is_none_is_refused(shop, name, capsys):
    assert cli.main(["register", PLAIN, name]) == 2
    assert ("cannot name a model" if name else "an argument is empty") in capsys.readouterr().err
    assert not (shop / "mlflow.db").exists()


def test_an_unknown_model_says_where_it_looked(shop):
    with pytest.raises(ProbMetricError, match=r"not found\. Run this.*MLFLOW_TRACKING_URI"):
        probmetric.load("models:/nothing")
    with pytest.raises(ProbMetricError, match=r"not found\. Run this.*MLFLOW_TRACKING_URI"):
        probmetric.load("models:/nothing/1")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("models:/shop", "it names no version, as models:/shop/1 does"),
        ("models:/shop/", "it names no version, as models:/shop/1 does"),
        ("models:/shop/70", r"version=70\) not found"),
        ("models:/shop@good", "alias good not found"),
    ],
)
def test_a_model_without_its_version_says_which_there_are(shop, address, problem):
    from probmetric.tracking import store

    with store.opened(f"sqlite:///{shop}/mlflow.db", shop / "mlartifacts") as client:
        client.create_registered_model("shop")
        for _ in range(11):
            client.create_model_version("shop", str(shop))
    versions = ", ".join(map(str, range(1, 12)))
    with pytest.raises(ProbMetricError, match=rf"{problem}\. The versions of shop there are {versions}\. Run this"):
        probmetric.load(address)


def test_vectors_are_those_of_the_run(shop, project, capsys):
    import pyarrow.parquet as pq

    assert cli.main(["vectors", PLAIN, "digits", "out.parquet", "--splits", "val,test"]) == 0
    table = pq.read_table("out.parquet")
    assert table.column_names == ["path", "label", "split", "vector", "uncertainty", "concentration"]
    stored = RunFolder(project / "results" / PLAIN).embeddings("test")
    rows = np.array(table["split"].to_pylist()) == "test"
    np.testing.assert_allclose(np.stack(table["vector"].to_pylist())[rows], stored["mean"], atol=1e-6)
    np.testing.assert_allclose(table["uncertainty"].to_numpy()[rows], stored["uncertainty"], rtol=1e-5)
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[16]"
    assert set(table["label"].to_pylist()) == {f"digit {number}" for number in range(10)}


def test_vectors_do_not_replace_a_file_of_another_kind(shop, project, capsys):
    Path("notes.txt").write_text("ours")
    assert cli.main(["vectors", PLAIN, "digits", "notes.txt"]) == 2
    assert "call it notes.parquet" in capsys.readouterr().err
    assert Path("notes.txt").read_text() == "ours"


def test_vectors_of_a_folder_leave_out_bad_images_when_told_to(shop, photos, tmp_path, capsys):
    import shutil

    folder = shutil.copytree(photos[0], tmp_path / "mine")
    (folder / "digit_1" / "broken.png").write_bytes(b"no image")
    assert cli.main(["vectors", PLAIN, str(folder), "out.parquet"]) == 2
    assert "broken.png" in capsys.readouterr().err
    assert not Path("out.parquet").exists()
    assert cli.main(["vectors", PLAIN, str(folder), "out.parquet", "--on-error", "skip"]) == 0
    assert "24 images, 1 left out" in capsys.readouterr().out
