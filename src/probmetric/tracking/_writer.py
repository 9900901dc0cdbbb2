"""Entries -> one MLflow store: what is there stays, what changed is replaced, what is new is written."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.run_names import legal_name
from probmetric.tracking._bulk import add_tags, pack, read_tags, write_runs
from probmetric.tracking._entries import REPORTS, Entry, Pending
from probmetric.tracking._store import is_local
from probmetric.tracking._view import keep_view
from probmetric.tracking.live import LIVE_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

RUN_TAG, DIGEST_TAG, MEMBER_TAG = "probmetric.run", "probmetric.digest", "probmetric.experiment."
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # the UI then shows training runs, not chat traces
_METRICS_PER_BATCH, _PARAMS_PER_BATCH, _RUNS_PER_BATCH = 1000, 100, 200


@dataclass(frozen=True)
class _Stored:
    run_id: str
    digest: str
    members: frozenset[str]


class Writer:
    """Writes entries to one store on behalf of one experiment; the caller holds the lock."""

    def __init__(self, store_uri: str, artifact_root: Path, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client: MlflowClient = MlflowClient(tracking_uri=store_uri, registry_uri=store_uri)
        self.local = is_local(store_uri)
        self.artifact_root = artifact_root
        self.member = MEMBER_TAG + legal_name(experiment)

    def write(self, entries: Sequence[Pending]) -> dict[str, Any]:
        """Bring the store up to date with `entries`; returns the names written and how many were unchanged."""
        ids = {name: self._experiment_id(name) for name in sorted({entry.experiment for entry in entries})}
        for name, identity in ids.items():
            if name != REPORTS:
                keep_view(self.client, identity)
        stored = {name: self._stored(identity) for name, identity in ids.items()}
        new: list[tuple[Entry, str, frozenset[str]]] = []
        joining: list[str] = []
        written: list[str] = []
        for entry in entries:
            known = stored[entry.experiment].pop(entry.run, [])
            current = next((old for old in known if old.digest == entry.digest), None)
            for old in known:
                if old is not current:
                    self._delete(entry.experiment, old)
            if current is not None:
                joining += [current.run_id] if self.member not in current.members else []
            else:
                members = frozenset().union(*(old.members for old in known)) | {self.member}
                new.append((entry.built(), ids[entry.experiment], members))
            if len(new) % _RUNS_PER_BATCH == 0:
                written += self._create_all(new)
                new = []
        written += self._create_all(new)
        if self.local and len(written) >= _RUNS_PER_BATCH:
            pack(self.client)
        self._join(joining)
        for name in stored:
            self._leave(old for olds in stored[name].values() for old in olds)
        return {"written": written, "unchanged": len(entries) - len(written)}

    def _create_all(self, new: Iterable[tuple[Entry, str, frozenset[str]]]) -> list[str]:
        """Write new runs; returns their names."""
        if not self.local:
            for entry, experiment_id, members in new:
                self._create(entry, experiment_id, members)
            return [entry.run for entry, _experiment, _members in new]
        found = []
        for entry, experiment_id, members in new:
            run_id = uuid.uuid4().hex
            self._copy_artifacts(entry, run_id)
            found.append((entry, experiment_id, run_id, self._tags(entry, members) | {DIGEST_TAG: entry.digest}))
        write_runs(self.client, found)
        return [entry.run for entry, *_rest in found]

    @staticmethod
    def _tags(entry: Entry, members: Iterable[str]) -> dict[str, str]:
        return entry.tags | entry.weights_tag() | dict.fromkeys(members, "true") | {RUN_TAG: entry.run}

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = f"mlflow-artifacts:/{name}" if self.local else None
            try:
                return str(self.client.create_experiment(name, artifact_location=location, tags=_KIND))
            except MlflowException:
                # Somebody else's process made it meanwhile on a shared server.
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _stored(self, experiment_id: str) -> dict[str, list[_Stored]]:
        """Name of the run -> what the store holds under it; several after an interruption, or with a live run."""
        found: dict[str, list[_Stored]] = {}
        for run_id, tags in self._active_tags(experiment_id):
            members = frozenset(tag for tag in tags if tag.startswith(MEMBER_TAG))
            if name := tags.get(RUN_TAG) or tags.get(LIVE_TAG):
                found.setdefault(name, []).append(_Stored(run_id, tags.get(DIGEST_TAG, ""), members))
        return found

    def _active_tags(self, experiment_id: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Run id and tags of the runs that are not deleted; of a database only tags of ours."""
        if self.local:
            yield from read_tags(self.client, experiment_id, "probmetric.").items()
            return
        token = None
        while True:
            page = self.client.search_runs([experiment_id], max_results=1000, page_token=token)
            for run in page:
                yield run.info.run_id, run.data.tags
            token = page.token
            if not token:
                return

    def _join(self, run_ids: Sequence[str]) -> None:
        if self.local:
            add_tags(self.client, run_ids, self.member, "true")
            return
        for run_id in run_ids:
            self.client.set_tag(run_id, self.member, "true")

    def _leave(self, others: Iterable[_Stored]) -> None:
        """Runs that no longer belong to the experiment lose its tag."""
        for stored in others:
            if self.member in stored.members:
                self.client.delete_tag(stored.run_id, self.member)

    def _delete(self, experiment: str, stored: _Stored) -> None:
        self.client.delete_run(stored.run_id)
        if self.local:
            shutil.rmtree(self.artifact_root / experiment / stored.run_id, ignore_errors=True)

    def _create(self, entry: Entry, experiment_id: str, members: Iterable[str]) -> None:
        tags = self._tags(entry, members)
        run = self.client.create_run(experiment_id, start_time=entry.start, tags=tags, run_name=entry.name)
        run_id = run.info.run_id
        self._copy_artifacts(entry, run_id)
        self._log(entry, run_id)
        if entry.dataset:
            self._log_dataset(run_id, *entry.dataset)
        self.client.set_terminated(run_id, end_time=entry.end)
        self.client.set_tag(run_id, DIGEST_TAG, entry.digest)

    def _log(self, entry: Entry, run_id: str) -> None:
        from mlflow.entities import Param

        metrics = [_metric(*item) for item in entry.metrics]
        params = [Param(name, value) for name, value in entry.params.items()]
        for start in range(0, max(1, len(metrics)), _METRICS_PER_BATCH):
            self.client.log_batch(
                run_id,
                metrics=metrics[start : start + _METRICS_PER_BATCH],
                params=params[:_PARAMS_PER_BATCH] if start == 0 else (),
            )
        for start in range(_PARAMS_PER_BATCH, len(params), _PARAMS_PER_BATCH):
            self.client.log_batch(run_id, params=params[start : start + _PARAMS_PER_BATCH])

    def _log_dataset(self, run_id: str, name: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(name=name, digest=digest, source_type="dvc", source=f'{{"stage": "{name}"}}')
        tags = [InputTag("mlflow.data.context", "training")]
        self.client.log_inputs(run_id, datasets=[DatasetInput(dataset, tags)])

    def _copy_artifacts(self, entry: Entry, run_id: str) -> None:
        for name, path in entry.artifacts.items():
            if self.local:
                target = self.artifact_root / entry.experiment / run_id / "artifacts" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            else:
                parent = str(Path(name).parent)
                self.client.log_artifact(run_id, str(path), artifact_path=None if parent == "." else parent)


def _metric(name: str, value: float, timestamp: int, step: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(key=name, value=value, timestamp=timestamp, step=step)
