"""Find the prepared datasets that params.yaml declares, by name: the source and options of each, the DVC stage that
makes it, and which of its files are there.

    glyphs  digits          `datasets`: prepared by every `dvc repro`, stage prepare@glyphs
    cub  cub-vmf            `data.on_request`: prepared when an experiment names them, or by
                            `dvc repro data/dvc.yaml:prepare@cub-vmf`
    cub-vmf+nearest0.2      label noise on any of these, stage noise@cub-vmf-nearest0.2 of the same file
    cub-vmf+split1          the classes split in another way, with or without label noise: made from these datasets when
                            a run needs it; it has no DVC stage and is not declared
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from probmetric.config import ConfigError, DataSource, Params, load
from probmetric.data import add_noise, prepare_dataset, split_classes, verify_digest
from probmetric.data.manifest import FORMAT, MANIFEST, SUMMARY, DataError, read_summary, write_digest
from probmetric.data.prepare import plugin_code
from probmetric.data.raw import RawFiles, raw_content
from probmetric.data.sources import REGISTRY, list_datasets
from probmetric.data.status import DatasetStatus, dataset_status
from probmetric.data.variants import same_images
from probmetric.errors import nearest
from probmetric.io import FileError, alone, digest_of, write_text
from probmetric.process import call
from probmetric.registry import Option
from probmetric.runs.names import LabelNoise, RunKey, class_split, data_name, split_data_name, without_split
from probmetric.runs.source import LINKS, is_own

ON_REQUEST = "data/dvc.yaml"
PARAMS = Path("params.yaml")
DIGESTS = Path("state/digests")


def dataset_names(params: Params) -> list[str]:
    """Return every declared dataset, without label noise."""
    return [*params.datasets, *params.data.on_request]


def data_source(params: Params, name: str) -> DataSource:
    """Return source, options and archives' folder of dataset `name`; a registered source needs no declaration.

    Raises:
        FileError: no dataset has that name; the message suggests the nearest.
    """
    name = without_split(name)
    if name in params.data.on_request:
        return params.data.on_request[name]
    if name not in list_datasets():
        names = {*dataset_names(params), *list_datasets()}
        raise FileError(f"unknown dataset {name!r}: {nearest(name, names)}")
    return DataSource(source=name, options=params.data.options.get(name, {}))


def strangers(params: Params, dataset: str) -> tuple[str, ...]:
    """Return the OOD sets declared for a dataset, else those declared for its source."""
    clean = without_split(split_data_name(dataset)[0])
    return params.ood.get(clean, params.ood.get(data_source(params, clean).source, ()))


def check_declared(params: Params, dataset: str, noise: float) -> None:
    """Raise `ConfigError`, which says what to declare, unless `dataset` with `noise` is in params.yaml."""
    name = data_name(dataset, noise)
    split_name, label_noise = split_data_name(name)
    clean = without_split(split_name)
    if clean not in dataset_names(params):
        hint = "add it to data.on_request." if clean in list_datasets() else nearest(clean, dataset_names(params))
        raise ConfigError(f"dataset {clean!r} is not declared in params.yaml: {hint}")
    if "+" in dataset and RunKey.parse(f"{dataset}/method/seed0").noise:
        raise ConfigError(f"datasets: write {dataset!r} as dataset {clean!r} with `noise: [{label_noise[5:]}]`.")
    if dataset.count("+split") + dataset.count("+fold") > 1:
        raise ConfigError(
            f"dataset {dataset!r}: classes are split once; name {clean!r} where there are splits or folds."
        )
    if name != (written := "+".join(filter(None, (split_name, label_noise)))):
        raise ConfigError(f"dataset {dataset!r} is written {written!r}.")
    source = data_source(params, clean)
    if class_split(name) and REGISTRY.holds(source.source, "closed_set", source.options):
        raise ConfigError(
            f"dataset {clean!r} tests on its training classes; they cannot be split: remove `splits` or `folds`."
        )
    noisy = (*params.noise.datasets, *params.noise.on_request)
    if label_noise and (clean not in noisy or label_noise not in params.noise.variants):
        where = "noise.datasets" if clean in params.datasets else "noise.on_request"
        raise ConfigError(
            f"dataset {name!r} is not declared in params.yaml: add {clean!r} to {where} and {label_noise!r} to "
            f"noise.variants (now {', '.join(noisy)} x {', '.join(params.noise.variants)})."
        )


def stage(params: Params, name: str) -> str:
    """Return the DVC stage that makes prepared dataset `name` (`cub-vmf`, `glyphs+noise0.2`)."""
    dataset, noise = split_data_name(name)
    address = f"noise@{dataset}-{noise}" if noise else f"prepare@{dataset}"
    return address if dataset in params.datasets else f"{ON_REQUEST}:{address}"


def ensure(params: Params, name: str) -> None:
    """Bring prepared dataset `name` up to date: through DVC, unless `params` differ from params.yaml.

    DVC reads params.yaml. It cannot know what `--config` changed about data, nor where a plugin's source is defined.
    A project without stages for the dataset (`planning.own_data`) does not use DVC.

    Inside a DVC stage the datasets of `datasets` are up to date already (DVC locks them meanwhile): only the digest is
    written again. Datasets prepared on request are no dependency of that stage, so DVC can make them.

    Snakemake removes the digest, its job's output, before the job; the digest of unchanged data is restored.

    Raises:
        FileError: DVC could not prepare it; its own message is on standard error.
    """
    prepared, parts = Path(params.data.prepared), name.split("+")
    _restore(prepared / name / "digest", DIGESTS / name)
    _bring_up_to_date(params, name)
    for each in ("+".join(parts[: number + 1]) for number in range(len(parts))):  # also of a variant's dataset
        if (digest := prepared / each / "digest").exists():
            write_text(DIGESTS / each, digest.read_text(encoding="utf-8"))


def _restore(digest: Path, copy: Path) -> None:
    """Write a lost digest again from its copy, if the copy fits the files beside it."""
    if digest.exists() or not copy.exists() or not digest.with_name(MANIFEST).exists():
        return
    write_text(digest, copy.read_text(encoding="utf-8"))
    try:
        verify_digest(digest.parent)
    except FileError:
        digest.unlink()


def _bring_up_to_date(params: Params, name: str) -> None:
    if class_split(name):
        _bring_up_to_date(params, without_split(split_data_name(name)[0]))
        _make(params, name)
        return
    of_plugin = not is_own(REGISTRY.module(data_source(params, split_data_name(name)[0]).source))
    if not Path(ON_REQUEST).exists() or not _as_in_file(params) or of_plugin:
        _make(params, name)
        return
    clean = split_data_name(name)[0]
    if "DVC_STAGE" in os.environ and clean in params.datasets:
        write_digest(Path(params.data.prepared) / name)
        return
    # DVC notices other options, but not changes of the user's own files
    again = [(stage(params, clean), True)] if outdated(params, clean) else []
    for address, force in [*again, (stage(params, name), False)]:
        if repro(address, force=force):
            raise FileError(
                f"`dvc repro {address}` failed; its message is above. If it names a lock to be deleted, a process was "
                "killed: delete it and run the same command again."
            )


def repro(address: str, *, force: bool = False) -> int:
    """Run `dvc repro address` in the working folder, one process at a time; return its exit status.

    Args:
        address: a stage, such as `data/dvc.yaml:prepare@cub`.
        force: run the stage even if DVC considers it up to date.
    """
    with alone(Path(".dvc/tmp/probmetric"), "prepares data here"):
        options = ["--force", "--single-item"] if force else []
        return call(["dvc", "repro", *options, address])


def _as_in_file(params: Params) -> bool:
    """Return whether params.yaml says the same about data."""
    written = load(Params, PARAMS) if PARAMS.exists() else params
    return all(getattr(params, part) == getattr(written, part) for part in ("data", "datasets", "noise"))


def _make(params: Params, name: str) -> None:
    """Prepare a dataset, or a variant of it, without DVC, unless it is complete and up to date."""
    folder, (before, _, variant) = Path(params.data.prepared), name.rpartition("+")
    if (folder / name / "digest").exists() and not outdated(params, name):
        verify_digest(folder / name)
        return
    if not before:
        prepare(params, name, progress=True)
        return
    _make(params, before)
    if split := class_split(f"+{variant}"):
        split_classes(folder / before, folder / name, number=split, validation_only=variant.startswith("fold"))
    else:
        noise = LabelNoise.parse(variant)
        add_noise(folder / before, folder / name, rate=noise.rate, kind=noise.kind, seed=noise.seed)


def outdated(params: Params, name: str) -> str:
    """Say what has changed since dataset `name` was prepared: source, seed, options, or the user's own files and code.

    "" if it is unchanged, if it is not prepared, or if a change cannot be seen because its raw files are elsewhere.
    """
    before, clean = name.rpartition("+")[0], name.partition("+")[0]
    folder = Path(params.data.prepared) / name
    if not (folder / SUMMARY).exists():  # the digest is not read: Snakemake deletes it before the job
        return ""
    try:
        summary = read_summary(folder)
    except FileError as error:
        return str(error)
    if before and (changed := outdated(params, before)):
        return changed
    if before and not same_images(summary, read_summary(folder.with_name(before))):
        return f"dataset {before} was prepared again"
    if class_split(name) != summary.get("class_split", 0):
        return "its classes are split in another way than its name says"
    return _differing(params, clean, folder.with_name(clean), summary)


def made_of(params: Params, name: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ingredients of dataset `name` as of now; if they change, the dataset is prepared again.

    Args:
        params: params.yaml.
        name: the prepared dataset, label noise included.
        before: the earlier result; its `raw_content` is kept if the raw files are not on this machine.
    """
    clean, noise = split_data_name(name)
    declared = data_source(params, clean)
    return {
        "source": declared.source,
        "options": REGISTRY.changed_options(declared.source, declared.options),
        "raw": declared.raw or params.data.raw,
        "prepared": params.data.prepared,
        "seed": params.data.seed,
        "noise": noise,
        "split": class_split(name),
        "format": FORMAT,
        "code": plugin_code(declared.source),
        "raw_content": _raw_content(params, clean) or before.get("raw_content", ""),
    }


def _raw_content(params: Params, name: str) -> str:
    """Return the digest of the user's own raw files; empty if they are elsewhere or do not exist."""
    try:
        return _content(params, data_source(params, name), Path(params.data.prepared) / name)
    except DataError:
        return ""  # the job that prepares the data raises the error


def _content(params: Params, declared: DataSource, folder: Path) -> str:
    """Return the digest of the raw files from which the dataset in `folder` is made; empty if there are none.

    Raises:
        DataError: the files cannot be read.
    """
    raw = params.data.raw_of(declared)
    if not raw.exists():
        return ""
    source = REGISTRY.create(declared.source, **declared.options)
    root, names = source.raw_files(RawFiles(declared.source, raw, folder, homes=source.homes))
    return raw_content(root, names, folder)


def _differing(params: Params, name: str, folder: Path, made: dict[str, Any]) -> str:
    """Say how the dataset's declaration or raw files differ from those when it was prepared, which `made` holds."""
    declared = data_source(params, name)
    if made.get("format", FORMAT) != FORMAT:
        return f"the format of prepared data {made['format']} -> {FORMAT}"
    had = {name: made[name] for name in ("source", "seed") if name in made} | made.get("options", {})
    has = {"source": declared.source, "seed": params.data.seed} | declared.options
    ignored = set() if "left_out" in made else {"on_error"}  # `on_error` decides about files that cannot be read
    if changed := _changed(had, has, REGISTRY.options(declared.source), ignored):
        return changed
    code = plugin_code(declared.source) if "code" in made else {}
    modules = [module for module in sorted(code) if made["code"].get(module) != code[module]]
    if modules:
        return f"{', '.join([module for module in modules if module != LINKS] or modules)} changed"
    raw = params.data.raw_of(declared)
    if "raw_content" not in made or not raw.exists():
        return ""
    try:
        same = _content(params, declared, folder) == made["raw_content"]
    except DataError as error:
        return str(error)
    return "" if same else f"the content of {raw} has changed"


def _changed(had: Mapping[str, Any], has: Mapping[str, Any], options: Mapping[str, Option], ignored: Set[str]) -> str:
    """Name the first value that differs, as `shorter_side 256 -> 128`; missing `known` options have their defaults."""
    defaults = {"source": has["source"]} | {name: option.default for name, option in options.items()}
    for name in sorted({*had, *has} - ignored):
        before, now = (values.get(name, defaults.get(name)) for values in (had, has))
        if digest_of(before) != digest_of(now):  # a tuple is a list in JSON
            return f"{name} {before} -> {now}"
    return ""


def prepare(params: Params, name: str, *, output: Path | None = None, raw: Path | None = None, progress: bool) -> Path:
    """Prepare dataset `name` as params.yaml describes it; return the prepared folder.

    Raises:
        FileError: `name` is a variant, which is made from another dataset, or no dataset has that name.
    """
    if "+" in name:
        raise FileError(f"{name} is made of a prepared dataset: `probmetric data ensure {name}` makes both.")
    declared, folders = data_source(params, name), params.data
    return prepare_dataset(
        declared.source,
        output or Path(folders.prepared) / name,
        raw=raw or folders.raw_of(declared),
        seed=folders.seed,
        progress=progress,
        **declared.options,
    )


def absent(params: Params, names: Iterable[str]) -> list[DatasetStatus]:
    """Return those of the datasets `names` that are not prepared and cannot be, because files are missing."""
    folder = Path(params.data.prepared)
    wanted = {name.partition("+")[0] for name in names if not (folder / name / "digest").exists()}
    return [row for row in status(params, sorted(wanted)) if row.missing] if wanted else []


def missing_files(params: Params, name: str) -> str:
    """Name the files that dataset `name` lacks for preparation; "" if it can be prepared, or is."""
    return ", ".join(file for row in absent(params, [name]) for file in row.missing)


def status(params: Params, names: Iterable[str] | None = None) -> list[DatasetStatus]:
    """Return the state of every declared dataset (or of `names`), and the next command."""
    rows = []
    for name in dataset_names(params) if names is None else names:
        declared = data_source(params, name)
        raw = params.data.raw_of(declared)
        subset = bool(declared.options.get("subset", False))
        rows.append(dataset_status(name, declared.source, raw, Path(params.data.prepared), subset=subset))
    return rows
