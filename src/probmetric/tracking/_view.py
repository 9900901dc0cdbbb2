"""The run tables as they should open: columns, order and filter, kept in the store as MLflow keeps the views its
users share.

MLflow holds the columns somebody chose in their browser; a view that is shared is a tag of the experiment, and an
address names it. Every experiment of a dataset has the tags, its description links to the addresses, and
`probmetric ui` prints the first. A page that is loaded again keeps order and filter but not the columns (MLflow takes
the state from the address alone, once it holds any); "Override saved view" above the table keeps them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from probmetric.tracking._parents import KIND_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAME, RUNS = "probmetric", "probmetric-runs"
PREFIX, NOTE = "mlflow.sharedViewState.", "mlflow.note.content"
METRICS = (
    *("retrieval/recall_at_1", "retrieval/map_at_r", "sparsification/error_auroc", "trust/added", "p_right/ece"),
    *("calibration/ece", "training/seconds"),
)
_FILTERS = {NAME: f"tags.`{KIND_TAG}` = 'method'", RUNS: "tags.`probmetric.run` LIKE '%'"}
_FOLDED = "#/experiments/{}/runs?workflowType=machine_learning"


def address(experiment_id: str, view: str = NAME) -> str:
    """Where a server shows a view of an experiment: its methods, or its runs, best first."""
    return f"{_FOLDED.format(experiment_id)}&viewStateShareKey={view}"


def keep_views(client: MlflowClient, experiment_id: str) -> None:
    """Put the views into the store, unless they are there; a description somebody wrote stays."""
    found = client.get_experiment(experiment_id).tags
    for name in _FILTERS:
        if found.get(PREFIX + name) != (state := json.dumps(_state(name))):
            client.set_experiment_tag(experiment_id, PREFIX + name, state)
    if NOTE not in found or found[NOTE] == _earlier_note(experiment_id):
        client.set_experiment_tag(experiment_id, NOTE, _note(experiment_id))


def views(client: MlflowClient) -> dict[str, str]:
    """Experiment -> address of its view, of those that have one."""
    found = client.search_experiments()
    return {each.name: address(each.experiment_id) for each in found if PREFIX + NAME in each.tags}


def _state(view: str) -> dict[str, Any]:
    return {
        "selectedColumns": [*(f"metrics.`{name}`" for name in METRICS), "params.`noise`"],
        "orderByKey": f"metrics.`{METRICS[0]}`",
        "orderByAsc": False,
        "searchFilter": _FILTERS[view],
    }


def _note(experiment_id: str) -> str:
    return (
        f"[Best methods]({address(experiment_id)}) (means over seeds), [best runs]({address(experiment_id, RUNS)}), "
        f"[folded]({_FOLDED.format(experiment_id)}). Search: "
        "``tags.`probmetric.method` = 'arcface' and params.noise = '0.2'``."
    )


def _earlier_note(experiment_id: str) -> str:
    """What was written before there were parents: nobody's own."""
    return (
        f"[Best runs first]({address(experiment_id)}). Search by method, dataset "
        "and noise: ``tags.`probmetric.method` = 'arcface' and params.noise = '0.2'``."
    )
