"""Names and options are known without importing, from a catalogue, and answered with the nearest valid one."""

import json
import math
import random
import subprocess
import sys
from typing import Annotated

import pytest
import torch

from probmetric import losses
from probmetric.registry import (
    REQUIRED,
    OptionValueError,
    Range,
    RegistrationError,
    Registry,
    all_registries,
    registry_of,
    write_catalogue,
)
from probmetric.registry.options import Entry, entry_of, option_of
from probmetric.registry.registry import SHIPPED


@pytest.mark.parametrize("registry", list(all_registries()), ids=lambda registry: registry.kind)
def test_every_file_registers_a_component_whose_options_can_be_read(registry):
    assert registry.names() or registry.kind == "metric", "our own metrics are records of probmetric.metrics"
    for name in registry.names():
        options = registry.options(name)
        assert all(option.default is not REQUIRED for option in options.values()), name


NUMBERS = [
    pytest.param(registry, name, option, id=f"{name}.{option.name}")
    for registry in all_registries()
    for name in registry.names()
    for option in registry.options(name).values()
    if {"float", "int"} & set(option.types)
]


@pytest.mark.parametrize(("registry", "name", "option"), NUMBERS)
def test_numbers_no_option_of_ours_can_mean_are_refused_by_name(registry, name, option):
    """`samples: 0`, `proxies_per_class: -3`, `proxy_lr: 1e30`, `test_fraction: 7` are answered while planning."""
    for value in (math.inf, -math.inf, math.nan, 1e30, -1e30, 10**30, -(10**30)):
        if isinstance(value, int) or "float" in option.types:
            with pytest.raises(
                OptionValueError, match=rf"'{option.name}' is .*; allowed: a number .*(least|most|above|below)"
            ):
                registry.check_options(name, {option.name: value})


@pytest.mark.parametrize("value", [[math.nan], [0.1, [math.inf]], (1e30,)])
def test_numbers_in_a_list_are_finite_too(value):
    option = option_of("x", list[float])
    with pytest.raises(OptionValueError, match="allowed: a number at least"):
        option.check("option 'x'", value)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one component file, `flat`, and one component folder, `deep`."""
    folder = tmp_path / "sample_components"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from probmetric.registry import Registry\n"
        "REGISTRY = Registry('sample', 'sample_components', context=('size',), constants=('fits',))\n"
        "register = REGISTRY.register\n"
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


def test_names_options_and_constants_of_a_component_in_no_catalogue(package: Registry):
    assert package.names() == ["deep", "flat"]
    assert {name: option.default for name, option in package.options("flat").items()} == {
        "rate": 0.5,
        "mode": "a",
        "on": False,
    }
    assert package.options("flat")["mode"].choices == ("a", "b")
    assert package.constant("flat", "fits") is True
    assert package.constant("deep", "fits", False) is False


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


def test_reading_names_imports_no_torch():
    code = "import sys, probmetric.losses as l; l.REGISTRY.options('cosine'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_committed_catalogue_is_what_importing_gives(tmp_path):
    written = write_catalogue(tmp_path / "catalogue.json").read_text()
    assert SHIPPED.read_text() == written, "run `make schemas`"


CONFIGURATION = """
import sys, probmetric.config as c, probmetric.planning.workflow
assert c.load(c.Params, "params.yaml").methods
sys.exit("torch" in sys.modules)
"""


def test_the_configuration_is_checked_without_torch():
    assert subprocess.run([sys.executable, "-c", CONFIGURATION], check=False).returncode == 0


def test_a_component_newer_than_the_catalogue_is_imported_once(package: Registry, project):
    assert package.entry("flat").doc == ""
    kept = json.loads((project / "state" / "components" / "sample-flat.json").read_text())
    assert kept["entries"]["module"] == "sample_components.flat"
    package._entries.clear()
    package._objects.clear()
    del sys.modules["sample_components.flat"]
    assert package.options("flat")["rate"].default == 0.5
    assert "sample_components.flat" not in sys.modules
    package._entries.clear()
    source = package._sources["flat"]
    source.write_text(source.read_text().replace("0.5", "0.25"))
    assert package.options("flat")["rate"].default == 0.25


def test_a_damaged_note_is_made_again(package: Registry, project):
    package.entry("flat")
    (project / "state" / "components" / "sample-flat.json").write_text("{")
    package._entries.clear()
    assert package.options("flat")["rate"].default == 0.5


@pytest.mark.parametrize(
    ("kind", "name", "option", "value", "allowed"),
    [
        ("loss", "arcface", "scale", -5.0, "above 0"),
        ("loss", "arcface", "scale", math.nan, "above 0"),
        ("loss", "arcface", "margin", math.inf, "at least 0, below 3.14"),
        ("loss", "arcface", "margin", 3.2, "at least 0, below 3.14"),
        ("loss", "proxy_anchor", "margin", 1e31, r"at least -1e\+15, at most"),
        ("loss", "contrastive_potential", "delta_repulsion", 2.0, "above 0, below 2"),
        ("dataset", "cub", "fold", 4, "at least 0, at most 3"),
        ("loss", "proxy_anchor", "proxy_lr", 0, "above 0"),
        ("loss", "proxy_anchor", "scale", 1e20, r"above 0, not farther from 0 than 1e\+15\."),
        ("loss", "proxy_anchor", "scale", 1e-20, r"above 0, not nearer to 0 than 1e-15\."),
        ("loss", "vmf", "samples", 0, "at least 1, at most 1024"),
        ("loss", "vmf", "samples", 10**30, "at least 1, at most"),
        ("backbone", "compact", "width", 0, "at least 1"),
        ("backbone", "compact", "width", -3, "at least 1"),
        ("backbone", "compact", "dropout", 1.0, "at least 0, below 1"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(kind: str, name: str, option: str, value: float, allowed: str):
    registry = registry_of(kind)
    with pytest.raises(OptionValueError, match=rf"{name}': option '{option}' is .*; allowed: a number {allowed}"):
        registry.check_options(name, {option: value})


def test_defaults_are_in_their_ranges():
    for registry in all_registries():
        for name in registry.names():
            for option in registry.options(name).values():
                if option.default is not REQUIRED:
                    defaults = {other.name: other.default for other in registry.options(name).values()}
                    option.check(name, option.default, defaults)


def test_a_declared_range_is_part_of_the_entry():
    mark = Range(above=0, high=2)
    for annotation in (Annotated[float, mark] | None, Annotated[float | None, mark]):
        found = option_of("x", annotation)
        assert (found.types, found.range) == (("float", "None"), mark)
    entry = Entry("mylab.circle", {"x": found})
    assert Entry.of(json.loads(json.dumps(entry.plain()))) == entry
    for inside in (1e-9, 2):
        found.check("x", inside)
    for outside in (0, 2.1, -1):
        with pytest.raises(OptionValueError, match="above 0, at most 2"):
            found.check("x", outside)


@pytest.mark.parametrize(
    ("annotation", "lengths"),
    [
        (tuple[float, float], (2,)),
        (Annotated[tuple[int, int, int] | None, Range(low=0)], (3,)),
        (tuple[()] | tuple[float], (0, 1)),
        (tuple[float, ...], ()),
        (tuple[str, str], ()),
        (list[float], ()),
    ],
)
def test_a_declared_length_is_part_of_the_entry(annotation, lengths):
    option = option_of("x", annotation)
    assert option.lengths == lengths
    entry = Entry("mylab.circle", {"x": option})
    assert Entry.of(json.loads(json.dumps(entry.plain()))) == entry


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "margin",
            {"cutoff": 1.5, "upper_cutoff": 1.2},
            r"'upper_cutoff' is 1.2; .* above cutoff.*\(cutoff is 1.5\)",
        ),
        ("margin", {"cutoff": 2.5}, "'cutoff' is 2.5; allowed: a number above 0, below 2"),
        ("contrastive_potential", {"delta_repulsion": 0.005}, r"'min_distance' is 0.01; .* below delta_repulsion"),
        ("contrastive_potential", {"delta_repulsion": "far"}, "'delta_repulsion' is 'far'"),
        ("nir", {"base": "proxy_nca", "scale": 2.0}, r"'scale' is 2.0, which counts with base='proxy_anchor' or"),
        ("el_nivmf", {"guide_margin": 0.2}, r"'guide_margin' is 0.2, which .* only; guidance is 'none'"),
    ],
)
def test_options_are_checked_beside_each_other(name: str, options: dict[str, object], message: str):
    with pytest.raises(OptionValueError, match=message):
        registry_of("loss").check_options(name, options)


def test_options_that_go_together_are_taken():
    check = registry_of("loss").check_options
    assert check("margin", {"cutoff": 0.1, "upper_cutoff": 0.2}) == {"cutoff": 0.1, "upper_cutoff": 0.2}
    assert check("el_nivmf", {"guidance": "proxy_anchor", "guide_margin": None}) is not None
    assert registry_of("uncertainty").check_options("laplace", {"prior": "validation", "prior_precision": 1.0})


def test_integers_where_floats_are_asked_become_floats():
    checked = registry_of("loss").check_options("margin", {"beta": 1})
    assert checked == {"beta": 1.0}
    assert isinstance(checked["beta"], float)
    loss = losses.create_loss("margin", num_classes=3, dim=4, beta=1, margin=0)
    assert loss.beta.dtype == torch.float32
    assert loss(torch.eye(4), torch.tensor([0, 0, 1, 2])).isfinite()


def test_a_range_that_names_no_option_is_refused():
    with pytest.raises(RegistrationError, match=r"'low' depends on 'hihg'\. did you mean 'high'"):
        entry_of(_misspelt, "m", (), ())


def _misspelt(*, low: Annotated[float, Range(below="hihg")] = 0.0, high: float = 1.0) -> None: ...


HOSTILE = [0, -1, 1, 2, 0.5, 1e300, -1e300, 10**5000, math.nan, math.inf, True, None, "", "x" * 9999, [], [[]]]
HOSTILE += [[math.nan], {}, {"a": 1}, (1, "2"), b"a", object(), {1}, 1j]


@pytest.mark.parametrize("registry", list(all_registries()), ids=lambda registry: registry.kind)
def test_any_value_is_taken_or_answered_in_a_sentence(registry):
    """Seeded; every option of every component with every kind of value, beside another option."""
    draw = random.Random(0)
    for name in registry.names():
        options = registry.options(name)
        for option in options:
            for value in HOSTILE:
                values = {option: value, draw.choice(list(options)): draw.choice(HOSTILE)}
                answer = _answer(registry, name, values)
                assert not answer or (name in answer and len(answer) < 1000)


def _answer(registry: Registry, name: str, values: dict[str, object]) -> str:
    """What is wrong with the values; empty where they are taken."""
    try:
        checked = registry.check_options(name, values)
    except OptionValueError as error:
        return str(error)
    assert checked.keys() == values.keys()
    return ""
