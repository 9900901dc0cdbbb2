"""A gallery of an old model's vectors is mapped to the space of a new one, and certified there before use."""

import numpy as np
import pandas as pd
import pytest

from probmetric.cli import main
from probmetric.errors import ServingError
from probmetric.serving.gallery import Gallery
from probmetric.serving.migration import migrate
from probmetric.serving.vectors import read_vectors

CLASSES, IMAGES = 30, 40


def write(path, vectors, rows):
    labels, names = [f"c{row // IMAGES}" for row in rows], [f"{row}.jpg" for row in rows]
    pd.DataFrame({"vector": list(vectors.astype(np.float32)), "label": labels, "path": names}).to_parquet(path)


@pytest.fixture
def spaces():
    """Vectors of an old model; those of a new one, which turns, stretches and shakes them; and new images in it."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, 24))
    old = np.repeat(centres, IMAGES, axis=0) + 0.7 * rng.normal(size=(CLASSES * IMAGES, 24))
    turn = np.linalg.qr(rng.normal(size=(32, 24)))[0].T * np.linspace(0.5, 1.5, 32)
    return old, lambda rows: rows @ turn + 0.2 * rng.normal(size=(len(rows), 32)), centres, rng


def test_migrated_vectors_are_searched_with_new_ones_and_certified(spaces, tmp_path, monkeypatch, capsys):
    old, renewed, centres, rng = spaces
    monkeypatch.chdir(tmp_path)
    write("old.parquet", old, range(len(old)))
    pairs = np.sort(rng.permutation(len(old))[:900])
    write("pairs.parquet", renewed(old[pairs]), pairs)
    assert main(["migrate", "old.parquet", "pairs.parquet", "--output", "new.parquet"]) == 0
    assert "Of 300 images that the map has not seen" in capsys.readouterr().out
    assert main(["search", "new.parquet", "pairs.parquet", "--risk", "0.1"]) == 2, "certified before use"
    assert main(["certify", "new.parquet", "--risk", "0.1"]) == 0
    capsys.readouterr()
    truth = rng.integers(CLASSES, size=2000)
    asked = renewed(centres[truth] + 0.7 * rng.normal(size=(2000, 24)))
    answers = Gallery.open("new.parquet.gallery").search(asked, k=1, risk=0.1)
    right = [each.matches[0].class_name == f"c{t}" for each, t in zip(answers, truth, strict=True) if not each.withheld]
    assert len(right) > 500
    assert 1 - np.mean(right) <= 0.12


def test_a_pure_rotation_is_found_again(spaces, tmp_path):
    old = spaces[0]
    turned = old @ np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))[0]
    write(tmp_path / "old.parquet", old, range(len(old)))
    write(tmp_path / "pairs.parquet", turned[::4], range(0, len(old), 4))
    found = migrate(read_vectors(tmp_path / "old.parquet"), read_vectors(tmp_path / "pairs.parquet"))
    assert found.kind == "procrustes"
    np.testing.assert_allclose(found.rows, turned / np.linalg.norm(turned, axis=1, keepdims=True), atol=1e-5)
    assert found.cosine == pytest.approx(1, abs=1e-6)
    assert found.recall == found.recall_mapped


def test_few_pairs_and_a_name_of_another_format_are_said(spaces, tmp_path, capsys):
    write(tmp_path / "old.parquet", spaces[0], range(len(spaces[0])))
    write(tmp_path / "pairs.parquet", spaces[0][:20], range(20))
    migrating = ["migrate", *(str(tmp_path / name) for name in ("old.parquet", "pairs.parquet")), "--output"]
    assert main([*migrating, str(tmp_path / "new.parquet")]) == 2
    assert "20 of the 20 rows" in capsys.readouterr().err
    assert main([*migrating, str(tmp_path / "new.csv")]) == 2
    assert "new.csv is to be a Parquet file; call it new.parquet." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"label": [""] * 60}, "rows without a class"),
        ({"path": ["a.jpg"] * 2 + [str(n) for n in range(58)]}, "'a.jpg'"),
    ],
)
def test_pairs_that_cannot_judge_a_map_are_refused(tmp_path, columns, words):
    rows = pd.DataFrame({"vector": list(np.random.default_rng(0).normal(size=(60, 8)))})
    rows = rows.assign(label=["a", "b"] * 30, path=[str(number) for number in range(60)]).assign(**columns)
    rows.to_parquet(tmp_path / "old.parquet")
    with pytest.raises(ServingError, match=words):
        migrate(*(read_vectors(tmp_path / "old.parquet") for _ in range(2)))
