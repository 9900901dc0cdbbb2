"""Runs of one method -> a parent run above them, with their means.

MLflow's run table folds runs below the run that their tag `mlflow.parentRunId` names. The parent here is a row of the
report's tables: a method with its overrides at one noise rate of a dataset; its children are the seeds. Its metrics are
the means over them, of what every one of them has.

A run has one parent, reports share runs: so a parent belongs to no report. It stands above all finished runs of its
method in the store, has the tags of all reports that any of them belongs to, and is the same whatever report was
tracked first. A report with fewer seeds than the store has other means in its own tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from probmetric.io import digest_of
from probmetric.runs.names import RunKey
from probmetric.tracking._entries import Entry, legal_texts

PARENT_TAG, KIND_TAG = "probmetric.parent", "probmetric.kind"
CHILD_OF = "mlflow.parentRunId"
_VIEW = 1  # raised when other things are written of the same runs


@dataclass(frozen=True)
class Child:
    """A run in the store.

    Attributes:
        run: `glyphs/arcface/seed0`.
        run_id: MLflow's.
        digest: identity of its files.
        made: the earlier code that made it, if any.
        members: tags of the reports it belongs to.
        parent: MLflow id of its parent; empty without one.
    """

    run: str
    run_id: str
    digest: str
    made: str
    members: frozenset[str]
    parent: str


@dataclass(frozen=True)
class Family:
    """Runs that differ in their seed alone.

    Attributes:
        name: `glyphs+noise0.2/arcface+margin=0.3`.
        key: of one of them.
        children: in the order of their seeds.
    """

    name: str
    key: RunKey
    children: tuple[Child, ...]

    @property
    def digest(self) -> str:
        """Identity of what the parent shows."""
        shown = [(child.run, child.digest, sorted(child.members)) for child in self.children]
        return digest_of({"view": _VIEW, "children": shown})

    def entry(self, times: tuple[int, int], metrics: Mapping[str, float]) -> Entry:
        """The parent.

        Args:
            times: milliseconds since the epoch of the first start and the last end among the children.
            metrics: name -> mean over them.
        """
        key, seeds = self.key, ", ".join(str(RunKey.parse(child.run).seed) for child in self.children)
        about = {"dataset": key.dataset, "noise": f"{key.noise:g}", "method": key.method, "made": key.made}
        count = f"{len(self.children)} seed{'s' if len(self.children) > 1 else ''}"
        return Entry(
            experiment=key.dataset,
            run=self.name,
            name=key.variant + (f" noise{key.noise:g}" if key.noise else "") + f" ({count})",
            digest=self.digest,
            start=times[0],
            end=times[1],
            params=legal_texts({"noise": str(key.noise), "overrides": key.overrides, "seeds": seeds}),
            tags=legal_texts(
                {f"probmetric.{name}": value for name, value in about.items()}
                | dict.fromkeys(sorted(frozenset().union(*(child.members for child in self.children))), "true")
                | {
                    KIND_TAG: "method",
                    "mlflow.source.name": "probmetric",
                    "mlflow.note.content": f"Means over {count}: {seeds}. The runs are folded below.",
                }
            ),
            metrics=[(name, value, times[1], 0) for name, value in sorted(metrics.items())],
            found_by=PARENT_TAG,
        )


def families(children: Iterable[Child]) -> list[Family]:
    """Runs by what they have in common but the seed."""

    def identity(child: Child) -> tuple[str, str, str]:
        key = RunKey.parse(child.run)
        return key.data, key.variant, child.made

    ordered = sorted(children, key=lambda child: (identity(child), RunKey.parse(child.run).seed, child.run_id))
    return [_family(tuple(found)) for _identity, found in groupby(ordered, identity)]


def _family(children: Sequence[Child]) -> Family:
    key = replace(RunKey.parse(children[0].run), made=children[0].made)
    return Family(f"{key.data}/{key.variant}", key, tuple(children))
