"""Named components: one file, one name.

Losses, uncertainties, backbones and dataset sources are found by name. The name *is* the file (or folder)
name inside the component's package, so adding a component is adding a file, and the valid names and options
can be read from the source text without importing anything: configuration is checked in milliseconds, before
PyTorch is loaded. Files that start with an underscore are helpers, not components.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from probmetric.errors import ProbMetricError

T = TypeVar("T", bound=Callable[..., Any])

REQUIRED = object()
_LISTED, _SHOWN = 50, 8


@dataclass(frozen=True)
class Option:
    """One keyword option of a component: its default, its annotation and, for a `Literal`, its choices."""

    name: str
    default: Any
    annotation: str
    choices: tuple[Any, ...] = ()


def nearest(value: str, allowed: Iterable[str]) -> str:
    """Phrase that names what was meant: `did you mean 'x'? Allowed: a, b, c.`; of many names only the nearest."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) > _LISTED:
        shown = difflib.get_close_matches(str(value), names, n=_SHOWN, cutoff=0.0)
        return f"{hint}Nearest of {len(names)}: {', '.join(shown)}."
    return f"{hint}Allowed: {', '.join(names) or '(nothing)'}."


class UnknownNameError(ProbMetricError, ValueError):
    """A component or option was asked for by a name nobody registered."""


class OptionValueError(ProbMetricError, ValueError):
    """An option was given a value it does not take."""


class Registry:
    """Components of one kind, one per module of `package`.

    `context` names the keyword arguments the caller supplies when it creates a component (for a loss:
    `num_classes`, `dim`); they are not options a user sets.
    """

    def __init__(self, kind: str, package: str, context: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.package = package
        self.context = context
        self._objects: dict[str, Callable[..., Any]] = {}

    def register(self, component: T) -> T:
        """Class or function decorator: the component takes the name of its module."""
        name = component.__module__.removeprefix(self.package + ".").split(".")[0]
        if name in self._objects and self._objects[name] is not component:
            raise ValueError(f"{component.__module__}: {self.kind} {name!r} is registered twice; one file, one name.")
        self._objects[name] = component
        return component

    @functools.cached_property
    def _sources(self) -> dict[str, Path]:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(self.package)
        folder = Path(next(iter(spec.submodule_search_locations)))
        files = {path.stem: path for path in folder.glob("*.py")}
        folders = {path.parent.name: path for path in folder.glob("*/__init__.py")}
        return {name: path for name, path in sorted((files | folders).items()) if not name.startswith("_")}

    def names(self) -> list[str]:
        """Every registered name, sorted. Reads the folder; imports nothing."""
        return list(self._sources)

    def check(self, name: str) -> str:
        """Return `name`, or raise `UnknownNameError` naming the nearest one."""
        if name not in self._sources:
            raise UnknownNameError(f"unknown {self.kind} {name!r}: {nearest(name, self._sources)}")
        return name

    def module(self, name: str) -> str:
        """Dotted name of the module (or package) that defines component `name`; imports nothing."""
        return f"{self.package}.{self.check(name)}"

    def options(self, name: str) -> dict[str, Option]:
        """Options of component `name` with defaults and choices, read from its source, not by importing it."""
        found = _component_options(self._sources[self.check(name)])
        return {key: option for key, option in found.items() if key not in self.context}

    def check_options(self, name: str, options: dict[str, Any]) -> None:
        """Raise `UnknownNameError` or `ValueError` for an option `name` does not take."""
        known = self.options(name)
        for key, value in options.items():
            if key not in known:
                raise UnknownNameError(f"{self.kind} {name!r} has no option {key!r}: {nearest(key, known)}")
            _check_value(f"{self.kind} {name!r}: option {key!r}", value, known[key])

    def constant(self, name: str, attribute: str, default: Any = None) -> Any:
        """Value of the class-level constant `attribute` of component `name`, read from its source."""
        component = _component(self._sources[self.check(name)])
        for node in getattr(component, "body", []):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == attribute and node.value is not None:
                return _literal(node.value)
        return default

    def get(self, name: str) -> Callable[..., Any]:
        """Import the module of component `name` and return what it registered."""
        importlib.import_module(self.module(name))
        if name not in self._objects:
            raise ValueError(f"{self._sources[name]} registers no {self.kind}; decorate it with @register.")
        return self._objects[name]

    def create(self, name: str, **options: Any) -> Any:
        """Create component `name`; unknown options are answered with the nearest valid one."""
        component = self.get(name)
        self.check_options(name, {key: value for key, value in options.items() if key not in self.context})
        return component(**options)


def _check_value(where: str, value: Any, option: Option) -> None:
    if option.choices and value not in option.choices:
        allowed = ", ".join(repr(choice) for choice in option.choices)
        raise OptionValueError(f"{where} is {value!r}; allowed: {allowed}.")
    expected: dict[str, tuple[type, ...]] = {
        "float": (int, float),
        "int": (int,),
        "bool": (bool,),
        "str": (str,),
    }
    types = expected.get(option.annotation)
    if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        raise OptionValueError(f"{where} is {value!r} ({type(value).__name__}); expected {option.annotation}.")


@functools.cache
def _component(path: Path) -> Any:
    """Syntax tree of the `@register`ed class or function in `path` (for a package: in any of its files)."""
    paths = [path, *sorted(path.parent.glob("[!_]*.py"))] if path.name == "__init__.py" else [path]
    for source in paths:
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if _is_registered(node):
                return node
    raise ValueError(f"{path} registers no component; decorate one class or function with @register.")


def _component_options(path: Path) -> dict[str, Option]:
    component = _component(path)
    if isinstance(component, ast.ClassDef):
        methods = [node for node in component.body if isinstance(node, ast.FunctionDef)]
        component = next((method for method in methods if method.name == "__init__"), None)
    return {} if component is None else _signature(component)


def _is_registered(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return False
    names = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    return any(name.startswith("register") for name in names)


def _signature(function: Any) -> dict[str, Option]:
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {argument.arg: _option(argument, default) for argument, default in pairs}


def _option(argument: ast.arg, default: ast.expr | None) -> Option:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    choices: tuple[Any, ...] = ()
    if annotation.startswith("Literal["):
        choices = tuple(ast.literal_eval("(" + annotation[len("Literal[") : -1] + ",)"))
    value = REQUIRED if default is None else _literal(default)
    return Option(argument.arg, value, annotation, choices)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
