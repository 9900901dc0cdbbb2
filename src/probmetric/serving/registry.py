"""Register models in MLflow: a model folder with a signature, under a name; `probmetric.load("models:/name/1")`.

The model is logged with its files as an output of the run that made it. It is registered once per licence.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from probmetric import __version__
from probmetric.errors import ServingError
from probmetric.serving.card import card
from probmetric.tracking import store
from probmetric.tracking.entries import RUN_TAG

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from probmetric.serving.model import Model

IMAGE = "image"
LONGEST_DESCRIPTION = 5000  # longest text that MLflow's database holds
DIGEST_TAG, LICENSE_TAG = "probmetric.model", "probmetric.license"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def register(model: Model, name: str, *, store_uri: str, artifact_root: Path, license: str = "") -> str:
    """Register a model by name and return its address, `models:/<name>/<version>`.

    Args:
        model: model of a run or a model folder.
        name: its name in the registry.
        store_uri: `sqlite:///mlflow.db`, or the address of a tracking server.
        artifact_root: folder of the artifacts (not used with a tracking server).
        license: terms of use, for its card; "" keeps those of the model or of its registered version.

    Raises:
        ServingError: the name is not allowed, or the model has no folder.
        FileError: the store cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ServingError(f"{name!r} cannot name a model; use letters, digits, '.', '-' and '_'.")
    with store.opened(store_uri, artifact_root) as client:
        version = _version_of(client, name, model.digest, license)
        if version is not None:
            return f"models:/{name}/{version}"
        dataset = model.record.name.partition("/")[0].partition("+")[0]
        local_root = artifact_root if store.is_local(store_uri) else None
        experiment = store.Writer(client, local_root, "").experiment_id(dataset)
        runs = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{model.record.name}'", max_results=1)
        run = runs[0].info.run_id if runs else None  # a run that is not tracked has none
        license = license or model.record.license
        tags = {DIGEST_TAG: model.digest, RUN_TAG: model.record.name, LICENSE_TAG: license}
        about = card(model.record.model_copy(update={"license": license}))
        words = about.split("---\n", 2)[-1].strip()[:LONGEST_DESCRIPTION]  # without the YAML head of the card
        logged = _logged(client, model, (name, experiment, run), tags, license)
        made = client.create_model_version(
            name, logged.artifact_location, run_id=run, tags=tags, description=words, model_id=logged.model_id
        )
        return f"models:/{name}/{made.version}"


def _version_of(client: MlflowClient, name: str, digest: str, license: str) -> str | None:
    """Return the version of `name` with this digest (and licence, unless ""); create the name if it is missing."""
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name, description="Image embeddings with uncertainty; versions have cards.")
    versions = client.search_model_versions(f"name = '{name}'")
    tags = {DIGEST_TAG: digest} | ({LICENSE_TAG: license} if license else {})
    return next((str(each.version) for each in versions if tags.items() <= each.tags.items()), None)


def _logged(
    client: MlflowClient, model: Model, place: tuple[str, str, str | None], tags: dict[str, str], license: str
) -> LoggedModel:
    """Log the model with its files as an output of the run that made it; `place` is its name, experiment and run."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    name, experiment, run = place
    logged = client.create_logged_model(experiment, name, source_run_id=run, tags=tags)
    with TemporaryDirectory() as scratch:
        _write(model, Path(scratch) / "model", license)
        client.log_model_artifacts(logged.model_id, str(Path(scratch) / "model"))
    if run:
        client.log_outputs(run, [LoggedModelOutput(logged.model_id, 0)])
    return client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)


def _write(model: Model, target: Path, license: str) -> None:
    """Write the model folder inside a folder of MLflow's, with the signature."""
    import mlflow

    # MLflow warns about its own type hints, and about examples
    with TemporaryDirectory() as scratch, warnings.catch_warnings(action="ignore", category=UserWarning):
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
    """A model behind MLflow's interface; `MLmodel` names this module in place of a pickle."""

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
