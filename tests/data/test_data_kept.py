"""What stays together when images are left out, and files whose size tells that they are not the prepared ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from probmetric.data import DataError, manifest, prepare_dataset
from probmetric.data.manifest import IMAGES, verify_digest
from probmetric.data.near import alike
from probmetric.data.prepare import kept_pairs
from probmetric.data.raw import raw_content


def test_pairs_follow_their_images_and_go_with_them() -> None:
    keep = np.array([True, False, True, True, False, True])
    pairs = [(0, 2, True), (0, 1, True), (3, 5, False), (4, 5, False), (2, 0, False)]
    assert kept_pairs(pairs, keep) == [(0, 1, 1), (2, 3, 0), (1, 0, 0)]
    assert kept_pairs(pairs, np.ones(6, dtype=bool)) == [(first, second, int(same)) for first, second, same in pairs]


def test_any_number_of_images_with_one_mark_look_the_same() -> None:
    mark, other = np.random.default_rng(0).integers(0, 256, (2, 32), dtype=np.uint8)
    almost = mark.copy()
    almost[31] ^= 1
    sets = alike(np.stack([mark] * 500 + [almost, other]), np.arange(502))
    assert (sets[:501] == sets[0]).all()
    assert sets[501] != sets[0]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_dataset("digits", tmp_path_factory.mktemp("prepared") / "digits", progress=False)


@pytest.mark.parametrize(("change", "state"), [(b"x", "too long"), (None, "truncated")])
def test_large_images_of_another_size_are_refused_without_being_read(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes | None, state: str
) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(digits, folder)
    monkeypatch.setattr(manifest, "QUICK_LIMIT", 0)
    verify_digest(folder)
    content = (folder / IMAGES).read_bytes()
    (folder / IMAGES).write_bytes(content + change if change else content[:-1])
    with pytest.raises(DataError, match=rf"{IMAGES} is {state}"):
        verify_digest(folder)


@pytest.mark.parametrize("how", ["rename", "rewrite"])
def test_files_of_equal_size_and_time_that_change_places_are_other_data(tmp_path, how):
    (tmp_path / "photos").mkdir()
    first, second = (tmp_path / "photos" / name for name in ("a.jpg", "b.jpg"))
    for path, data in ((first, b"one"), (second, b"two")):
        path.write_bytes(data)
        os.utime(path, ns=(10**18, 10**18))
    names = ["a.jpg", "b.jpg"]
    before = raw_content(tmp_path / "photos", names, tmp_path / "shop")
    assert raw_content(tmp_path / "photos", names, tmp_path / "shop") == before
    if how == "rename":
        first.rename(tmp_path / "x")
        second.rename(first)
        (tmp_path / "x").rename(second)
    else:
        for path, data in ((first, b"two"), (second, b"one")):
            path.write_bytes(data)
            os.utime(path, ns=(10**18, 10**18))
    assert raw_content(tmp_path / "photos", names, tmp_path / "shop") != before
