"""Queries are asked in their gallery: Market-1501's protocol, from folders or a table to the metrics of a run."""

import json

import numpy as np
import pytest
from PIL import Image
from test_evaluate_run import write

from probmetric.config import Evaluation
from probmetric.data import DataError, load_manifest, prepare_dataset
from probmetric.runs.evaluate import ImageFacts, evaluate_run, run_answers
from probmetric.runs.folder import RunFolder

PEOPLE, CAMERAS = 6, 3
PREPARE = {"progress": False, "workers": 1, "near_duplicates": False, "split": "by_image", "group": "folder"}


def picture(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def photographs(root):
    """query/<person>/<camera>/, gallery/ likewise; people alone in the gallery disturb, -1 is junk."""
    generator = np.random.default_rng(0)
    listed = [("query", str(person), camera) for person in range(PEOPLE) for camera in range(2)]
    listed += [("gallery", str(who), int(generator.integers(CAMERAS))) for who in range(PEOPLE) for _ in range(5)]
    listed += [("gallery", f"stranger {number}", 0) for number in range(8)]
    listed += [("gallery", "-1", camera) for camera in range(CAMERAS)]
    for number, (side, person, camera) in enumerate(listed):
        picture(root / side / person / f"c{camera}" / f"{number}.png", number)
    return root


def embedded(run, manifest):
    """Write unit rows of the images, one of a class near each other; returns them."""
    generator = np.random.default_rng(1)
    centres = generator.normal(size=(manifest["label"].max() + 1, 6))
    rows = centres[manifest["label"]] + generator.normal(size=(len(manifest), 6))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    run.mkdir()
    for name in ("test", "last"):
        write(run, name, rows, manifest["label"].to_numpy(), generator.random(len(manifest)))
    strangers = generator.normal(size=(9, 6))
    strangers /= np.linalg.norm(strangers, axis=1, keepdims=True)
    write(run, "ood", strangers, np.full(9, -1), generator.random(9))
    return rows


def as_published(rows, manifest):
    """Recall@1 and average precision of each query: images of the same person and camera are not there."""
    cosines = rows.astype(np.float64) @ rows.astype(np.float64).T
    label, role, group = (manifest[name].to_numpy() for name in ("label", "role", "group"))
    recalls, precisions = [], []
    for query in np.flatnonzero(role == "query"):
        same = (label == label[query]) & (group == group[query])
        there = np.flatnonzero((role == "gallery") & ~same)
        right = label[there[np.argsort(-cosines[query, there])]] == label[query]
        ranks = np.flatnonzero(right) + 1
        if len(ranks):
            recalls.append(float(right[0]))
            precisions.append(np.mean(np.arange(1, len(ranks) + 1) / ranks))
    return np.mean(recalls), np.mean(precisions), int(np.sum(role == "query")) - len(recalls)


@pytest.mark.parametrize("given", ["folder", "table", "table of cameras"])
def test_metrics_are_those_of_the_published_protocol(tmp_path, given):
    raw = photographs(tmp_path / "people")
    if given != "folder":
        lines = ["path,label,split,camera"]
        for file in sorted(raw.rglob("*.png")):
            side, person, camera = file.relative_to(raw).parts[:3]
            group = camera if given == "table of cameras" else f"{person} {camera}"
            lines.append(f"{file.relative_to(raw)},{person},{side},{group}")
        (raw / "people.csv").write_text("\n".join(lines))
        options = PREPARE | {"group_column": "camera"}
        del options["group"]
        prepare_dataset("table", tmp_path / "data", raw=raw / "people.csv", **options)
    else:
        prepare_dataset("folder", tmp_path / "data", raw=raw, **PREPARE)
    manifest = load_manifest(tmp_path / "data")
    assert len(manifest) == 2 * PEOPLE + 5 * PEOPLE + 8  # no junk, all strangers
    rows = embedded(tmp_path / "run", manifest)
    facts = ImageFacts.of(tmp_path / "data")
    metrics, curves = evaluate_run(tmp_path / "run", Evaluation(ks=(1, 5)), facts)
    recall, precision, without = as_published(rows, manifest)
    for place in ("retrieval", "last/retrieval"):
        assert metrics[f"{place}/recall_at_1"] == pytest.approx(recall)
        assert metrics[f"{place}/map_at_1000"] == pytest.approx(precision)
        assert metrics[f"{place}/queries_without_positives"] == without
    assert 0 < recall < 1
    assert len(curves["units/retrieval/recall_at_1"]["value"]) > 1
    notes = json.loads((tmp_path / "data" / "summary.json").read_text())["notes"]
    assert any("3 image(s) of the gallery left out" in note for note in notes)
    assert any("class and group are neither right nor wrong" in note for note in notes)


def test_answers_and_those_to_strangers_lie_in_the_gallery(tmp_path):
    prepare_dataset("folder", tmp_path / "data", raw=photographs(tmp_path / "people"), **PREPARE)
    manifest = load_manifest(tmp_path / "data")
    embedded(tmp_path / "run", manifest)
    answers = run_answers(RunFolder(tmp_path / "run"), (), ImageFacts.of(tmp_path / "data"))
    for answer in answers.values():
        nearest = manifest.iloc[answer.match.record["nearest"]]
        assert set(nearest["role"]) == {"gallery"}
        assert nearest["label"].tolist() == answer.match.record["nearest_class"].tolist()
    assert len(answers["test"].right) == 2 * PEOPLE


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ({"query": "query"}, "no image is in split 'gallery'"),
        ({"gallery": "gallery", "query": "test"}, "no image is in split 'query'"),
        ({"gallery": "gallery", "query": "query", "more": "test"}, "beside query and gallery"),
    ],
)
def test_queries_need_a_gallery_and_nothing_else_to_test(tmp_path, sides, said):
    lines = ["path,label,split"]
    for number, side in enumerate(3 * list(sides.values())):
        picture(tmp_path / f"{number}.png", number)
        lines.append(f"{number}.png,{number % 2},{side}")
    (tmp_path / "people.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=said):
        prepare_dataset("table", tmp_path / "data", raw=tmp_path / "people.csv", progress=False, split="by_image")


def test_a_column_role_of_the_users_own_means_nothing(tmp_path):
    lines = ["path,label,role"]
    for number in range(24):
        picture(tmp_path / f"{number}.png", number)
        lines.append(f"{number}.png,{number % 2},{('front', 'back')[number % 2]}")
    (tmp_path / "shop.csv").write_text("\n".join(lines))
    prepare_dataset("table", tmp_path / "data", raw=tmp_path / "shop.csv", progress=False, split="by_image")
    assert ImageFacts.of(tmp_path / "data").roles is None
