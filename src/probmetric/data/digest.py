"""The `digest` file of a prepared folder: `sha256sum` lines, so `sha256sum -c digest` checks it too."""

from __future__ import annotations

from pathlib import Path

from probmetric.data.manifest import DIGEST, IMAGES, MANIFEST, DataError, load_metadata, rebuild_advice
from probmetric.io import FileError, read_text, sha256_file, write_text

QUICK_LIMIT = 64 * 2**20


def write_digest(folder: str | Path, names: list[str] | None = None, known: dict[str, str] | None = None) -> None:
    """Write the digest of a prepared folder.

    Args:
        folder: the prepared folder.
        names: files to list, relative to the folder. None: the manifest and the pixels it names; if the folder has a
            digest that passes the quick check, the same text is written again without reading the pixels.
        known: digests that need not be computed again.
    """
    folder, known = Path(folder), dict(known or {})
    if names is None:
        names = [MANIFEST, _images_name(folder)]
        if (folder / DIGEST).is_file():
            verify_digest(folder)
            known = read_digest(folder)
    lines = [f"{known.get(name) or sha256_file(folder / name)}  {name}\n" for name in names]
    write_text(folder / DIGEST, "".join(lines))


def _images_name(folder: Path) -> str:
    owner = load_metadata(folder).get("images", ".")
    return IMAGES if owner == "." else f"{owner}/{IMAGES}"


def read_digest(folder: str | Path) -> dict[str, str]:
    """File name relative to the folder -> SHA-256."""
    path = Path(folder) / DIGEST
    try:
        text = read_text(path, rebuild_advice(Path(folder)))
    except FileError as error:
        raise DataError(str(error)) from error
    try:
        pairs = [line.split("  ", 1) for line in text.splitlines()]
        known = {name: value for value, name in pairs}
    except ValueError as error:
        raise DataError(f"{path} is not in `sha256sum` format; {rebuild_advice(Path(folder))}.") from error
    if MANIFEST not in known or not any(Path(name).name == IMAGES for name in known):
        raise DataError(f"{path} does not list {MANIFEST} and {IMAGES}; {rebuild_advice(Path(folder))}.")
    return known


def verify_digest(folder: str | Path, *, quick: bool = True) -> None:
    """Check that the files of a prepared folder are the ones that were prepared.

    Args:
        folder: the prepared folder.
        quick: hash the manifest, and the pixels only up to 64 MiB; larger files are checked by size, which is what
            a training step can afford. False hashes everything.

    Raises:
        DataError: a file is missing, truncated or changed; names the file and the fix.
    """
    folder = Path(folder)
    for name, expected in read_digest(folder).items():
        path = folder / name
        owner = path.parent
        if not path.is_file():
            raise DataError(f"{path} is missing, but {folder / DIGEST} lists it; {rebuild_advice(owner)}.")
        if path.name == IMAGES:
            _check_size(folder, path)
        if quick and path.stat().st_size > QUICK_LIMIT and path.name != MANIFEST:
            continue
        actual = sha256_file(path)
        if actual != expected:
            raise DataError(
                f"{path} was changed after it was prepared: its SHA-256 is {actual[:12]}..., {folder / DIGEST} says "
                f"{expected[:12]}...; {rebuild_advice(owner)}."
            )


def _check_size(folder: Path, path: Path) -> None:
    from probmetric.data.store import stored_bytes

    expected, actual = stored_bytes(folder), path.stat().st_size
    if actual != expected:
        state = "truncated" if actual < expected else "too long"
        raise DataError(
            f"{path} is {state}: {actual:,} bytes, the manifest describes {expected:,}; {rebuild_advice(path.parent)}."
        )
