"""The first screen of a page: frozen features beside the best method, pictures of questions, labels that look wrong."""

from __future__ import annotations

import html
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from browsing import open_browser
from fabricated_runs import Workspace, gathered, write_prepared, write_run

from probmetric.data.manifest import read_table, values_of, write_manifest
from probmetric.io import content_digest, read_yaml, write_json, write_tensors, write_yaml
from probmetric.metrics.statistics import Sample
from probmetric.reporting.answers import Promise, _lead, answers, gain_over, with_promises
from probmetric.reporting.figures import histograms, montages
from probmetric.reporting.figures.montages import RIGHT, WRONG, Album
from probmetric.reporting.page import render
from probmetric.reporting.questions import COLUMNS, browsers
from probmetric.reporting.recommended import Candidate, best, candidates
from probmetric.reporting.report import contents_of, markdown, write_page, write_report
from probmetric.reporting.settings import frozen_baselines, settings_of
from probmetric.reporting.tables import result_table
from probmetric.reporting.words import chance_words
from probmetric.runs.folder import RunFolder
from probmetric.runs.roles import Roles
from probmetric.trust.answers import among_others
from probmetric.trust.certificates import certify

RECALL = "retrieval/recall_at_1"
LUCK = "The same test images chose this method, so the gain may look too large."
FROZEN = {"backbone": {"name": "timm", "options": {"tag": "a_b.in1k", "head": "none"}}, "pretrained": True}


def measured(root, run, recall, **settings):
    """A run with this recall; of frozen features where the settings say so."""
    folder = write_run(root, run, {RECALL: recall})
    write_json(folder / "metrics.json", {RECALL: recall})
    write_json(folder / "curves.json", {})
    record = read_yaml(folder / "run.yaml")
    record["settings"] |= settings
    record["settings"]["training"] = {"epochs": 0 if settings else 4, "head_init": "lda", "freeze": "trunk"}
    write_yaml(folder / "run.yaml", record)
    return folder


def study(tmp_path, tuned, frozen=0.8):
    """The context of three seeds of a tuned method beside frozen features."""
    for seed, value in enumerate(tuned):
        measured(tmp_path, f"birds/tuned/seed{seed}", value)
        measured(tmp_path, f"birds/frozen/seed{seed}", frozen, **FROZEN)
    runs = [f"birds/{method}/seed{seed}" for method in ("tuned", "frozen") for seed in range(len(tuned))]
    space = Workspace(tmp_path, tuple(runs))
    return gathered(space.context("own", metrics=(RECALL,), figures=(), labels={}))


def step(context):
    (answer,) = with_promises(context, answers(result_table(context)))
    return answer.step


def test_frozen_features_are_known_by_their_settings_and_not_by_a_name(tmp_path):
    context = study(tmp_path, [0.85, 0.86, 0.87])
    assert frozen_baselines(context) == {"birds": "frozen"}
    run = read_yaml(tmp_path / "results/birds/frozen/seed0/run.yaml")
    run["settings"]["backbone"]["options"]["head"] = "linear"
    for seed in range(3):
        write_yaml(tmp_path / f"results/birds/frozen/seed{seed}/run.yaml", run)
    assert frozen_baselines(gathered(context)) == {}


def test_a_step_that_paid_is_said_to_have_with_its_interval(tmp_path):
    text = step(study(tmp_path, [0.85, 0.86, 0.87]))
    assert text.startswith("Gain of tuned over frozen features: +0.060 Recall@1")
    assert "95 % interval +0.035 to +0.085" in text  # t(2) = 4.303 times .01 / sqrt(3)
    assert text.endswith(f"This step paid. {LUCK}")


def test_a_step_that_is_lost_in_its_seeds_is_not(tmp_path):
    assert step(study(tmp_path, [0.75, 0.85, 0.87])).endswith(f"frozen features may be the best you have. {LUCK}")
    assert "too few seeds for an interval" in step(study(tmp_path / "one", [0.87]))


def test_frozen_features_that_are_best_are_called_so_and_what_is_below_is_marked(tmp_path):
    context = study(tmp_path, [0.71, 0.72, 0.73])
    assert step(context) == "Training added nothing: frozen features are the best method on the test images."
    table = result_table(context)
    assert table.set_index("method")["below_frozen"].to_dict() == {"tuned": True, "frozen": False}
    assert "| tuned ▼ |" in markdown(contents_of(context))
    assert 'title="below the frozen features"' in render(contents_of(context))


def test_promises_of_two_risks_are_not_compared_in_silence():
    best = Promise(answered=77.0, wrong=4.0, risk=0.05, confidence=0.9)
    alone = Promise(answered=71.0, wrong=4.0, risk=0.05, confidence=0.9)
    of_frozen = "With frozen features alone, 71 are answered, 4 of them wrong"
    first = f"Of 100 questions 77 are answered, 4 of them wrong. {of_frozen}"
    assert _lead(best, alone) == f"{first}."
    assert _lead(best, replace(alone, risk=0.1)) == f"{first} (certified for a risk of 10 %, not 5 %)."
    assert _lead(best, None) == "Of 100 questions 77 are answered, 4 of them wrong."
    told = {0.0: "0", 0.4: "fewer than 1", 0.96: "fewer than 1", 1.0: "1", 1.6: "2"}
    numbers = [f"50 are answered, {count} of them wrong" for count in told.values()]
    assert [Promise(50, wrong, 0.1, 0.9).numbers for wrong in told] == numbers
    assert Promise(1.2, 1.0, 0.1, 0.9).numbers == "1 is answered, 1 of them wrong"
    few = replace(alone, wrong=0.4)
    assert _lead(best, few).endswith("With frozen features alone, 71 are answered, fewer than 1 of them wrong.")


def test_what_frozen_features_cannot_vary_in_is_not_a_sample():
    classes = np.array([0.1, 0.0, 0.1, 0.0])
    frozen = Sample({0: 0.5}, {0: np.full(4, 0.5)})
    method = Sample({0: 0.55, 1: 0.55}, dict.fromkeys((0, 1), 0.5 + classes))
    gain = gain_over(method, frozen)
    assert gain.difference == pytest.approx(0.05)
    assert gain_over(Sample({0: 0.55}), frozen).half_width is None


def test_frozen_features_are_compared_split_by_split():
    frozen = Sample({0: 0.40, 1: 0.60, 2: 0.80})
    method = Sample({0: 0.4105, 1: 0.6105, 2: 0.8105})
    gain = gain_over(method, frozen, by_split=True)
    assert gain.difference == pytest.approx(0.0105)
    assert gain.half_width == pytest.approx(4.303 * 0.02 / 3**0.5, rel=1e-3)  # t(2); a tenth of the splits' spread .2
    assert gain_over(method, Sample({1: 0.6}), by_split=True).difference == pytest.approx(0.0105)
    assert gain_over(Sample({1: 0.7}), Sample({0: 0.6}), by_split=True) is None


def test_equal_seeds_are_not_called_one_training():
    gain = gain_over(Sample({0: 0.55, 1: 0.55, 2: 0.55}), Sample({0: 0.5}))
    assert (gain.difference, gain.once) == (pytest.approx(0.05), False)


def test_one_training_has_the_interval_of_its_test_classes():
    frozen = Sample({0: 0.5}, {0: np.full(4, 0.5)})
    gain = gain_over(Sample({7: 0.55}, {7: np.array([0.6, 0.5, 0.6, 0.5])}), frozen)
    assert (gain.difference, gain.once) == (pytest.approx(0.05), True)
    assert gain.half_width == pytest.approx(3.182 * (0.01 / 3 / 4) ** 0.5, rel=1e-3)  # t(3), variance .01 / 3


def test_every_method_has_its_settings_one_click_away(tmp_path):
    context = study(tmp_path, [0.85, 0.86, 0.87])
    settings = settings_of(context)
    assert settings["frozen"]["Backbone"] == "timm (tag a_b.in1k, head none)"
    assert settings["tuned"]["Loss"] == "tuned (scale 32)"
    assert settings["tuned"]["Head starts from"] == "lda"
    assert settings["tuned"]["Frozen"] == "trunk"
    assert not settings["frozen"].keys() & {"Head starts from", "Frozen"}  # it has no head, and nothing trains
    page = render(contents_of(context))
    for variant in settings:
        assert f'href="#settings-{variant}"' in page
        assert f'id="settings-{variant}"' in page


def test_vectors_are_not_shown_as_the_pictures_they_are_stored_as(tmp_path):
    """1280 numbers were 1323 dimensions and 42 x 42 pixels."""
    vectors = {"backbone": {"name": "vectors", "options": {"head": "none"}}, "dim": "features"}
    folder = measured(tmp_path, "birds/vectors/seed0", 0.8, **vectors)
    write_yaml(folder / "encoder.yaml", {"settings": {}, "training": {}, "encoder": {"dim": 1323, "image_size": 42}})
    space = Workspace(tmp_path, ("birds/vectors/seed0",))
    (settings,) = settings_of(gathered(space.context("own", metrics=(RECALL,), figures=(), labels={}))).values()
    assert settings["Backbone"] == "vectors (head none)"
    assert not settings.keys() & {"Pixels", "Dimensions"}


@pytest.fixture
def pictured(tmp_path):
    """Twenty images of four classes that are told apart, image 0 with another's label; one image of a fifth class."""
    generator = np.random.default_rng(0)
    labels = np.append(np.repeat(np.arange(4), 5), 4)
    mean = np.eye(5)[labels] + 0.1 * generator.standard_normal((21, 5))
    labels[0] = 3
    mean = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)
    mean[7] = mean[6]  # one picture twice
    folder = measured(tmp_path, "birds/tuned/seed0", 0.9)
    tensors = {"mean": mean, "label": labels, "index": np.arange(21), "uncertainty": generator.random(21)}
    write_tensors(folder / "embeddings" / "test.safetensors", tensors, {})
    RunFolder(folder).write_matches({"test": among_others(tensors, labels).tensors()}, {})
    write_prepared(tmp_path, "birds", 21)
    space = Workspace(tmp_path, ("birds/tuned/seed0",))
    return gathered(space.context("own", metrics=(RECALL,), figures=(), labels={}))


def test_the_label_that_is_wrong_is_the_surest_wrong_answer_and_first_among_the_suspects(pictured):
    (browser,) = browsers(pictured)
    assert browser.wrong[0].row == 0
    assert browser.suspects[0].row == 0
    assert browser.codes[0] == 3
    assert browser.proposed[0] == 0
    assert browser.copies == [(6, 7)]
    assert browser.contradictions == []
    assert len(browser.questions) == 20


def test_questions_and_their_pictures_stand_on_the_page(pictured):
    (browser,) = browsers(pictured)
    rows = browser.rows()
    assert rows[0][4] == 0
    assert rows[0][2] == chance_words(browser.questions[0].p_right)
    assert all(len(row) == 5 + 3 * 5 for row in rows)
    assert browser.sheet.rows == max(2, -(-len(browser.sheet.places) // COLUMNS))
    page = render(contents_of(pictured))
    assert page.count("<script") == 1
    on_page = json.loads(html.unescape(page.split('data-rows="')[1].split('"')[0]))
    assert [row[1:5] + row[6::3] + row[7::3] for row in on_page] == [row[1:5] + row[6::3] + row[7::3] for row in rows]
    for text in ("Wrong answers, the surest first", "Right answers, drawn at random", "Labels that look wrong"):
        assert text in page
    assert "One picture twice: 1" in page
    assert "url(data:image/webp;base64," in page


@pytest.fixture
def sided(tmp_path):
    """Queries 0 to 7, two a class; gallery 8 to 19, of which 8 shows what 0 does, of its group, and 19 is junk."""
    generator = np.random.default_rng(0)
    labels = np.append(np.arange(19) % 4, -1)
    mean = np.eye(4)[labels] + 0.4 * generator.standard_normal((20, 4))
    mean[8], mean[19] = mean[0], mean[1]
    mean = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)
    folder = measured(tmp_path, "birds/tuned/seed0", 0.9)
    tensors = {"mean": mean, "label": labels, "index": np.arange(20), "uncertainty": generator.random(20)}
    write_tensors(folder / "embeddings" / "test.safetensors", tensors, {})
    write_prepared(tmp_path, "birds", 20)
    prepared = tmp_path / "data/prepared/birds"
    table, metadata = read_table(prepared)
    columns = {name: values_of(table, name) for name in table.column_names}
    columns["role"] = np.repeat(["query", "gallery"], [8, 12])
    columns["group"] = np.array([f"group {row % 8}" for row in range(20)])
    write_manifest(prepared / "manifest.parquet", columns, metadata)
    asked = Roles.of(columns).among(tensors["index"], labels)
    RunFolder(folder).write_matches({"test": asked.answers(tensors, labels).tensors()}, {})
    space = Workspace(tmp_path, ("birds/tuned/seed0",))
    return gathered(space.context("own", metrics=(RECALL,), figures=(), labels={})), tensors


def test_queries_are_asked_in_their_gallery_on_the_page_and_in_figures(sided):
    context, tensors = sided
    cosines = tensors["mean"].astype(np.float64) @ tensors["mean"].T.astype(np.float64)
    expected = {}
    for query in range(8):
        there = [row for row in range(8, 19) if not (row % 4 == query % 4 and row % 8 == query % 8)]
        expected[query] = sorted(there, key=lambda row: -cosines[query, row])[:5]
    (browser,) = browsers(context)
    assert {each.row: list(each.nearest) for each in browser.questions} == expected
    right = {query: int(rows[0] % 4 == query % 4) for query, rows in expected.items()}
    assert {each.row: int(each.right) for each in browser.questions} == right
    assert set(right.values()) == {0, 1}
    assert 19 not in [each.row for each in browser.suspects], "junk has no label that could be wrong"
    (run,) = context.runs
    assert histograms.judgement(context, run).tolist() == [*right.values(), *[-1] * 12]
    lines = montages._query_lines(context, run, Album(context.prepared))
    frames = sorted(tuple(colours[1:]) for _, colours in lines)
    every = [tuple(RIGHT if row % 4 == query % 4 else WRONG for row in rows) for query, rows in expected.items()]
    assert len(lines) == 6
    assert all(frame in every for frame in frames)
    assert 'class="browser"' in render(contents_of(context))


PLACES = """
return [...document.querySelectorAll(".browser ul.questions > li")].map((line) => {
  const { style } = line.querySelector(".tile");
  return 24 * Number(style.getPropertyValue("--y")) + Number(style.getPropertyValue("--x"));
});
"""


@pytest.mark.slow
@pytest.mark.browser
def test_clicks_filter_order_and_enlarge_questions(pictured):
    from selenium.webdriver.support.ui import Select

    with open_browser() as driver:
        driver.get(write_page(contents_of(pictured)).as_uri())
        driver.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
        listed = json.loads(driver.find_element("css selector", ".browser").get_attribute("data-rows"))
        rows = {row[0]: row for row in listed}  # picture -> the question it asks, see `Browser.rows`
        sure = {place: row[3] for place, row in rows.items()}
        classes, order = map(Select, driver.find_elements("css selector", ".browser select"))
        assert [option.is_enabled() for option in classes.options] == [True] * 5 + [False], (
            "nothing is asked of class 4"
        )
        assert sorted(driver.execute_script(PLACES)) == sorted(rows)
        classes.select_by_index(4)
        shown = driver.execute_script(PLACES)
        assert sorted(shown) == sorted(place for place, row in rows.items() if row[1] == 3)
        assert driver.find_element("css selector", ".browser [role=status]").text == "6 questions of this class"
        classes.select_by_index(0)
        for name, sign in (("sure", -1), ("doubt", 1)):
            order.select_by_value(name)
            values = [sign * sure[place] for place in driver.execute_script(PLACES)]
            assert values == sorted(values), name
        order.select_by_value("wrong")
        first = driver.execute_script(PLACES)[0]
        assert (rows[first][1], rows[first][4]) == (3, 0), "image 0, whose label is wrong"
        driver.find_elements("css selector", ".browser ul.questions > li .tile")[1].click()
        dialog = driver.find_element("css selector", "dialog")
        assert dialog.is_displayed()
        assert f"cosine {rows[first][7]:.3f}" in dialog.text
        dialog.click()
        assert not dialog.is_displayed()
        assert driver.get_log("browser") == []


def validated(root, run, blur, labels):
    """Keep validation embeddings of a run: each image around the axis of its class, blurred."""
    points = np.eye(labels.max() + 1)[labels] + blur * np.random.default_rng(0).standard_normal(
        (len(labels), labels.max() + 1)
    )
    tensors = {"mean": points.astype(np.float32), "label": labels, "index": np.arange(len(labels))}
    file = root / "results" / run / "embeddings" / "val.safetensors"
    write_tensors(file, tensors | {"uncertainty": np.zeros(len(labels), np.float32)}, {})


@pytest.mark.parametrize(("blur", "named"), [(0.3, "tuned"), (0.598, "frozen"), (0.9, "frozen")])
@pytest.mark.parametrize("recall", [0.86, 0.7])
def test_the_page_names_what_validation_recommends_whatever_the_test_images_say(tmp_path, blur, named, recall):
    """Better for certain, hardly better, worse; best on the test images or not."""
    context = study(tmp_path, [recall - 0.01, recall, recall + 0.01])
    labels = np.repeat(np.arange(12), 8)
    for seed in range(3):
        validated(tmp_path, f"birds/tuned/seed{seed}", blur, labels)
        validated(tmp_path, f"birds/frozen/seed{seed}", 0.6, labels)
    contents = contents_of(context)
    assert contents.recommended["birds"].method == named
    (answer,) = answers(contents.table, contents.recommended)
    assert (answer.method, answer.chosen_by) == (named, "12 validation classes")
    leads = (named == "tuned") == (recall > 0.8)
    assert answer.margin.endswith(
        "frozen." if leads and named == "tuned" else "These had no say in the choice." if not leads else "tuned."
    )
    told = with_promises(context, [answer])[0].step
    assert LUCK not in told
    assert ("no other method is clearly better" in told) == (named == "frozen")
    assert f"<strong>{named}</strong>, chosen on 12 validation classes: Recall@1" in render(contents)


def test_a_validation_class_of_several_splits_is_one_unit(tmp_path):
    """Three classes in each of two splits: their signs are flipped once, so that three wins of three are no proof."""
    labels = np.repeat([3, 5, 8], 8)
    runs = []
    for place in ("birds", "birds+split1"):
        for method, blur in (("tuned", 0.2), ("frozen", 0.6)):
            runs.append(f"{place}/{method}/seed0")
            measured(tmp_path, runs[-1], 0.8, **(FROZEN if method == "frozen" else {}))
            validated(tmp_path, runs[-1], blur, labels)
    context = gathered(Workspace(tmp_path, tuple(runs)).context(metrics=(RECALL,), figures=(), labels={}))
    tuned, frozen = candidates(context)["birds"]
    assert (len(tuned.values), tuned.evidence) == (3, "3 validation classes")
    assert tuned.means > frozen.means
    assert best([tuned, frozen]) is frozen, "1 of 8 flips is more than .1"


def test_who_is_ahead_on_easier_splits_alone_is_not_the_answer(tmp_path):
    values = {"a": [0.9, 0.91, 0.92], "b": [0.95, 0.965, 0.97, 0.5, 0.52]}
    runs = [(f"birds/{name}/seed{seed}", value) for name, each in values.items() for seed, value in enumerate(each)]
    for run, value in runs:
        measured(tmp_path, run, value)
    context = Workspace(tmp_path, tuple(run for run, _ in runs)).context(metrics=(RECALL,), figures=(), labels={})
    (answer,) = answers(result_table(gathered(context)))
    assert (answer.method, answer.significance[:25]) == ("b", "Significantly better than")


def test_weights_that_saw_the_validation_images_are_not_recommended(tmp_path):
    context = study(tmp_path, [0.85, 0.86, 0.87])
    labels = np.repeat(np.arange(12), 8)
    for seed in range(3):
        validated(tmp_path, f"birds/tuned/seed{seed}", 0.1, labels)
        validated(tmp_path, f"birds/frozen/seed{seed}", 0.6, labels)
        run = tmp_path / f"results/birds/tuned/seed{seed}/run.yaml"
        record = read_yaml(run)
        record["settings"]["training"]["selection"] = "refit"
        write_yaml(run, record)
    assert contents_of(gathered(context)).recommended["birds"].method == "frozen"
    assert LUCK in step(context), "without the validation images, test images name a method"


def test_a_page_without_the_prepared_data_says_what_it_leaves_out(pictured):
    assert 'id="questions"' in render(contents_of(pictured))
    assert "prepared data" not in render(contents_of(pictured))
    shutil.rmtree(pictured.prepared)
    page = render(contents_of(replace(pictured)))
    assert 'id="questions"' not in page
    assert "The prepared data of birds are not here: pictures of questions, wrong labels and the protocol" in page


def test_runs_whose_embeddings_were_not_kept_have_a_page_that_says_so(tmp_path):
    """It made tables and claims, and stopped at the page."""
    context = study(tmp_path, [0.85, 0.86, 0.87])
    doubt = np.arange(400.0)
    for run in context.runs:
        file = run.embeddings_file("test")
        certify(doubt, doubt < 300, risk=0.1, gallery=content_digest(file)).save(run.certificate_file)
        write_json(run.made_file("embed"), {"files": {file.name: content_digest(file)}})
        file.unlink()
    page = write_report(context).read_text()
    assert f"Embeddings of {len(context.runs)} of {len(context.runs)} runs were not kept" in page
    assert "of 100 questions" in page.lower()
    assert "no certificate" not in page.lower()
    assert 'id="questions"' not in page


def candidate(method, values):
    """A method with these MAP@R and recall@1 (C, 2) of the validation classes."""
    return Candidate(method, values, method == "frozen")


def test_twenty_methods_that_are_no_better_are_seldom_recommended():
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        frozen = generator.normal(0.5, 0.1, size=(30, 2))
        others = [np.stack([frozen[:, 0] + generator.normal(0, 0.05, 30), frozen[:, 1]], axis=1) for _ in range(20)]
        methods = [candidate("frozen", frozen), *(candidate(str(k), values) for k, values in enumerate(others))]
        wrong += best(methods).method != "frozen"
    assert wrong / 300 <= 0.1 + 3.1 * np.sqrt(0.1 * 0.9 / 300)
    better = candidate("better", frozen + generator.normal(0.1, 0.05, size=(30, 2)))
    assert best([*methods, better]).method == "better"
