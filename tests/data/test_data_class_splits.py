"""Other splits of the classes: as many classes to train, validate and test on, other ones."""

import shutil

import numpy as np
import pytest
from PIL import Image

from probmetric.data import (
    add_noise,
    doctor,
    load_columns,
    load_manifest,
    open_images,
    prepare_dataset,
    split_classes,
    verify_digest,
)
from probmetric.data.variants import fold_split, other_split


def test_every_class_is_in_one_part_and_parts_keep_their_sizes(prepared):
    columns = load_columns(prepared / "glyphs", ["label", "split"])
    labels, first = columns["label"], other_split(columns["label"], columns["split"], 1)
    for label in np.unique(labels):
        assert len(set(first[labels == label])) == 1
    for name in ("train", "val", "test"):
        assert len(np.unique(labels[first == name])) == len(np.unique(labels[columns["split"] == name]))
    again, second = (other_split(labels, columns["split"], number) for number in (1, 2))
    assert (again == first).all()
    tested = [set(labels[split == "test"]) for split in (columns["split"], first, second)]
    assert len({frozenset(each) for each in tested}) == 3
    shares = [len(a & b) / len(a) for a, b in ((tested[0], tested[1]), (tested[1], tested[2]))]
    assert all(0.35 < share < 0.65 for share in shares), "half of the test classes are others"


def test_a_split_borrows_the_images_and_can_be_given_wrong_labels(prepared):
    split, noisy = prepared / "glyphs+split1", prepared / "glyphs+split1+noise0.2"
    split_classes(prepared / "glyphs", split, number=1)
    add_noise(split, noisy, rate=0.2)
    own = load_manifest(prepared / "glyphs")
    for folder in (split, noisy):
        assert doctor(folder) == []
        verify_digest(folder)
        assert not (folder / "images.bin").exists()
        np.testing.assert_array_equal(open_images(folder)[17], open_images(prepared / "glyphs")[17])
        table = load_manifest(folder)
        assert (table.sha256 == own.sha256).all()
        assert set(table.label[table.split == "train"]).isdisjoint(table.label[table.split == "test"])
    assert (load_manifest(split).label == own.label).all()
    assert load_manifest(noisy).attrs["noise"]["realised_rate"] == pytest.approx(0.2, abs=1e-3)
    assert load_manifest(noisy).attrs["class_split"] == 1


def test_a_photograph_under_two_classes_is_in_one_part_only(tmp_path):
    """The dataset's own split kept one copy of two; other splits had both, in training and in test."""
    generator = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / f"photos/class {number:02}"
        folder.mkdir(parents=True)
        for image in range(4):
            Image.fromarray(generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / f"{image}.png")
        if number % 2:
            shutil.copy(folder / "0.png", tmp_path / f"photos/class {number - 1:02}/copy.png")
    options = {"raw": tmp_path / "photos", "progress": False, "workers": 1, "class_order": "name"}
    shop = prepare_dataset("folder", tmp_path / "shop", **options)
    assert len(load_manifest(shop)) == 54, "each pair of copies is in one part"
    for number in range(1, 4):
        split_classes(shop, split := tmp_path / f"shop+split{number}", number=number)
        assert doctor(split) == []
        rows = load_manifest(split)
        assert rows["label"].nunique() == 12
        assert len(rows) < 54
        assert rows.groupby("sha256")["split"].nunique().max() == 1


@pytest.mark.parametrize(
    ("name", "message"), [("digits", "tests on its training classes"), ("letters_exact", "true_p")]
)
def test_data_whose_classes_cannot_be_split_are_refused(prepared, tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        split_classes(prepared / name, tmp_path / "x", number=1)
    assert not (tmp_path / "x").exists()


def test_folds_validate_on_other_classes_each_and_leave_the_test_classes(prepared):
    columns = load_columns(prepared / "glyphs", ["label", "split"])
    labels, own = columns["label"], columns["split"]
    folds = [own, *(fold_split(labels, own, number) for number in (1, 2, 3, 4))]
    chosen = [set(labels[split == "val"]) for split in folds]
    assert {len(each) for each in chosen} == {17}
    assert len(set.union(*chosen)) == 5 * 17, "no class is in two folds"
    for split in folds:
        assert ((split == "test") == (own == "test")).all()
        assert set(labels[split == "train"]) == set(labels[own != "test"]) - set(labels[split == "val"])
    with pytest.raises(ValueError, match="fold 6: the training classes make 6 folds of 17 validation classes"):
        fold_split(labels, own, 6)
