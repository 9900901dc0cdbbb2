"""Figures that read embeddings, samples and overrides, on runs fabricated to hold them."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from fabricated_runs import context_of, gathered, write_prepared, write_run

from probmetric.io import (
    FileError,
    content_digest,
    read_json,
    read_tensors,
    read_yaml,
    write_json,
    write_tensors,
    write_yaml,
)
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _style, curves, draw, histograms, maps, montages, sweeps
from probmetric.reporting.figures import list_figures as listed_figures
from probmetric.reporting.questions import browsers
from probmetric.reporting.results import mean_of
from probmetric.runs.folder import RunFolder
from probmetric.trust import certify
from probmetric.trust.answers import among_others

METHODS = ("contrastive", "proxy_nca")
DATA = ("digits", "glyphs")
ALPHAS = (0.0, 0.1, 1.0, 10.0)
READING_EMBEDDINGS = (
    *("norm_grid", "class_norm_grid", "norm_histogram", "singular_values", "retrieval_reliability"),
    *("p_right", "risk_coverage"),
    *("uncertainty_grid", "uncertainty_histogram", "retrieval_examples", "embedding_map", "sphere", "option_sweep"),
)
REASONS = {
    "norm_grid": "has concentrations",
    "class_norm_grid": "has concentrations",
    "norm_histogram": "has concentrations",
    "singular_values": "test embeddings",
    "retrieval_reliability": "samples",
    "p_right": "right and wrong answers",
    "risk_coverage": "match record",
    "uncertainty_grid": "test embeddings",
    "uncertainty_histogram": "out-of-distribution",
    "retrieval_examples": "test embeddings",
    "embedding_map": "test embeddings",
    "sphere": "dim: 3",
    "option_sweep": "more than one value",
}


@pytest.fixture
def paper(workspace) -> ReportContext:
    """Runs with concentrations, out-of-distribution images, three dimensions, and sweeps of an option of the loss."""
    sources = workspace.root / "results"
    runs = [f"{data}/{method}/seed{seed}" for data in DATA for method in METHODS for seed in range(2)]
    for run in runs:
        _enrich(sources / run, "glyphs" if run.startswith("digits") else "digits")
    swept = [f"digits/proxy_nca+loss.alpha={alpha}/seed{seed}" for alpha in ALPHAS for seed in range(2)]
    for number, run in enumerate(swept):
        _sweep(sources / run, 0.5 + 0.01 * number)
    everything = [*runs, *swept]
    context = workspace.context("paper", runs=everything)
    return gathered(context)


def _enrich(folder, other):
    generator = np.random.default_rng(len(str(folder)))
    tensors, metadata = read_tensors(folder / "embeddings" / "test.safetensors")
    count = len(tensors["label"])
    mean = np.eye(3, dtype=np.float32)[tensors["label"] % 3] + 0.2 * generator.normal(size=(count, 3))
    tensors["mean"] = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)
    tensors["concentration"] = (1 / tensors["uncertainty"]).astype(np.float32)
    write_tensors(folder / "embeddings" / "test.safetensors", tensors, metadata)
    ood = {
        "uncertainty": generator.random(30).astype(np.float32) + 1,
        "index": np.arange(30),
        "source": np.repeat([0, 1], [20, 10]),
    }
    sources = {"sources": json.dumps([other, "not_prepared"])}
    write_tensors(folder / "embeddings" / "ood.safetensors", ood, sources)
    answers = {"asked": np.ones(count, np.uint8), "right": (generator.random(count) < 0.6).astype(np.uint8)}
    RunFolder(folder).write_matches({"test": answers | {"doubt.disagreement": generator.random(count)}}, {})
    curves = read_json(folder / "curves.json")
    reliability = {"confidence": [0.2, 0.6, 1.0], "accuracy": [0.1, 0.5, 0.9], "count": [5, 5, 5]}
    curves |= {"retrieval_reliability": reliability, "p_right": reliability}
    write_json(folder / "curves.json", curves)


def _sweep(folder, value):
    loss = {"name": "potential_field", "options": {}}
    write_yaml(folder / "run.yaml", {"run": "r", "settings": {"loss": loss, "dim": 64}})
    write_json(folder / "metrics.json", {"retrieval/recall_at_1": value})


def png_size(path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_every_figure_is_tested(study):
    assert set(READING_EMBEDDINGS) | set(study.figures) == set(listed_figures())


def test_the_documentation_lists_every_figure():
    page = (Path(__file__).parents[2] / "docs/guide/figures.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == sorted(listed_figures())


@pytest.mark.slow
@pytest.mark.parametrize("name", READING_EMBEDDINGS)
def test_a_figure_is_drawn_with_words_and_the_same_bytes(paper, name):
    paths = draw(name, paper)
    words = json.loads(paths[2].read_text())
    assert words["empty"] == ""
    assert min(len(words[key]) for key in ("title", "caption", "alt")) > 5
    assert words["alt"].endswith(".")
    width, height = png_size(paths[0])
    assert width == pytest.approx(_style.WIDTH * _style.DPI, abs=1)
    assert 200 < height < 6000
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in draw(name, paper)] == before


@pytest.mark.parametrize("name", READING_EMBEDDINGS)
def test_without_the_data_it_needs_a_figure_says_so(workspace, name):
    context = workspace.context("empty", runs=["digits/none/seed0"])
    context = gathered(context)
    assert REASONS[name] in json.loads(draw(name, context)[2].read_text())["empty"]


def test_the_methods_with_embeddings_are_found_and_the_best_is_chosen(paper):
    runs = _data.first_runs(paper, "concentration")
    assert list(runs) == [(data, method) for data in DATA for method in METHODS]
    assert all(run.key.seed == 0 for run in runs.values())
    best = _data.best_runs(paper, "concentration")
    assert {data: run.key.method for data, run in best.items()} == dict.fromkeys(DATA, "proxy_nca")
    assert _data.first_runs(paper, "samples") == {}


def test_a_damaged_file_is_an_error_that_names_it(paper):
    from probmetric.io import FileError

    path = paper.results / "digits/contrastive/seed0/embeddings/test.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileError, match=r"contrastive/seed0/embeddings/test.safetensors is damaged"):
        draw("norm_grid", paper)


def test_out_of_distribution_images_are_pooled_where_their_dataset_is_prepared(paper):
    run = next(run for run in paper.runs if run.key.run == "digits/contrastive/seed0")
    album = montages.Album(paper.prepared)
    doubt, homes, rows = montages.pooled(run, album)
    assert homes == ["digits"] * 40 + ["glyphs"] * 20
    assert len(doubt) == len(rows) == 60
    assert doubt[:40].max() < doubt[40:].min()
    tensors, _ = read_tensors(run.embeddings_file("ood"))
    write_tensors(run.embeddings_file("ood"), tensors, {"sources": '["glyphs"'})
    with pytest.raises(FileError, match=r"ood\.safetensors is damaged"):
        montages.pooled(run, album)


def test_rows_of_a_class_run_from_the_smallest_to_the_largest_concentration():
    label, concentration = np.repeat([3, 5], 30), np.random.default_rng(0).random(60)
    rows = montages.rows_of_classes(label, concentration)
    assert sorted(int(label[row[0]]) for row in rows) == [3, 5]
    for row in rows:
        assert len(set(label[row])) == 1
        assert np.all(np.diff(concentration[row]) > 0)
        own = concentration[label == label[row[0]]]
        assert (concentration[row[0]], concentration[row[-1]]) == (own.min(), own.max())


def test_the_first_method_judges_right_and_wrong(paper):
    first = next(run for run in paper.runs if run.key.run == "digits/contrastive/seed0")
    tensors, _ = read_tensors(first.embeddings_file("test"))
    similarity = tensors["mean"] @ tensors["mean"].T
    np.fill_diagonal(similarity, -2)
    right = tensors["label"][similarity.argmax(axis=1)] == tensors["label"]
    assert np.array_equal(histograms.judgement(paper, first)[tensors["index"]], right)
    words = json.loads(draw("norm_histogram", paper)[2].read_text())
    assert "first method, contrastive on digits and contrastive on glyphs" in words["caption"]


def test_every_method_is_judged_on_the_images_of_its_own_split(workspace):
    runs = ["glyphs/contrastive/seed0", "glyphs+split1/proxy_nca/seed0"]
    for run, images in zip(runs, (40, 60), strict=True):
        write_run(workspace.root, run, {"retrieval/recall_at_1": 0.5}, images=images)
        _enrich(workspace.root / "results" / run, "digits")
    words = json.loads(draw("norm_histogram", gathered(workspace.context("splits", runs=runs)))[2].read_text())
    assert "first method, contrastive on glyphs and ProxyNCA++ on glyphs+split1" in words["caption"]


def test_pictures_are_of_the_split_of_their_run(workspace):
    run = "glyphs+split1/contrastive/seed0"
    folder = write_run(workspace.root, run, {"retrieval/recall_at_1": 0.5})
    tensors, _ = read_tensors(folder / "embeddings" / "test.safetensors")
    RunFolder(folder).write_matches({"test": among_others(tensors, tensors["label"]).tensors()}, {})
    context = gathered(workspace.context("splits", runs=[run]))
    pictured = ("embedding_map", "image_grid", "retrieval_examples", "uncertainty_grid")
    for prepared in (False, True):  # glyphs is, in both cases
        if prepared:
            write_prepared(workspace.root, "glyphs+split1")
        empty = {name: json.loads(draw(name, context)[2].read_text())["empty"] for name in pictured}
        assert {name: not text for name, text in empty.items()} == dict.fromkeys(pictured, prepared)
        assert [browser.title for browser in browsers(context)] == ["glyphs"] * prepared


def test_a_certificate_without_a_match_record_has_no_dot(paper):
    run = next(run for run in paper.runs if run.key.run == "digits/contrastive/seed0")
    doubt, gallery = np.arange(400.0), content_digest(run.embeddings_file("test"))
    certify(doubt, doubt < 300, risk=0.1, gallery=gallery).save(run.certificate_file)
    for seed in range(2):
        (paper.results / f"digits/contrastive/seed{seed}" / "matches.safetensors").unlink()
    drawing = curves.risk_coverage(paper)
    assert drawing.alt == "Risk-coverage curves. Certificates: none."
    assert [text.get_text() for axis in drawing.figure.axes for text in axis.texts] == []


def test_dots_of_certificates_say_what_they_promise(paper):
    doubt = np.arange(400.0)
    for place, risk in {"digits/contrastive/seed0": 0.05, "digits/proxy_nca/seed0": 0.2}.items():
        run = next(run for run in paper.runs if run.key.run == place)
        gallery = content_digest(run.embeddings_file("test"))
        certify(doubt, doubt < 300, risk=risk, gallery=gallery, score="disagreement").save(run.certificate_file)
    drawing = curves.risk_coverage(paper)
    digits, glyphs = ([text.get_text() for text in axis.texts] for axis in drawing.figure.axes[:2])
    assert (digits, glyphs) == (["≤ 5 % wrong, ≤ 20 % wrong"], [])
    assert re.search(r"digits, contrastive: \d+ % answered, at most 5 % wrong", drawing.alt)


def test_the_chance_of_being_larger_is_counted_over_all_pairs():
    first, second = np.array([3.0, 1.0]), np.array([2.0, 0.0, 1.0])
    assert histograms.chance_larger(first, second) == pytest.approx((3 + 1 + 0.5) / 6)
    assert np.isnan(histograms.chance_larger(first, np.array([])))


def test_the_spectrum_is_that_of_the_matrix(paper):
    runs = [run for run in paper.runs if run.key.run.startswith("digits/contrastive/")]
    rank, share = curves.mean_spectrum(map(curves.test_spectrum, runs))
    spectra = []
    for run in runs:
        values = np.linalg.svd(read_tensors(run.embeddings_file("test"))[0]["mean"])[1]
        spectra.append(values / values.sum())
    assert rank.tolist() == [1, 2, 3]
    np.testing.assert_allclose(share, np.mean(spectra, axis=0), rtol=1e-6)


def test_the_spectrum_is_that_of_the_training_images_if_every_run_has_it(paper):
    few = context_of("few", [run.path for run in paper.runs[:2]], paper.metrics, paper.folder)
    few = dataclasses.replace(few, results=paper.results)
    for number, run in enumerate(few.runs):
        assert "of the test images" in curves.singular_values(few).caption
        path = run.curves_file
        write_json(path, read_json(path) | {"train/singular_values": {"value": [6.0 + 2 * number, 2.0, 2.0]}})
        few = dataclasses.replace(few)
    assert "of the training images" in curves.singular_values(few).caption
    _, share = curves.mean_spectrum(map(curves.training_spectrum, few.runs))
    np.testing.assert_allclose(share, [0.6 + 1 / 30, 0.2 - 1 / 60, 0.2 - 1 / 60])


def test_a_sweep_holds_the_seeds_of_every_value_in_their_order(paper):
    sweep = sweeps.collect(paper, "digits")
    assert list(sweep.lines) == ["loss.alpha"]
    points = sweep.lines["loss.alpha"]["proxy_nca"]
    assert list(points) == list(ALPHAS)
    assert list(points[0.1].values.values()) == pytest.approx([0.52, 0.53])
    assert set(sweep.aside) == {"contrastive", "proxy_nca"}  # the plain run's loss has no alpha
    assert sweeps.collect(paper, "glyphs").lines == {}


def test_a_run_without_the_override_stands_at_the_default(paper):
    for seed in range(2):
        path = paper.results / f"digits/proxy_nca/seed{seed}/run.yaml"
        record = read_yaml(path)
        record["settings"]["loss"] = {"name": "potential_field", "options": {}}
        write_yaml(path, record)
    points = sweeps.collect(paper, "digits").lines["loss.alpha"]["proxy_nca"]
    assert list(points) == [0.0, 0.1, 1.0, 4.0, 10.0]
    run = next(run for run in paper.runs if run.key.run == "digits/proxy_nca/seed0")
    assert sweeps.default_text(run, "dim") == "64"
    assert sweeps.default_text(run, "loss.energy") == "relative"
    assert sweeps.default_text(run, "loss.no_such_option") is None


def test_a_wide_image_is_cropped_and_not_squeezed(monkeypatch):
    wide = np.zeros((10, 40, 3), dtype=np.uint8)
    wide[:, 15:25] = 200
    album = montages.Album(Path())
    monkeypatch.setattr(album, "_open", lambda data: [wide])
    assert np.all(album.tile("any", 0) == 200)


def test_framed_tiles_stand_in_rows():
    tiles = [np.full((montages.TILE, montages.TILE, 3), 10 * number, dtype=np.uint8) for number in range(3)]
    picture = montages.montage(tiles, 2, ["#FF0000", None, "#0000FF"])
    edge = picture.shape[0] // 2 + 5
    assert picture[0, 0].tolist() == [255, 0, 0]
    assert picture[0, -1].tolist() == [255, 255, 255]
    assert picture[edge, 0].tolist() == [0, 0, 255]
    assert picture[edge + 20, 20].tolist() == [20, 20, 20]


def test_the_map_keeps_neighbours_together():
    generator = np.random.default_rng(0)
    centres = np.eye(8)[np.repeat([0, 1], 20)]
    rows = centres + 0.05 * generator.normal(size=centres.shape)
    places = maps.project((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))
    assert places.min() == 0
    assert places.max() == 1
    first, second = places[:20], places[20:]
    gap = np.linalg.norm(first.mean(axis=0) - second.mean(axis=0))
    assert gap > 2 * max(part.std(axis=0).max() for part in (first, second))


def _swept_by(workspace, overrides: dict[str, float], loss: str) -> ReportContext:
    """Runs of proxy_nca on digits with the given overrides, and their metric."""
    for text, value in overrides.items():
        folder = workspace.root / "results" / f"digits/proxy_nca{text}/seed0"
        write_yaml(folder / "run.yaml", {"run": "r", "settings": {"loss": {"name": loss, "options": {}}}})
        write_json(folder / "metrics.json", {"retrieval/recall_at_1": value})
    runs = [f"digits/proxy_nca{text}/seed0" for text in overrides]
    context = workspace.context("swept", runs=runs)
    return gathered(context)


def means(sweep: sweeps.Sweep) -> dict[str, dict[str, dict[object, float]]]:
    """Option -> line -> value of the option -> mean over seeds."""
    return {
        option: {name: {value: mean_of(each) for value, each in points.items()} for name, points in lines.items()}
        for option, lines in sweep.lines.items()
    }


def test_a_value_that_was_run_on_other_splits_of_the_classes_alone_is_on_the_line(workspace):
    runs = [f"digits{split}/proxy_nca+loss.scale={scale}/seed0" for split, scale in (("", 4.0), ("+split1", 8.0))]
    for place, run in enumerate(runs):
        write_run(workspace.root, run, {"retrieval/recall_at_1": 0.5 + place / 10})
    sweep = sweeps.collect(gathered(workspace.context("swept", runs=runs)), "digits")
    assert means(sweep) == {"loss.scale": {"proxy_nca": {4.0: 0.5, 8.0: 0.6}}}


def test_options_that_change_together_are_one(workspace):
    pairs = {f"+loss.delta_attraction={v}+loss.delta_repulsion={v}": v for v in (0.1, 0.3)}
    alone = {f"+loss.delta_repulsion={v}": v for v in (0.25, 0.3)}
    sweep = sweeps.collect(_swept_by(workspace, {"": 0.5} | pairs | alone, "potential_field"), "digits")
    assert means(sweep) == {
        "loss.delta_attraction = loss.delta_repulsion": {"proxy_nca": {0.1: 0.1, 0.2: 0.5, 0.3: 0.3}},
        "loss.delta_repulsion": {"proxy_nca": {0.2: 0.5, 0.25: 0.25, 0.3: 0.3}},
    }
    assert sweep.aside == {}


def test_a_grid_of_two_options_keeps_them_apart(workspace):
    grid = {f"+loss.alpha={a}+loss.min_distance={d}": a + d for a in (0.01, 0.1) for d in (0.01, 0.1)}
    sweep = sweeps.collect(_swept_by(workspace, grid, "potential_field"), "digits")
    assert set(sweep.lines) == {"loss.alpha", "loss.min_distance"}
    assert set(sweep.lines["loss.alpha"]) == {f"proxy_nca+loss.min_distance={d}" for d in (0.01, 0.1)}


def test_every_dataset_is_drawn_by_the_first_metric_it_has(workspace):
    runs = [f"{data}/proxy_nca{text}/seed0" for data in DATA for text in ("", "+loss.scale=4.0")]
    for run in runs:
        folder = workspace.root / "results" / run
        write_yaml(
            folder / "run.yaml", {"run": "r", "settings": {"loss": {"name": "cosine", "options": {"scale": 8.0}}}}
        )
        accuracy = 0.5 if run.startswith("digits") else None
        write_json(folder / "metrics.json", {"classification/accuracy": accuracy, "retrieval/recall_at_1": 0.25})
    metrics = ("classification/accuracy", "retrieval/recall_at_1")
    context = workspace.context("swept", runs=runs, metrics=metrics)
    context = gathered(context)
    assert [sweeps.collect(context, data).metric for data in DATA] == list(metrics)
    axes = sweeps.option_sweep(context).figure.axes
    assert [axis.get_ylabel() for axis in axes[:2]] == ["Accuracy ↑", "Recall@1 ↑"]


def test_a_learned_value_is_a_horizontal_line_beside_the_fixed_ones(workspace):
    fixed = {f"+loss.learn_scale=false+loss.scale={s}": s / 100 for s in (4.0, 32.0)}
    sweep = sweeps.collect(_swept_by(workspace, {"": 0.5} | fixed, "cosine"), "digits")
    assert means(sweep) == {"loss.scale": {"proxy_nca+loss.learn_scale=false": {4.0: 0.04, 32.0: 0.32}}}
    assert {name: mean_of(series) for name, series in sweep.aside.items()} == {"proxy_nca": 0.5}
    looks = sweeps._looks([sweep])
    assert len({look.colour for look in looks.values()}) == 1
    assert looks["proxy_nca"].dash != looks["proxy_nca+loss.learn_scale=false"].dash
