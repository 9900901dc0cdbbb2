"""Names and options are read from source text and answered with the nearest valid one."""

import subprocess
import sys

import pytest

from probmetric import losses, models, uncertainty
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.registry import REQUIRED, Registry, UnknownNameError, nearest
from probmetric.reporting.figures import REGISTRY as FIGURES

ALL = [losses.REGISTRY, models.REGISTRY, uncertainty.REGISTRY, DATASETS, FIGURES]


@pytest.mark.parametrize("registry", ALL, ids=lambda registry: registry.kind)
def test_every_file_registers_a_component_whose_options_can_be_read(registry):
    assert registry.names()
    for name in registry.names():
        options = registry.options(name)
        assert all(option.default is not REQUIRED for option in options.values()), name


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one component file, `flat`, and one component folder, `deep`."""
    folder = tmp_path / "sample_components"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from probmetric.registry import Registry\n"
        "REGISTRY = Registry('sample', 'sample_components', context=('size',))\nregister = REGISTRY.register\n"
    )
    (folder / "_helper.py").write_text("raise RuntimeError('helpers are not components')\n")
    (folder / "flat.py").write_text(
        "from typing import Literal\nfrom sample_components import register\n\n"
        "@register\nclass Flat:\n    fits: bool = True\n"
        "    def __init__(self, *, size: int, rate: float = 0.5, mode: Literal['a', 'b'] = 'a', on: bool = False):\n"
        "        self.values = size, rate, mode, on\n"
    )
    (folder / "deep" / "__init__.py").write_text("from sample_components.deep.part import Deep\n")
    (folder / "deep" / "part.py").write_text(
        "from sample_components import register\n\n"
        "@register\nclass Deep:\n    def __init__(self, *, depth: int = 3):\n        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import sample_components

    yield sample_components.REGISTRY
    for name in [name for name in sys.modules if name.startswith("sample_components")]:
        del sys.modules[name]


def test_names_options_and_constants_come_from_the_source(package: Registry):
    assert package.names() == ["deep", "flat"]
    assert {name: option.default for name, option in package.options("flat").items()} == {
        "rate": 0.5,
        "mode": "a",
        "on": False,
    }
    assert package.options("flat")["mode"].choices == ("a", "b")
    assert package.constant("flat", "fits") is True
    assert package.constant("deep", "fits", False) is False
    assert "sample_components.flat" not in sys.modules


def test_the_module_of_a_component_is_known_without_importing_it(package: Registry):
    assert package.module("flat") == "sample_components.flat"
    assert package.module("deep") == "sample_components.deep"
    assert not {"sample_components.flat", "sample_components.deep"} & set(sys.modules)


def test_create_passes_context_and_options(package: Registry):
    assert package.create("flat", size=3, rate=1).values == (3, 1, "a", False)
    assert package.create("deep") is not None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flet", {}, "unknown sample 'flet': did you mean 'flat'"),
        ("flat", {"rat": 1}, "has no option 'rat': did you mean 'rate'"),
        ("flat", {"mode": "c"}, r"option 'mode' is 'c'; allowed: 'a', 'b'"),
        ("flat", {"rate": "fast"}, r"option 'rate' is 'fast' \(str\); expected float"),
        ("flat", {"rate": True}, r"option 'rate' is True \(bool\); expected float"),
        ("flat", {"on": 1}, r"option 'on' is 1 \(int\); expected bool"),
    ],
)
def test_wrong_names_and_values_are_answered(package: Registry, name, options, message):
    with pytest.raises(ValueError, match=message):
        package.check_options(package.check(name), options)


def test_nearest_without_a_near_name_lists_what_is_allowed():
    assert nearest("zzz", ["b", "a"]) == "Allowed: a, b."
    assert issubclass(UnknownNameError, ValueError)


def test_reading_names_imports_no_torch():
    code = "import sys, probmetric.losses as l; l.REGISTRY.options('cosine'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
