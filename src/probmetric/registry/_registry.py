"""A registry: the components of one kind, by name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from probmetric.registry import _catalogue, _plugins
from probmetric.registry._entries import Entry, Option, entry_of
from probmetric.registry._names import RegistrationError, UnknownNameError, nearest

T = TypeVar("T", bound=Callable[..., Any])

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Registry:
    """Components of one kind: one per module of `package`, and those other modules register.

    `context` names the arguments the caller supplies when it creates a component (for a loss: `num_classes`, `dim`);
    they are not options a user sets. `constants` names the class constants that can be asked for without importing.
    """

    def __init__(self, kind: str, package: str, context: tuple[str, ...] = (), constants: tuple[str, ...] = ()) -> None:
        self.kind, self.package, self.context, self.constants = kind, package, context, constants
        self._objects: dict[str, Callable[..., Any]] = {}
        self._entries: dict[str, Entry] = {}
        self._foreign: set[str] = set()

    @overload
    def register(self, component: T) -> T: ...

    @overload
    def register(self, component: str) -> Callable[[T], T]: ...

    def register(self, component: T | str) -> T | Callable[[T], T]:
        """Class or function decorator, `@register` or `@register("name")`; without it the module's name counts.

        Raises:
            RegistrationError: another component has that name, the name is no name, or it differs from the file's.
        """
        if isinstance(component, str):
            return functools.partial(self._register, component)
        return self._register(component.__module__.rpartition(".")[2], component)

    def _register(self, name: str, component: T) -> T:
        if component.__module__.startswith(f"{self.package}."):
            own = component.__module__.removeprefix(f"{self.package}.").split(".")[0]
            self._objects[own] = self._alone(own, component)
            return component
        if not _NAME.fullmatch(name):
            raise RegistrationError(
                f"{component.__module__}: {name!r} cannot name a {self.kind}; use lower-case letters, digits and _, "
                "as in @register('my_name')."
            )
        self._alone(name, component)
        self.adopt(name, entry_of(component, component.__module__, self.context, self.constants))
        self._objects[name] = component
        return component

    def _alone(self, name: str, component: T) -> T:
        """`component`, if no other of its module has its name; the same one may be defined again."""
        known = self._objects.get(name)
        if known is not None and _place(known) != _place(component) and known.__module__ == component.__module__:
            raise RegistrationError(
                f"{component.__module__}: {self.kind} {name!r} is registered twice; one module, one name, or give each "
                "a name of its own: @register('...')."
            )
        return component

    def adopt(self, name: str, entry: Entry) -> None:
        """Take the entry of a component defined outside the package; it is imported when it is asked for.

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
        return {name: path for name, path in sorted((files | folders).items()) if not name.startswith("_")}

    @functools.cached_property
    def shared_digest(self) -> str:
        """Digest of the package's own helpers, which its components inherit from."""
        return _catalogue.source_digest(sorted(self._folder.glob("_*.py")))

    def _own_digest(self, name: str) -> str:
        path = self._sources[name]
        return _catalogue.source_digest(sorted(path.rglob("*.py")) if path.is_dir() else [path])

    def names(self) -> list[str]:
        """Every name, sorted: of the package's files and of what installed packages and plugins registered."""
        _plugins.discover()
        return sorted({*self._sources, *self._foreign})

    def own_names(self) -> list[str]:
        """Names of the components of the package itself, sorted. Reads the folder; imports nothing."""
        return list(self._sources)

    def foreign_entries(self) -> Mapping[str, Entry]:
        """Entries of the components that other modules registered, by name."""
        return {name: self._entries[name] for name in sorted(self._foreign)}

    def check(self, name: str) -> str:
        """Return `name`, or raise `UnknownNameError` naming the nearest one."""
        if name not in self._sources and name not in self._foreign and name not in self.names():
            raise UnknownNameError(f"unknown {self.kind} {name!r}: {nearest(name, self.names())}")
        return name

    def module(self, name: str) -> str:
        """Dotted name of the module (or package) that defines component `name`; imports nothing."""
        return self._entries[name].module if self.check(name) in self._foreign else f"{self.package}.{name}"

    def entry(self, name: str) -> Entry:
        """What is known of component `name`: from the catalogue, or by importing it where that is older."""
        if self.check(name) not in self._entries:
            self._entries[name] = self._own_entry(name).ranged(self.kind)
        return self._entries[name]

    def _own_entry(self, name: str) -> Entry:
        own = self._own_digest(name)
        known = _catalogue.shipped(self.kind, name, self.shared_digest, own)
        digest, label = f"{self.shared_digest}-{own}", f"{self.kind} {name}".replace(" ", "-")
        known = known or _catalogue.found(label, digest)
        if known:
            return Entry.of(known)
        entry = self.imported_entry(name)
        _catalogue.keep(label, digest, entry.plain())
        return entry

    def imported_entry(self, name: str) -> Entry:
        """The entry of component `name`, read off the component itself."""
        return entry_of(self.get(name), self.module(name), self.context, self.constants)

    def options(self, name: str) -> dict[str, Option]:
        """Options of component `name` with defaults, types and choices."""
        return dict(self.entry(name).options)

    def check_options(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise `UnknownNameError` or `OptionValueError` for an option `name` does not take."""
        known = self.options(name)
        for key, value in options.items():
            if key not in known:
                raise UnknownNameError(f"{self.kind} {name!r} has no option {key!r}: {nearest(key, known)}")
            known[key].check(f"{self.kind} {name!r}: option {key!r}", value)

    def constant(self, name: str, attribute: str, default: Any = None) -> Any:
        """Value of the class constant `attribute` of component `name`, one of the registry's `constants`."""
        if attribute not in self.constants:
            raise KeyError(f"{attribute!r} is no constant of a {self.kind}: {nearest(attribute, self.constants)}")
        return self.entry(name).constants.get(attribute, default)

    def holds(self, name: str, flag: str, options: Mapping[str, Any]) -> bool:
        """Whether the constant `flag` of component `name` is true with these `options`."""
        value = self.constant(name, flag, False)
        if not isinstance(value, Mapping):
            return bool(value)
        known = self.options(name)
        found = {key: options.get(key, known[key].default) for key in value}
        allowed = {key: each if isinstance(each, tuple | list) else (each,) for key, each in value.items()}
        return all(found[key] in allowed[key] for key in value)

    def get(self, name: str) -> Callable[..., Any]:
        """Import the module of component `name` and return what it registered."""
        module = self.module(name)
        if name not in self._objects:
            importlib.import_module(module)
        if name not in self._objects:
            raise RegistrationError(f"{module} registers no {self.kind} {name!r}; decorate it with @register.")
        return self._objects[name]

    def create(self, name: str, **options: Any) -> Any:
        """Create component `name`; unknown options are answered with the nearest valid one."""
        component = self.get(name)
        self.check_options(name, {key: value for key, value in options.items() if key not in self.context})
        return component(**options)

    def catalogue(self) -> dict[str, Any]:
        """The section of the catalogue about this kind: every component of the package, imported."""
        components = {name: self._described(name) for name in self._sources}
        return {"shared": self.shared_digest, "components": components}

    def _described(self, name: str) -> dict[str, Any]:
        return {"digest": self._own_digest(name)} | self.imported_entry(name).plain()


def _place(component: Any) -> tuple[str, str]:
    return component.__module__, component.__qualname__
