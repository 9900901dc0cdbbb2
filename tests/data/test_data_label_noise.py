"""Label noise changes training labels only, at the rate asked for, and keeps the originals."""

import shutil

import numpy as np
import pytest

from probmetric.data import (
    DataError,
    add_noise,
    doctor,
    inject_label_noise,
    load_columns,
    load_manifest,
    open_images,
    prepare_dataset,
    verify_digest,
)
from probmetric.data.noise import nearest_classes
from probmetric.data.views._base import stacked
from probmetric.io.folders import MARKER

LABELS = np.repeat(np.arange(20), 50)
SPLIT = np.where(LABELS < 10, "train", np.where(LABELS < 12, "val", "test"))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.55])
def test_the_realised_rate_is_the_rate(rate):
    noisy = inject_label_noise(LABELS, SPLIT, rate=rate, seed=3)
    assert (noisy != LABELS)[SPLIT == "train"].mean() == pytest.approx(rate)
    assert (noisy == LABELS)[SPLIT != "train"].all()
    assert set(noisy[SPLIT == "train"]) <= set(range(10))


def test_uniform_noise_is_uniform_over_the_other_training_classes():
    counts = np.zeros((10, 10))
    for seed in range(200):
        noisy = inject_label_noise(LABELS, SPLIT, rate=0.5, seed=seed)
        changed = noisy != LABELS
        np.add.at(counts, (LABELS[changed], noisy[changed]), 1)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(10, dtype=bool)]
    expected = counts.sum() / 90
    chi_square = ((off - expected) ** 2 / expected).sum()
    assert chi_square < 89 + 5 * np.sqrt(2 * 89)


def test_noise_is_a_function_of_its_seed():
    first, again, other = (inject_label_noise(LABELS, SPLIT, rate=0.3, seed=s) for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_nearest_noise_uses_the_neighbours_given():
    neighbours = (np.arange(10)[:, None] + np.array([1, 2])) % 10
    noisy = inject_label_noise(LABELS, SPLIT, rate=0.4, seed=0, kind="nearest", neighbours=neighbours)
    changed = noisy != LABELS
    assert changed[SPLIT == "train"].mean() == pytest.approx(0.4)
    assert set((noisy - LABELS)[changed] % 10) == {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.4}, "1.4; allowed: 0 <= rate < 1"),
        ({"rate": -0.1}, "allowed: 0 <= rate < 1"),
        ({"rate": 0.2, "kind": "unifrom"}, "did you mean 'uniform'"),
        ({"rate": 0.2, "kind": "nearest"}, "neighbours"),
    ],
)
def test_bad_requests_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        inject_label_noise(LABELS, SPLIT, seed=0, **options)


def test_one_class_cannot_be_made_noisy():
    with pytest.raises(ValueError, match="at least 2 training classes, found 1"):
        inject_label_noise(np.zeros(5, int), np.full(5, "train"), rate=0.2, seed=0)


@pytest.mark.parametrize("kind", ["uniform", "nearest"])
def test_a_noisy_variant_is_healthy_and_borrows_the_images(prepared, tmp_path, kind):
    target = prepared / f"glyphs+noise0.2-{kind}"
    realised = add_noise(prepared / "glyphs", target, rate=0.2, kind=kind, seed=5)
    assert realised == pytest.approx(0.2, abs=1e-3)
    assert doctor(target) == []
    verify_digest(target)
    assert sorted(path.name for path in target.iterdir()) == [MARKER, "digest", "manifest.parquet", "summary.json"]
    noisy, clean = load_manifest(target), load_manifest(prepared / "glyphs")
    assert (noisy.clean_label == clean.label).all()
    assert noisy.attrs["noise"]["realised_rate"] == realised
    np.testing.assert_array_equal(open_images(target)[17], open_images(prepared / "glyphs")[17])
    before = (target / "digest").read_bytes()
    add_noise(prepared / "glyphs", target, rate=0.2, kind=kind, seed=5)
    assert (target / "digest").read_bytes() == before


def test_nearest_classes_look_more_alike_than_chance(prepared):
    near = nearest_classes(prepared / "glyphs")
    c = load_columns(prepared / "glyphs", ["label", "split"])
    classes = np.unique(c["label"][c["split"] == "train"])
    assert near.shape == (len(classes), 5)
    assert not (near == classes[:, None]).any()
    store = open_images(prepared / "glyphs")
    mean = {k: stacked(store.load(np.flatnonzero(c["label"] == k))).double().mean(0).numpy() for k in classes}
    distance = np.array([[np.linalg.norm(mean[a] - mean[b]) for b in classes] for a in classes])
    rank = np.argsort(np.argsort(distance, axis=1), axis=1)
    position = np.searchsorted(classes, near[:, 0])
    assert np.median(rank[np.arange(len(classes)), position]) <= 3


def test_nearest_classes_of_vectors_are_those_of_the_nearest_mean_vectors(tmp_path):
    """Classes on a line, at 1, 2, 4, 8, ...: the bytes of such numbers are no measure of them."""
    places = 2.0 ** np.arange(16)
    label = np.repeat(np.arange(16), 4)
    vectors = np.zeros((64, 3))
    vectors[:, 0] = places[label] + np.tile([-0.1, -0.05, 0.05, 0.1], 16)
    np.savez(tmp_path / "v.npz", vector=vectors, label=[f"{number:02}" for number in label])
    raw = {"raw": tmp_path / "v.npz", "progress": False, "split": "by_image"}
    near = nearest_classes(prepare_dataset("embeddings", tmp_path / "v", **raw))
    assert near[0].tolist() == [1, 2, 3, 4, 5]
    assert near[15].tolist() == [14, 13, 12, 11, 10]


def test_noise_on_noise_is_refused(prepared, tmp_path):
    add_noise(prepared / "digits", prepared / "digits+noise0.1", rate=0.1, seed=0)
    with pytest.raises(ValueError, match="already has noisy labels"):
        add_noise(prepared / "digits+noise0.1", tmp_path / "x", rate=0.1, seed=0)


def test_a_clean_dataset_that_was_changed_is_refused(prepared, tmp_path):
    folder = shutil.copytree(prepared / "digits", tmp_path / "changed")
    manifest = folder / "manifest.parquet"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(DataError, match=r"manifest\.parquet was changed after it was prepared"):
        add_noise(folder, tmp_path / "noisy", rate=0.2)
    assert not (tmp_path / "noisy").exists()


def test_doctor_finds_noise_outside_train_and_a_wrong_rate(prepared, tmp_path):
    from probmetric.data.manifest import MANIFEST, read_table, write_manifest

    folder = prepared / "digits+noise0.3"
    add_noise(prepared / "digits", folder, rate=0.3, seed=0)
    table, metadata = read_table(folder)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False).copy() for name in table.column_names}
    test, train = (np.flatnonzero(columns["split"] == split) for split in ("test", "train"))
    columns["label"][test[0]] = (columns["label"][test[0]] + 1) % 10
    columns["label"][train] = columns["clean_label"][train]
    write_manifest(folder / MANIFEST, columns, metadata)
    text = " ".join(map(str, doctor(folder)))
    assert "1 labels outside train are noisy" in text
    assert "realised noise rate is 0.0000, declared 0.3" in text
