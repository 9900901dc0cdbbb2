"""For a process that asks one question: timm without the architectures, and the torchvision, that a model does not use.

`import timm` loads some 200 architectures, torchvision and PyTorch's compiler, which takes several times as long as
the search of one image. Here only the modules of the architectures asked for are loaded: the packages above them are
put into `sys.modules` without running their `__init__`. Afterwards they are taken out again, so that a later
`import timm` is the ordinary one. Where anything of this fails, timm is imported as always.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probmetric.serving._record import ModelRecord

BARE = ("torchvision", "torchvision.ops", "timm", "timm.models", "timm.data")
ABSENT = ("torchvision.models", "huggingface_hub")  # timm does without them, and says so only where they are needed


def tags_of(record: ModelRecord) -> set[str]:
    """Tags of the timm backbones a model is made of; none where somebody's own components are, which may need more."""
    chosen = [member.settings.backbone for member in record.members]
    if record.plugins or {backbone.name for backbone in chosen} != {"timm"}:
        return set()
    return {str(backbone.options["tag"]) for backbone in chosen if "tag" in backbone.options}


@contextlib.contextmanager
def timm_alone(tags: Iterable[str]) -> Iterator[None]:
    """Within, `timm.create_model` and `timm.is_model` know the architectures of these `tags`, and no others."""
    roots = {name.partition(".")[0] for name in (*BARE, *ABSENT)}
    wanted = {tag.partition(".")[0] for tag in tags}
    if not wanted or roots & set(sys.modules):
        yield
        return
    if not _loaded(wanted):
        _forget(roots)
        yield
        return
    try:
        yield
    finally:
        _forget(roots)


def _loaded(architectures: Iterable[str]) -> bool:
    try:
        _load(architectures)
    except Exception:  # another version of timm, an unknown architecture: the ordinary import says what is wrong
        return False
    return True


def _load(architectures: Iterable[str]) -> None:
    for name in ABSENT:
        sys.modules[name] = None  # type: ignore[assignment]
    packages = {name: _bare(name) for name in BARE}
    timm, models = packages["timm"], packages["timm.models"]
    timm.__dict__["__version__"] = importlib.import_module("timm.version").__version__
    constants = vars(importlib.import_module("timm.data.constants"))
    vars(packages["timm.data"]).update({name: value for name, value in constants.items() if name.isupper()})
    for module in {_defining(name, Path(models.__path__[0])) for name in architectures}:
        importlib.import_module(f"timm.models.{module}")
    factory, registry = (importlib.import_module(f"timm.models.{name}") for name in ("_factory", "_registry"))
    vars(timm).update(create_model=factory.create_model, is_model=registry.is_model)


def _bare(name: str) -> ModuleType:
    """The package without what its `__init__` would define."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(name)
    package = ModuleType(name)
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations)
    sys.modules[name] = package
    return package


def _defining(architecture: str, folder: Path) -> str:
    """Name of the module of timm that defines an architecture."""
    line = f"\ndef {architecture}(".encode()
    return next(path.stem for path in sorted(folder.glob("*.py")) if line in path.read_bytes())


def _forget(roots: set[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
        del sys.modules[name]
