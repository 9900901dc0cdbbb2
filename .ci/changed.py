#!/usr/bin/env python3
"""Prints the tests of what changed: since the branch left main, or, on main itself, since the last commit."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROSE = ("README.md", "CONTRIBUTING.md", "docs", "reports")
CONFIGURATION = ("params.yaml", "workflow", "Snakefile")


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


print(*sorted({test for name in changed() for test in tests_of(name)}))
