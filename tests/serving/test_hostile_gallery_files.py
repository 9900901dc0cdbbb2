"""A gallery whose files were damaged or exchanged answers as before, or says in one sentence what is wrong."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from PIL import Image

import probmetric
from probmetric.errors import ProbMetricError
from probmetric.serving.content import Content
from probmetric.serving.gallery import ELSEWHERE, Gallery

KINDS = ("gallery.json", "vectors-*", "images-*", "certificate-*")
CHANGES = ("empty", "truncated", "longer", "folder", "nowhere", "pipe", "flipped", "exchanged", "binary")
FLIPS = 24
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def galleries(model, photos, tmp_path_factory):
    """Two stored galleries with all there can be beside them: of the photos, and of their mirror images."""
    place = tmp_path_factory.mktemp("galleries")
    folder, _ = photos
    mirrored = shutil.copytree(folder, place / "mirrored")
    for path in mirrored.rglob("*.png"):
        Image.fromarray(np.asarray(Image.open(path))[:, ::-1].copy()).save(path)
    found = []
    for number, images in enumerate((folder, mirrored)):
        gallery = probmetric.Gallery.create(model, images)
        _ = gallery.trust
        gallery.certify(model, risk=0.9, confidence=0.5, score="cosine")
        found.append(gallery.save(place / f"gallery{number}"))
    assert all(list(each.glob(kind)) for each in found for kind in KINDS)
    return found


def answers(model, gallery, photos):
    asked = model.search(
        probmetric.Gallery.open(gallery), sorted(photos[1])[:6], any_image=True, risk=0.9, confidence=0.5, k=3
    )
    return [(answer.withheld, answer.p_right, answer.matches) for answer in asked]


def tried(model, gallery, photos):
    """The answers and what was said, of which one is empty."""
    try:
        return answers(model, gallery, photos), ""
    except ProbMetricError as error:
        return [], str(error)


def changed(file, change, other, number=0):
    """Damage a file; `number` says which of its bits is flipped."""
    data = file.read_bytes()
    file.unlink()
    if change == "folder":
        file.mkdir()
    elif change == "nowhere":
        file.symlink_to(file.parent / "nowhere")
    elif change == "pipe":
        os.mkfifo(file)
    elif change == "flipped":
        place = int(np.random.default_rng(number).integers(len(data)))
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << number % 8]) + data[place + 1 :])
    else:
        contents = {
            "empty": b"",
            "truncated": data[: len(data) // 2],
            "longer": data + b"\0\1",
            "binary": b"\xff\xfe\0",
        }
        file.write_bytes(other.read_bytes() if change == "exchanged" else contents[change])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_gallery_is_refused_or_answers_as_before(model, galleries, photos, tmp_path, kind, change):
    before = answers(model, galleries[0], photos)
    other = next(galleries[1].glob(kind))
    for number in range(FLIPS if change == "flipped" else 1):
        folder = shutil.copytree(galleries[0], tmp_path / str(number))
        changed(next(folder.glob(kind)), change, other, number)
        found, said = tried(model, folder, photos)
        assert said or found == before, f"bit {number}"
        assert "gallery" in said or "certificate" in said or not said
        assert "\n" not in said


@pytest.mark.parametrize("depth", ["x", "", 5000 * "1"], ids=["letter", "nothing", "5000 digits"])
def test_an_index_whose_lists_have_no_length_is_refused(tmp_path, depth):
    none = np.zeros((2, 0), np.float32)
    content = Content(f"{ELSEWHERE}{depth}", none, np.zeros(2), none, [*"ab"], [*"cd"], [""] * 2, [""] * 2)
    folder = Gallery(content).save(tmp_path / "g")
    with pytest.raises(ProbMetricError):
        Gallery.open(folder).search(np.ones((1, 2)))
