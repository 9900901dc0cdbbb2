"""Search with a finished run: a run's own test images are found, strangers are doubted."""

import csv
import io

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.workflow]

RUN = "digits/contrastive+training.epochs=2/seed0"


@pytest.fixture(scope="module")
def pictures(finished, tmp_path_factory):
    """Test images of the digits as PNG files, and one picture of noise."""
    import numpy as np
    from PIL import Image

    from probmetric.data import load_columns, open_images

    prepared = finished.folder / "data/prepared/digits"
    columns, images = load_columns(prepared, ["split", "path"]), open_images(prepared)
    rows = [row for row, split in enumerate(columns["split"]) if split == "test"][:4]
    folder = tmp_path_factory.mktemp("pictures")
    for place, row in enumerate(rows):
        Image.fromarray(images[row].squeeze()).save(folder / f"{place}.png")
    noise = np.random.default_rng(0).integers(0, 255, size=(40, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.jpg")
    return folder, [columns["path"][row] for row in rows]


def searched(finished, *arguments):
    return finished.command("probmetric", "search", RUN, *arguments).stdout


def test_an_image_of_the_gallery_finds_itself(finished, pictures):
    folder, paths = pictures
    rows = list(csv.DictReader(io.StringIO(searched(finished, str(folder), "-k", "2", "--csv"))))
    assert len(rows) == 2 * 5
    first = {row["image"].rpartition("/")[2]: row for row in rows if row["rank"] == "1"}
    for place, path in enumerate(paths):
        assert float(first[f"{place}.png"]["similarity"]) > 0.999
        assert first[f"{place}.png"]["path"] == path


def test_doubtful_answers_are_withheld(finished, pictures):
    folder, _ = pictures
    said = searched(finished, str(folder / "noise.jpg"), "--withhold", "0")
    assert "answer withheld" in said
    assert "less sure than" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.png"], "gone.png does not exist"),
        (["Snakefile", "--withhold", "2"], "it is a share"),
        (["Snakefile"], "Snakefile"),
    ],
)
def test_wrong_input_is_one_paragraph(finished, arguments, message):
    result = finished.command("probmetric", "search", RUN, *arguments, check=False)
    assert result.returncode == 2
    assert message in result.stdout
    assert "Traceback" not in result.stdout
