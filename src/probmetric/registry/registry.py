"""Register the components of every kind by name, the package's own and those of plugins.

    plugins: [my_package]                       params.yaml: a module or package of the project's folder, or installed
    probmetric.load_plugins(["my_package"])     loads the plugins in the library
    [project.entry-points."probmetric.components"]
    mylab = "mylab.components"                  pyproject.toml of an installed package: known wherever it is installed

All modules of a package are imported, except those whose name starts with an underscore. Their components are stored in
state/components/ until a source file of the package changes, so that configuration is checked without importing them.

Entries of components are stored in the catalogue shipped with the package and, if read later, below state/. An entry is
valid while the source it was read from is unchanged. A component whose file is new or changed is imported once; inside
a project (a folder with params.yaml) its entry is then stored in state/components/.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from probmetric import __version__
from probmetric.errors import ProbMetricError, nearest
from probmetric.io import FileError, remembered_json, write_json
from probmetric.registry.options import (
    Entry,
    Option,
    PluginError,
    RegistrationError,
    UnknownNameError,
    check_options,
    entry_of,
)

SHIPPED = Path(__file__).with_name("catalogue.json")
PROJECT = Path("params.yaml")
KEPT = Path("state/components")
_DIGITS = 16


def source_digest(paths: Iterable[Path]) -> str:
    """Return the digest of the files at `paths`, in their order."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:_DIGITS]


@functools.cache
def _catalogue() -> Mapping[str, Any]:
    kept = remembered_json(SHIPPED)
    return kept if isinstance(kept, dict) else {}


def _shipped(kind: str, name: str, shared: str, source: str) -> Mapping[str, Any] | None:
    """Return the shipped entry of a component, if it was read from sources with the digests `shared` and `source`."""
    section = _catalogue().get(kind, {"shared": "", "components": {}})
    entry = section["components"].get(name)
    return entry if entry and (section["shared"], entry["digest"]) == (shared, source) else None


def _kept(name: str, digest: str) -> Any:
    """Return the entries stored under `name` for sources with `digest`, or None."""
    path = KEPT / f"{name}.json"
    if not PROJECT.is_file() or not path.is_file():
        return None
    note = remembered_json(path)
    return note.get("entries") if isinstance(note, dict) and note.get("digest") == digest else None


def _keep(name: str, digest: str, entries: Any) -> None:
    """Store `entries` under `name` for sources with `digest`; outside a project no file is written."""
    if PROJECT.is_file():
        with contextlib.suppress(FileError):  # a project may be read-only
            write_json(KEPT / f"{name}.json", {"digest": digest, "entries": entries})


def _last_home(kind: str, name: str) -> str:
    """Return the module of the plugin that last held a component of this project; "" if there is none."""
    for path in KEPT.glob("plugin-*.json") if PROJECT.is_file() else ():
        note = remembered_json(path)
        for entry in note["entries"] if isinstance(note, dict) else ():
            if (entry["kind"], entry["name"]) == (kind, name):
                return str(entry["module"])
    return ""


T = TypeVar("T", bound=Callable[..., Any])

PLUGIN_ADVICE = "If it is yours, name its module (`plugins` of params.yaml), or install its package."
# Methods that the base class of a kind leaves open: a component defines at least one of each group.
_OPEN: dict[str, list[tuple[str, ...]]] = {
    "loss": [("Loss.compute", "Loss.logits", "Loss.forward")],
    "uncertainty": [("Uncertainty.represent", "Uncertainty.describe")],
    "view": [("View.evaluation",), ("View.normalise",)],
}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAMED = re.compile(r'^@(?:register\("|score\(.*\)\ndef )([a-z0-9_]+)', re.MULTILINE)


class Registry:
    """Components of one kind: those of the modules of `package`, and those that other modules register.

    `context` names the arguments that the caller supplies when it creates a component (for a loss: `num_classes`,
    `dim`); users do not set them as options. `constants` names the class constants that are known without an import.
    `hint` ends the message about an unknown name.

    A module of the package holds the components that its lines `@register("name")` name or, with `@register` alone, one
    with the module's name; a score has the name of its function.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        context: tuple[str, ...] = (),
        constants: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        self.kind, self.package, self.context, self.constants = kind, package, context, constants
        self.hint = hint
        self._objects: dict[str, Callable[..., Any]] = {}
        self._entries: dict[str, Entry] = {}
        self._foreign: set[str] = set()

    @overload
    def register(self, component: T) -> T: ...

    @overload
    def register(self, component: str | None = None) -> Callable[[T], T]: ...

    def register(self, component: T | str | None = None) -> T | Callable[[T], T]:
        """Register a class or function, as `@register` by the name of its module, or as `@register("name")`.

        Raises:
            RegistrationError: another component has that name, the name is not allowed or differs from the file's, or
                a method is missing.
        """
        if component is None:
            return self.register
        if isinstance(component, str):
            return functools.partial(self._register, component)
        module = component.__module__
        inside = module.removeprefix(f"{self.package}.")
        return self._register(module.rpartition(".")[2] if inside == module else inside.partition(".")[0], component)

    def _register(self, name: str, component: T) -> T:
        if component.__module__.startswith(f"{self.package}."):
            self._check_alone(name, component)
            self._objects[name] = component
            return component
        if not _NAME.fullmatch(name):
            raise RegistrationError(
                f"{component.__module__}: {name!r} cannot name a {self.kind}; use lower-case letters, digits and _, "
                "as in @register('my_name')."
            )
        self._check_alone(name, component)
        entry = entry_of(component, component.__module__, self.context, self.constants)
        self._check_defined(name, component)
        self.adopt(name, entry)
        self._objects[name] = component
        return component

    def _check_alone(self, name: str, component: Callable[..., Any]) -> None:
        """Raise `RegistrationError` if another component of its module has its name; it may be defined again."""
        other = self._objects.get(name)
        if other and other.__module__ == component.__module__ and other.__qualname__ != component.__qualname__:
            raise RegistrationError(
                f"{component.__module__}: {self.kind} {name!r} is registered twice; one module, one name, or give each "
                "a name of its own: @register('...')."
            )

    def _check_defined(self, name: str, component: Callable[..., Any]) -> None:
        """Raise `RegistrationError` if a class lacks a method that its base class leaves open."""
        for group in _OPEN.get(self.kind, ()):
            methods = [qualified.rpartition(".")[2] for qualified in group]
            inherited = [getattr(component, method, None) for method in methods]
            places = [f"{getattr(each, '__module__', '')}:{getattr(each, '__qualname__', '')}" for each in inherited]
            if places == [f"{self.package}._base:{qualified}" for qualified in group]:
                raise RegistrationError(
                    f"{component.__module__}: {self.kind} {name!r} does not define {' or '.join(methods)}, without "
                    "which it does nothing; add the method to its class."
                )

    def adopt(self, name: str, entry: Entry) -> None:
        """Add the entry of a component defined outside the package; the component is imported when it is needed.

        Raises:
            RegistrationError: a component of another module has that name.
        """
        home = self.module(name) if name in self._sources or name in self._foreign else entry.module
        if home != entry.module:
            raise RegistrationError(
                f"{self.kind} {name!r} is registered by {home} and by {entry.module}; give one of them another name."
            )
        self._entries[name] = entry
        self._foreign.add(name)

    @functools.cached_property
    def _folder(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(self.package)
        return Path(next(iter(spec.submodule_search_locations)))

    @functools.cached_property
    def _sources(self) -> dict[str, Path]:
        files = {path.stem: path for path in self._folder.glob("*.py")}
        folders = {path.parent.name: path.parent for path in self._folder.glob("*/__init__.py")}
        public = sorted((name, path) for name, path in (files | folders).items() if not name.startswith("_"))
        named = {path: _NAMED.findall(path.read_text("utf-8")) if path.is_file() else [] for _, path in public}
        return dict(sorted((name, path) for stem, path in public for name in named[path] or [stem]))

    @functools.cached_property
    def shared_digest(self) -> str:
        """Digest of the package's helper modules, which its components inherit from."""
        return source_digest(sorted(self._folder.glob("_*.py")))

    def _source_digest(self, name: str) -> str:
        path = self._sources[name]
        return source_digest(sorted(path.rglob("*.py")) if path.is_dir() else [path])

    def names(self) -> list[str]:
        """Return every name, sorted: of the package's files, and of components that other packages registered."""
        _load_installed()
        return sorted({*self._sources, *self._foreign})

    def foreign_entries(self) -> Mapping[str, Entry]:
        """Return the entries of the components that other modules registered, by name."""
        return {name: self._entries[name] for name in sorted(self._foreign)}

    def check(self, name: str) -> str:
        """Return `name`, or raise `UnknownNameError` naming the nearest one."""
        if name not in self._sources and name not in self._foreign and name not in self.names():
            proposal = nearest(name, self.names())
            advice = "" if proposal.startswith("did you mean") else PLUGIN_ADVICE
            if home := _last_home(self.kind, name):
                advice = f"It was defined by {home}, which is not loaded: install its package, or name it in `plugins`."
            parts = (f"unknown {self.kind} {name!r}: {proposal}", self.hint, advice)
            raise UnknownNameError(" ".join(filter(None, parts)))
        return name

    def module(self, name: str) -> str:
        """Return the dotted name of the module or package that defines component `name`, without importing it."""
        foreign = self.check(name) in self._foreign
        return self._entries[name].module if foreign else f"{self.package}.{self._sources[name].stem}"

    def entry(self, name: str) -> Entry:
        """Return the entry of component `name` from the catalogue; import the component if it is newer."""
        if self.check(name) not in self._entries:
            self._entries[name] = self._read_entry(name)
        return self._entries[name]

    def _read_entry(self, name: str) -> Entry:
        source = self._source_digest(name)
        digest, label = f"{self.shared_digest}-{source}", f"{self.kind} {name}".replace(" ", "-")
        plain = _shipped(self.kind, name, self.shared_digest, source) or _kept(label, digest)
        if plain:
            return Entry.of(plain)
        entry = self.imported_entry(name)
        _keep(label, digest, entry.plain())
        return entry

    def imported_entry(self, name: str) -> Entry:
        """Import component `name` and return its entry."""
        return entry_of(self.get(name), self.module(name), self.context, self.constants)

    def options(self, name: str) -> dict[str, Option]:
        """Return the options of component `name` with defaults, types, choices and ranges."""
        return dict(self.entry(name).options)

    def check_options(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked options of component `name`; integers become floats where it takes floats.

        Raises:
            UnknownNameError: the component does not have an option.
            OptionValueError: an option does not take a value.
        """
        return check_options(f"{self.kind} {name!r}", self.options(name), options)

    def changed_options(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those `options` of component `name` that differ from their defaults, sorted."""
        declared = self.options(name)
        return {
            key: value
            for key, value in sorted(options.items())
            if key not in declared or value != declared[key].default
        }

    def constant(self, name: str, attribute: str, default: Any = None) -> Any:
        """Return the class constant `attribute` of component `name`, one of the registry's `constants`."""
        if attribute not in self.constants:
            raise KeyError(f"{attribute!r} is no constant of a {self.kind}: {nearest(attribute, self.constants)}")
        return self.entry(name).constants.get(attribute, default)

    def holds(self, name: str, flag: str, options: Mapping[str, Any]) -> bool:
        """Return whether the constant `flag` of component `name` is true with these `options`."""
        value = self.constant(name, flag, False)
        if not isinstance(value, Mapping):
            return bool(value)
        chosen = {key: options.get(key, option.default) for key, option in self.options(name).items()}
        allowed = {key: each if isinstance(each, tuple | list) else (each,) for key, each in value.items()}
        return all(chosen[key] in allowed[key] for key in value)

    def get(self, name: str) -> Callable[..., Any]:
        """Import the module of component `name` and return the component."""
        module = self.module(name)
        if name not in self._objects:
            importlib.import_module(module)
        if name not in self._objects:
            raise RegistrationError(f"{module} registers no {self.kind} {name!r}; decorate it with @register.")
        return self._objects[name]

    def create(self, name: str, **options: Any) -> Any:
        """Create component `name` with `options`, which are checked here; errors as for `check_options`."""
        component = self.get(name)
        context = {key: value for key, value in options.items() if key in self.context}
        chosen = {key: value for key, value in options.items() if key not in self.context}
        return component(**context, **self.check_options(name, chosen))

    def snapshot(self) -> tuple[dict[str, Callable[..., Any]], dict[str, Entry], set[str]]:
        """Return the components registered now, for `restore`."""
        return self._objects.copy(), self._entries.copy(), self._foreign.copy()

    def restore(self, snapshot: tuple[dict[str, Callable[..., Any]], dict[str, Entry], set[str]]) -> None:
        """Forget components registered since `snapshot`, except those of the package, which is imported only once."""
        imported = {name: component for name, component in self._objects.items() if name in self._sources}
        objects, self._entries, self._foreign = snapshot
        self._objects = objects | imported

    def section(self) -> dict[str, Any]:
        """Return the catalogue's section about this kind: every component of the package, imported."""
        components = {
            name: {"digest": self._source_digest(name)} | self.imported_entry(name).plain() for name in self._sources
        }
        return {"shared": self.shared_digest, "components": components}


KINDS = {
    "loss": "probmetric.losses",
    "uncertainty": "probmetric.uncertainty",
    "backbone": "probmetric.models",
    "dataset": "probmetric.data.sources",
    "view": "probmetric.data.views",
    "metric": "probmetric.metrics",
    "score": "probmetric.trust.scores",
    "figure": "probmetric.reporting.figures",
}
GROUP = "probmetric.components"
_LOADED: set[str] = set()


def registry_of(kind: str) -> Registry:
    """Return the registry of one kind of component, by the kind's name in messages."""
    registry: Registry = importlib.import_module(KINDS[kind]).REGISTRY
    return registry


def all_registries() -> Iterator[Registry]:
    """Yield the registries of all kinds of components."""
    return map(registry_of, KINDS)


def write_catalogue(path: Path = SHIPPED) -> Path:
    """Import all components of the package and write their catalogue; return its path."""
    write_json(path, {registry.kind: registry.section() for registry in all_registries()})
    return path


def load_plugins(names: Iterable[str] = ()) -> None:
    """Register the components of the modules or packages `names`, and those that installed packages announce.

    A second call has no effect. Modules are searched among the installed ones and in the working directory.

    Raises:
        PluginError: a module does not exist, cannot be imported, registers no component, or is hidden by another of its
            name.
        RegistrationError: two components have one name; both modules are named.
    """
    _load_installed()
    for name in names:
        if name not in _LOADED:
            _check_place(name)
            _load(name)


def _check_place(name: str) -> None:
    """Refuse a plugin of this folder whose name Python uses for another module."""
    top = name.partition(".")[0]
    here = [path for path in (Path(f"{top}.py"), Path(top, "__init__.py")) if top and path.is_file()]
    spec = importlib.util.find_spec(top) if here else None
    if spec and spec.origin and Path(spec.origin).resolve() not in [path.resolve() for path in here]:
        raise PluginError(
            f"plugin {name!r} is {here[0]} of this folder, but Python imports {spec.origin} by that name; rename one."
        )


def _load_installed() -> None:
    """Register the components that installed packages announce by entry points, once per process."""
    from importlib import metadata  # takes a seventh of the time of `import probmetric.trust`

    if GROUP in _LOADED:
        return
    _LOADED.add(GROUP)
    for point in metadata.entry_points(group=GROUP):
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
    digest = _plugin_digest(name)
    label = f"plugin-{name}"
    components = _kept(label, digest) or _import_components(name, label, digest)
    if not components:
        raise PluginError(
            f"plugin {name!r} registers no component itself; name the module that does, with @register, @metric or "
            "@score, or leave it out."
        )
    for component in components:
        registry_of(component["kind"]).adopt(component["name"], Entry.of(component))
    _LOADED.add(name)


def _plugin_digest(name: str) -> str:
    """Return the digest of the sources of `name`'s top-level package and of those that its components may inherit."""
    top = name.partition(".")[0]
    spec = importlib.util.find_spec(top) if all(part.isidentifier() for part in name.split(".")) else None
    if spec is None:
        raise PluginError(
            f"plugin {name!r} is not installed and {Path.cwd()} holds no {top}.py or {top}/; start in the folder "
            "that holds it, install it, or correct the name (a module or package: my_package, my_package.losses)."
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files += [Path(spec.origin)] if not folders and spec.origin else []
    shared = "-".join(registry.shared_digest for registry in all_registries())
    return f"{__version__}-{shared}-{source_digest(files)}"


def _import_components(name: str, label: str, digest: str) -> list[dict[str, Any]]:
    """Import the plugin; return its components' entries as JSON values."""
    top = name.partition(".")[0]
    others = _components(top, inside=False)
    _import_plugin(name)
    components = _components(top)
    if _components(top, inside=False) == others:  # else it must be imported, to register what it imports
        _keep(label, digest, components)
    return components


def _components(top: str, *, inside: bool = True) -> list[dict[str, Any]]:
    """Return the components that modules inside (or outside) the package `top` registered, as JSON values."""
    return [
        {"kind": registry.kind, "name": component} | entry.plain()
        for registry in all_registries()
        for component, entry in registry.foreign_entries().items()
        if (entry.module.partition(".")[0] == top) == inside
    ]


def _import_plugin(name: str) -> None:
    """Import module `name` or, for a package, every module whose name does not start with an underscore."""
    try:
        module = importlib.import_module(name)
        for part in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            if not any(word.startswith("_") for word in part.name.removeprefix(f"{name}.").split(".")):
                importlib.import_module(part.name)
    except ProbMetricError:
        raise
    except Exception as error:
        top = name.partition(".")[0]
        frames = traceback.extract_tb(error.__traceback__)
        places = [
            f"{at.filename}, line {at.lineno}: " for at in frames if top in Path(at.filename).with_suffix("").parts
        ]
        problem = f"{''.join(places[-1:])}{type(error).__name__}: {error}"
        raise PluginError(f"plugin {name!r} cannot be imported: {problem}") from error


@contextlib.contextmanager
def isolated_components() -> Iterator[None]:
    """Forget, at the end of this context, components and plugins that were registered or loaded inside it."""
    before = [(registry, registry.snapshot()) for registry in all_registries()]
    loaded = _LOADED.copy()
    try:
        yield
    finally:
        for registry, snapshot in before:
            registry.restore(snapshot)
        _LOADED.clear()
        _LOADED.update(loaded)
