"""The run table as it should open: columns and order, kept in the store as MLflow keeps the views its users share.

MLflow holds the columns somebody chose in their browser; a view that is shared is a tag of the experiment, and an
address names it. Every experiment of a dataset has the tag, its description links to the address, and
`probmetric ui` prints it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAME = "probmetric"
TAG, NOTE = f"mlflow.sharedViewState.{NAME}", "mlflow.note.content"
METRICS = (
    *("retrieval/recall_at_1", "retrieval/map_at_r", "sparsification/error_auroc", "trust/added", "p_right/ece"),
    *("calibration/ece", "training/seconds"),
)
_STATE = {
    "selectedColumns": [*(f"metrics.`{name}`" for name in METRICS), "params.`noise`"],
    "orderByKey": f"metrics.`{METRICS[0]}`",
    "orderByAsc": False,
}


def address(experiment_id: str) -> str:
    """Where a server shows the view of an experiment."""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={NAME}"


def keep_view(client: MlflowClient, experiment_id: str) -> None:
    """Put the view into the store, unless it is there; a description somebody wrote stays."""
    found = client.get_experiment(experiment_id).tags
    if found.get(TAG) != (state := json.dumps(_STATE)):
        client.set_experiment_tag(experiment_id, TAG, state)
    if NOTE not in found:
        note = (
            f"[Best runs first]({address(experiment_id)}). Search by method, dataset "
            "and noise: ``tags.`probmetric.method` = 'arcface' and params.noise = '0.2'``."
        )
        client.set_experiment_tag(experiment_id, NOTE, note)


def views(client: MlflowClient) -> dict[str, str]:
    """Experiment -> address of its view, of those that have one."""
    return {each.name: address(each.experiment_id) for each in client.search_experiments() if TAG in each.tags}
