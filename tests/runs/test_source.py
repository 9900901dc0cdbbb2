"""Digests of code: what a module does counts, how it is written and where it lies does not."""

import sys
from pathlib import Path

import pytest

from probmetric.config import Params, load
from probmetric.planning.workflow import WorkflowPlan
from probmetric.runs import source as source_digest
from probmetric.runs.identity import component_code, step_code
from probmetric.runs.source import closure, module_digests

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
        for cached in (source_digest._facts, source_digest._remembered, closure, source_digest.source_file):
            cached.cache_clear()
        return module_digests("mylab.circle")

    yield digests
    sys.modules.pop("mylab", None)
    source_digest._top_folder.cache_clear()


def test_a_module_counts_with_what_it_imports(lab):
    assert sorted(lab()) == ["mylab.circle", "mylab.names", "mylab.parts.helper"]


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
    def forget():  # what tests before this one, or its own planning, know
        for cached in (source_digest._facts, source_digest._remembered, component_code):
            cached.cache_clear()

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
