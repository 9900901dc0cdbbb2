"""What is there of every dataset, what is missing, where to get it, and what to type next."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from probmetric.data.manifest import MANIFEST, SUMMARY
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY, list_datasets
from probmetric.data.sources._base import Source


@dataclass(frozen=True)
class DatasetStatus:
    """One row of `probmetric data status`.

    Attributes:
        name: the dataset.
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
    state: str
    present: tuple[str, ...]
    missing: tuple[str, ...]
    size: str
    where: str
    images: int
    next_command: str


def data_status(
    raw: str | Path = "data/raw", prepared: str | Path = "data/prepared", names: list[str] | None = None
) -> list[DatasetStatus]:
    """State of every dataset (or of `names`); nothing is unpacked or hashed.

    Args:
        raw: folder with the user's archives and extracted folders.
        prepared: folder with the prepared datasets.
        names: datasets to look at.
    """
    return [_status(name, Path(raw), Path(prepared)) for name in names or list_datasets()]


def format_status(rows: list[DatasetStatus]) -> str:
    """The rows as text for a terminal."""
    lines = []
    for row in rows:
        images = f"{row.images:,} images" if row.images else ""
        lines.append(f"{row.name:<14} {row.state:<11} {images:<15} -> {row.next_command}")
        if row.present:
            lines.append(f"{'':<14} found    {', '.join(row.present)}")
        if row.missing:
            lines.append(f"{'':<14} needs    {', '.join(row.missing)}{f'  ({row.size})' if row.size else ''}")
            lines.append(f"{'':<14} source   {row.where}")
    return "\n".join(lines)


def _status(name: str, raw: Path, prepared: Path) -> DatasetStatus:
    source = REGISTRY.get(name)
    assert isinstance(source, type)
    assert issubclass(source, Source)
    files = RawFiles(name, raw, prepared, homes=source.homes)
    options = [[(need, _found(files, need)) for need in needs] for needs in source.alternatives()]
    best = max(options, key=lambda needs: sum(bool(found) for _, found in needs) / len(needs), default=[])
    missing = tuple(need.replace("|", " | ") for need, found in best if not found)
    present = tuple(found for _, found in best if found)
    size = ", ".join(file.size for file in source.files if file.size)
    images = int(source.counts.get("images", source.counts.get("train+val", 0) + source.counts.get("test", 0)))
    if (prepared / name / MANIFEST).is_file():
        summary = prepared / name / SUMMARY
        images = json.loads(summary.read_text(encoding="utf-8"))["images"] if summary.is_file() else images
        return DatasetStatus(
            name, "prepared", present, (), size, source.where, images, f"probmetric doctor {prepared / name}"
        )
    command = f"dvc repro prepare@{name}"
    if not best:
        return DatasetStatus(name, "embedded", (), (), size, source.where, images, command)
    if not missing:
        return DatasetStatus(name, "ready", present, (), size, source.where, images, command)
    todo = f"put {missing[0].split(' | ')[0]}{' ...' if missing[1:] else ''} into {raw / name}, then {command}"
    state = "incomplete" if present else "missing"
    return DatasetStatus(name, state, present, missing, size, source.where, images, todo)


def _found(files: RawFiles, need: str) -> str:
    """Name of the file or folder that satisfies `need` (`a|b`: either), "" if there is none."""
    for name in need.split("|"):
        if files.files(name) or files.look([name]):
            return name
    return ""
