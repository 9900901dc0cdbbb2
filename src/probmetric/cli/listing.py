"""What `probmetric list` prints: the components of a kind, or all about one."""

from __future__ import annotations

from probmetric.errors import nearest
from probmetric.metrics import METRICS, direction, find, heading
from probmetric.metrics import REGISTRY as OWN_METRICS
from probmetric.registry import REQUIRED, Option, UnknownNameError, registry_of

LISTED = {
    "losses": "loss",
    "uncertainties": "uncertainty",
    "backbones": "backbone",
    "views": "view",
    "metrics": "metric",
    "scores": "score",
    "figures": "figure",
    "sources": "dataset",
}


def listing(kinds: str, name: str | None = None) -> str:
    """Return text about the components of a kind (`losses`, `views`, ...), or about the one called `name`.

    Raises:
        UnknownNameError: no such kind or component; names the nearest.
    """
    if kinds not in LISTED:
        raise UnknownNameError(f"unknown kind of component {kinds!r}: {nearest(kinds, LISTED)}")
    if name is not None:
        return _about(LISTED[kinds], name)
    if kinds == "metrics":
        OWN_METRICS.names()
        return _rows(_metrics())
    registry = registry_of(LISTED[kinds])
    return _rows({name: registry.entry(name).doc for name in registry.names()})


def _metrics() -> dict[str, str]:
    definitions = {f"{group}/{metric.name}": metric.definition for metric in METRICS for group in metric.groups}
    for name, entry in OWN_METRICS.foreign_entries().items():
        full = f"{entry.constants['group']}/{name}"
        definitions[full] = f"{entry.doc} [{direction(full)}]"
    return definitions


def _about(kind: str, name: str) -> str:
    if kind == "metric":
        return _about_metric(name)
    registry = registry_of(kind)
    entry = registry.entry(name)
    head = [f"{kind} {name}", f"  {entry.doc}", f"  defined in {entry.module}"]
    told = [f"  {key}: {value}" for key, value in entry.constants.items() if value not in (False, {}, [])]
    options = {option.name: _option(option) for option in entry.options.values()}
    return "\n".join([*head, *told, "options:", _rows(options, indent="  ")] if options else [*head, *told])


def _about_metric(name: str) -> str:
    record = find(name)
    lines = [f"metric {name}", f"  {heading(name)}", f"  {record.definition}", f"  better: {record.direction}"]
    lines += [f"  unit: {record.unit}"] if record.unit else []
    lines += [f"  source: {record.source}"] if record.source else []
    return "\n".join([*lines, f"  computed in {record.computed}"])


def _option(option: Option) -> str:
    default = "no default" if option.default is REQUIRED else f"{option.default!r}"
    return f"{default}   {option.allowed}"


def _rows(rows: dict[str, str], indent: str = "") -> str:
    width = max(map(len, rows), default=0)
    return "\n".join(f"{indent}{name:<{width}}  {text}".rstrip() for name, text in rows.items())
