"""`probmetric list` shows every component, its options and where it comes from."""

import pytest

from probmetric.cli import main
from probmetric.cli.runs import LISTED, listing
from probmetric.metrics import metric
from probmetric.registry import UnknownNameError, registry_of


@pytest.mark.parametrize("kinds", LISTED)
def test_every_component_is_listed_with_a_line_about_it(kinds):
    lines = listing(kinds).splitlines()
    names = {line.split()[0] for line in lines}
    assert names >= set(registry_of(LISTED[kinds]).names())
    assert all(len(line.split()) > 1 for line in lines)


def test_options_are_shown_with_defaults_and_what_they_take():
    text = listing("views", "photos")
    assert "defined in probmetric.data.views.photos" in text
    assert "  size           224   int\n" in text
    assert "  resize         None   int or None\n" in text
    assert "'backbone'   'backbone', 'imagenet'" in text
    assert "is_classifier: True" in listing("losses", "arcface")
    assert "options:" not in listing("losses", "softmax")


def test_a_metric_says_which_way_is_better(project):
    assert "better: lower" in listing("metrics", "ood/cub/fpr_at_95")
    assert "unit: s" in listing("metrics", "training/seconds")

    @metric(direction="higher")
    def mine(test):
        """My own."""

    assert "own/mine" in listing("metrics")
    assert "My own. [higher]" in listing("metrics")


def test_wrong_names_are_answered(project, capsys):
    with pytest.raises(UnknownNameError, match="unknown kind of component 'loses': did you mean 'losses'"):
        listing("loses")
    assert main(["list", "losses", "arcfac"]) != 0
    assert "unknown loss 'arcfac': did you mean 'arcface'" in capsys.readouterr().err


def test_plugins_of_the_project_are_listed(project, capsys):
    (project / "params.yaml").write_text("plugins: mine\ndatasets: [digits]\n")
    (project / "mine.py").write_text(
        "from probmetric.reporting.figures import register\n@register('my_plot')\ndef plot(context):\n    'Mine.'\n"
    )
    assert main(["list", "figures"]) == 0
    assert "my_plot" in capsys.readouterr().out
