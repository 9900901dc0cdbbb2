"""The nearest rows are those of integer arithmetic, however the gallery lies."""

import numpy as np
import pytest
from brute_force import cosine_keys

from probmetric.metrics.arrays import products
from probmetric.retrieval import match_record, search
from probmetric.retrieval.problem import struck_rows
from probmetric.retrieval.torch_engine import torch_nearest


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def rows():
    generator = np.random.default_rng(3)
    rows = unit(generator.normal(size=(12, 16))[generator.integers(0, 12, size=307)] + generator.normal(size=(307, 16)))
    rows[40] = rows[200]  # exact ties across parts
    return rows


def by_integers(queries, gallery, k, own=None):
    keys = cosine_keys(queries, gallery)
    found = []
    for i, line in enumerate(keys):
        others = [j for j in range(len(gallery)) if own is None or j != own[i]]
        found.append(sorted(others, key=lambda j: (-line[j], j))[:k])
    return np.array(found)


@pytest.mark.parametrize("kind", ["apart", "near ties", "binary"])
@pytest.mark.parametrize("k", [1, 7, 60])
def test_neighbours_are_those_of_integer_arithmetic(kind, k):
    gallery = np.random.default_rng(1).normal(size=(90, 8))
    if kind == "near ties":
        gallery = gallery[0] + 3e-8 * gallery
    gallery = unit(np.sign(gallery) if kind == "binary" else gallery)
    found = search(gallery[:20], gallery, k)
    np.testing.assert_array_equal(found.rows, by_integers(gallery[:20], gallery, k))
    cosines = gallery[:20].astype(float) @ gallery.astype(float).T
    np.testing.assert_allclose(found.cosines, np.take_along_axis(cosines, found.rows, axis=1), atol=1e-7)
    own = np.where(np.arange(20) % 2, np.arange(20), -1)
    found = search(gallery[:20], gallery, k, self_index=own)
    np.testing.assert_array_equal(found.rows, by_integers(gallery[:20], gallery, k, own))
    np.testing.assert_array_equal(search(gallery, k=k).rows, by_integers(gallery, gallery, k, np.arange(90)))


@pytest.mark.parametrize("k", [1, 7, 120])
def test_parts_on_disk_give_the_same_as_the_array(rows, k, tmp_path, monkeypatch):
    queries = unit(np.random.default_rng(5).normal(size=(23, 16)))
    expected = search(queries, rows, k)
    monkeypatch.setattr("probmetric.retrieval.neighbours.BLOCK_ROWS", 37)
    parts = []
    for number, part in enumerate(np.split(rows, [100, 101, 250])):
        np.save(tmp_path / f"{number}.npy", part)
        parts.append(np.load(tmp_path / f"{number}.npy", mmap_mode="r"))
    found = search(queries, parts, k)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.cosines, expected.cosines)


def test_torch_gives_the_same(rows, monkeypatch):
    own = np.where(np.arange(len(rows)) % 2, np.arange(len(rows)), -1)
    expected = search(rows, rows, 9, self_index=own)
    monkeypatch.setattr("probmetric.retrieval.torch_engine.BLOCK_BYTES", 8 * len(rows) * 50)
    nearest, cosines = torch_nearest(rows, rows, struck_rows(own, None, (307, 307)), 9)
    np.testing.assert_array_equal(nearest, expected.rows)
    np.testing.assert_array_equal(cosines.clip(-1, 1), expected.cosines)


def test_bad_input_is_named(rows):
    with pytest.raises(ValueError, match="k is 307; expected 1 to 306"):
        search(rows, k=307)
    with pytest.raises(ValueError, match="k is 308; expected 1 to 307"):
        search(rows, rows, 308)
    with pytest.raises(ValueError, match="queries have 16 dimensions, rows"):
        search(rows, rows[:, :4] / np.linalg.norm(rows[:, :4], axis=1, keepdims=True), 1)
    with pytest.raises(ValueError, match="queries: row 0 has norm 2"):
        search(2 * rows, k=1)
    with pytest.raises(ValueError, match="self_index is for a separate gallery"):
        search(rows, self_index=np.full(307, -1))
    for dtype in (np.float32, np.float16):
        bad = np.where(np.arange(307)[:, None] == 9, np.nan, rows).astype(dtype)
        with pytest.raises(ValueError, match=r"gallery: row 316 is not finite\. Drop it or mend"):
            search(rows, [rows.astype(dtype), bad], 1)
    for empty in (rows[:0], [rows[:0]]):
        with pytest.raises(ValueError, match=r"gallery has (no rows|shape \(0, 16\))"):
            search(rows, empty, 1)
    with pytest.raises(ValueError, match=r"gallery rows: row .* has norm 2"):
        search(rows[:2], [2 * rows], 3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_gallery_on_disk_is_searched_as_it_lies(rows, dtype, tmp_path, monkeypatch):
    stored = (rows * (100 if dtype == "int8" else 1)).astype(dtype)
    if dtype == "int8":
        stored[5] = 0  # no direction
    np.save(tmp_path / "rows.npy", stored)
    monkeypatch.setattr("probmetric.retrieval.neighbours.BLOCK_ROWS", 37)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    expected = search(rows[:9], stored.astype(np.float32), 4, normalize=True)
    for gallery in (mapped, stored, [mapped[:100], mapped[100:]]):
        found = search(rows[:9], gallery, 4, normalize=dtype == "float32")
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.cosines, expected.cosines)
    with pytest.raises(TypeError, match="gallery has dtype int16; expected float32"):
        search(rows, [stored.astype("int16")], 4)


def test_no_cosine_is_beyond_one():
    """Unit rows in float32 have cosines with themselves of up to 1 + 2e-7."""
    rows = np.random.default_rng(0).normal(size=(300, 17)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert search(rows, rows, k=1).cosines.max() == 1.0
    assert search(rows, -rows, k=300).cosines.min() == -1.0
    assert match_record(rows, rows, np.arange(300) % 5, k=3)["cosine"].max() == 1.0


def test_the_processors_invalid_flag_is_no_warning():
    """OpenBLAS sets it for finite rows too, now and then; here it is set on purpose."""
    raised = products(np.array([[np.inf]]), np.array([[0.0]]))
    assert np.isnan(raised).all()
    np.testing.assert_array_equal(products(np.eye(2), np.array([[3.0, 4.0]])), [[3.0], [4.0]])
