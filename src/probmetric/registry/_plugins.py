"""Components of the user's own modules and of installed packages.

    plugins: [my_package]                       params.yaml: a module or package of the project's folder, or installed
    probmetric.load_plugins(["my_package"])     the same in the library
    [project.entry-points."probmetric.components"]
    mylab = "mylab.components"                  pyproject.toml of an installed package: known wherever it is installed

Of a package, every module is imported whose name does not start with an underscore. What they register is kept in
state/components/ until a source file of the package changes, so that configuration is checked without importing them.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probmetric import __version__
from probmetric.errors import ProbMetricError
from probmetric.registry import _catalogue
from probmetric.registry._entries import Entry
from probmetric.registry._kinds import all_registries, registry_of

GROUP = "probmetric.components"
_LOADED: set[str] = set()


class PluginError(ProbMetricError, ValueError):
    """A plugin cannot be found or imported."""


def load_plugins(names: Iterable[str] = ()) -> None:
    """Make known the components of the modules or packages `names`, and those installed packages announce.

    Loading twice does nothing. A module is looked for among the installed ones and in the working directory.

    Raises:
        PluginError: no such module, or it cannot be imported.
        RegistrationError: two components have one name; both modules are named.
    """
    discover()
    for name in names:
        _load(name)


def discover() -> None:
    """Make known the components that installed packages announce by entry points; once a process."""
    if GROUP in _LOADED:
        return
    _LOADED.add(GROUP)
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            _load(point.value.partition(":")[0])
        except ProbMetricError as error:
            _LOADED.discard(GROUP)
            owner = point.dist.name if point.dist else "an installed package"
            raise PluginError(f"{owner} announces components that cannot be had; mend or remove it. {error}") from error


def _load(name: str) -> None:
    if name in _LOADED:
        return
    if not name.startswith("probmetric.") and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    digest = _digest(name)
    label = f"plugin-{name}"
    for component in _catalogue.found(label, digest) or _imported(name, label, digest):
        registry_of(component["kind"]).adopt(component["name"], Entry.of(component))
    _LOADED.add(name)


def _digest(name: str) -> str:
    """Digest of the sources of the top-level package of `name`, and of what its components may inherit from."""
    top = name.partition(".")[0]
    spec = importlib.util.find_spec(top) if all(part.isidentifier() for part in name.split(".")) else None
    if spec is None:
        raise PluginError(
            f"plugin {name!r} is not installed and {Path.cwd()} holds no {top}.py or {top}/; write the name of a "
            "module or package, such as my_package or my_package.losses."
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files += [Path(spec.origin)] if not folders and spec.origin else []
    shared = "-".join(registry.shared_digest for registry in all_registries())
    return f"{__version__}-{shared}-{_catalogue.source_digest(files)}"


def _imported(name: str, label: str, digest: str) -> list[dict[str, Any]]:
    """Import the plugin; what it registered, as JSON values."""
    import_plugin(name)
    top = name.partition(".")[0]
    found = [
        {"kind": registry.kind, "name": component} | entry.plain()
        for registry in all_registries()
        for component, entry in registry.foreign_entries().items()
        if entry.module.partition(".")[0] == top
    ]
    _catalogue.keep(label, digest, found)
    return found


def import_plugin(name: str) -> None:
    """Import module `name` or, of a package, every module whose name does not start with an underscore.

    Raises:
        PluginError: a module cannot be imported; the message ends with its own.
    """
    try:
        module = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            if not any(part.startswith("_") for part in found.name.removeprefix(f"{name}.").split(".")):
                importlib.import_module(found.name)
    except ProbMetricError:
        raise
    except Exception as error:
        raise PluginError(f"plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error
