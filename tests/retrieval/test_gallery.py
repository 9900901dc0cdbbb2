"""A gallery of files gives the numbers the same rows give in memory."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from probmetric.io import FileError
from probmetric.retrieval import Gallery, GalleryIndex, nearest_neighbours, retrieval_metrics


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def data():
    generator = np.random.default_rng(3)
    centres = generator.normal(size=(12, 16))
    labels = generator.integers(0, 12, size=307)
    rows = unit(centres[labels] + 1.5 * generator.normal(size=(307, 16)))
    rows[40] = rows[200]  # exact ties across files
    return rows, labels


@pytest.fixture
def gallery(data, tmp_path):
    rows, labels = data
    for number, part in enumerate(np.split(np.arange(307), [100, 101, 250])):
        tensors = {"mean": rows[part], "label": labels[part]}
        save_file(tensors, tmp_path / f"{number}.safetensors")
    return Gallery(sorted(tmp_path.glob("*.safetensors")), block_rows=37)


def test_blocks_cover_all_rows_in_order(gallery, data):
    blocks = list(gallery.blocks())
    assert [start for start, _ in blocks] == sorted(start for start, _ in blocks)
    assert max(len(rows) for _, rows in blocks) <= 37
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in blocks]), data[0])
    np.testing.assert_array_equal(gallery.labels, data[1])
    index = np.array([306, 0, 100, 101, 0])
    np.testing.assert_array_equal(gallery.rows(index), data[0][index])


@pytest.mark.parametrize("ties", ["pessimistic", "expected", "optimistic"])
def test_every_retrieval_metric_is_that_of_the_array(gallery, data, ties):
    rows, labels = data
    asked = np.array([3, 40, 100, 200, 300])
    options = {"query_index": asked, "ks": (1, 5, 50), "ties": ties}
    expected = retrieval_metrics(rows[asked], labels[asked], gallery=rows, gallery_labels=labels, **options)
    assert retrieval_metrics(rows[asked], labels[asked], gallery=gallery, **options) == expected
    assert retrieval_metrics(rows[asked], labels[asked], gallery=gallery, block=2, **options) == expected


@pytest.mark.parametrize("k", [1, 7, 120])
def test_neighbours_are_those_of_the_array(gallery, data, k):
    queries = unit(np.random.default_rng(5).normal(size=(23, 16)))
    expected = nearest_neighbours(queries, data[0], k=k)
    found = nearest_neighbours(queries, gallery, k=k)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.similarity, expected.similarity)


def test_an_index_that_looks_everywhere_finds_the_same(gallery, data, tmp_path):
    queries = unit(np.random.default_rng(6).normal(size=(23, 16)))
    expected = nearest_neighbours(queries, data[0], k=5)
    index = GalleryIndex.build(gallery, lists=4, probes=4)
    index.save(tmp_path / "index")
    found = nearest_neighbours(queries, GalleryIndex.load(tmp_path / "index", gallery, probes=4), k=5)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.similarity, expected.similarity)


def test_an_index_that_looks_at_a_part_misses_some_and_gets_no_similarity_wrong(gallery, data):
    queries = unit(np.random.default_rng(7).normal(size=(60, 16)))
    exact = nearest_neighbours(queries, data[0], k=10)
    narrow = nearest_neighbours(queries, GalleryIndex.build(gallery, lists=16, probes=1), k=10)
    wide = nearest_neighbours(queries, GalleryIndex.build(gallery, lists=16, probes=8), k=10)
    hits = [np.mean(found.indices[:, 0] == exact.indices[:, 0]) for found in (narrow, wide)]
    assert hits[0] < hits[1] <= 1
    known = wide.indices >= 0
    cosines = np.einsum("qm,qkm->qk", queries.astype(float), data[0][wide.indices].astype(float))
    np.testing.assert_allclose(wide.similarity[known], cosines[known], atol=2e-7)
    assert np.isneginf(narrow.similarity[narrow.indices < 0]).all()


def test_an_index_can_be_searched_after_faiss_was_taught_tensors(gallery, data):
    """`faiss.contrib.torch_utils` replaces `search` by one without parameters and keeps the old one beside it."""

    class Taught:
        def __init__(self, lists):
            self.search_numpy, self.nlist = getattr(lists, "search_numpy", lists.search), lists.nlist

        def search(self, x, k, D=None, I=None): ...  # noqa: E741

    index = GalleryIndex.build(gallery, lists=4, probes=4)
    expected = index.candidates(data[0][:5], 3)
    index.lists = Taught(index.lists)
    np.testing.assert_array_equal(index.candidates(data[0][:5], 3), expected)


def test_wrong_files_are_named(tmp_path, gallery):
    with pytest.raises(FileError, match="at least one"):
        Gallery([])
    with pytest.raises(FileError, match=r"gone\.safetensors"):
        Gallery([tmp_path / "gone.safetensors"])
    save_file({"mean": np.eye(3, dtype=np.float32)}, tmp_path / "half.safetensors")
    with pytest.raises(FileError, match="lacks label"):
        Gallery([tmp_path / "half.safetensors"])
    save_file({"mean": np.eye(3, dtype=np.float32), "label": np.arange(3)}, tmp_path / "three.safetensors")
    with pytest.raises(FileError, match=r"different dimensions: \[3, 16\]"):
        Gallery([*gallery.files, tmp_path / "three.safetensors"])
    save_file({"mean": 2 * np.eye(3, dtype=np.float32), "label": np.arange(3)}, tmp_path / "long.safetensors")
    with pytest.raises(ValueError, match=r"long\.safetensors, rows from 0"):
        nearest_neighbours(np.eye(3), Gallery([tmp_path / "long.safetensors"]))
    index = GalleryIndex.build(gallery, lists=2)
    index.save(tmp_path / "index")
    with pytest.raises(FileError, match="rebuild"):
        GalleryIndex.load(tmp_path / "index", Gallery([tmp_path / "three.safetensors"]))
    with pytest.raises(ValueError, match="distance='cosine'"):
        retrieval_metrics(np.eye(16), np.arange(16), gallery=gallery, distance="euclidean")
