"""Compute digests of the code of a step, which change if the code computes something else, not if its text differs.

A module counts with every module of the project that it imports, directly or not, since the formula of a loss may be in
a helper. For our own code the project is this package. For a user's it is the package, the modules beside it and those
of the working folder, without installed ones; code that its packages run at import counts, too. Comments, docstrings,
layout and code under `TYPE_CHECKING` do not count.

An imported name counts by the content that it is bound to. `from one import scale` in place of `from two import scale`
is noticed, also two modules that exchange their contents; a module may be moved or renamed. `from package import name`
leads to the module that defines `name`, not to all of the package. No module is imported for this.

Files whose names are in a user's module (`np.load(HERE / "scale.npy")`) count with their content. `unnamed_reads` finds
modules that read a file at import without naming it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from probmetric.io import FileError, remembered_json, sha256_file, write_json

MEMORY = Path("state/source.json")
LINKS = "imported names"  # key beside the modules, for the digest of the targets of all their imports

# Parts of this package without formulas: they write files, find names and report mistakes.
INFRASTRUCTURE = tuple(
    f"probmetric.{name}"
    for name in (
        *("config", "errors", "io", "launch", "lazy", "planning", "process", "registry", "reporting"),
        *("metrics.names", "tracking"),
        *("runs.folder", "runs.identity", "runs.made", "runs.names", "runs.plan", "runs.source"),
    )
)
_TYPES = ("typing", "typing_extensions", "collections.abc", "__future__")  # names from these modules compute nothing
_READERS = frozenset(
    ("open", "read_text", "read_bytes", "load", "loads", "loadtxt", "genfromtxt", "fromfile", "safe_load", "load_file")
)


def module_digests(*modules: str) -> dict[str, str]:
    """Return module -> digest of its code, for `modules` and their imports in the project, and a digest of their links.

    Raises:
        ModuleNotFoundError: there is no such module, or it is not written in Python.
    """
    for module in modules:
        if source_file(module) is None:
            raise ModuleNotFoundError(f"{module} has no Python source file; its code cannot be told from other code.")
    names = _run(*modules)
    digests = {name: _content(name) for name in names}
    links = _links(digests, {name: _targets(name) for name in names})
    return digests | _packages(names) | {LINKS: links}


def _packages(names: Iterable[str]) -> dict[str, str]:
    """Return package -> digest of the code, if any, that runs before the users' modules `names` are imported."""
    files = {name: file for name in sorted(_parents(names) - set(names)) if (file := source_file(name))}
    return {name: _content(name) for name, file in files.items() if _facts(file).digest not in _NOTHING}


def _parents(names: Iterable[str]) -> set[str]:
    return {name[:end] for name in names if not is_own(name) for end, sign in enumerate(name) if sign == "."}


def _run(*modules: str) -> tuple[str, ...]:
    """Return the closure of `modules`, with those imports of the packages around them that act when they are imported.

    Modules that only define names do not count, since a package often imports all its modules.
    """
    names = closure(*modules)
    parents = _parents(names)
    around = set(closure(*parents)) - {*names, *parents}
    acting = [name for name in around if (file := source_file(name)) and _facts(file).acts]
    return _run(*names, *acting) if acting else names


@functools.cache
def closure(*modules: str) -> tuple[str, ...]:
    """Return `modules` and every module of their project that they import, sorted, without other infrastructure."""
    reached: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        left_out = _is_infrastructure(name) and name not in modules
        if name in reached or left_out or source_file(name) is None:
            continue
        reached.add(name)
        waiting += [target.module for target in _targets(name) if target.module]
    return tuple(sorted(reached))


def unnamed_reads(*modules: str) -> list[str]:
    """Return the users' modules that read a file while they are imported, and name no existing file."""
    foreign = [name for name in closure(*modules) if not is_own(name)]
    return [name for name in foreign if (file := source_file(name)) and _facts(file).reads and not _named_files(file)]


def is_own(module: str) -> bool:
    """Return whether `module` belongs to this package, not to a user's."""
    return module.partition(".")[0] == "probmetric"


@functools.cache
def source_file(module: str) -> Path | None:
    """Return the module's file, without importing it; None for modules that do not exist or are not Python."""
    top, *inner = module.split(".")
    folder = _top_folder(top)
    if folder is None:
        return None
    path = folder.joinpath(*inner)
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@functools.cache
def _top_folder(package: str) -> Path | None:
    """Return the folder of a top-level package, or where its file would lie as a folder."""
    try:
        spec = importlib.util.find_spec(package) if package else None
    except ValueError:  # a module without a spec, such as __main__
        return None
    if spec is None:
        return None
    if spec.origin is None and spec.submodule_search_locations:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations)))
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    return path.parent if spec.submodule_search_locations else path.with_suffix("")


def _is_infrastructure(module: str) -> bool:
    return module.startswith(INFRASTRUCTURE)


def _in_project(module: str, importer: str) -> bool:
    """Say whether `module` is in the project of `importer`: its package; a user's also beside it or in this folder."""
    top, importers = module.partition(".")[0], importer.partition(".")[0]
    if top == importers:
        return True
    folder, home = _top_folder(top), _top_folder(importers)
    if is_own(importer) or is_own(module) or folder is None or home is None:
        return False
    return not _is_installed(folder) and any(folder.is_relative_to(place) for place in (home.parent, Path.cwd()))


def _is_installed(folder: Path) -> bool:
    library = Path(sysconfig.get_path("stdlib"))
    return folder.is_relative_to(library) or any(part in ("site-packages", "dist-packages") for part in folder.parts)


class _Import(NamedTuple):
    """One import: `from <written> import <name> as <bound>`, with leading dots for the level; no name if plain.

    An import below the top level of its module keeps its `place` among the imports, since a branch may decide on it.
    """

    bound: str
    written: str
    name: str
    place: int = 0


class _Facts(NamedTuple):
    """Facts about a source file.

    Attributes:
        digest: first 16 digits of the SHA-256 of the syntax tree, without imports and bare strings.
        imports: the imports that run.
        passed_on: name -> (module as written, its name there) of all `from` imports; exports may be under
            TYPE_CHECKING.
        texts: strings that could name a file.
        reads: whether a call at the top of the module reads a file.
        acts: whether importing it calls something or sets an attribute or item: other modules may then differ.
    """

    digest: str
    imports: list[_Import]
    passed_on: dict[str, tuple[str, str]]
    texts: list[str]
    reads: bool
    acts: bool


@dataclass(frozen=True)
class _Target:
    """The target of an import: `name` of `module` in the project, or a dotted `name` outside it, without a module."""

    bound: str
    module: str
    name: str
    place: int


@functools.cache
def _targets(module: str) -> tuple[_Target, ...]:
    """Return the targets of a module's imports; if a name is bound twice at the top, the last one counts."""
    path = source_file(module)
    if path is None:
        return ()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    targets: dict[Any, _Target] = {}
    for each in _facts(path).imports:
        origin = _absolute(each.written, package)
        key = (each.bound, each.place) if each.bound != "*" else each
        if not _in_project(origin, module):
            whole = f"{origin}.{each.name}" if each.name else origin
            targets[key] = _Target(each.bound, "", whole, each.place)
        elif definer := _definer(origin, each.name) if each.name else (origin, ""):
            targets[key] = _Target(each.bound, *definer, each.place)
    return tuple(targets.values())


def _links(digests: dict[str, str], targets: dict[str, tuple[_Target, ...]]) -> str:
    """Return the digest of the targets of the modules' imports, by content and not by the modules' names.

    Each round adds to a module's colour the colours of the modules it imports. The rounds end when they distinguish no
    more modules (Weisfeiler and Leman's refinement); this also works for circular imports.
    """
    colours, told_apart = dict(digests), 0
    while len(set(colours.values())) > told_apart:
        told_apart = len(set(colours.values()))
        colours = {name: _colour(colour, targets[name], colours) for name, colour in colours.items()}
    return hashlib.sha256(repr(sorted(colours.values())).encode()).hexdigest()[:16]


def _colour(colour: str, targets: Iterable[_Target], colours: dict[str, str]) -> str:
    links = sorted(
        (target.place, target.bound, target.name, colours.get(target.module, ""))
        for target in targets
        if not _is_infrastructure(target.module or target.name) and not target.name.startswith(_TYPES)
    )
    return hashlib.sha256(repr((colour, links)).encode()).hexdigest()[:16]


def _content(module: str) -> str:
    """Return the digest of a module's code and, for a user's module, of the files that it names."""
    path = source_file(module)
    assert path is not None  # the caller has checked that the file exists
    digest = _facts(path).digest
    files = [] if is_own(module) else _named_files(path)
    if not files:
        return digest
    contents = [_kept(file, sha256_file) for file in files]
    return hashlib.sha256(repr([digest, *contents]).encode()).hexdigest()[:16]


def _named_files(path: Path) -> list[Path]:
    """Return the files that strings in the module at `path` name, from its folder, those above or the working one."""
    texts = _facts(path).texts
    places = [path.parent, *path.parent.parents[:2], Path.cwd()]
    places += [folder for place in places for text in texts if (folder := place / text).is_dir()]
    named: dict[Path, None] = {}
    for text in texts:
        with contextlib.suppress(OSError, ValueError):
            file = next((place / text for place in places if (place / text).is_file()), None)
            if file is not None and file.suffix not in (".py", ".pyc"):
                named[file.resolve()] = None
    return list(named)


@functools.cache
def _facts(path: Path) -> _Facts:
    facts = _Facts(*_kept(path, _read))
    return facts._replace(imports=[_Import(*each) for each in facts.imports])


@functools.cache
def _kept(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return the facts about a file, from `state/source.json` if the file is unchanged.

    The time of an inode's last change cannot be set back, unlike other times. A file that changed so recently that
    another change could have the same time is not remembered.
    """
    stat = path.stat()
    stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    before, values = _remembered().get(str(path)) or (None, None)
    if before != stamp:
        values = read(path)
        if abs(time.time() - stat.st_ctime) > 0.1:
            _remembered()[str(path)] = [stamp, values]
    return values


@functools.cache
def _remembered() -> dict[str, Any]:
    kept = remembered_json(MEMORY)
    return kept if isinstance(kept, dict) and kept.get("format") == 5 else {"format": 5}


def remember() -> None:
    """Store the facts about the sources in `state/source.json`, so that the next planning need not parse them."""
    with contextlib.suppress(FileError):
        write_json(MEMORY, _remembered())


def _read(path: Path) -> _Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports: list[_Import] = []
    plain = _plain(tree, imports, top=True)
    imports += [_Import(name, name, "", len(imports) + 1) for name in _imported_by_call(tree)]
    passed_on = {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = sorted({text for text in strings if isinstance(text, str) and 0 < len(text) < 200 and text.isprintable()})
    run = list(_run_at_import(tree))
    return _Facts(_short_digest(plain), imports, passed_on, texts, any(map(_calls_reader, run)), any(map(_acts, run)))


def _imported_by_call(tree: ast.AST) -> list[str]:
    """Return the modules that `import_module("...")` and `__import__("...")` name."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    named = [call.args[0] for call in calls if _called(call) in ("import_module", "__import__")]
    return [name.value for name in named if isinstance(name, ast.Constant) and isinstance(name.value, str)]


def _short_digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


# An empty file, or one with only imports and a docstring.
_NOTHING = (_short_digest(("Module", [])), _short_digest(("Module", [("body", [])])))


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported, without those inside functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _run_at_import(child)


def _calls_reader(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (_called(node) in _READERS or _called(node).startswith("read_"))


def _acts(node: ast.AST) -> bool:
    stored = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
    return stored or isinstance(node, ast.Call)


def _called(call: ast.Call) -> str:
    """Return the last part of the name of the called function; "" if it has no name."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _plain(node: Any, imports: list[_Import], *, top: bool = False) -> Any:
    """Return a syntax tree as nested tuples, without empty fields, which differ between Pythons; note its imports."""
    if isinstance(node, list):
        items = (_plain(item, imports, top=top) for each in node for item in _counted(each))
        return [item for item in items if item is not None]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _noted(node, imports, top)
    if not isinstance(node, ast.AST):
        return node
    inner = top and isinstance(node, ast.Module)
    fields = [(name, getattr(node, name, None)) for name in node._fields]
    return type(node).__name__, [
        (name, _plain(value, imports, top=inner)) for name, value in fields if value not in (None, [])
    ]


def _counted(node: Any) -> list[Any]:
    """Return the parts of a statement that compute: none of a bare string, only `else` of `if TYPE_CHECKING`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return []
    if isinstance(node, ast.If) and "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", "")):
        return node.orelse
    return [node]


def _noted(node: ast.Import | ast.ImportFrom, imports: list[_Import], top: bool) -> Any:
    """Note an import; the tree leaves out imports at the top, and holds the place of any other among the imports."""
    place = 0 if top else len(imports) + 1
    if isinstance(node, ast.Import):
        imports += [_Import(alias.asname or alias.name, alias.name, "", place) for alias in node.names]
    else:
        origin = "." * node.level + (node.module or "")
        imports += [_Import(alias.asname or alias.name, origin, alias.name, place) for alias in node.names]
    return None if top else "import"


def _absolute(written: str, package: str) -> str:
    """Return the module `written` in a file of `package`, its leading dots resolved; "" if they lead out of it."""
    try:
        return importlib.util.resolve_name(written, package)
    except ImportError:
        return ""


def _definer(origin: str, name: str) -> tuple[str, str] | None:
    """Find the module that defines `name` as imported from `origin`, and its name there; it may be a submodule.

    None if a package of ours defines it, since our packages define only how their components are found.
    """
    if source_file(f"{origin}.{name}"):
        return f"{origin}.{name}", ""
    path = source_file(origin)
    if path is None:
        return None
    written, there = _facts(path).passed_on.get(name, (origin, name)) if path.name == "__init__.py" else (origin, name)
    source = _absolute(written, origin)
    if source != origin and _in_project(source, origin):
        return _definer(source, there)
    return None if is_own(origin) and path.name == "__init__.py" else (origin, name)
