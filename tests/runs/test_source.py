"""Digests of code: what a module does counts, how it is written and where it lies does not."""

import os
import sys
import time
from pathlib import Path

import pytest

from probmetric.config import Params, RunSettings, load
from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs import source as source_digest
from probmetric.runs.identity import code_of, planned_steps, step_code
from probmetric.runs.plan import Run
from probmetric.runs.source import LINKS, closure, module_digests, unnamed_reads

LOSS = '''"""A loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mylab import register
from mylab.parts.helper import scaled

if TYPE_CHECKING:
    from mylab.unused import Nothing


@register
def loss(x):
    """The formula."""
    return scaled(x) + 1  # plus one
'''
FILES = {
    "__init__.py": "from mylab.names import register\n",
    "names.py": "def register(f):\n    return f\n",
    "unused.py": "class Nothing: ...\n",
    "parts/__init__.py": "",
    "parts/helper.py": "def scaled(x):\n    return 2 * x\n",
    "circle.py": LOSS,
}


def forget():
    """As a new process would: nothing is known of any file but what `state/source.json` says."""
    names = ("_facts", "_remembered", "_kept", "_targets", "source_file", "_top_folder")
    for cached in (*(getattr(source_digest, name) for name in names), closure, code_of):
        cached.cache_clear()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A package of a user's own; returns a function that changes a file and gives the digests of `circle`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / "mylab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def digests(name: str = "", old: str = "", new: str = "") -> dict[str, str]:
        if name:
            path = tmp_path / "mylab" / name
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new))
        forget()
        return module_digests("mylab.circle")

    yield digests
    sys.modules.pop("mylab", None)
    source_digest._top_folder.cache_clear()


def test_a_module_counts_with_what_it_imports(lab):
    assert sorted(lab()) == sorted([LINKS, "mylab.circle", "mylab.names", "mylab.parts.helper"])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("circle.py", "  # plus one", ""),
        ("circle.py", '"""The formula."""', '"""The formula, told again."""'),
        ("circle.py", "return scaled(x) + 1", "return (\n        scaled(x)\n        + 1\n    )"),
        ("circle.py", "from mylab.unused import Nothing", "from mylab.unused import Nothing as Other"),
        ("unused.py", "...", "pass"),
        ("circle.py", "from typing import TYPE_CHECKING", "from typing import TYPE_CHECKING, Any"),
    ],
)
def test_how_it_is_written_does_not_count(lab, name, old, new):
    before = lab()
    assert lab(name, old, new) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("circle.py", "+ 1", "- 1"),
        ("parts/helper.py", "2 * x", "3 * x"),
        ("names.py", "return f", "return None"),
    ],
)
def test_what_it_does_counts_wherever_it_stands(lab, name, old, new):
    before = lab()
    assert set(lab(name, old, new).values()) != set(before.values())


def test_a_moved_module_keeps_its_digest(lab, tmp_path):
    before = lab()
    (tmp_path / "mylab/parts/helper.py").rename(tmp_path / "mylab/moved.py")
    after = lab("circle.py", "mylab.parts.helper", "mylab.moved")
    assert set(after) != set(before)
    assert sorted(after.values()) == sorted(before.values())


def test_what_was_read_is_remembered_and_a_changed_file_is_read_again(lab, tmp_path):
    before = lab()
    source_digest.remember()
    assert (tmp_path / "state/source.json").exists()
    assert lab() == before
    assert lab("parts/helper.py", "2 * x", "2 + x") != before


def test_planning_reads_the_sources_once_for_all_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    forget()
    params = load(Params, "params.yaml")
    plan = WorkflowPlan.from_config(params.model_dump() | {"experiments": ["smoke"]})
    monkeypatch.chdir(tmp_path)
    plan.write()
    forget()
    monkeypatch.setattr(source_digest, "_read", lambda path: pytest.fail(f"a job parses {path}"))
    for run in plan.runs.values():
        for step in run.steps:
            assert step_code(run.settings, step)


def test_our_own_components_rest_on_their_mathematics_only():
    found = closure("probmetric.losses.arcface")
    assert {"probmetric.losses.arcface", "probmetric.losses._base"} <= set(found)
    assert not any(name.startswith(("probmetric.registry", "probmetric.io", "probmetric.config")) for name in found)
    assert "probmetric.directional.normalizer" in closure("probmetric.losses.el_nivmf")


def test_without_source_there_is_no_digest():
    with pytest.raises(ModuleNotFoundError, match="no Python source file"):
        module_digests("probmetric.nothing_like_it")
    assert Path(source_digest.source_file("probmetric.losses.arcface") or "").name == "arcface.py"


def plugin(tmp_path, monkeypatch, files: dict[str, str]) -> Path:
    """A project whose plugin `mine` is one file or a package, with what it imports beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    forget()
    return tmp_path


HELPER = "def scale(x):\n    return {} * x\n"
TWO = {"one.py": HELPER.format(2), "two.py": HELPER.format(3)}
EDITS = {
    "another function under the same alias": (
        {"mine.py": "from torch.nn.functional import softplus as act\n\ndef f(x):\n    return act(x)\n"},
        {"mine.py": "from torch.nn.functional import relu as act\n\ndef f(x):\n    return act(x)\n"},
    ),
    "another helper under the same alias": (
        TWO | {"mine.py": "import one as scale\nimport two as other\n"},
        {"mine.py": "import two as scale\nimport one as other\n"},
    ),
    "another name of one module": (
        {"mine.py": "from tools import a as f\n", "tools.py": "a = 1\nb = 2\n"},
        {"mine.py": "from tools import b as f\n"},
    ),
    "a sibling module": (
        {"mine.py": "import helper\n", "helper.py": "x = 1\n"},
        {"helper.py": "x = 2\n"},
    ),
    "a sibling of a sibling": (
        {
            "mine.py": "import helper\n",
            "helper.py": "from lib.deep import x\n",
            "lib/__init__.py": "",
            "lib/deep.py": "x = 1\n",
        },
        {"lib/deep.py": "x = 2\n"},
    ),
    "a sibling in a folder without __init__": (
        {"mine.py": "from lib.deep import x\n", "lib/deep.py": "x = 1\n"},
        {"lib/deep.py": "x = 2\n"},
    ),
    "what the package of a sibling runs first": (
        {"mine.py": "from lib.deep import x\n", "lib/__init__.py": "scale = 1\n", "lib/deep.py": "x = 1\n"},
        {"lib/__init__.py": "scale = 2\n"},
    ),
    "what that package imports and what acts": (
        TWO
        | {"mine.py": "from lib.deep import x\n", "lib/__init__.py": "from . import side\n", "lib/deep.py": "x = 1\n"}
        | {"lib/side.py": "import one\none.scale = 1\n"},
        {"lib/side.py": "import one\none.scale = 2\n"},
    ),
    "which module is acted on": (
        TWO
        | {"mine/__init__.py": "import patching\n", "mine/deep.py": "import one, two\n"}
        | {"patching.py": "import one as changed\nsetattr(changed, 'scale', abs)\n"},
        {"patching.py": "import two as changed\nsetattr(changed, 'scale', abs)\n"},
    ),
    "from . import": (
        {"mine/__init__.py": "from . import part\n", "mine/part.py": "x = 1\n"},
        {"mine/part.py": "x = 2\n"},
    ),
    "passed on by a package under another name": (
        TWO
        | {
            "mine.py": "from lib import f\n",
            "lib/__init__.py": "from .a import scale as f\n",
            "lib/a.py": HELPER.format(5),
            "lib/b.py": HELPER.format(7),
        },
        {"lib/__init__.py": "from .b import scale as f\n"},
    ),
    "two modules exchange their contents": (
        TWO | {"mine.py": "import one\nimport two\n\ndef f(x):\n    return one.scale(x) - two.scale(two.scale(x))\n"},
        {"one.py": TWO["two.py"], "two.py": TWO["one.py"]},
    ),
    "two branches exchange their imports": (
        TWO | {"mine.py": "try:\n    from one import scale\nexcept ImportError:\n    from two import scale\n"},
        {"mine.py": "try:\n    from two import scale\nexcept ImportError:\n    from one import scale\n"},
    ),
    "the last of two imports counts": (
        TWO | {"mine.py": "from one import scale\nfrom two import scale\n"},
        {"mine.py": "from two import scale\nfrom one import scale\n"},
    ),
    "the other branch of TYPE_CHECKING": (
        {"mine.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = 0\nelse:\n    x = 1\n"},
        {"mine.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = 0\nelse:\n    x = 2\n"},
    ),
    "import_module": (
        {"mine.py": "import importlib\nside = importlib.import_module('side')\n", "side.py": "x = 1\n"},
        {"side.py": "x = 2\n"},
    ),
    "import_module of a sibling": (
        {
            "mine/__init__.py": "from importlib import import_module\npart = import_module('.part', __package__)\n",
            "mine/part.py": "x = 1\n",
        },
        {"mine/part.py": "x = 2\n"},
    ),
    "__import__": ({"mine.py": "side = __import__('side')\n", "side.py": "x = 1\n"}, {"side.py": "x = 2\n"}),
    "a data file": (
        {"mine.py": "from pathlib import Path\nX = Path(__file__).with_name('x.txt').read_text()\n", "x.txt": "1"},
        {"x.txt": "2"},
    ),
    "a data file in a folder": (
        {
            "mine.py": "from pathlib import Path\nX = (Path(__file__).parent / 'd' / 'x.txt').read_text()\n",
            "d/x.txt": "1",
        },
        {"d/x.txt": "2"},
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_a_plugin_reaches_counts(edit, tmp_path, monkeypatch):
    files, changed = EDITS[edit]
    plugin(tmp_path, monkeypatch, files)
    module = "mine.deep" if "mine/deep.py" in files else "mine"
    before = set(module_digests(module).values())
    source_digest.remember()
    plugin(tmp_path, monkeypatch, changed)
    assert set(module_digests(module).values()) != before
    source_digest.remember()
    plugin(tmp_path, monkeypatch, files)
    assert set(module_digests(module).values()) == before


def test_a_package_that_only_lists_its_modules_does_not_count(tmp_path, monkeypatch):
    files = {
        "mine.py": "from lib.deep import x\n",
        "lib/__init__.py": "",
        "lib/deep.py": "x = 1\n",
        "lib/other.py": "y = 1\n",
    }
    plugin(tmp_path, monkeypatch, files)
    before = module_digests("mine")
    plugin(tmp_path, monkeypatch, {"lib/__init__.py": '"""Mine."""\n\nfrom lib import deep, other\n'})
    assert module_digests("mine") == before


def test_an_edit_that_keeps_size_and_time_counts(tmp_path, monkeypatch):
    path = plugin(tmp_path, monkeypatch, {"mine.py": "x = 1\n"}) / "mine.py"
    os.utime(path, (1_000, 1_000))
    time.sleep(0.15)  # younger files are not remembered
    before = module_digests("mine")
    source_digest.remember()
    assert str(path) in (tmp_path / "state/source.json").read_text()
    path.write_text("x = 2\n")
    os.utime(path, (1_000, 1_000))
    forget()
    assert module_digests("mine") != before


def test_a_file_read_at_import_that_no_string_names_is_told(tmp_path, monkeypatch):
    text = "import os\nX = open(os.environ['FILE']).read()\n\ndef f(path):\n    return open(path)\n"
    plugin(tmp_path, monkeypatch, {"mine.py": text, "x.txt": "1"})
    assert unnamed_reads("mine") == ["mine"]
    plugin(tmp_path, monkeypatch, {"mine.py": text + "READS = 'x.txt'\n"})
    assert unnamed_reads("mine") == []
    plugin(tmp_path, monkeypatch, {"mine.py": "def f(path):\n    return open(path)\n"})
    assert unnamed_reads("mine") == []


@pytest.mark.parametrize(
    ("module", "step"),
    [
        ("training.optimizer", "train"),
        ("training.loop", "train"),
        ("data.samplers", "train"),
        ("uncertainty._base", "fit"),
        ("training.forward", "embed"),
        ("data.images", "embed"),
        ("retrieval.match", "evaluate"),
        ("metrics.structure", "evaluate"),
        ("runs.evaluate", "evaluate"),
    ],
)
def test_our_own_code_that_a_step_executes_is_part_of_its_identity(module, step, monkeypatch):
    """Comments and docstrings are not: `test_how_it_is_written_does_not_count`."""
    settings = RunSettings(dataset="digits", method="mine", loss="arcface", uncertainty="laplace")
    run = Run("digits/mine/seed0", "digits/mine/seed0", settings)
    before, path = planned_steps(run), source_digest.source_file(f"probmetric.{module}")
    facts, plain = source_digest._facts(path), source_digest._facts
    edited = facts._replace(digest="0" * 16)
    monkeypatch.setattr(source_digest, "_facts", lambda file: edited if file == path else plain(file))
    code_of.cache_clear()
    after = planned_steps(run)
    code_of.cache_clear()
    assert after[step] != before[step]
