"""`probmetric init`: one's own data become a dataset and an experiment, with nothing left to edit."""

from __future__ import annotations

import functools
import io
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image

import probmetric
from probmetric import cli
from probmetric.config import Method, Params, load, parse
from probmetric.data import prepare
from probmetric.data.manifest import FORMAT, DataError, load_manifest
from probmetric.io import FileError, alone, read_yaml, write_json, write_tensors, write_yaml
from probmetric.models import create_encoder
from probmetric.planning import declared, own_data
from probmetric.planning.declared import data_source, ensure, outdated
from probmetric.planning.expansion import Point, plan_experiment, resolve
from probmetric.planning.experiments import every_method, load_experiment, methods_with
from probmetric.planning.own_data import start
from probmetric.planning.own_methods import NETWORK, LastStages, Measured, last_stages, of_photos

ROOT = Path(__file__).parents[2]
QUICK = dict.fromkeys(["frozen", "whitening", "lda", "head_arcface", "late_arcface"], 1)
WHOLE = ["tuned_arcface", "tuned_proxy_anchor"]
LATE = LastStages("blocks.4", step=0.25, size=4 * 80 * 8 * 8)


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (tmp_path / "workflow" / "experiments").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def photos(folder, classes=6, count=4):
    generator = np.random.default_rng(0)
    for number in range(classes):
        (folder / f"kind {number}").mkdir(parents=True)
        for image in range(count):
            pixels = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"kind {number}" / f"{image}.png")
    return folder


@pytest.mark.parametrize(
    ("classes", "count", "split"),
    [
        (6, 20, "by_image, val_fraction: 0.3"),
        (24, 4, "by_class, val_fraction: 0.5"),
        (20, 4, "by_class, val_fraction: 0.5"),
    ],
)
def test_a_folder_becomes_runs(project, capsys, classes, count, split):
    photos(project / "photos", classes, count)
    before = (project / "params.yaml").read_text()
    assert cli.main(["init", "photos", "--name", "shop", "--on-error", "skip"]) == 0
    said = capsys.readouterr().out
    assert f"{count * classes} images of {classes} classes" in said
    assert "Plan (tf_efficientnet_lite0.in1k, published weights, 128 x 128 pixels): 8 runs, about " in said
    assert (f"of {classes} classes; the others are for validation and test" in said) == (classes >= 20)
    assert ("only 5 classes are for validation" in said) == (classes == 20)
    text = (project / "params.yaml").read_text()
    added = set(text.splitlines()) - set(before.splitlines())
    kind, *larger = split.split(", ")
    options = ", ".join([f"split: {kind}", "on_error: skip", *larger])
    assert added == {f"    shop: {{source: folder, raw: photos, {options}}}"}
    runs = {run.name: run.settings for run in plan_experiment(load(Params, "params.yaml"), "shop").runs}
    assert len(runs) == 8
    assert runs.keys() >= {
        "shop/shop-frozen/seed0",
        "shop/shop-lda/seed0",
        "shop/shop-head_arcface/seed2",
        "shop/shop-late_arcface/seed0",
        "shop/shop-tuned_arcface/seed0",
    }
    assert all(settings.pretrained is True for settings in runs.values())
    assert runs["shop/shop-frozen/seed0"].dim == "features"
    whole = runs["shop/shop-tuned_arcface/seed0"].training
    assert (whole.freeze, whole.train_from, whole.batch_norm, whole.augment) == ("none", None, "frozen", "standard")


def test_damaged_photographs_are_named_before_anything_is_written(project, capsys):
    folder, before = photos(project / "photos"), (project / "params.yaml").read_text()
    jpeg = io.BytesIO()
    Image.open(folder / "kind 0" / "0.png").save(jpeg, "JPEG")
    whole = jpeg.getvalue()
    for name, data in {"whole": whole, "trailed": whole + bytes(9), "short": whole[:-50], "empty": b""}.items():
        (folder / "kind 0" / f"{name}.jpg").write_bytes(data)
    (folder / "kind 1" / "text.jpg").write_text("not found")
    assert cli.main(["init", "photos", "--name", "shop"]) == 2
    said = capsys.readouterr().err
    assert "3 image(s) cannot be read; --on-error skip leaves them out:" in said
    assert all(name in said for name in ("short.jpg is truncated", "empty.jpg is empty", "text.jpg is no image"))
    assert (project / "params.yaml").read_text() == before
    assert cli.main(["init", "photos", "--name", "shop", "--on-error", "skip"]) == 0
    assert "Note: 3 image(s) will be left out, since they cannot be read: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--quick"], QUICK),
        (["--quick", "--scratch"], QUICK | {"scratch_arcface": 1}),
        (["--full"], QUICK | dict.fromkeys(["head_arcface", "late_arcface", *WHOLE], 3)),
    ],
)
def test_more_or_less_is_planned(project, arguments, expected):
    photos(project / "photos", 6, 20)
    assert cli.main(["init", "photos", "--name", "shop", *arguments]) == 0
    runs = plan_experiment(load(Params, "params.yaml"), "shop").runs
    assert Counter(run.name.split("/")[1].removeprefix("shop-") for run in runs) == expected


@pytest.mark.parametrize(
    ("training", "steps", "seen"),
    [
        (8, 3, 2_880),
        (160, 3, 2_880),
        (500, 15, 14_400),
        (782, 24, 23_040),
        (2303, 24, 23_040),
        (2304, None, 23_040),
        (9000, None, 90_000),
    ],
)
def test_few_images_are_seen_more_often_when_a_whole_network_trains(training, steps, seen):
    """At least 24 steps an epoch, but not more than three passes; what `init` says of the time knows it."""
    planned = functools.partial(of_photos, NETWORK, LATE, images=training, training=training, scratch=False)
    rows = planned(extent="usual")
    tuned, late = rows["tuned_arcface"], rows["late_arcface"]
    assert tuned.settings["training"].get("steps_per_epoch") == steps
    assert late.settings["training"].get("steps_per_epoch") == steps
    assert "steps_per_epoch" not in rows["head_arcface"].settings["training"]
    assert planned(extent="full")["tuned_arcface"].settings["training"] == tuned.settings["training"] | {"epochs": 20}
    measured = Measured(forward=0.0, step=1.0, last=LATE)
    seconds = [measured.seconds(row, images=training, training=training) for row in (tuned, late)]
    assert seconds == [seen + 15.0, pytest.approx(0.6 * 0.25 * seen + 15.0)], "what any evaluation takes, and each step"


def test_the_study_of_what_init_plans_has_its_rows():
    """`photos/init`, to which the guide refers, by other names; its view has a name, and it clusters nothing."""
    params = load(Params, ROOT / "params.yaml")
    experiment = load_experiment("photos/init", ROOT / "workflow/experiments")
    methods = methods_with(params, {"photos/init": experiment}, ROOT / "workflow/methods")
    rows = of_photos(NETWORK, LATE, images=5_000, training=5_000, extent="usual", scratch=False)

    def trained(method: Method) -> tuple[object, ...]:
        made = resolve(params, {"it": method} | methods, Point(dataset="photos-birds", method="it")).settings
        training = made.training if made.training.epochs else (made.training.epochs, made.training.head_init)
        return made.loss, made.backbone, 1280 if made.dim == "features" else made.dim, training

    names = {re.sub("^(init-|fitted_)", "", name): name for name in experiment.runs[0].methods}
    assert set(names) == set(rows)
    for row, name in names.items():
        assert trained(methods[name]) == trained(parse(Method, rows[row].settings, row)), name


def test_last_stages_train_alone_where_what_comes_before_fits():
    """20,480 bytes an image of the network of `init`, at 128 pixels: a fifth of a million images are 4 GB."""
    planned = functools.partial(of_photos, NETWORK, training=100, extent="quick", scratch=False)
    settings = planned(LATE, images=195_312)["late_arcface"].settings["training"]
    assert (settings["train_from"], settings["augment"], settings["batch_norm"]) == ("blocks.4", "none", "frozen")
    assert "late_arcface" not in planned(LATE, images=195_313)
    assert "late_arcface" not in planned(None, images=100)


@pytest.mark.parametrize(
    ("tag", "part", "size"),
    [
        ("tf_efficientnet_lite0", "blocks.4", 4 * 80 * 8 * 8),
        ("resnet10t", "layer3", 4 * 128 * 16 * 16),
        ("vit_tiny_patch16_224", None, 0),
    ],
)
def test_last_stages_of_a_network_are_those_of_its_two_lowest_resolutions(tag, part, size):
    encoder = create_encoder("timm", dim="features", image_size=128, tag=tag).eval()
    last = last_stages(encoder, torch.zeros(2, 3, 128, 128))
    assert (last and last.part) == part
    assert part is None or (last.size == size and last.step > 0)


def test_without_weights_it_is_said_what_to_install(project, capsys, monkeypatch):
    """A network of timm's whose weights no package holds, and a machine that reaches no hub."""
    photos(project / "photos", 6)
    monkeypatch.setenv("HF_HUB_CACHE", str(project / "cache"))
    before = (project / "params.yaml").read_text()
    assert cli.main(["init", "photos", "--name", "shop", "--network", "resnet50.tv_in1k"]) == 2
    assert "the weights of resnet50.tv_in1k are neither in the local cache nor" in capsys.readouterr().err
    assert (project / "params.yaml").read_text() == before


def test_a_table_may_name_its_columns_and_absolute_paths(project, capsys):
    """The photographs lie elsewhere; their common folder becomes the option `images`."""
    place = project / "elsewhere"
    photos(place)
    (project / "lists").mkdir()
    lines = [f"{place}/kind {number}/{image}.png,{number}" for number in range(6) for image in range(4)]
    (project / "lists/list.csv").write_text("\n".join(["file,product", *lines]))
    columns = ["--path-column", "file", "--label-column", "product"]
    assert cli.main(["init", "lists/list.csv", "--name", "listed", "--quick", *columns]) == 0
    assert "24 images of 6 classes" in capsys.readouterr().out
    options = load(Params, "params.yaml").data.on_request["listed"].options
    assert (options["path_column"], options["label_column"], options["images"]) == ("file", "product", str(place))
    ensure(load(Params, "params.yaml"), "listed")


def test_a_folder_called_as_the_home_of_nobody_is_that_folder(project):
    photos(project / "~no_such_user")
    assert cli.main(["init", "~no_such_user", "--name", "shop", "--quick"]) == 0
    ensure(load(Params, "params.yaml"), "shop")


def test_folders_of_questions_and_a_gallery_are_tested_on_and_need_others_to_train_on(project, capsys):
    for role in ("query", "gallery"):
        photos(project / "photos" / role)
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 2
    assert "photos has test images only" in capsys.readouterr().err
    photos(project / "photos" / "train")
    assert cli.main(["init", "photos", "--name", "shop", "--quick", "--split", "by_image"]) == 0
    assert "val, 48 test)" in capsys.readouterr().out


def test_links_out_of_the_folder_are_followed_when_told_to(project, capsys):
    photos(project / "store")
    photos(project / "photos", classes=3)
    (project / "photos" / "linked").symlink_to(project / "store" / "kind 5")
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 2
    assert (
        "1 link(s) lead out of the folder, or nowhere (linked); copy the images, or follow" in capsys.readouterr().err
    )
    assert cli.main(["init", "photos", "--name", "shop", "--quick", "--follow-links"]) == 0
    assert "of 4 classes" in capsys.readouterr().out
    assert load(Params, "params.yaml").data.on_request["shop"].options["follow_links"] is True


def test_class_folders_that_lie_one_folder_deeper_are_found(project, capsys):
    photos(project / "My Archive" / "images")
    (project / "My Archive/README.txt").write_text("about")
    assert cli.main(["init", "My Archive/", "--quick"]) == 0
    said = capsys.readouterr().out
    assert "My Archive: 24 images of 6 classes" in said
    assert "Next: snakemake --config experiments=my-archive" in said
    assert "images/ is the only folder: classes are the folders in it" in said


def written(run, blur, classes):
    """Write a finished run: eight validation images of each class around the class's axis, blurred."""
    labels = np.repeat(np.arange(classes), 8)
    generator = np.random.default_rng(0)
    points = np.eye(classes)[labels] + blur * generator.standard_normal((len(labels), classes))
    folder = Path("results", run.name)
    record = {"run": run.name, "encoder": run.encoder, "settings": run.settings.plain()}
    write_yaml(folder / "run.yaml", record)
    write_json(folder / "metrics.json", {"retrieval/recall_at_1": 0.5})
    tensors = {"mean": points.astype(np.float32), "label": labels, "index": np.arange(len(labels))}
    write_tensors(folder / "embeddings/val.safetensors", tensors | {"uncertainty": np.zeros(len(labels), np.float32)})


@pytest.mark.parametrize(
    ("classes", "blur", "best"),
    [(12, 0.3, "lda"), (12, 0.6, "frozen"), (12, 0.598, "frozen"), (2, 0.3, "frozen")],
)
def test_frozen_features_are_recommended_unless_something_is_better_for_certain(project, capsys, classes, blur, best):
    """Equal, hardly better, and better in two classes are none of that."""
    photos(project / "photos", 6)
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 0
    runs = {run.name: run for run in plan_experiment(load(Params, "params.yaml"), "shop").runs}
    for method, value in {"lda": blur, "frozen": 0.6, "whitening": 0.9}.items():
        written(runs[f"shop/shop-{method}/seed0"], value, classes)
    capsys.readouterr()
    assert cli.main(["recommend", "shop"]) == 0
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if "<- recommended" in line)
    assert line.split()[0] == f"shop-{best}"
    assert f"Deploy: probmetric export shop/shop-{best}/seed0 shop-model" in said
    refit = "snakemake --config experiments=[] 'runs=[shop/shop-lda+training.selection=refit/seed0]'"
    assert (refit in said) == (best == "lda")
    assert ("Frozen features are the safe choice" in said) == (best == "frozen")
    printed = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    assert (re.sub(r"^\S+", f"shop-{best}", printed) in said) == (best == "lda")


@pytest.mark.parametrize(
    ("unit", "best", "judges"), [("class", "frozen", "2 validation classes"), ("image", "lda", "")]
)
def test_images_of_known_classes_are_judged_one_by_one(project, capsys, unit, best, judges):
    photos(project / "photos", 6)
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 0
    runs = {run.name: run for run in plan_experiment(load(Params, "params.yaml"), "shop").runs}
    for method, blur in {"lda": 0.3, "frozen": 0.6, "whitening": 0.9}.items():
        run = runs[f"shop/shop-{method}/seed0"]
        written(run, blur, classes=2)
        curves = {"units/retrieval/recall_at_1": {"value": [0.0, 1.0], unit: [0, 1]}}
        write_json(Path("results", run.name, "curves.json"), curves)
    capsys.readouterr()
    assert cli.main(["recommend", "shop"]) == 0
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if "<- recommended" in line)
    assert line.split()[0] == f"shop-{best}"
    assert judges in said


def test_data_without_validation_images_recommend_nothing(project, capsys):
    photos(project / "photos", 6)
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 0
    run, *_ = plan_experiment(load(Params, "params.yaml"), "shop").runs
    written(run, 0.3, classes=0)
    assert cli.main(["recommend", "shop"]) == 2
    assert "shop has no finished run with two or more validation images of a class" in capsys.readouterr().err


def test_where_no_validation_image_has_a_second_one_nothing_is_trained(project, capsys):
    """Five of eight runs failed in their jobs: nothing could choose an epoch."""
    photos(project / "photos", 6, 4)
    assert cli.main(["init", "photos", "--name", "shop"]) == 0
    assert "no image of split val has another one of its class there" in capsys.readouterr().out
    runs = plan_experiment(load(Params, "params.yaml"), "shop").runs
    assert [run.settings.method for run in runs] == ["shop-frozen", "shop-whitening", "shop-lda"]


def test_entries_of_params_yaml_keep_their_indentation(project):
    """Six spaces, which YAML allows, ended in a traceback."""
    photos(project / "photos", 6, 4)
    head, begun, rest = re.split(r"(\n  on_request:[^\n]*\n)", (project / "params.yaml").read_text(), maxsplit=1)
    block, gap, tail = rest.partition("\n\n")
    deeper = "".join(f"  {line}\n" for line in ["    mine: {source: folder, raw: photos}", *block.splitlines()])
    (project / "params.yaml").write_text(head + begun + deeper + gap + tail)
    assert cli.main(["init", "photos", "--name", "shop"]) == 0
    assert "\n      shop: {source: folder" in (project / "params.yaml").read_text()


def test_a_table_and_vectors_become_runs(project, capsys):
    photos(project / "photos")
    lines = [f"photos/kind {number}/{image}.png,{number}" for number in range(6) for image in range(4)]
    (project / "list.csv").write_text("\n".join(["path,label", *lines]))
    assert cli.main(["init", "list.csv", "--name", "listed"]) == 0
    np.savez(project / "v.npz", vectors=np.eye(60, 8), label=np.arange(60) % 6)
    assert cli.main(["init", "v.npz", "--name", "vectors"]) == 0
    params = load(Params, "params.yaml")
    assert params.data.on_request["listed"].source == "table"
    runs = {run.name: run for run in plan_experiment(params, "vectors").runs}
    assert runs["vectors/vectors-head_pfe/seed1"].settings.backbone.name == "vectors"
    assert {name.split("/")[1].removeprefix("vectors-") for name in runs} == {
        *("frozen", "whitening", "lda", "head_arcface", "head_laplace", "head_pfe")
    }


@pytest.mark.parametrize("names", [("train", "test"), ("train", "val", "test")])
def test_many_classes_that_are_in_every_split_that_the_data_name_keep_these(project, capsys, names):
    split = np.resize(np.repeat(names, 12 // len(names)), 240)
    np.savez(project / "v.npz", vectors=np.eye(240, 8), label=np.arange(240) // 12, split=split)
    assert cli.main(["init", "v.npz", "--name", "shop"]) == 0
    assert f"{240 // len(names)} test), split by_image" in capsys.readouterr().out
    ensure(load(Params, "params.yaml"), "shop")


@pytest.mark.parametrize("names", [("gallery", "calibration"), ("reference", "probe"), ("Index", "queries")])
def test_vectors_split_for_certify_are_shared_out_anew_unless_some_are_to_train_on(project, capsys, names):
    rows = {"vectors": np.eye(60, 8), "label": np.arange(60) % 6}
    np.savez(project / "v.npz", **rows, split=np.repeat(names, 30))
    assert cli.main(["init", "v.npz", "--name", "shop"]) == 0
    said = capsys.readouterr().out
    assert "60 vectors of 6 classes (18 train, 12 val, 30 test), split by_image" in said
    assert "Note: the splits of `certify` are not used here" in said
    assert load(Params, "params.yaml").data.on_request["shop"].options["split_column"] == ""
    ensure(load(Params, "params.yaml"), "shop")
    np.savez(project / "t.npz", **rows, split=np.repeat(["train", *names], 20))
    assert cli.main(["init", "t.npz", "--name", "trained", "--split", "by_image"]) == 0
    said = capsys.readouterr().out
    assert "val, 40 test)" in said
    assert "queries are asked in the gallery" in said
    assert "set aside" not in said


@pytest.mark.parametrize(
    ("place", "option"),
    [
        ("photos", ["--path-column", "file"]),
        ("photos", ["--label-column", "kind"]),
        ("list.csv", ["--follow-links"]),
        ("v.npz", ["--network", "resnet50.tv_in1k"]),
        ("v.npz", ["--scratch"]),
        ("v.npz", ["--on-error", "skip"]),
        ("v.npz", ["--follow-links"]),
    ],
)
def test_an_option_that_says_nothing_of_the_data_is_refused(project, capsys, place, option):
    photos(project / "photos")
    (project / "list.csv").write_text("path,label\nphotos/kind 0/0.png,a\n")
    np.savez(project / "v.npz", vectors=np.eye(60, 8), label=np.arange(60) % 6)
    assert cli.main(["init", place, "--name", "shop", *option]) == 2
    assert f"{option[0]} says nothing of " in capsys.readouterr().err
    assert cli.main(["init", *option]) == 2
    assert "name the data too" in capsys.readouterr().err


def parquet(place, **columns):
    pq.write_table(pa.table(columns), place)


def test_a_table_of_images_may_have_a_column_of_means(project):
    photos(project / "photos")
    paths = [f"photos/kind {number}/{image}.png" for number in range(6) for image in range(4)]
    parquet("list.parquet", path=paths, label=[path[12] for path in paths], mean=np.linspace(0, 1, 24))
    assert cli.main(["init", "list.parquet", "--name", "shop", "--quick"]) == 0
    assert load(Params, "params.yaml").data.on_request["shop"].source == "table"


def test_a_broken_parquet_file_is_named(project, capsys):
    (project / "v.parquet").write_bytes(b"PAR1")
    assert cli.main(["init", "v.parquet", "--name", "shop"]) == 2
    assert "v.parquet cannot be read (" in capsys.readouterr().err


def test_two_init_at_once_do_not_lose_what_one_of_them_writes(project, monkeypatch):
    photos(project / "photos")

    def meanwhile(_tag):
        with pytest.raises(FileError, match="another process changes"), alone("params.yaml", wait=False):
            pass
        return Measured(forward=0.0, step=0.0)

    monkeypatch.setattr(own_data, "measured", meanwhile)
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 0


def test_a_plan_takes_as_long_as_its_longest_run(project, monkeypatch, capsys):
    """Runs share out the cores, but one run has one: on 64 cores a plan was said to end before its fine-tuning."""
    photos(project / "photos", 6, 20)
    monkeypatch.setattr(own_data, "measured", lambda _tag: Measured(forward=0.1, step=60.0))
    monkeypatch.setattr(own_data.os, "cpu_count", lambda: 64)
    assert cli.main(["init", "photos", "--name", "shop", "--full"]) == 0
    total, *rows = map(int, re.findall(r"(?:about| 3 runs) +(\d+) min", capsys.readouterr().out))
    assert total == pytest.approx(max(rows) / 3, abs=1)


def test_params_behind_a_link_are_written_where_they_lie(project):
    photos(project / "photos")
    (project / "shared").mkdir()
    (project / "params.yaml").rename(project / "shared/params.yaml")
    (project / "params.yaml").symlink_to("shared/params.yaml")
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 0
    assert (project / "params.yaml").is_symlink()
    assert "shop" in load(Params, "shared/params.yaml").data.on_request


@pytest.mark.parametrize("is_project", [True, False])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone", "--name", "shop"], "gone is no data to start from"),
        (["photos", "--name", "cub"], "the name 'cub' is taken"),
        (["photos", "--name", "My Shop"], "My Shop"),
        (["7"], "'7' cannot name a dataset"),
        *((["photos", "--name", name], "cannot name a dataset") for name in ("*", "a\nb", "%s{}", "1", "ä", "a+b")),
        (["photos", "--name", "null"], "null"),
        (["photos", "--name", "../x"], "x"),
        (["empty", "--name", "shop"], "holds no images"),
        ([".", "--name", "shop"], "shop-project && probmetric init /"),
        (["..", "--name", "shop"], "shop-project && cd "),
        (["photos", "--name", "shop", "--network", "no_such_net"], "no_such_net"),
        (["~", "--name", "shop"], "~ would be read as /home/me, since params.yaml expands ~ and $NAME; rename it."),
        (["a$HOME", "--name", "shop"], "a$HOME would be read as a/home/me, since params.yaml"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(project, capsys, monkeypatch, arguments, says, is_project):
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("photos", "~", "a$HOME", "7"):
        photos(project / name)
    (project / "empty").mkdir()
    if not is_project:
        (project / "params.yaml").unlink()
        shutil.rmtree(project / "workflow")
    before = {path: path.is_file() and path.read_text("latin-1") for path in project.rglob("*")}
    assert cli.main(["init", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert {path: path.is_file() and path.read_text("latin-1") for path in project.rglob("*")} == before


def test_the_advice_to_who_stands_among_the_photographs_works(project, capsys, monkeypatch):
    place = photos(project / "my photos")
    monkeypatch.chdir(place / "kind 0")
    assert cli.main(["init", "..", "--quick"]) == 2
    made, went, called = capsys.readouterr().err.splitlines()[-1].strip().split(" && ")
    (folder,) = shlex.split(made)[1:]
    assert shlex.split(went) == ["cd", folder]
    Path(folder).mkdir()
    monkeypatch.chdir(folder)
    assert cli.main([*shlex.split(called)[1:], "--quick"]) == 0
    assert f"Started a project in {folder}: Snakefile" in capsys.readouterr().out
    assert Path("workflow/experiments/my-photos.yaml").is_file()


def test_params_that_cannot_be_extended_are_left_alone(project, capsys):
    photos(project / "photos")
    (project / "params.yaml").write_text("datasets: [digits]\n")
    assert cli.main(["init", "photos", "--name", "shop"]) == 2
    assert "add it by hand:\ndata:\n  on_request:\n    shop: {source: folder" in capsys.readouterr().err


def shop(project) -> Params:
    """What params.yaml says of classes of 6 photos that are prepared, clean and with a fifth of the labels wrong."""
    photos(project / "photos", count=6)
    assert cli.main(["init", "photos", "--name", "shop"]) == 0
    params = load(Params, "params.yaml")
    ensure(params, "shop+noise0.2")
    return params


def test_groups_in_several_splits_are_noted_and_kept_whole_on_request(project, capsys):
    for kind in ("mug", "cup", "jug"):
        photos(project / "photos" / kind, classes=4, count=3)
    assert cli.main(["init", "photos", "--name", "shop", "--quick", "--split", "by_group"]) == 0
    params = load(Params, "params.yaml")
    assert data_source(params, "shop").options == {"split": "by_group", "group": "folder", "on_error": "raise"}
    files = sorted((project / "photos").rglob("*.png"))
    rows = [f"{file.relative_to(project)},{file.parts[-3]},{file.parent}" for file in files]
    (project / "shots.csv").write_text("\n".join(["path,label,group", *rows]))
    capsys.readouterr()
    assert cli.main(["init", "shots.csv", "--quick"]) == 0
    assert "group(s) are in several splits" in capsys.readouterr().out


def test_a_new_format_of_prepared_data_has_them_prepared_again(project, monkeypatch):
    params = shop(project)
    for module in (declared, prepare):
        monkeypatch.setattr(module, "FORMAT", FORMAT + 1)
    why = f"the format of prepared data {FORMAT} -> {FORMAT + 1}"
    assert outdated(params, "shop") == outdated(params, "shop+noise0.2") == why
    ensure(params, "shop+noise0.2")
    assert outdated(params, "shop") == outdated(params, "shop+noise0.2") == ""


def test_a_folder_called_after_a_split_that_it_is_not_of_is_made_again(project):
    photos(project / "photos", classes=24)
    assert cli.main(["init", "photos", "--name", "shop", "--quick"]) == 0
    params, prepared = load(Params, "params.yaml"), project / "data/prepared"
    ensure(params, "shop+split1+noise0.2")
    split = load_manifest(prepared / "shop+split1").split
    shutil.rmtree(prepared / "shop+split1")
    shutil.copytree(prepared / "shop", prepared / "shop+split1")
    why = "its classes are split in another way than its name says"
    assert outdated(params, "shop+split1") == outdated(params, "shop+split1+noise0.2") == why
    ensure(params, "shop+split1")
    assert (load_manifest(prepared / "shop+split1").split == split).all()
    assert not (load_manifest(prepared / "shop").split == split).all()
    assert outdated(params, "shop+split1") == outdated(params, "shop+split1+noise0.2") == ""


def test_what_is_prepared_is_prepared_again_after_a_change_of_its_photos_or_options(project):
    params = shop(project)
    prepared = project / "data/prepared"
    before = {name: (prepared / name / "digest").read_bytes() for name in ("shop", "shop+noise0.2")}
    assert outdated(params, "shop") == outdated(params, "shop+noise0.2") == ""
    (project / "photos/kind 0/0.png").unlink()
    assert "the content of photos has changed" in outdated(params, "shop+noise0.2")
    ensure(params, "shop+noise0.2")
    after = {name: (prepared / name / "digest").read_bytes() for name in before}
    assert not set(before.values()) & set(after.values())
    assert len(load_manifest(prepared / "shop+noise0.2")) == 35
    assert outdated(params, "shop+noise0.2") == ""
    ensure(with_options(params, test_fraction=0.3), "shop")
    assert outdated(with_options(params, test_fraction=0.3), "shop+noise0.2") == "dataset shop was prepared again"
    assert outdated(params, "shop") == "test_fraction 0.3 -> 0.5"


def test_what_a_variant_was_made_of_is_not_prepared_again_for_a_job_of_its_own(project):
    """Snakemake deletes the job's output, the digest, before the job."""
    params, folder = shop(project), project / "data/prepared/shop"
    written = (folder / "manifest.parquet").stat().st_mtime_ns
    (folder / "digest").unlink()
    ensure(params, "shop")
    assert (folder / "digest").exists()
    assert (folder / "manifest.parquet").stat().st_mtime_ns == written


def with_options(params: Params, **options) -> Params:
    """The configuration with these options of `shop`."""
    plain = params.model_dump()
    plain["data"]["on_request"]["shop"]["options"] |= options
    return Params.model_validate(plain)


def test_a_changed_table_and_changed_vectors_are_seen(project):
    photos(project / "photos", count=6)
    lines = ["path,label", *(f"photos/kind {n}/{image}.png,{n}" for n in range(6) for image in range(6))]
    (project / "list.csv").write_text("\n".join(lines))
    np.save(project / "v.npy", np.random.default_rng(0).standard_normal((60, 8)))
    (project / "v.csv").write_text("\n".join(["label", *(str(row % 6) for row in range(60))]))
    for file, name in (("list.csv", "listed"), ("v.npy", "vectors")):
        assert cli.main(["init", file, "--name", name]) == 0
    params = load(Params, "params.yaml")
    for name in ("listed", "vectors"):
        ensure(params, name)
        assert outdated(params, name) == ""
    (project / "photos/kind 3/2.png").write_bytes((project / "photos/kind 3/1.png").read_bytes())
    (project / "v.csv").write_text("\n".join(["label", *(str(row % 5) for row in range(60))]))
    assert "list.csv has changed" in outdated(params, "listed")
    assert "v.npy has changed" in outdated(params, "vectors")
    (project / "list.csv").write_text("nonsense")
    assert "list.csv" in outdated(params, "listed")


def test_skipping_what_cannot_be_read_is_no_other_data_but_not_skipping_it_any_more_is(project):
    params = shop(project)
    assert outdated(with_options(params, on_error="skip"), "shop") == ""
    (project / "photos/kind 1/0.png").write_bytes(b"no image")
    skipping = with_options(params, on_error="skip")
    ensure(skipping, "shop")
    assert outdated(skipping, "shop") == ""
    assert outdated(params, "shop") == "on_error skip -> raise"
    with pytest.raises(DataError, match=r"0\.png is no image"):
        ensure(params, "shop")


@pytest.mark.parametrize(("rows", "seeds", "tested"), [(18_000, [0, 1, 2], 9_000), (50_000, [0], 10_000)])
def test_of_very_many_vectors_a_part_is_tested_and_the_report_says_so(
    project, capsys, monkeypatch, rows, seeds, tested
):
    np.savez(project / "v.npz", vectors=np.ones((rows, 2), np.float32), label=np.arange(rows) % 100)
    reads, load = [], np.load
    monkeypatch.setattr(np, "load", lambda *given, **options: reads.append(1) or load(*given, **options))
    assert cli.main(["init", "v.npz", "--name", "vectors"]) == 0
    assert f"{tested} test), split by_class" in capsys.readouterr().out
    spec = read_yaml("workflow/experiments/vectors.yaml")
    assert len(reads) <= 3  # to know the classes, to list them in the split that suits them, with more validation
    assert max((each["seeds"] for each in spec["runs"]), key=len) == seeds
    assert ("10,000 of 50,000 vectors are tested, with one seed" in spec["description"]) == (rows == 50_000)
    assert ("val_fraction: 0.1" in (project / "params.yaml").read_text()) == (rows == 50_000)


def test_names_of_files_do_not_steer_the_terminal(project, capsys):
    shop(project)
    (project / "photos/kind 0/\x1b[31mred\x07.png").write_bytes(b"no image")
    assert cli.main(["prepare", "shop"]) == 2
    (project / "photos/\x1b[31mred\x07").mkdir()
    (project / "photos/kind 1/0.png").rename(project / "photos/\x1b[31mred\x07/0.png")
    assert cli.main(["init", "photos", "--name", "again", "--on-error", "skip", "--quick"]) == 0
    said = "".join(capsys.readouterr())
    assert "kind 0/\\x1b[31mred\\x07.png is no image" in said
    assert "1 class(es) left out, with fewer than 2 images: \\x1b[31mred\\x07" in said
    assert not {"\x1b", "\x07"} & set(said)


def test_splits_too_small_to_say_much_are_told_by_init_and_doctor(project, capsys):
    photos(project / "photos", 3, 5)
    assert cli.main(["init", "photos", "--name", "shop", "--split", "by_image"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: ")]
    assert "no image of split val has another one of its class there" in notes[0]
    assert cli.main(["prepare", "shop"]) == 0
    assert cli.main(["doctor", "data/prepared/shop"]) == 0
    assert notes[0].removeprefix("Note: ").rstrip(".") in capsys.readouterr().out


def test_a_dozen_images_of_each_class_are_enough_to_choose_by(project, capsys):
    """With the usual share of validation images each class would have one, and no training could choose its epoch."""
    photos(project / "photos", 3, 12)
    assert cli.main(["init", "photos", "--name", "shop"]) == 0
    assert "no image of split val" not in capsys.readouterr().out
    assert "val_fraction: 0.3" in (project / "params.yaml").read_text()


def test_pictures_that_are_left_out_are_told_at_once(project, capsys):
    photos(project / "photos")
    (project / "photos/kind 0/new.psd").touch()
    unread = "1 picture(s) of kinds that are not read, such as kind 0/new.psd (1 .psd: convert it to JPEG or PNG)"
    assert cli.main(["init", "photos", "--name", "shop"]) == 2
    assert unread in capsys.readouterr().err
    assert cli.main(["init", "photos", "--name", "shop", "--on-error", "skip"]) == 0
    assert f"Note: left out: {unread}." in capsys.readouterr().out


def test_files_of_a_new_project_name_nothing_that_only_a_checkout_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start(tmp_path)
    conda = yaml.safe_load((tmp_path / "workflow/envs/probmetric.yaml").read_text())
    (pip,) = (entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert pip == [f"probmetric[all]=={probmetric.__version__}"]


def test_a_folder_that_names_its_splits_needs_no_word_about_their_kind(project, capsys):
    for side, first in (("train", 0), ("test", 6)):
        photos(project / "side", 12)
        for number in range(first, first + 6):
            (project / "photos" / side).mkdir(parents=True, exist_ok=True)
            (project / "side" / f"kind {number}").rename(project / "photos" / side / f"kind {number}")
        shutil.rmtree(project / "side")
    assert cli.main(["init", "photos", "--name", "shop"]) == 0
    assert "split by_class" in capsys.readouterr().out
    assert cli.main(["init", "photos", "--name", "other", "--split", "by_image"]) == 2
    assert "set split: by_class" in capsys.readouterr().err


def test_methods_of_several_init_do_not_meet_those_of_others(project, capsys):
    """All methods of a project share one set of names, which commands for single runs read."""
    shutil.copytree(ROOT / "workflow/methods", project / "workflow/methods")
    photos(project / "photos")
    np.savez(project / "v.npz", vectors=np.eye(60, 8), label=np.arange(60) % 6)
    for place, name in (("photos", "shop"), ("photos", "again"), ("v.npz", "vectors")):
        assert cli.main(["init", place, "--name", name]) == 0
    methods = every_method(load(Params, "params.yaml"))
    assert {"shop-frozen", "again-frozen", "vectors-frozen", "vectors-head_pfe"} <= set(methods)


def test_an_experiment_that_cannot_be_planned_is_listed_with_the_reason(project, capsys):
    """One wrong file left the whole list out, and its own name as well."""
    text = "title: t\nruns: [{datasets: [digits], methods: [contrastve]}]\nmetrics: [retrieval/recall_at_1]\n"
    (project / "workflow/experiments/wrong.yaml").write_text(text)
    assert cli.main(["experiments"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"wrong +cannot be planned: experiment wrong: unknown method 'contrastve'", said)
