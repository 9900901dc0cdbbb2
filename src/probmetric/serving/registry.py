"""Models in MLflow's registry: a model folder with a signature, under a name, `probmetric.load("models:/name/1")`.

In a local store the files lie below the artifacts' folder, `models/<name>/<digest>`; a tracking server gets them as
artifacts of the run that made the model. The same model is registered once.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from probmetric import __version__
from probmetric.errors import ServingError
from probmetric.io.folders import new_folder
from probmetric.tracking import store

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

    from probmetric.serving.model import Model

IMAGE = "image"
LONGEST_DESCRIPTION = 5000  # what MLflow's database holds
DIGEST_TAG, RUN_TAG = "probmetric.model", "probmetric.run"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def register(model: Model, name: str, *, store_uri: str, artifact_root: Path, license: str = "") -> str:
    """Register a model by name and return its address, `models:/<name>/<version>`.

    Args:
        model: of a run or a model folder.
        name: what it is called.
        store_uri: `sqlite:///mlflow.db`, or the address of a tracking server.
        artifact_root: folder of the artifacts (not used with a tracking server).
        license: under what terms it may be used, for its card.

    Raises:
        ServingError: a name that is none, or a model without a folder.
        FileError: the store cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ServingError(f"{name!r} cannot name a model; use letters, digits, '.', '-' and '_'.")
    with store.opened(store_uri, artifact_root) as client:
        version = _version_of(client, name, model.digest)
        if version is not None:
            return f"models:/{name}/{version}"
        run = _run_of(client, model.record.name)
        if store.is_local(store_uri):
            source = _kept(model, artifact_root.resolve() / "models" / name / model.digest[:16], license)
        else:
            source, run = _sent(client, model, run, license)
        tags = {DIGEST_TAG: model.digest, RUN_TAG: model.record.name}
        words = model.card.split("---\n", 2)[-1].strip()[:LONGEST_DESCRIPTION]  # without the card's head of YAML
        made = client.create_model_version(name, source, run_id=run, tags=tags, description=words)
        return f"models:/{name}/{made.version}"


def _version_of(client: MlflowClient, name: str, digest: str) -> str | None:
    """Return the version of `name` that has this digest; make the name where there is none."""
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name, description="Image embeddings with uncertainty; versions have cards.")
    versions = client.search_model_versions(f"name = '{name}'")
    return next((str(each.version) for each in versions if each.tags.get(DIGEST_TAG) == digest), None)


def _run_of(client: MlflowClient, run: str) -> str | None:
    """Return MLflow's id of the run that made the model; None where it is not tracked."""
    experiment = client.get_experiment_by_name(run.partition("/")[0].partition("+")[0])
    if experiment is None:
        return None
    runs = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{run}'", max_results=1)
    return runs[0].info.run_id if runs else None


def _kept(model: Model, target: Path, license: str) -> str:
    """Write the files below the artifacts' folder and return their folder."""
    with new_folder(target, "registered model") as folder:
        _write(model, folder, license)
    return str(target)


def _sent(client: MlflowClient, model: Model, run: str | None, license: str) -> tuple[str, str]:
    """Send the files to the server and return their address there, and the run they belong to."""
    if run is None:
        name = model.record.name.partition("/")[0]
        experiment = client.get_experiment_by_name(name)
        identity = client.create_experiment(name) if experiment is None else experiment.experiment_id
        run = client.create_run(identity, run_name=model.record.name).info.run_id
        client.update_run(run, status="FINISHED")  # set_terminated prints
    with TemporaryDirectory() as scratch:
        _write(model, Path(scratch) / "model", license)
        client.log_artifacts(run, str(Path(scratch) / "model"), "model")
    return f"runs:/{run}/model", run


def _write(model: Model, target: Path, license: str) -> None:
    """Write the model folder inside a folder of MLflow's, with the signature."""
    import mlflow

    with TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # of MLflow, on type hints of its own and examples
        folder = model.save(Path(scratch) / "probmetric", license=license)
        mlflow.pyfunc.save_model(
            str(target),
            loader_module="probmetric.serving.registry",
            data_path=str(folder),
            signature=_signature(),
            pip_requirements=[f"probmetric[train]=={__version__}"],
        )


def _signature() -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    outputs: list[Any] = [ColSpec(Array(DataType.float), "mean"), ColSpec(DataType.float, "uncertainty")]
    return ModelSignature(inputs=Schema([ColSpec(DataType.binary, IMAGE)]), outputs=Schema(outputs))


class Served:
    """A model behind MLflow's interface; `MLmodel` names this module, nothing is pickled."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Return columns `mean` (M numbers each) and `uncertainty` of the column `image`: bytes of files, or paths."""
        import pandas as pd

        batch = self.model.embed(list(data[IMAGE]))
        return pd.DataFrame({"mean": list(batch.mean.numpy()), "uncertainty": batch.uncertainty.numpy()})


def _load_pyfunc(path: str) -> Served:
    from probmetric.serving.model import load

    return Served(load(path))
