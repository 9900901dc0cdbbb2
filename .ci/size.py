#!/usr/bin/env python3
"""Print how large and how entangled the package is: `make size`, or `.ci/size.py FOLDER` for a part of it.

Code lines are lines that hold a token which is neither comment nor docstring (of attributes, too). Import circles count
lazy imports and imports for type checkers too.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "probmetric"
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
LARGEST = 6


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    tree = ast.parse(text)
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    constants = (value for value in alone if isinstance(value, ast.Constant))
    texts = (node for node in constants if isinstance(node.value, str))
    docstrings = {line for node in texts for line in range(node.lineno, node.end_lineno + 1)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a tree."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters of a function, `self` included."""
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len(names)


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names if name.name.startswith("probmetric."))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "probmetric":
        yield from (f"{node.module}.{name.name}" for name in node.names)


def lazy_imports(tree: ast.AST) -> int:
    """Count import statements of the package's own modules inside functions."""
    statements = {
        id(node)
        for function in functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and any(imported(node))
    }
    return len(statements)


def exports(packages: dict[str, ast.AST]) -> dict[str, str]:
    """Return where each name that a package's `__init__` imports from a module of its own comes from."""
    return {
        f"{package.removesuffix('.__init__')}.{alias.asname or alias.name}": f"{node.module}.{alias.name}"
        for package, tree in packages.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("probmetric.")
        for alias in node.names
    }


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges.get(module, ()):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = []
            while not group or group[-1] != module:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for module in edges:
        if module not in index:
            visit(module)
    return groups


def main() -> None:
    """Measure a folder of the package and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE, help="default: the whole package")
    root = parser.parse_args().folder.resolve()
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    rooms: dict[str, list[int]] = {}
    for path, text in texts.items():
        relative = path.relative_to(root)
        rooms.setdefault(relative.parts[0] if len(relative.parts) > 1 else ".", []).append(code_lines(text))
    names = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in texts}
    modules = {name.removesuffix(".__init__") for name in names.values()}
    exported = exports({names[path]: tree for path, tree in trees.items() if path.name == "__init__.py"})
    edges = {}
    for path, tree in trees.items():
        if path.name != "__init__.py":
            targets = {exported.get(name, name) for node in ast.walk(tree) for name in imported(node)}
            targets = {name if name in modules else name.rpartition(".")[0] for name in targets}
            edges[names[path]] = (targets & modules) - {names[path]}
    for room, counts in sorted(rooms.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(counts):7,} code lines in {len(counts):3} files  {room}")
    private = [path for path in texts if path.name.startswith("_") and not path.name.startswith("__")]
    loose = [path for path in texts if path.parent == PACKAGE and path.name != "__init__.py"]
    large = [f for tree in trees.values() for f in functions(tree) if parameters(f) > LARGEST]
    print(f"{sum(map(sum, rooms.values())):7,} code lines")
    print(f"{len(texts):7} files, {len(private)} private, {len(loose)} loose")
    print(f"{len(large):7} functions with more than {LARGEST} parameters")
    print(f"{sum(map(lazy_imports, trees.values())):7} own imports inside functions")
    groups = circles(edges)
    print(f"{len(groups):7} import circles" + "".join(f"\n        {' <-> '.join(group)}" for group in groups))


if __name__ == "__main__":
    main()
