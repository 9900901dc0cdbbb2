from __future__ import annotations

import pytest

from probmetric.reporting.words import chance_words, group_title, option_words, override_words


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("uncertainty.apart=5", "members 5 seeds apart"),
        ("uncertainty.members=5", "5 members"),
        ("training.epochs=10", "10 epochs"),
        ("training.selection=as_published", "selection as published"),
        ("dim=32", "32 dimensions"),
        ("loss.learn_scale=false", "learn scale off"),
        ("loss.delta_repulsion=0.35", "delta repulsion 0.35"),
        ("loss.guide=null", "guide none"),
        ("plain", "plain"),
    ],
)
def test_overrides_are_told_in_words(override, words):
    assert override_words(override) == words


def test_no_answer_is_called_certain():
    stated = [0.0, 0.0049, 0.0051, 0.874, 0.9949, 0.9951, 1.0]
    assert [chance_words(value) for value in stated] == ["<0.01", "<0.01", "0.01", "0.87", "0.99", ">0.99", ">0.99"]


def test_an_option_is_named_without_its_component():
    assert option_words("loss.proxies_per_class") == "proxies per class"


@pytest.mark.parametrize(
    ("data", "title"),
    [
        ("glyphs", "glyphs"),
        ("glyphs+noise0.2", "glyphs, 20 % label noise"),
        ("cub-vmf+nearest0.25", "cub-vmf, 25 % nearest-class label noise"),
        ("glyphs+uniform0.2s1", "glyphs, 20 % label noise, seed 1"),
    ],
)
def test_titles_say_which_labels_are_wrong(data, title):
    assert group_title(data) == title
