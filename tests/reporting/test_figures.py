from __future__ import annotations

import dataclasses
import itertools
import json
import re
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fabricated_runs import context_of, gathered, write_run
from matplotlib.figure import Figure
from matplotlib.text import Text

from probmetric.io import write_json
from probmetric.registry import RegistrationError, UnknownNameError
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import (
    _data,
    _lines,
    _style,
    curves,
    dots,
    draw,
    draw_all,
    list_figures,
    montages,
    register,
    sweeps,
)
from probmetric.reporting.results import COLUMNS, by_method
from probmetric.reporting.tables import result_table
from probmetric.runs.folder import RunFolder
from probmetric.testing import isolated_components


def png_size(path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_the_figures_are_found_by_their_file(study):
    assert set(study.figures) < set(list_figures())
    with pytest.raises(UnknownNameError, match="did you mean 'sparsification'"):
        draw("sparsificaton", study)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "metric_per_method",
        "learning_curves",
        "sparsification",
        "roc",
        "reliability",
        "image_grid",
        "noise_robustness",
        "severity",
    ],
)
def test_a_figure_is_drawn_at_report_width_with_words_and_the_same_bytes(study, name):
    paths = draw(name, study)
    assert [path.name for path in paths] == [f"{name}.png", f"{name}.pdf", f"{name}.json", f"{name}.tex"]
    assert f"\\includegraphics[width=\\linewidth]{{{name}}}" in paths[3].read_text()
    width, height = png_size(paths[0])
    assert width == pytest.approx(_style.WIDTH * _style.DPI, abs=1)
    assert 150 < height < 6000
    words = json.loads(paths[2].read_text())
    assert words["empty"] == ""
    assert min(len(words[key]) for key in ("title", "caption", "alt")) > 5
    assert words["alt"].endswith(".")
    before = [path.read_bytes() for path in paths]
    again = context_of(
        study.name,
        [study.results / key.run for key in study.expected],
        study.metrics,
        study.folder,
        results=study.results,
        prepared=study.prepared,
        labels=study.labels,
    )
    assert [path.read_bytes() for path in draw(name, again)] == before
    pdf = before[1]
    assert b"/FontFile2" in pdf
    assert b"CreationDate" not in pdf


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("metric_per_method", "no run of this experiment is finished"),
        ("learning_curves", "training history"),
        ("sparsification", "sparsification curve"),
        ("roc", "out-of-distribution"),
        ("reliability", "probabilities"),
        ("image_grid", "test embeddings"),
        ("noise_robustness", "more than one noise rate"),
        ("severity", "how strongly its images were distorted"),
    ],
)
def test_an_experiment_without_results_gets_words_instead(workspace, name, reason):
    context = workspace.context("empty", runs=["digits/none/seed0"])
    context = gathered(context)
    paths = draw(name, context)
    assert reason in json.loads(paths[2].read_text())["empty"]
    assert png_size(paths[0])[1] < 300


def test_a_loss_that_falls_below_zero_is_drawn_as_falling(workspace):
    """PFML's loss went from -0.09 to -1.77 and was drawn as rising twentyfold: it was divided by its first value."""
    file = workspace.root / "results/glyphs/contrastive/seed0/history.csv"
    head = "epoch,step,train_loss,lr,val_metric,seconds,images_per_second,peak_memory_mb,grad_norm,skipped_steps"
    rows = [f"{epoch},1,{loss},0.001,0.5,1,1,,1,0" for epoch, loss in enumerate((-0.09, -0.9, -1.77))]
    file.write_text("\n".join([head, *rows]) + "\n")
    _, mean, _, _ = curves._band([RunFolder(file.parent)], "train_loss")
    np.testing.assert_allclose(mean, [0, -0.81 / 1.68, -1])


def test_methods_keep_their_colour_and_never_share_it():
    few = _style.looks(["contrastive", "proxy_nca", "raw_pixels"])
    floors = _style.looks(["raw_pixels", "untrained", "pixel_noise", "pixel_contrast"])
    assert {look.colour for look in floors.values()} <= set(_style._GREYS)
    many = [f"method{number}" for number in range(20)]
    assert few == _style.looks(["raw_pixels", "proxy_nca", "contrastive"])
    looks = _style.looks(many)
    assert len({(look.colour, str(look.dash)) for look in looks.values()}) == 20
    assert re.fullmatch("#([0-9A-F]{2})\\1\\1", few["raw_pixels"].colour.upper())


def test_mean_curves_average_over_the_shared_range():
    curves = [{"x": [0, 1, 2], "y": [0, 1, 2]}, {"x": [2, 0], "y": [6, 2]}, None, {"x": [0]}]
    x, y = _data.mean_curve(curves, "x", "y", points=5)
    np.testing.assert_allclose(x, [0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(y, (x + (2 + 2 * x)) / 2)
    assert _data.mean_curve([None, {}], "x", "y") is None


def test_undefined_points_of_a_curve_are_left_out():
    _, y = _data.mean_curve([{"x": [0, 1, 2], "y": [1.0, None, 3.0]}], "x", "y", points=3)
    np.testing.assert_allclose(y, [1, 2, 3])


def test_the_image_grid_shows_the_ends_of_the_uncertainty(study):
    from probmetric.io import read_tensors

    run = next(run for run in study.runs if run.key.run == "digits/proxy_nca/seed0")
    tiles, uncertainty = montages.certain_ends(run, montages.Album(study.prepared))
    tensors, _ = read_tensors(run.embeddings_file("test"))
    order = np.argsort(tensors["uncertainty"])
    ends = [*order[:10], *order[-10:]]
    assert uncertainty.tolist() == tensors["uncertainty"][ends].tolist()
    assert [tile[0, 0, 0] for tile in tiles] == [2 * int(row) for row in tensors["index"][ends]]


def test_every_kind_of_wrong_labels_has_a_panel_that_begins_at_the_clean_ones():
    measured = {
        "digits": [0.9, 0.8],
        "digits+noise0.4": [0.5],
        "digits+noise0.2": [0.6],
        "digits+nearest0.2": [0.7],
        "glyphs": [1.0],
    }
    runs = {f"{data}/a/seed{seed}": value for data, values in measured.items() for seed, value in enumerate(values)}
    rows = [{"run": run, "metric": "m", "value": value} for run, value in runs.items()]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"unit_error": float})
    table["seed"] = table["run"].str[-1].astype(int)
    context = context_of("noisy", runs, ["m"], "reports/noisy")
    context.__dict__["measured"] = by_method(table, context.expected)
    lines = sweeps.rates_of(context, "m")
    assert {title: {rate: cell.mean for rate, cell in methods["a"].items()} for title, methods in lines.items()} == {
        "digits": {0.0: pytest.approx(0.85), 0.2: 0.6, 0.4: 0.5},
        "digits, nearest-class label noise": {0.0: pytest.approx(0.85), 0.2: 0.7},
    }
    assert [list(methods["a"]) for methods in lines.values()] == [[0.0, 0.2, 0.4], [0.0, 0.2]]


def test_figures_have_the_intervals_of_the_table(workspace):
    """Seeds alone say .02 of what is .2 with the test classes."""
    runs = [run for run in workspace.runs if run.split("/")[:2] in (["glyphs", "contrastive"], ["glyphs", "arcface"])]
    swept = [run.replace("contrastive", "contrastive+loss.scale=4.0") for run in runs if "contrastive" in run]
    noisy = [run.replace("glyphs", "glyphs+noise0.2") for run in runs if "contrastive" in run]
    for run in (*runs, *swept, *noisy):
        write_run(workspace.root, run, {"retrieval/recall_at_1": 0.6 + 0.01 * int(run[-1])})
        errors = {"unit_errors": {"retrieval/recall_at_1": [0.1, 1e6]}}
        write_json(workspace.root / "results" / run / "curves.json", errors)
    context = workspace.context("units", runs=[*runs, *swept, *noisy], metrics=("retrieval/recall_at_1",))
    context = gathered(context)
    (expected,) = set(result_table(context)["ci95_half_width"].round(6))
    assert expected == pytest.approx(0.2, rel=0.05)
    with _style.style():
        drawn = [dots.metric_per_method(context).figure, sweeps.option_sweep(context).figure]
    bars = [bar for figure in drawn for axis in figure.axes for bar in axis.containers]
    halves = {
        round(float(np.ptp(segment, axis=0).max()) / 2, 6) for bar in bars for segment in bar.lines[2][0].get_segments()
    }
    assert halves == {expected}
    rates = sweeps.rates_of(context, "retrieval/recall_at_1")["glyphs"]["contrastive"]
    assert {round(cell.half_width, 6) for cell in rates.values()} == {expected}


def test_a_figure_of_ones_own_is_drawn_as_the_guide_shows_and_one_without_a_drawing_is_named(study):
    guide = (Path(__file__).parents[2] / "docs/guide/figures.md").read_text()
    with isolated_components():
        exec(re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1], {"__name__": "mylab"})
        register("bare")(lambda context: Figure())
        assert json.loads(draw("doubts", study)[2].read_text())["caption"] == "Doubt of the test images."
        with pytest.raises(RegistrationError, match=r"figure 'bare' returned Figure; expected Drawing\(figure, title"):
            draw("bare", study)


@pytest.mark.slow
@pytest.mark.processes
def test_several_processes_draw_the_figures_that_one_draws(study):
    two = dataclasses.replace(study, figures=("metric_per_method", "roc"))
    expected = {path: path.read_bytes() for path in draw_all(two)}
    for path in expected:
        path.unlink()
    assert {path: path.read_bytes() for path in draw_all(two, processes=2)} == expected
    with pytest.raises(UnknownNameError, match="did you mean 'roc'"):
        draw_all(dataclasses.replace(study, figures=("roc", "rok")), processes=2)


def test_drawing_leaves_the_callers_style_alone(study):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    draw("noise_robustness", study)
    assert dict(mpl.rcParams) == before


def test_a_method_stands_at_the_same_height_in_every_panel(workspace):
    path = workspace.root / "results" / "digits" / "contrastive"
    for seed in range(3):
        metrics = json.loads((path / f"seed{seed}" / "metrics.json").read_text())
        (path / f"seed{seed}" / "metrics.json").write_text(json.dumps(metrics | {"calibration/ece": None}))
    context = workspace.context()
    context = gathered(context)
    with _style.style():
        figure = dots.metric_per_method(context).figure
    looks = _style.looks(context.variants)
    heights = {variant: place for place, variant in enumerate(context.variants)}
    for axis in [axis for axis in figure.axes if axis.get_visible()][:5]:
        for line in axis.get_lines():
            if line.get_marker() == "o":
                (variant,) = [v for v, look in looks.items() if look.colour == line.get_color()]
                assert list(line.get_ydata()) == [heights[variant]]


def test_no_number_and_no_name_below_the_panels_touches_another(workspace):
    """Five panels in a row: "AUROC (error)" ran into "AUROC added", and -0.01 into 0.00 into 0.01."""
    metrics = [f"trust/{name}" for name in ("added", "added_low", "added_high", "free", "both")]
    for seed, value in enumerate((-0.01, 0.01)):
        write_run(workspace.root, f"glyphs/arcface/seed{seed}", {"retrieval/recall_at_1": 0.5})
        file = workspace.root / f"results/glyphs/arcface/seed{seed}/metrics.json"
        write_json(file, dict.fromkeys(metrics, value))
    runs = [f"glyphs/arcface/seed{seed}" for seed in range(2)]
    context = gathered(workspace.context("wide", runs=runs, metrics=metrics))
    with _style.style():
        figure = dots.metric_per_method(context).figure
        figure.draw_without_rendering()
        texts = [text for axis in figure.axes for text in (*axis.get_xticklabels(), axis.xaxis.label)]
        boxes = [text.get_window_extent() for text in texts if text.get_text() and text.get_visible()]
    assert len(boxes) == 5 * 3
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


MANY = tuple(f"method {place} of a family with a long name" if place % 5 else f"m{place}" for place in range(23))


def many_methods(lines: int = 23) -> tuple[ReportContext, dict[str, dict[str, _data.Curve]]]:
    """A context of many methods, and a rising curve of each on two datasets."""
    labels = {f"m{place}": name for place, name in enumerate(MANY)}
    runs = [f"digits/m{place}/seed0" for place in range(lines)]
    context = context_of("many", runs, ["retrieval/recall_at_1"], "reports/many", labels=labels)
    x = np.linspace(0, 1, 11)
    curves = {f"m{place}": (x, x * (place + 1) / lines) for place in range(lines)}
    return context, {"digits": curves, "glyphs": curves}


@pytest.mark.parametrize("lines", [1, 5, 6, 7, 23])
def test_every_method_is_named_inside_the_figure_and_no_name_touches_another(lines):
    context, panels = many_methods(lines)
    with _style.style():
        figure = _lines.line_panels(context, panels, lambda axis: axis.set(xlabel="x", ylabel="y") and None)
        figure.draw_without_rendering()
        texts = [text for text in figure.findobj(Text) if " ".join(text.get_text().split()) in MANY]
        boxes = [text.get_window_extent() for text in texts]
    assert len(texts) == (2 * lines if lines > 6 else lines)
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_of_many_methods_each_panel_shows_one_before_all_others_in_grey(scale):
    context, panels = many_methods()
    figure = _lines.line_panels(context, panels, lambda axis: axis.set(xscale=scale, yscale=scale))
    assert len(figure.axes) == 46
    for axis, place in zip(figure.axes, [*range(23), *range(23)], strict=True):
        (own,) = axis.lines
        assert own.get_ydata()[-1] == pytest.approx((place + 1) / 23)
        assert len(axis.collections[0].get_segments()) == 22
        assert axis.get_ylim() == figure.axes[23 * (axis in figure.axes[23:])].get_ylim()
