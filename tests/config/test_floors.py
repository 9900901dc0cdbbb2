"""Arrows point down only: which part of the package may import which, read from the source."""

import ast
import re
from pathlib import Path

import pytest

import probmetric

ROOT = Path(probmetric.__file__).parent
FLOORS = (
    ("lazy",),
    ("errors", "process"),
    ("io",),
    ("registry", "runs.source"),
    ("metrics",),
    ("retrieval",),
    ("runs.names", "directional"),
    ("runs.folder",),
    ("data", "losses", "models"),
    ("trust",),
    ("uncertainty",),
    ("config", "runs.roles"),
    ("launch", "runs.plan", "runs.places"),
    ("runs.evaluate",),
    ("runs.identity", "training"),
    ("runs.made", "tracking", "reporting"),
    ("planning", "runs.embed"),
    ("runs.steps", "tuning", "serving"),
    ("cli", "testing"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module):
    """Part of the package that `module` (without "probmetric.") belongs to; modules of `runs` have their own floors."""
    parts = module.split(".")
    if parts[0] != "runs" or parts == ["runs", "__init__"]:
        return parts[0]
    return f"runs.{parts[1].partition('_')[0]}"


def dotted(path):
    return ".".join(path.with_suffix("").parts)


def parts(root):
    found = {room_of(dotted(path.relative_to(root))) for path in root.rglob("*.py")}
    return found - {"__init__", "runs"}


def imports(path):
    """(line, module) of every import of the package that a program executes; those for type checkers are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    ignored = {id(inner) for node in typing for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name.startswith("probmetric."))
        elif isinstance(node, ast.ImportFrom) and node.module == "probmetric":
            yield from ((node.lineno, f"probmetric.{name.name}") for name in node.names if name.name in FLOOR)
        elif isinstance(node, ast.ImportFrom) and node.module == "probmetric.runs":
            yield from ((node.lineno, f"probmetric.runs.{name.name}") for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("probmetric."):
            yield node.lineno, node.module


def climbs(root):
    """Imports of another part on the same floor or a higher one."""
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        room = room_of(dotted(place))
        for line, module in imports(path) if room in FLOOR else ():
            other = room_of(module.removeprefix("probmetric."))
            if other != room and FLOOR[other] >= FLOOR[room]:
                found.append(f"{place}:{line}: {room} imports {module}")
    return found


def test_every_part_has_a_floor():
    assert parts(ROOT) == set(FLOOR)


def test_the_documentation_shows_these_floors():
    page = (ROOT.parents[1] / "docs/reference/architecture.md").read_text()
    block = page.partition("```text\n")[2].partition("```")[0].strip().splitlines()
    assert [set(line.partition("  ")[0].split()) for line in block] == [set(rooms) for rooms in reversed(FLOORS)]


def test_arrows_point_down():
    assert climbs(ROOT) == []


@pytest.mark.parametrize("text", ["import probmetric.cli\n", "def f():\n    from probmetric.cli import main\n"])
def test_a_climb_is_seen(tmp_path, text):
    (tmp_path / "io.py").write_text(text)
    assert climbs(tmp_path) == [f"io.py:{len(text.splitlines())}: io imports probmetric.cli"]


FILES = (
    r"(model_last|posterior)\.safetensors|history\.csv|encoder\.yaml|run\.yaml|curves\.json|timing\.json|state/training"
)


def spelled(path):
    """Strings of a module that name a file of a run; docstrings may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)
    }
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.value for node in texts if id(node) not in docs and re.search(FILES, node.value)]


def test_the_files_of_a_run_are_named_in_one_place():
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if spelled(path)}
    assert found == {"runs/folder.py", "runs/names.py"}


def test_no_name_of_a_package_is_one_of_its_modules():
    """Once the module is imported, the package's attribute is the module, whatever the name stands for."""
    rooms = (path for path in ROOT.rglob("__init__.py") if "exported(" in path.read_text())
    both = {
        str(path.parent.name): exported_names(path) & {each.stem for each in path.parent.glob("*")} for path in rooms
    }
    assert len(both) > 8
    assert not any(both.values()), both


def exported_names(path):
    block = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    return {alias.name for line in block.body for alias in line.names}
