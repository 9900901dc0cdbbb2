"""Components of a user's own modules: found, checked and created like the package's, with errors that name both."""

import subprocess
import sys
from pathlib import Path

import pytest

from probmetric import losses
from probmetric.config import ConfigError, Params, parse
from probmetric.errors import nearest
from probmetric.metrics import metric
from probmetric.planning.declared import ensure, outdated
from probmetric.planning.plans import reporting_code
from probmetric.registry import (
    REQUIRED,
    PluginError,
    RegistrationError,
    UnknownNameError,
    isolated_components,
    load_plugins,
    registry_of,
)
from probmetric.registry import registry as registries
from probmetric.runs import source as source_digest
from probmetric.trust.scores import score

LOSS = '''
"""A loss of a user."""
from typing import Literal
from probmetric.losses import ProxyLoss, register

@register{name}
class Circle(ProxyLoss):
    """Circles around proxies.

    More about it.
    """

    def __init__(
        self, *, num_classes: int, dim: int, margin: float = 0.4, gamma: int | None = None,
        mode: Literal["a", "b"] | None = "a", weights: tuple[float, ...] = (1.0, 2.0), **shared: float
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim, **{{"proxy_lr": 0.1}} | shared)
        self.margin = margin

    def compute(self, embeddings, labels, generator):
        return embeddings.square().mean() + self.proxies.square().mean()
'''


def package(project: Path, name: str = "mylab", **files: str) -> None:
    (project / name).mkdir(exist_ok=True)
    (project / name / "__init__.py").touch()
    for module, text in files.items():
        (project / name / f"{module}.py").write_text(text)


def test_a_loss_of_a_user_is_known_checked_and_created(project):
    package(project, circle=LOSS.format(name=""), _broken="raise RuntimeError('helpers are not imported')")
    load_plugins(["mylab"])
    assert "circle" in losses.list_losses()
    assert losses.REGISTRY.module("circle") == "mylab.circle"
    entry = losses.REGISTRY.entry("circle")
    assert entry.doc == "Circles around proxies."
    assert entry.constants == {"has_proxies": True, "is_classifier": False}
    loss = losses.create_loss("circle", num_classes=3, dim=4, margin=1.0, proxy_lr=0.5)
    assert loss.margin == 1.0
    assert loss.optimizer_groups()[0]["lr"] == 0.5


def test_options_are_declared_once_with_unions_and_what_a_base_class_takes(project):
    package(project, circle=LOSS.format(name=""))
    load_plugins(["mylab"])
    options = losses.REGISTRY.options("circle")
    assert {name: option.default for name, option in options.items()} == {
        "margin": 0.4,
        "gamma": None,
        "mode": "a",
        "weights": [1.0, 2.0],
        "proxy_lr": REQUIRED,
        "per_class": 1,
    }
    losses.REGISTRY.check_options("circle", {"gamma": None, "mode": None, "weights": [1], "per_class": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margni": 1.0}, "loss 'circle' has no option 'margni': did you mean 'margin'"),
        ({"gamma": 0.5}, r"option 'gamma' is 0.5 \(float\); expected int or None"),
        ({"mode": "c"}, "option 'mode' is 'c'; allowed: 'a', 'b', None"),
        ({"weights": 3}, r"option 'weights' is 3 \(int\); expected list"),
        ({"per_class": "two"}, r"option 'per_class' is 'two' \(str\); expected int"),
    ],
)
def test_wrong_options_of_a_plugin_are_answered(project, options, message):
    package(project, circle=LOSS.format(name=""))
    load_plugins(["mylab"])
    with pytest.raises(ValueError, match=message):
        losses.REGISTRY.check_options("circle", options)


def test_plugins_in_params_are_known_before_the_methods_are_checked(project):
    package(project, circle=LOSS.format(name=""))
    given = {"plugins": "mylab", "datasets": ["digits"], "methods": {"ours": {"loss": {"name": "circle", "margin": 2}}}}
    params = parse(Params, given, "params.yaml")
    assert params.methods["ours"].loss.options == {"margin": 2}
    with pytest.raises(ConfigError, match="unknown loss 'cirle': did you mean 'circle'"):
        parse(Params, given | {"methods": {"ours": {"loss": "cirle"}}}, "params.yaml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mylba", "", r"params.yaml: plugins: plugin 'mylba' is not installed and .* holds no mylba.py or mylba/"),
        (
            "mylab",
            "import nothing_of_that_name",
            r"imported: \S+circle.py, line 1: ModuleNotFoundError: No module named",
        ),
        ("mylab", "import json\njson.loads('{')", r"imported: \S+mylab/circle.py, line 2: JSONDecodeError: Expecting"),
        ("mylab", "def f(:", r"cannot be imported: SyntaxError: invalid syntax \(circle.py, line 1\)"),
        ("my lab", "", "plugin 'my lab' is not installed"),
    ],
)
def test_a_plugin_that_cannot_be_had_is_named(project, name, text, message):
    package(project, circle=text)
    with pytest.raises(ConfigError, match=message):
        parse(Params, {"plugins": [name], "datasets": ["digits"]}, "params.yaml")


def test_two_components_of_one_name_are_both_named(project):
    package(project, circle=LOSS.format(name=""))
    package(project, "other", mine=LOSS.format(name='("circle")'), triplet="")
    load_plugins(["mylab"])
    with pytest.raises(RegistrationError, match=r"'circle' is registered by mylab.circle and by other.mine"):
        load_plugins(["other"])
    package(project, "third", triplet=LOSS.format(name=""))
    with pytest.raises(RegistrationError, match=r"'triplet' is registered by probmetric.losses.triplet and by third"):
        load_plugins(["third"])


def test_two_components_of_one_module_need_names(project):
    package(project, both=LOSS.format(name="") + LOSS.format(name="").replace("Circle", "Square"))
    with pytest.raises(RegistrationError, match=r"'both' is registered twice; .*@register\('...'\)"):
        load_plugins(["mylab"])
    package(project, "two", both=LOSS.format(name='("one")') + LOSS.format(name='("two")').replace("Circle", "Square"))
    load_plugins(["two"])
    assert losses.REGISTRY.module("two") == losses.REGISTRY.module("one") == "two.both"
    assert losses.create_loss("two", num_classes=2, dim=2, proxy_lr=0.1).__class__.__name__ == "Square"


def test_an_option_before_the_star_says_where_it_belongs(project):
    package(project, flat="from probmetric.losses import register\n@register\ndef flat(margin=1.0, *, dim): ...\n")
    with pytest.raises(RegistrationError, match=r"mylab.flat.flat takes 'margin' before `\*`; declare options after"):
        load_plugins(["mylab"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "margin=0.4",
            r"mylab.flat.flat: option 'margin' declares no type .*; write margin: float, or another of float,",
        ),
        ("margin", "option 'margin' declares no type"),
        ("margin: 'Unheard' = 1", "option 'margin' declares no type"),
        ("margin: set = None", "option 'margin' declares no type"),
        ("margin: float | bytes = None", "option 'margin' declares no type"),
    ],
)
def test_an_option_that_declares_no_type_is_refused(project, option, message):
    package(project, flat=f"from probmetric.losses import register\n@register\ndef flat(*, {option}, dim): ...\n")
    with pytest.raises(RegistrationError, match=message):
        load_plugins(["mylab"])


def test_an_option_that_takes_anything_says_so(project):
    text = (
        "from typing import Any\nfrom probmetric.losses import register\n@register\ndef flat(*, margin: Any, dim): ..."
    )
    package(project, flat=text)
    load_plugins(["mylab"])
    assert losses.REGISTRY.check_options("flat", {"margin": "x"}) == {"margin": "x"}


@pytest.mark.parametrize("above", ["@dataclass(frozen=True, kw_only=True)\n", ""])
def test_fields_that_would_be_no_options_are_refused(project, above):
    text = (
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from probmetric.data.sources import Source, register\n"
        f"{above}@register\nclass Mine(Source):\n    closed_set: bool = True\n"
        "    one: ClassVar[int] = 1\n    two: int = 2\n"
    )
    package(project, mine=text)
    with pytest.raises(RegistrationError, match=r"mylab.mine.Mine: field 'two' would be no option; write @dataclass"):
        load_plugins(["mylab"])


@pytest.mark.parametrize(
    ("base", "home", "defines", "missing"),
    [
        ("View", "data.views", "", "evaluation"),
        ("View", "data.views", "evaluation", "normalise"),
        ("Loss", "losses", "", "compute or logits or forward"),
        ("Uncertainty", "uncertainty", "", "represent or describe"),
        ("Loss", "losses", "logits", ""),
        ("Uncertainty", "uncertainty", "describe", ""),
    ],
)
def test_a_class_without_a_method_that_its_base_leaves_open_is_refused(project, base, home, defines, missing):
    text = f"from probmetric.{home} import {base}, register\n@register\nclass Ours({base}):\n"
    package(project, ours=text + f"    def {defines or 'other'}(self, *args, **options): return self\n")
    if not missing:
        load_plugins(["mylab"])
        return
    with pytest.raises(RegistrationError, match=rf"^mylab.ours: \w+ 'ours' does not define {missing}, "):
        load_plugins(["mylab"])


def test_fields_that_a_view_inherits_are_checked_as_they_are_declared_there(project):
    text = (
        "from dataclasses import dataclass\nfrom probmetric.data.views import register\n"
        "from probmetric.data.views.photos import Photos\n"
        "@register\n@dataclass(frozen=True, kw_only=True)\nclass Ours(Photos):\n    grey: bool = True\n"
    )
    package(project, ours=text)
    load_plugins(["mylab"])
    view = registry_of("view")
    assert view.options("ours") == view.options("photos") | {"grey": view.options("ours")["grey"]}
    with pytest.raises(ValueError, match=r"view 'ours': option 'size' is 0; allowed: a number at least 1"):
        view.check_options("ours", {"size": 0})


def test_decorators_go_without_parentheses_or_say_what_is_missing(project):
    def doubt(match):
        return match.similarity[:, 0]

    assert score(doubt) is doubt
    with pytest.raises(
        RegistrationError, match=r"'match' before .* keywords, and what it is called with is named test"
    ):
        metric("lower")(doubt)
    assert registry_of("score").entry("doubt").constants == {"free": False, "needs": []}
    with pytest.raises(
        RegistrationError, match=r"metric 'own/doubt' has direction None; write @metric\(direction=...\)"
    ):
        metric(doubt)

    def falling(test):
        return 0.0

    assert metric("lower")(falling) is falling
    assert registry_of("metric").constant("falling", "direction") == "lower"
    package(project, circle=LOSS.format(name="()"))
    load_plugins(["mylab"])
    assert losses.REGISTRY.module("circle") == "mylab.circle"


def test_a_plugin_hidden_by_a_module_of_its_name_is_refused(project):
    (project / "statistics.py").write_text(LOSS.format(name='("circle")'))
    with pytest.raises(PluginError, match=r"'statistics' is statistics.py of this folder, but Python imports \S+/stat"):
        load_plugins(["statistics"])


def test_a_plugin_that_registers_nothing_itself_is_refused(project):
    package(project, circle=LOSS.format(name=""))
    (project / "mylab_more.py").write_text("import mylab.circle\n")
    for name in ("mylab_more", "json"):
        with pytest.raises(PluginError, match=f"plugin '{name}' registers no component itself"):
            load_plugins([name])


def test_components_that_a_plugin_imports_are_known_the_second_time_too(project):
    package(project, circle=LOSS.format(name=""))
    more = (
        "from probmetric.losses import register\nfrom mylab.circle import Circle\n@register\nclass More(Circle): ...\n"
    )
    (project / "mylab_more.py").write_text(more.replace("@register", "@register('more')"))
    for _ in range(2):
        with isolated_components():
            load_plugins(["mylab_more"])
            assert {"circle", "more"} <= {*losses.list_losses()}
        for name in ("mylab_more", "mylab.circle"):
            del sys.modules[name]


def test_a_component_of_a_plugin_that_is_gone_is_told_where_it_was(project):
    package(project, arcfase=LOSS.format(name=""))
    with isolated_components():
        load_plugins(["mylab"])
    with pytest.raises(UnknownNameError, match=r"'arcface'\? .*It was defined by mylab.arcfase, which is not loaded"):
        losses.REGISTRY.check("arcfase")


def test_a_default_that_is_no_plain_value_is_refused(project):
    package(project, odd="from probmetric.losses import register\n@register\ndef odd(*, how=len, dim=2): ...\n")
    with pytest.raises(RegistrationError, match=r"mylab.odd.odd: 'how' is <built-in function len>; options"):
        load_plugins(["mylab"])


def test_a_loss_defined_in_a_session_needs_no_plugin(project):
    text = LOSS.format(name='("of_a_session")')
    exec(compile(text, "cell", "exec"), names := {"__name__": "__main__"})
    assert losses.create_loss("of_a_session", num_classes=2, dim=3).margin == 0.4
    exec(compile(text.replace("0.4", "0.6"), "cell", "exec"), {"__name__": "__main__"})
    assert losses.create_loss("of_a_session", num_classes=2, dim=3).margin == 0.6
    assert names["Circle"].has_proxies
    with pytest.raises(RegistrationError, match=r"__main__: '__main__' cannot name a loss; .*@register\('my_name'\)"):
        exec(compile(LOSS.format(name=""), "cell", "exec"), {"__name__": "__main__"})


CHECK = """
import sys
from probmetric.config import Params, parse
parse(Params, {"plugins": ["mylab"], "datasets": ["digits"],
               "methods": {"m": {"loss": {"name": "circle", "margin": 3.0}}}}, "params.yaml")
print("torch" in sys.modules, "mylab.circle" in sys.modules)
"""


@pytest.mark.slow
def test_a_plugin_is_imported_once_and_again_only_when_it_changes(project):
    def imported() -> str:
        run = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
        return run.stdout.strip() or run.stderr

    package(project, circle=LOSS.format(name=""))
    assert imported() == "True True"
    assert imported() == "False False"
    package(project, circle=LOSS.format(name="").replace("margin: float", "margin: int"))
    assert "option 'margin' is 3.0 (float); expected int" in imported()


def test_outside_a_project_nothing_is_written(project):
    (project / "params.yaml").unlink()
    package(project, circle=LOSS.format(name=""))
    load_plugins(["mylab"])
    assert sorted(path.name for path in project.iterdir()) == ["mylab"]


def test_installed_packages_announce_components_by_entry_point(project, monkeypatch):
    package(project, circle=LOSS.format(name=""))
    info = project / "mylab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mylab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[probmetric.components]\nmylab = mylab.circle\n")
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setattr(registries, "_LOADED", set())
    assert losses.create_loss("circle", num_classes=2, dim=2).margin == 0.4
    assert "circle" in losses.list_losses()
    (project / "mylab" / "circle.py").unlink()
    del sys.modules["mylab.circle"]
    monkeypatch.setattr(registries, "_LOADED", set())
    with pytest.raises(PluginError, match=r"mylab announces components that cannot be had.*mylab.circle"):
        losses.REGISTRY.check("ring")


def test_every_kind_is_open(project):
    figure = "from probmetric.reporting.figures import register\n@register\ndef my_figure(context):\n    'Mine.'\n"
    source = (
        "from probmetric.data.sources import Source, register\n@register\nclass Mine(Source):\n    'Mine.'\n"
        "    closed_set = {'split': 'by_image'}\n    def __init__(self, *, split: str = 'by_class'): ...\n"
        "    def read(self, files, *, seed): ...\n"
    )
    backbone = "from probmetric.models import Encoder, register\n@register\nclass Net(Encoder):\n    has_head = False\n"
    doubt = (
        "from probmetric.uncertainty import Uncertainty, register\n@register\nclass D(Uncertainty):\n    fits = True\n"
        "    def describe(self, rows, predictor): ...\n"
    )
    package(project, my_figure=figure, mine=source, net=backbone, doubt=doubt)
    load_plugins(["mylab"])
    names = {"figure": "my_figure", "dataset": "mine", "backbone": "net", "uncertainty": "doubt"}
    assert all(registry_of(kind).module(name) == f"mylab.{name}" for kind, name in names.items())
    assert registry_of("uncertainty").constant("doubt", "fits")
    assert len({reporting_code(), reporting_code(("mylab.my_figure",)), reporting_code(("mylab.net",))}) == 3
    assert not registry_of("dataset").holds("mine", "closed_set", {})
    assert registry_of("dataset").holds("mine", "closed_set", {"split": "by_image"})


def test_a_source_of_a_user_prepares_again_when_its_code_changes(project):
    source = (
        "from probmetric.data.sources import register\nfrom probmetric.data.sources.digits import Digits\n\n@register\n"
        "class Mine(Digits):\n    def read(self, files, *, seed):\n        return super().read(files, seed=seed)\n"
    )
    package(project, mine=source)
    load_plugins(["mylab"])
    params = parse(
        Params, {"datasets": ["digits"], "data": {"on_request": {"mine": {"source": "mine"}}}}, "params.yaml"
    )
    ensure(params, "mine")
    assert outdated(params, "mine") == ""
    for change, says in (("# of no consequence", ""), ("SIDE = 3", "mylab.mine changed")):
        package(project, mine=f"{source}\n{change}\n")
        for cached in (source_digest._facts, source_digest._kept, source_digest._remembered):
            cached.cache_clear()
        assert outdated(params, "mine") == says
    ensure(params, "mine")
    assert outdated(params, "mine") == ""


def test_a_name_near_none_may_be_in_a_module_that_nobody_named():
    with pytest.raises(ValueError, match=r"If it is yours, name its module .`plugins` of params"):
        losses.REGISTRY.check("zzz")
    with pytest.raises(ValueError, match="did you mean 'arcface'") as near:
        losses.REGISTRY.check("arcfase")
    assert "yours" not in str(near.value)


def test_nearest_without_a_near_name_lists_what_is_allowed():
    assert nearest("zzz", ["b", "a"]) == "Allowed: a, b."
    assert issubclass(UnknownNameError, ValueError)
