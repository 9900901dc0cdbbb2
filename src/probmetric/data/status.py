"""What is there of every dataset, what is missing, where to get it, and what to type next."""

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
        source: the source it is read by.
        state: `prepared`; `ready` to be prepared; `incomplete`, some files are there; `missing`; `embedded`, needs no
            files.
        present: raw files and folders found.
        missing: files still needed (`a | b`: either will do), for the layout that is nearest to complete.
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
    """The rows as text for a terminal."""
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
    """State of one dataset; nothing is unpacked or hashed.

    Args:
        name: its name, as of its prepared folder.
        source_name: the source it is read by.
        raw: folder with the user's archives and extracted folders.
        prepared: folder with the prepared datasets.
        subset: whether a part of the published files will do.
    """
    source = REGISTRY.get(source_name)
    assert isinstance(source, type)
    assert issubclass(source, Source)
    files = RawFiles(source_name, raw, prepared, homes=source.homes)
    options = [[(need, _found(files, need)) for need in needs] for needs in source.alternatives()]
    best = max(options, key=lambda needs: sum(bool(found) for _, found in needs) / len(needs), default=[])
    missing = tuple(need.replace("|", " | ") for need, found in best if not found)
    present = tuple(found for _, found in best if found)
    needs = [name for need, found in best if not found for name in need.split("|")]
    size = ", ".join(file.size for file in source.files if file.size and file.name in needs)
    images = int(source.counts.get("images", source.counts.get("train+val", 0) + source.counts.get("test", 0)))
    state, todo = _state(best), f"probmetric data ensure {name}"
    if subset and present:
        state, missing = "ready", ()
    if source.needs_raw:
        state, missing = ("ready", ()) if raw.exists() else ("missing", (f"{raw}/",))
    if (prepared / name / MANIFEST).is_file():
        counted = _counted(prepared / name)
        images = images if counted is None else counted
        state = "damaged" if counted is None else "prepared"
        missing, todo = (), f"probmetric doctor {prepared / name}"
    elif missing:
        first, more = missing[0].split(" | ")[0], " ..." if missing[1:] else ""
        place = "" if source.needs_raw else f" into {raw / source_name}"
        todo = f"put {first}{more}{place}, then {todo}"
    return DatasetStatus(name, source_name, state, present, missing, size, source.where, images, todo)


def _counted(folder: Path) -> int | None:
    """How many images the summary of a prepared dataset says; None where it is missing or damaged."""
    summary = remembered_json(folder / SUMMARY)
    images = summary.get("images") if isinstance(summary, dict) else None
    return images if isinstance(images, int) else None


def _state(needs: list[tuple[str, str]]) -> str:
    """State of a dataset that is not prepared, from what it needs and what was found of it."""
    found = [bool(name) for _, name in needs]
    if not needs:
        return "embedded"
    return "ready" if all(found) else "incomplete" if any(found) else "missing"


def _found(files: RawFiles, need: str) -> str:
    """Name of the file or folder that satisfies `need` (`a|b`: either), "" if there is none."""
    for name in need.split("|"):
        if files.files(name) or files.look([name]):
            return name
    return ""
