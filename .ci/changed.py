#!/usr/bin/env python3
"""Prints pytest's arguments for the tests of what changed: since the branch left main, or, on main, in the last commit.

Of a room's tests those are left out that cannot reach what changed: no import leads there, and neither they nor a
component of the room name it. Where only single components changed, `--components` leaves out the others' cases.
"""

import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "src/probmetric", ROOT / "tests"
PROSE = ("README.md", "CONTRIBUTING.md", "docs", "reports")
CONFIGURATION = ("params.yaml", "workflow", "Snakefile")
# Folders whose modules are components, each found by its name.
COMPONENTS = tuple(PACKAGE / room for room in ("losses", "uncertainty", "models", "trust/scores", "data/sources"))
IMPORT = re.compile(r"^(\s*)(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|.*)|import\s+([\w.]+))", re.MULTILINE)
# What a test's imports do not tell: it starts processes or reads sources.
READS = re.compile(r"subprocess|sys\.executable|src/probmetric|[\"']probmetric[\"']")
# Goes through all components of a room.
LISTS = re.compile(r"\blist_\w+|\.(own_)?names\(\)")
# A process of pytest's needs seconds to start: these many test files are sooner done in one.
FEW = 25


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
    """Test files of one changed file."""
    first, *rest = Path(name).parts
    if first == "tests":
        if rest[-1].startswith("test_"):
            return {ROOT / name}
        return set((ROOT / name).parent.rglob("test_*.py")) if len(rest) > 1 else set()
    if first in PROSE:
        return {TESTS / "test_links.py"}
    if first in CONFIGURATION:
        return set((TESTS / "config").glob("test_*.py"))
    return tests_of_source(ROOT / name) if first == "src" and len(rest) > 1 else set()


def tests_of_source(path):
    """Those of its room's tests that reach a file of the package; of a single module the test of its name.

    Where there is neither, the tests that import it by name.
    """
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if (TESTS / room).is_dir():
        tests = set((TESTS / room).rglob("test_*.py"))
        followed = path.suffix == ".py" and path.name != "__init__.py"
        return {test for test in tests if path in reached(test) or READS.search(text_of(test))} if followed else tests
    named = re.compile(rf"probmetric\.{room}\b|from probmetric import .*\b{room}\b")
    paths = set(TESTS.rglob("test_*.py"))
    own = {path for path in paths if path.stem == f"test_{room}"}
    return own or {path for path in paths if named.search(text_of(path))}


def reached(path):
    """`path` and every file it leads to, directly or not."""
    found, waiting = set(), {path}
    while waiting:
        found |= waiting
        waiting = {other for each in waiting for other in direct(each)} - found
    return found


@functools.cache
def text_of(path):
    """What a file says; nothing where it is not there."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@functools.cache
def direct(path):
    """Files a module imports; of tests also what pytest loads beside them and the components they name or go through.

    A package passes names on: of its imports only those count that run whenever it is imported.
    """
    found = set()
    for indent, source, names, plain in IMPORT.findall(text_of(path)):
        if not (indent and path.name == "__init__.py"):
            for name in words(names) or [""]:
                found |= homes(path, source or plain, name)
    if TESTS in path.parents:
        found |= {file for folder in path.parents if uses(path, file := folder / "conftest.py")}
    return found | named_components(path)


def uses(test, conftest):
    """Whether a test asks for something that a file of fixtures defines, or has no choice."""
    fixtures = re.findall(r"def (\w+)\(", text_of(conftest))
    return "autouse" in text_of(conftest) or not set(fixtures).isdisjoint(words(text_of(test)))


def homes(path, module, name):
    """The file that defines `name` of `module`; none outside this repository."""
    top, *inner = module.split(".")
    if top != "probmetric":
        beside = path.parent / f"{top}.py" if not inner else TESTS
        return {helper for helper in (beside, TESTS / f"{top}.py") if helper.is_file()}
    place = PACKAGE.joinpath(*inner)
    package = place / "__init__.py"
    if not package.is_file():
        return {place.with_suffix(".py")}
    submodule = [place / name / "__init__.py", place / f"{name}.py"] if name else []
    found = next((file for file in submodule if file.is_file()), None) or exports(package).get(name, package)
    return {found}


@functools.cache
def exports(package):
    """Name -> file, of all names a package passes on from its own modules."""
    inside = ".".join(["probmetric", *package.parent.relative_to(PACKAGE).parts])
    return {
        name: PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        for _, module, names, _ in IMPORT.findall(text_of(package))
        for name in words(names)
        if module.startswith(f"{inside}.")
    }


def words(text):
    """Names in a piece of source."""
    return re.findall(r"\w+", text)


def named_components(path):
    """Components that a test, or another component of their room, names as a string; all, where it lists them."""
    found, text = set(), text_of(path)
    strings = set(re.findall(r"[\"'](\w+)[\"']", text))
    for folder in COMPONENTS:
        if folder == path.parent or TESTS in path.parents:
            room = ".".join(["probmetric", folder.relative_to(PACKAGE).parts[0]])
            every = TESTS in path.parents and room in text and LISTS.search(text)
            found |= {file for file in components(folder) if every or named(file) & strings}
    return found - {path}


def components(folder):
    """The components' files in a folder."""
    return sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))


def named(file):
    """Names of the components in a file: those its decorators give, else the file's."""
    return set(re.findall(r'^@(?:register\("|score\(.*\)\ndef )(\w+)', text_of(file), re.MULTILINE)) or {file.stem}


def only(names):
    """`--components room=one,another` for each room in which nothing but components changed; with tests of it, none."""
    for folder in COMPONENTS:
        every = set(components(folder))
        mine = {ROOT / name for name in names if folder in (ROOT / name).parents}
        room = TESTS / folder.relative_to(PACKAGE).parts[0]
        if mine and mine <= every and not any(room in (ROOT / name).parents for name in names):
            reaching = sorted(name for file in every if reached(file) & mine for name in named(file))
            yield f"--components={folder.relative_to(PACKAGE)}={','.join(reaching)}"


NAMES = changed()
FOUND = sorted({str(test.relative_to(ROOT)) for name in NAMES for test in tests_of(name)})
if FOUND:
    print(*FOUND, *only(NAMES), *(["-n0"] if len(FOUND) <= FEW else []))
