"""Distort the test images of a prepared dataset, each by known strengths; the result is a dataset for source `table`.

    python examples/distort_photos.py data/prepared/photos-birds ~/photos/cub100/images ~/photos/cub100-distorted

Which uncertainty notices that a photograph is blurred, noisy or partly hidden? `distortion/spearman` and the figure
`severity` say so wherever a table of images has columns of strengths. Every test image draws a severity u ~ U(0, 1)
and three shares v ~ U(0, 1)^3, as rendered letters do; its strengths are s = u v:

    blur        Gaussian, standard deviation 2.5 % of the shorter side * s
    occlusion   a rectangle of uniform grey covering 50 % * s of the image
    noise       Gaussian, standard deviation 0.2 * s of the range of values

`distortion` is the root mean square of the three. The other images are copied as they are. The output holds the images
and `images.csv`: path, label, split and the strengths, 0 for images that were not distorted.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageFilter

from probmetric.data import load_manifest

STRENGTHS = ("blur", "occlusion", "noise")


def distorted(image: Image.Image, strengths: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """Return the image distorted by the strengths (3,), each in [0, 1], in the order of `STRENGTHS`."""
    blur, occlusion, noise = strengths.tolist()
    shorter = min(image.size)
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.025 * shorter * blur)), dtype=np.float64)
    sides = np.array(pixels.shape[:2]) * np.sqrt(0.5 * occlusion)
    top, left = (rng.random(2) * (pixels.shape[:2] - sides)).astype(int)
    height, width = sides.round().astype(int)
    pixels[top : top + height, left : left + width] = 255 * rng.random()
    pixels += 255 * 0.2 * noise * rng.standard_normal(pixels.shape)
    return Image.fromarray(np.rint(pixels.clip(0, 255)).astype(np.uint8))


def main() -> None:
    """Write the images and their table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prepared", type=Path, help="folder of the prepared dataset")
    parser.add_argument("images", type=Path, help="folder of its images")
    parser.add_argument("output", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = load_manifest(arguments.prepared)[["path", "class_name", "split"]].rename(columns={"class_name": "label"})
    arguments.output.mkdir(parents=True)
    for row in table[table["split"] != "test"].itertuples():
        target = arguments.output / row.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(arguments.images / row.path, target)
    rows = []
    for row in table[table["split"] == "test"].itertuples():
        rng = np.random.default_rng([arguments.seed, row.Index])
        severity, *shares = rng.random(1 + len(STRENGTHS))
        strengths = severity * np.array(shares)
        path = Path(row.path).with_suffix(".png")
        target = arguments.output / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(arguments.images / row.path) as image:
            distorted(image.convert("RGB"), strengths, rng).save(target)
        rows.append((row.Index, path.as_posix(), *strengths, np.sqrt(np.mean(strengths**2))))
    columns = pd.DataFrame(rows, columns=["row", "path", *STRENGTHS, "distortion"]).set_index("row")
    table.loc[columns.index, "path"] = columns.pop("path")
    table.join(columns).fillna(0.0).to_csv(arguments.output / "images.csv", index=False)


if __name__ == "__main__":
    main()
