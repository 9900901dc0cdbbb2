"""Entries -> one MLflow store: what is there stays, what changed is replaced, what is new is written."""

from __future__ import annotations

import math
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.runs.names import legal_name
from probmetric.tracking._bulk import pack, read_results, read_tags, set_tags, write_runs
from probmetric.tracking._entries import REPORTS, Entry, Pending
from probmetric.tracking._parents import CHILD_OF, PARENT_TAG, Child, families
from probmetric.tracking._store import is_local
from probmetric.tracking._view import keep_views
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
        written = self._write_entries(entries, ids)
        for name, identity in ids.items():
            if name != REPORTS:
                self._keep_parents(name, identity)
                keep_views(self.client, identity)
        if self.local and len(written) >= _RUNS_PER_BATCH:
            pack(self.client)
        return {"written": written, "unchanged": len(entries) - len(written)}

    def _write_entries(self, entries: Sequence[Pending], ids: Mapping[str, str]) -> list[str]:
        """The names of those that were not there; `ids` are MLflow's of the experiments."""
        stored = {name: _stored(self._active_tags(identity), RUN_TAG, LIVE_TAG) for name, identity in ids.items()}
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
                written.append(entry.run)
            if len(new) == _RUNS_PER_BATCH:
                self._create_all(new)
                new = []
        self._create_all(new)
        self._set_tags(self.member, dict.fromkeys(joining, "true"))
        self._leave(old for of_one in stored.values() for olds in of_one.values() for old in olds)
        return written

    def _create_all(self, new: Iterable[tuple[Entry, str, frozenset[str]]]) -> list[str]:
        """Write new runs; returns their ids."""
        if not self.local:
            return [self._create(*item) for item in new]
        found = []
        for entry, experiment_id, members in new:
            run_id = uuid.uuid4().hex
            self._copy_artifacts(entry, run_id)
            found.append((entry, experiment_id, run_id, self._tags(entry, members) | {DIGEST_TAG: entry.digest}))
        write_runs(self.client, found)
        return [run_id for _entry, _experiment, run_id, _tags in found]

    def _keep_parents(self, experiment: str, experiment_id: str) -> None:
        """Every finished run below a parent that shows it as it is; parents of something else go."""
        tags = dict(self._active_tags(experiment_id))
        found = families(_children(tags))
        known = _stored(tags.items(), PARENT_TAG)
        parents = {(old.digest, name): old.run_id for name, olds in known.items() for old in olds}
        new = [family for family in found if (family.digest, family.name) not in parents]
        entries = [family.entry(*self._summary(family.children)) for family in new]
        written = self._create_all((entry, experiment_id, frozenset()) for entry in entries)
        parents |= {(family.digest, family.name): run_id for family, run_id in zip(new, written, strict=True)}
        wanted = {family: parents[family.digest, family.name] for family in found}
        places = {child: parent for family, parent in wanted.items() for child in family.children}
        self._set_tags(CHILD_OF, {child.run_id: up for child, up in places.items() if child.parent != up})
        for old in (old for olds in known.values() for old in olds):
            if old.run_id not in wanted.values():
                self._delete(experiment, old)

    def _summary(self, children: Sequence[Child]) -> tuple[tuple[int, int], dict[str, float]]:
        """First start and last end, and the means of the metrics that all of them have."""
        ids = [child.run_id for child in children]
        results: list[tuple[int, int, dict[str, float]]]
        if self.local:
            results = list(read_results(self.client, ids))
        else:
            runs = [self.client.get_run(run_id) for run_id in ids]
            results = [(run.info.start_time, run.info.end_time, run.data.metrics) for run in runs]
        starts, ends, metrics = zip(*results, strict=True)
        shared = set.intersection(*({name for name in each if not name.startswith("by_epoch/")} for each in metrics))
        means = {name: math.fsum(each[name] for each in metrics) / len(metrics) for name in shared}
        return (min(starts), max(ends)), means

    @staticmethod
    def _tags(entry: Entry, members: Iterable[str]) -> dict[str, str]:
        return entry.tags | entry.weights_tag() | dict.fromkeys(members, "true") | {entry.found_by: entry.run}

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

    def _active_tags(self, experiment_id: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Run id and tags of the runs that are not deleted; of a database only tags of ours."""
        if self.local:
            yield from read_tags(self.client, experiment_id, ("probmetric.", CHILD_OF)).items()
            return
        token = None
        while True:
            page = self.client.search_runs([experiment_id], max_results=1000, page_token=token)
            for run in page:
                yield run.info.run_id, run.data.tags
            token = page.token
            if not token:
                return

    def _set_tags(self, key: str, values: Mapping[str, str]) -> None:
        """Run id -> value of the tag."""
        if self.local:
            set_tags(self.client, key, values)
            return
        for run_id, value in values.items():
            self.client.set_tag(run_id, key, value)

    def _leave(self, others: Iterable[_Stored]) -> None:
        """Runs that no longer belong to the experiment lose its tag."""
        for stored in others:
            if self.member in stored.members:
                self.client.delete_tag(stored.run_id, self.member)

    def _delete(self, experiment: str, stored: _Stored) -> None:
        self.client.delete_run(stored.run_id)
        if self.local:
            shutil.rmtree(self.artifact_root / experiment / stored.run_id, ignore_errors=True)

    def _create(self, entry: Entry, experiment_id: str, members: Iterable[str]) -> str:
        tags = self._tags(entry, members)
        run = self.client.create_run(experiment_id, start_time=entry.start, tags=tags, run_name=entry.name)
        run_id = str(run.info.run_id)
        self._copy_artifacts(entry, run_id)
        self._log(entry, run_id)
        if entry.dataset:
            self._log_dataset(run_id, *entry.dataset)
        self.client.set_terminated(run_id, end_time=entry.end)
        self.client.set_tag(run_id, DIGEST_TAG, entry.digest)
        return run_id

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


def _stored(active: Iterable[tuple[str, Mapping[str, str]]], *name_tags: str) -> dict[str, list[_Stored]]:
    """Name of the run -> what the store holds under it; several after an interruption, or with a live run."""
    found: dict[str, list[_Stored]] = {}
    for run_id, tags in active:
        if name := next((tags[tag] for tag in name_tags if tags.get(tag)), ""):
            found.setdefault(name, []).append(_Stored(run_id, tags.get(DIGEST_TAG, ""), _members(tags)))
    return found


def _children(active: Mapping[str, Mapping[str, str]]) -> list[Child]:
    """The finished runs among those of an MLflow experiment, wherever they are reported."""
    found = []
    for run_id, tags in active.items():
        if RUN_TAG in tags and DIGEST_TAG in tags:
            made, parent = tags.get("probmetric.made", ""), tags.get(CHILD_OF, "")
            found.append(Child(tags[RUN_TAG], run_id, tags[DIGEST_TAG], made, _members(tags), parent))
    return found


def _members(tags: Iterable[str]) -> frozenset[str]:
    return frozenset(tag for tag in tags if tag.startswith(MEMBER_TAG))


def _metric(name: str, value: float, timestamp: int, step: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(key=name, value=value, timestamp=timestamp, step=step)
