"""docs/reference/losses.md has one complete entry per registered loss, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from references import CASES

from probmetric.losses import REGISTRY, list_losses

ROOT = Path(__file__).parents[2]
FLAGS = re.DOTALL | re.MULTILINE
TEXT = (ROOT / "docs/reference/losses.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", TEXT, flags=FLAGS))


def test_every_loss_and_nothing_else_has_an_entry() -> None:
    assert sorted(ENTRIES) == sorted(list_losses())


@pytest.mark.parametrize("name", list_losses())
def test_an_entry_names_paper_file_reference_and_deviations(name: str) -> None:
    entry = ENTRIES[name]
    assert "- Paper: " in entry
    assert f"`src/probmetric/losses/{name}.py`" in entry
    reference = re.search(r"- Reference: `(tests/losses/references\w*\.py)`", entry)
    assert reference is not None
    modules = {case.reference.__module__ for case in CASES if case.name == name}
    assert Path(reference[1]).stem in modules
    choices = REGISTRY.options(name)
    assert ("fidelity" in choices) == ("- Fidelity: " in entry)
    assert "- Fidelity: " in entry or "- Deviations: " in entry


@pytest.mark.parametrize(("name", "count"), re.findall(r"^### `(\w+)`$(?:(?!^###).)*?\((\d+) cases\)", TEXT, FLAGS))
def test_the_number_of_cases_is_the_real_one(name: str, count: str) -> None:
    assert int(count) == sum(case.name == name for case in CASES)


def test_files_named_exist() -> None:
    for path in re.findall(r"`((?:src|tests|benchmarks)/[\w/]+\.py)`", TEXT):
        assert (ROOT / path).is_file(), path


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "docs/reference/losses.md", "exec"), {})
    assert "el_nivmf" in capsys.readouterr().out
