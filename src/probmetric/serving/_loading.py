"""`probmetric.load`: a model from a folder, a run or MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.errors import ProbMetricError, ServingError
from probmetric.io import present
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS, RunKey
from probmetric.serving._parts import Parts
from probmetric.serving._record import RECORD

if TYPE_CHECKING:
    from probmetric.serving._model import Model


def load(source: str | Path, *, device: str = "auto") -> Model:
    """A trained model, ready for images.

    Args:
        source: a model folder (`probmetric export`), a finished run (its name, in the project's folder, or the path of
            its folder, from anywhere), or `models:/<name>/<version>` of the MLflow server `MLFLOW_TRACKING_URI` names.
        device: "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:1".

    Raises:
        ServingError: there is no such model, or it needs components of somebody's own.
        FileError: a file is missing, damaged or was changed.
    """
    from probmetric.training.device import pick_device

    return parts_of(source).model(pick_device(device))


def parts_of(source: str | Path) -> Parts:
    """The parts of a model; arguments and errors as of `load`."""
    text = str(source)
    if text.startswith("models:/"):
        return Parts.read(_downloaded(text))
    path = Path(source)
    if present(path / RECORD):
        return Parts.read(path)
    run = path if RunFolder(path).trained or RunFolder(path).finished else RESULTS / path
    if _is_run(run) and (RunFolder(run).trained or RunFolder(run).finished):
        run = run.resolve()
        return _of_run(run, run.parents[2])
    raise ServingError(
        f"{text} is no model: expected a folder with {RECORD} (written by `probmetric export`), a finished run "
        "(<dataset>/<method>/seed<k>) or models:/<name>/<version>."
    )


def _is_run(path: Path) -> bool:
    try:
        RunKey.parse(path)
    except ProbMetricError:
        return False
    return True


def _of_run(path: Path, results: Path) -> Parts:
    from probmetric.runs.plan import recorded_run

    name = path.relative_to(results).as_posix()
    return Parts.of_run(recorded_run(name, results), results.parent, results)


def _downloaded(uri: str) -> Path:
    """The model folder inside an MLflow model."""
    try:
        import mlflow
    except ImportError as error:
        raise ServingError(f"{uri}: MLflow is not installed; pip install 'probmetric[workflow]'.") from error
    try:
        place = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri))
    except mlflow.MlflowException as error:
        raise ServingError(
            f"{uri} cannot be had from {mlflow.get_tracking_uri()}: {error}. Run this where the store is, or name it: "
            "MLFLOW_TRACKING_URI=sqlite:////path/mlflow.db, or the address of a server."
        ) from error
    found = sorted(place.rglob(RECORD))
    if not found:
        raise ServingError(f"{uri} holds no model of ProbMetric (no {RECORD}).")
    return found[0].parent
