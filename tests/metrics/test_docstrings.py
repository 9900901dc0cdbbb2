import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import probmetric
from probmetric.testing import isolated_components

ROOMS = ("metrics", "retrieval", "runs", "training", "trust")
MODULES = [
    f"probmetric.{room}.{module.name}"
    for room in ROOMS
    for module in pkgutil.iter_modules([str(Path(probmetric.__file__).parent / room)])
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_code_in_the_documentation_runs(capsys):
    page = Path(__file__).parents[2] / "docs/reference/evaluation.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    with isolated_components():
        for block in blocks:
            exec(compile(block, str(page), "exec"), {"__name__": "page"})
    recall, mean_precision = map(float, capsys.readouterr().out.split())
    assert 0.9 < recall <= 1.0
    assert 0.5 < mean_precision <= 1.0
