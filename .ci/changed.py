#!/usr/bin/env python3
"""Prints the tests of what changed: since the branch left main, or, on main itself, since the last commit.

Where only single losses changed, pytest's option `--deselect` leaves out the contract tests of the others.
"""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROSE = ("README.md", "CONTRIBUTING.md", "docs", "reports")
CONFIGURATION = ("params.yaml", "workflow", "Snakefile")
# Room whose components are a file each -> its contract tests, a class `Test_<name>` for each component.
CONTRACTS = {"losses": "tests/losses/test_contract.py"}


def git(*arguments):
    """Lines of what a Git command prints; none where it fails, as in a clone without main."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed():
    """Names of changed, new and renamed files, committed or not."""
    here, main = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "main")
    base = main if main and main != here else git("rev-parse", "HEAD~1")
    committed = git("diff", "--name-only", "--diff-filter=d", *(base or here))
    return sorted({*committed, *git("ls-files", "--others", "--exclude-standard")})


def tests_of(name):
    """Test files and folders of one changed file."""
    first, *rest = Path(name).parts
    if first == "tests":
        in_room = len(rest) > 1 and not rest[-1].startswith("test_")
        return [str(Path(name).parent)] if in_room else [name] if rest[-1].startswith("test_") else []
    if first in PROSE:
        return ["tests/test_links.py"]
    if first in CONFIGURATION:
        return ["tests/config"]
    return tests_of_source(rest[1:]) if first == "src" and len(rest) > 1 else []


def tests_of_source(parts):
    """A room's own tests; of a single module the test of its name or, where there is none, the tests that import it."""
    module = parts[0].removesuffix(".py")
    if (ROOT / "tests" / module).is_dir():
        return [f"tests/{module}"]
    named = re.compile(rf"probmetric\.{module}\b|from probmetric import .*\b{module}\b")
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    own = [path for path in paths if path.stem == f"test_{module}"]
    importing = [path for path in paths if named.search(path.read_text(encoding="utf-8"))]
    return [str(path.relative_to(ROOT)) for path in own or importing]


def left_out(names):
    """Options that leave out the contracts of components that no change can reach; none where shared files changed."""
    for room, contracts in CONTRACTS.items():
        folder = Path("src/probmetric", room)
        components = {Path(name).stem for name in names if Path(name).parent == folder and is_component(name)}
        whole = {contracts, *map(str, Path(contracts).parents)}
        others = [name for name in names if Path(name).parent != folder or not is_component(name)]
        if not components or any(test in whole for name in others for test in tests_of(name)):
            continue
        for name, reached in sorted(reaching(ROOT / folder).items()):
            if is_component(name) and not reached & components:
                yield f"--deselect={contracts}::Test_{name}::"


def is_component(name):
    """Whether a file, by its name, is one component and not what several share."""
    return not Path(name).name.startswith("_")


def reaching(folder):
    """Module of a folder -> itself and all modules there that it imports or names, directly or not."""
    paths = {path.stem: path for path in folder.glob("*.py") if path.stem != "__init__"}
    direct = {name: named(path) & paths.keys() for name, path in paths.items()}
    found = {}
    for name in paths:
        reached, waiting = set(), {name}
        while waiting:
            reached |= waiting
            waiting = {other for each in waiting for other in direct[each]} - reached
        found[name] = reached
    return found


def named(path):
    """Names in a module's imports, and its strings: a component may be created by its name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            words = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found.update(part for word in words for part in word.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


NAMES = changed()
print(*sorted({test for name in NAMES for test in tests_of(name)}), *left_out(NAMES))
