"""Reading CIFAR-10 and CIFAR-100 with torchvision, offline."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources._small import Part, check_pickle, read_offline


def read_cifar(files: RawFiles, archive: RawFile, hundred: bool) -> tuple[tuple[Part, Part], list[str]]:
    """Training and test images (N, 32, 32, 3) uint8 with labels (N,), and the class names."""
    folder = "cifar-100-python" if hundred else "cifar-10-batches-py"
    root = files.find([folder], [archive])
    for path in sorted((root / folder).iterdir()):
        if path.suffix == "" and path.is_file():
            check_pickle(path)
    sets = [read_offline(files, folder, partial(_reader(hundred), root, train)) for train in (True, False)]
    parts = [read_offline(files, folder, partial(_arrays, part)) for part in sets]
    return (parts[0], parts[1]), [str(name) for name in sets[0].classes]


def _arrays(part: Any) -> Part:
    return np.asarray(part.data), np.asarray(part.targets)


def _reader(hundred: bool) -> Any:
    """Torchvision's class without its MD5 check: archives are checked as a whole, and a subset may be accepted."""
    from torchvision.datasets import CIFAR10, CIFAR100

    base: Any = CIFAR100 if hundred else CIFAR10

    class Offline(base):  # type: ignore[misc]
        meta: ClassVar[dict[str, Any]] = {**base.meta, "md5": None}

        def __init__(self, root: Path, train: bool) -> None:
            super().__init__(root, train=train, download=False)

        def _check_integrity(self) -> bool:
            return True

    return Offline
