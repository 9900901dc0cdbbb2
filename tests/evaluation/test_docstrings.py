import doctest
import importlib
import pkgutil

import pytest

import probmetric.evaluation

MODULES = [module.name for module in pkgutil.iter_modules(probmetric.evaluation.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(f"probmetric.evaluation.{name}")
    assert doctest.testmod(module).failed == 0
