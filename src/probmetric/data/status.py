"""Report for every dataset which files are there, which are missing, where to get them, and what to type next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from probmetric.data.manifest import MANIFEST, SUMMARY
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY, Source
from probmetric.io import remembered_json


@dataclass(frozen=True)
class DatasetStatus:
    """One row of `probmetric data status`.

    Attributes:
        name: the dataset.
        source: name of the source that reads it.
        state: `prepared`; `ready` to be prepared; `incomplete`, some files are there; `missing`; `embedded`, needs no
            files.
        present: raw files and folders found.
        missing: files still needed (`a | b`: a or b), for the layout that is nearest to complete.
        size: size of the published files, in words.
        where: where people usually get it.
        images: number of images, prepared or published; 0 if unknown.
        next_command: what to type, or what to do.
    """

    name: str
    source: str
    state: str
    present: tuple[str, ...]
    missing: tuple[str, ...]
    size: str
    where: str
    images: int
    next_command: str


def format_status(rows: list[DatasetStatus]) -> str:
    """Return the rows as text for a terminal."""
    lines = []
    told: set[tuple[str, tuple[str, ...]]] = set()
    for row in rows:
        images = f"{row.images:,} images" if row.images else ""
        lines.append(f"{row.name:<14} {row.state:<11} {images:<15} -> {row.next_command}")
        if (row.source, row.missing) in told:
            continue
        told.add((row.source, row.missing))
        if row.present:
            lines.append(f"{'':<14} found    {', '.join(row.present)}")
        if row.missing:
            lines.append(f"{'':<14} needs    {', '.join(row.missing)}{f'  ({row.size})' if row.size else ''}")
            lines.append(f"{'':<14} get it   {row.where}")
    return "\n".join(lines)


def dataset_status(name: str, source_name: str, raw: Path, prepared: Path, *, subset: bool = False) -> DatasetStatus:
    """Return the state of one dataset, without unpacking or hashing files.

    Args:
        name: its name, which is also that of its prepared folder.
        source_name: name of the source that reads it.
        raw: folder with the user's archives and extracted folders.
        prepared: folder with the prepared datasets.
        subset: whether a part of the published files is enough.
    """
    source: type[Source] = REGISTRY.get(source_name)  # type: ignore[assignment]
    files = RawFiles(source_name, raw, prepared, homes=source.homes)
    layouts = [{need: _satisfying(files, need) for need in needs} for needs in source.alternatives()]
    best = max(layouts, key=lambda needs: sum(map(bool, needs.values())) / len(needs), default={})
    missing = tuple(need.replace("|", " | ") for need, name in best.items() if not name)
    present = tuple(name for name in best.values() if name)
    needs = [name for need in missing for name in need.split(" | ")]
    size = ", ".join(file.size for file in source.files if file.size and file.name in needs)
    images = int(source.counts.get("images", source.counts.get("training", 0) + source.counts.get("test", 0)))
    state = "embedded" if not best else "ready" if not missing else "incomplete" if present else "missing"
    if subset and present:
        state, missing = "ready", ()
    if source.needs_raw:
        state, missing = ("ready", ()) if raw.exists() else ("missing", (f"{raw}{'' if raw.suffix else '/'}",))
    todo = f"probmetric data ensure {name}"
    if (prepared / name / MANIFEST).is_file():
        summary = remembered_json(prepared / name / SUMMARY)
        counted = summary.get("images") if isinstance(summary, dict) else None
        state, images = ("prepared", counted) if isinstance(counted, int) else ("damaged", images)
        missing, todo = (), f"probmetric doctor {prepared / name}"
    elif missing:
        first, more = missing[0].split(" | ")[0], " ..." if missing[1:] else ""
        place = "" if source.needs_raw else f" into {raw / source_name}"
        todo = f"put {first}{more}{place}, then {todo}"
    return DatasetStatus(name, source_name, state, present, missing, size, source.where, images, todo)


def _satisfying(files: RawFiles, need: str) -> str:
    """Return the name of the file or folder that satisfies `need` (`a|b`: a or b), "" if there is none."""
    return next((name for name in need.split("|") if files.files(name) or files.look([name])), "")
