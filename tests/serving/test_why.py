"""`search --explain`: pictures of why an image matches its nearest."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from probmetric.io import FileError
from probmetric.models._regions import GAP
from probmetric.serving.model import SIDE, explain
from probmetric.serving.search import Answer, Match


@pytest.mark.slow
def test_a_match_is_drawn_and_nothing_of_others_is_replaced(model, photos, tmp_path):
    first, second = sorted(photos[0].rglob("*.png"))[:2]
    answer = Answer(str(first), (Match(str(second), "b", 0.5),), 0.1)
    (drawn,) = explain(model, [answer], tmp_path / "why")
    with Image.open(drawn) as picture:
        assert picture.size == (2 * SIDE + GAP, SIDE)
        assert np.asarray(picture)[:, :SIDE].std() > 10
    assert explain(model, [answer], tmp_path / "why") == [drawn]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "1.png").write_bytes(b"mine")
    with pytest.raises(FileError):
        explain(model, [answer], tmp_path / "thesis")
    assert (tmp_path / "thesis" / "1.png").read_bytes() == b"mine"
