"""The embedded datasets are what design.md section 7 promises."""

import subprocess
import sys
import unicodedata

import numpy as np
import pytest

from probmetric.data import doctor, list_datasets, load_columns, load_manifest, open_images, prepare_dataset
from probmetric.data.sources import _faces
from probmetric.data.sources.glyphs import SCRIPTS, letter_glyphs
from probmetric.data.views._base import stacked

EMBEDDED = ("digits", "digits_open", "glyphs", "glyphs_closed", "symbols")


def test_importing_the_package_loads_neither_torch_nor_pandas():
    code = (
        "import sys, probmetric.data as d; d.list_datasets(); "
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'pyarrow') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_reading_a_prepared_folder_needs_numpy_and_pyarrow_only(prepared):
    code = (
        "import sys; from probmetric.data import load_columns, open_images, verify_digest; f = sys.argv[1]; "
        "load_columns(f, ['label', 'split']); open_images(f)[0]; verify_digest(f); "
        "print([m for m in ('torch', 'pandas', 'PIL', 'scipy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(prepared / "digits")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_embedded_datasets_are_listed():
    assert set(EMBEDDED) <= set(list_datasets())


@pytest.mark.parametrize("name", [*EMBEDDED, "letters_exact"])
def test_prepared_folder_is_healthy(prepared, name):
    assert doctor(prepared / name) == []


@pytest.mark.parametrize("name", EMBEDDED)
def test_images_are_32x32_grey(prepared, name):
    store = open_images(prepared / name)
    assert store.shape == (32, 32, 1)
    assert len(store) == len(load_manifest(prepared / name))


RENDERED = [pytest.param(name, marks=pytest.mark.slow) for name in ("glyphs", "symbols")]


@pytest.mark.parametrize("name", ["digits", *RENDERED])
def test_preparing_again_gives_the_same_bytes(prepared, tmp_path, name):
    prepare_dataset(name, tmp_path / name, progress=False)
    for file in ("manifest.parquet", "images.bin", "digest", "summary.json"):
        assert (tmp_path / name / file).read_bytes() == (prepared / name / file).read_bytes(), file


def test_another_seed_gives_other_splits_and_images(prepared, tmp_path):
    prepare_dataset("digits", tmp_path / "digits", seed=1, progress=False)
    first, second = (load_manifest(root / "digits") for root in (prepared, tmp_path))
    assert (first.split != second.split).any()
    assert (first.sha256 == second.sha256).all()


def test_digits_splits_are_stratified(prepared):
    frame = load_manifest(prepared / "digits")
    counts = frame.groupby(["label", "split"]).size().unstack()
    total = counts.sum(axis=1)
    assert (abs(counts["test"] / total - 0.3) < 0.01).all()
    assert (abs(counts["val"] / (counts["train"] + counts["val"]) - 0.15) < 0.01).all()


def test_digits_keep_the_scan(prepared):
    from sklearn.datasets import load_digits

    store, scans = open_images(prepared / "digits"), load_digits().images
    for row in (0, 700, 1796):
        shrunk = store[row][..., 0].astype(float).reshape(8, 4, 8, 4).mean(axis=(1, 3)) / 255 * 16
        assert np.corrcoef(shrunk.ravel(), scans[row].ravel())[0, 1] > 0.97


def test_digits_open_trains_on_0_to_4_only(prepared):
    frame = load_manifest(prepared / "digits_open")
    assert set(frame.label[frame.split == "test"]) == {5, 6, 7, 8, 9}
    train, val = (set(frame.label[frame.split == split]) for split in ("train", "val"))
    assert train | val == {0, 1, 2, 3, 4}
    assert not train & val
    assert len(val) == 2


def test_glyphs_are_a_zero_shot_dataset_of_the_promised_size(prepared):
    frame = load_manifest(prepared / "glyphs")
    per_class = frame.groupby("label").size()
    assert len(per_class) >= 200
    assert per_class.min() >= 40
    classes = {split: set(frame.label[frame.split == split]) for split in ("train", "val", "test")}
    assert abs(len(classes["train"] | classes["val"]) - len(classes["test"])) <= len(SCRIPTS)
    assert abs(len(classes["val"]) / len(classes["train"] | classes["val"]) - 0.15) < 0.01
    assert max(classes["train"] | classes["val"]) < min(classes["test"])


def test_both_halves_of_glyphs_hold_every_script(prepared):
    frame = load_manifest(prepared / "glyphs").drop_duplicates("label")
    for split in ("train", "test"):
        codes = frame.character[frame.split == split].map(ord)
        for script, blocks in SCRIPTS.items():
            assert sum(codes.between(first, last).sum() for first, last in blocks) >= 5, (split, script)


def test_glyphs_closed_has_every_letter_in_every_split_and_no_image_in_two(prepared):
    """The same images as `glyphs`, whose file names give letter and number, dealt to other splits."""
    frame, open_set = (load_manifest(prepared / name) for name in ("glyphs_closed", "glyphs"))
    counts = frame.groupby(["label", "split"]).size().unstack()
    assert len(counts) == open_set.label.nunique() == 226
    assert (counts[["train", "val", "test"]] > 0).all(axis=None)
    assert (abs(counts["test"] / counts.sum(axis=1) - 0.3) < 0.02).all()
    assert (abs(counts["val"] / (counts["train"] + counts["val"]) - 0.15) < 0.02).all()
    assert frame.path.is_unique
    assert dict(zip(frame.path, frame.sha256, strict=True)) == dict(zip(open_set.path, open_set.sha256, strict=True))


def test_every_glyph_class_has_many_faces(prepared):
    frame = load_manifest(prepared / "glyphs")
    assert frame.groupby("label").font.nunique().min() >= 8


def test_letters_that_look_alike_are_one_class():
    letters, glyphs = letter_glyphs()
    same = _faces.alike(glyphs, letters)
    at = {letter: i for i, letter in enumerate(letters)}
    for a, b in ["AΑ", "AА", "oο", "oO", "sS", "pр", "OՕ", "cс"]:
        assert same[at[a], at[b]], (a, b)
    for a, b in ["AΛ", "HП", "Oθ", "bd", "EF", "hk", "aе", "Աა"]:
        assert not same[at[a], at[b]], (a, b)
    kept = _faces.distinct(letters, same)
    assert {"A", "Ж", "Ω", "Ա", "ა"} <= set(kept)
    assert not {"Α", "А", "Օ"} & set(kept)
    rows = [at[c] for c in kept]
    assert same[np.ix_(rows, rows)].sum() == len(kept)


def test_no_face_offers_its_missing_glyph_box():
    glyphs = _faces.render(["A", "\U000e0fff", "א"], ["DejaVuSans", "DejaVuSerif", "cmr10"])
    assert set(glyphs) == {("DejaVuSans", "A"), ("DejaVuSerif", "A"), ("cmr10", "A"), ("DejaVuSans", "א")}


def test_distortion_summarises_the_four_strengths(prepared):
    c = load_columns(prepared / "glyphs", ["warp", "noise", "blur", "occlusion", "distortion"])
    strengths = np.stack([c[name] for name in ("warp", "noise", "blur", "occlusion")])
    assert strengths.min() >= 0
    assert strengths.max() <= 1
    np.testing.assert_allclose(c["distortion"], np.sqrt((strengths**2).mean(axis=0)), rtol=1e-12)
    assert c["distortion"].min() < 0.01
    assert c["distortion"].max() > 0.8


def _right(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    return labels[cosine.argmax(axis=1)] == labels


def test_glyphs_are_neither_trivial_nor_hopeless_and_distortion_makes_them_harder(prepared):
    c = load_columns(prepared / "glyphs", ["split", "label", "distortion"])
    rows = np.flatnonzero(c["split"] == "test")
    images = stacked(open_images(prepared / "glyphs").load(rows)).flatten(1).numpy().astype(np.float32)
    right = _right(images, c["label"][rows])
    assert 0.2 < right.mean() < 0.6
    order = np.argsort(c["distortion"][rows])
    thirds = [right[part].mean() for part in np.array_split(order, 3)]
    assert thirds[0] > thirds[1] > thirds[2]


def test_symbols_are_test_images_and_share_nothing_with_glyphs(prepared):
    symbols, glyphs = (load_manifest(prepared / name) for name in ("symbols", "glyphs"))
    assert set(symbols.split) == {"test"}
    assert not set(symbols.sha256) & set(glyphs.sha256)
    assert not set(symbols.character) & set(glyphs.character)
    assert not symbols.character.isin(list("∑∏∆µ")).any()


def test_a_glyph_image_does_not_depend_on_how_many_there_are(prepared, tmp_path):
    prepare_dataset("glyphs", tmp_path / "glyphs", progress=False, per_class=3)
    few, many = load_manifest(tmp_path / "glyphs"), load_manifest(prepared / "glyphs")
    assert set(few.sha256) <= set(many.sha256)


def test_an_unknown_dataset_or_option_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'glyphs'"):
        prepare_dataset("glyph", tmp_path / "x", progress=False)
    with pytest.raises(ValueError, match="did you mean 'per_class'"):
        prepare_dataset("glyphs", tmp_path / "x", progress=False, perclass=3)
    assert not list(tmp_path.iterdir())


def test_other_scripts_share_no_character_with_letters_or_symbols(prepared):
    """What networks are pretrained on is in nobody's training, validation, test or out-of-distribution images."""
    other, letters, symbols = (load_manifest(prepared / name) for name in ("other_scripts", "glyphs", "symbols"))
    assert not set(other["character"]) & (set(letters["character"]) | set(symbols["character"]))
    assert other["label"].nunique() == 200
    assert other.groupby("label")["split"].nunique().eq(3).all()
    assert other["path"].is_unique
    assert {unicodedata.name(c).split()[0] for c in other["character"]} <= {
        *("HEBREW", "ARABIC", "NKO", "LAO", "TIFINAGH", "CANADIAN")
    }
