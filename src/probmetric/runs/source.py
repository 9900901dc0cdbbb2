"""What code a component is made of: digests that change with what a module does, not with how it is written.

A module counts with all modules of its own top-level package that it imports, directly or not: the formula of a loss
may stand in a helper. Comments, docstrings, layout, imports and what stands under `TYPE_CHECKING` do not count: digests
are taken of the rest of the syntax tree. `from package import name` leads to the module that defines `name`, not to all
of the package. Nothing is imported.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probmetric.io import FileError, remembered_json, write_json

MEMORY = Path("state/source.json")

# Rooms and modules of this package that carry no formula: how files are written, names found, mistakes reported.
INFRASTRUCTURE = tuple(
    f"probmetric.{name}"
    for name in (
        *("config", "errors", "io", "launch", "lazy", "planning", "process", "registry", "reporting"),
        *("metrics.names", "metrics.tables", "tracking"),
        *("runs.folder", "runs.made", "runs.names", "runs.source"),
    )
)


def module_digests(module: str) -> dict[str, str]:
    """Module -> digest of its syntax tree, for `module` and what it imports of its own top-level package.

    Args:
        module: dotted name, `probmetric.losses.arcface`.

    Raises:
        ModuleNotFoundError: there is no such module, or it is not written in Python.
    """
    if source_file(module) is None:
        raise ModuleNotFoundError(f"{module} has no Python source file; its code cannot be told from other code.")
    return {name: _facts(path).digest for name in closure(module) if (path := source_file(name))}


@functools.cache
def closure(module: str) -> tuple[str, ...]:
    """`module` and every module of its top-level package it imports, sorted; infrastructure is left out."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or _is_infrastructure(name):
            continue
        path = source_file(name)
        if path is None:
            continue
        found.add(name)
        waiting += _imported(name, path)
    return tuple(sorted(found))


def is_own(module: str) -> bool:
    """Whether `module` belongs to this package, not to a user's."""
    return module.partition(".")[0] == "probmetric"


@functools.cache
def source_file(module: str) -> Path | None:
    """The module's file; None for modules that are not there or not written in Python. Imports nothing."""
    top, *inner = module.split(".")
    folder = _top_folder(top)
    if folder is None:
        return None
    path = folder.joinpath(*inner)
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@functools.cache
def _top_folder(package: str) -> Path | None:
    """Folder of a top-level package, or where its file would lie as a folder."""
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    return path.parent if spec.submodule_search_locations else path.with_suffix("")


def _is_infrastructure(module: str) -> bool:
    return module.startswith(INFRASTRUCTURE)


@dataclass(frozen=True)
class _Facts:
    """What is read off a file: the digest of its code, what it imports, and what a package passes on.

    Attributes:
        digest: first 16 digits of the SHA-256 of the syntax tree, without imports and bare strings.
        imports: (module as written, dots for the level; name, or "" for a plain import), those that run.
        passed_on: name -> module as written, of all `from` imports: exports may stand under TYPE_CHECKING.
    """

    digest: str
    imports: list[tuple[str, str]]
    passed_on: dict[str, str]


@functools.cache
def _facts(path: Path) -> _Facts:
    """Facts of a file, from `state/source.json` where the file is still the same by size and time."""
    stat = path.stat()
    stamp = [stat.st_size, stat.st_mtime_ns]
    known = _remembered().get(str(path))
    if known and known["stamp"] == stamp:
        return _Facts(known["digest"], [tuple(pair) for pair in known["imports"]], known["passed_on"])
    found = _read(path)
    _remembered()[str(path)] = {"stamp": stamp} | asdict(found)
    return found


@functools.cache
def _remembered() -> dict[str, Any]:
    known = remembered_json(MEMORY)
    return known if isinstance(known, dict) else {}


def remember() -> None:
    """Keep what was read of the sources in `state/source.json`, so that the next planning need not parse them."""
    with contextlib.suppress(FileError):
        write_json(MEMORY, _remembered())


def _read(path: Path) -> _Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports: list[tuple[str, str]] = []
    digest = hashlib.sha256(repr(_plain(tree, imports)).encode()).hexdigest()[:16]
    passed_on = {
        alias.asname or alias.name: "." * node.level + (node.module or "")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return _Facts(digest, imports, passed_on)


def _plain(node: Any, imports: list[tuple[str, str]]) -> Any:
    """A syntax tree as nested tuples, and its imports; empty fields, which differ between Pythons, are left out."""
    if isinstance(node, list):
        return [_plain(item, imports) for item in node if not _is_no_code(item, imports)]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, getattr(node, name, None)) for name in node._fields]
    return type(node).__name__, [(name, _plain(value, imports)) for name, value in fields if value not in (None, [])]


def _is_no_code(node: Any, imports: list[tuple[str, str]]) -> bool:
    """Whether a statement computes nothing: a bare string, an import (which is noted), what only type checkers see."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.Import):
        imports += [(alias.name, "") for alias in node.names]
        return True
    if isinstance(node, ast.ImportFrom):
        imports += [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
        return True
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported(module: str, path: Path) -> list[str]:
    """Modules of the same top-level package that `module` imports."""
    top = module.partition(".")[0]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for written, name in _facts(path).imports:
        origin = _absolute(written, package)
        if origin.partition(".")[0] == top:
            found.append(_definer(origin, name) if name else origin)
    return [name for name in found if name]


def _absolute(written: str, package: str) -> str:
    """The module `written` in a file of `package`, its leading dots resolved."""
    name = written.lstrip(".")
    level = len(written) - len(name)
    if not level:
        return name
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


def _definer(origin: str, name: str) -> str | None:
    """Module that defines `name` as imported from `origin`: a submodule, the package itself or where it has it from."""
    if source_file(f"{origin}.{name}"):
        return f"{origin}.{name}"
    path = source_file(origin)
    if path is None or path.name != "__init__.py":
        return origin if path else None
    facts = _facts(path)
    source = _absolute(facts.passed_on.get(name, origin), origin)
    if source != origin:
        return _definer(source, name)
    return None if is_own(origin) else origin  # our packages define nothing but how their components are found
