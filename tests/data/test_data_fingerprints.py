"""What preparation writes is known to DVC by the constant FORMAT: other bytes need another one."""

import hashlib
from pathlib import Path

import miniatures
import pytest

from probmetric.data import add_noise, load_manifest, prepare_dataset
from probmetric.data.manifest import FORMAT

ROOT = Path(__file__).parents[2]
# Of rows and, where they are stored without loss, pixels. If a change is meant, raise FORMAT and record it here.
KNOWN = (
    2,
    {
        "digits": "a706ad5d0b5d4638",
        "glyphs": "c9a1556c4d18816a",
        "cub": "dc09cdba0516e4a1",
        "cars": "01da76c1bea64d1c",
        "sop": "9aea450232a91717",
        "lfw": "c6f361bbb270ed29",
        "msls": "bc55eb791c4cb652",
        "mnist": "3e4a62bcf11228a3",
        "cifar10": "88c7b8f2c1486af2",
        "svhn": "9891c1292d7b2887",
        "mnist+noise0.4": "045b8c72bf1d6085",
        "mnist+nearest0.4": "f8566d2de79c92bf",
    },
)
LOSSLESS = ("digits", "mnist", "cifar10", "svhn")


@pytest.fixture(scope="module")
def folders(tmp_path_factory, prepared) -> Path:
    root = tmp_path_factory.mktemp("fingerprints")
    for name in KNOWN[1]:
        dataset, _, noise = name.partition("+")
        if noise:
            kind = "nearest" if noise.startswith("nearest") else "uniform"
            add_noise(root / dataset, root / name, rate=0.4, kind=kind, seed=0)
        elif name in miniatures.NAMES:
            miniatures.build(name, root / "raw" / name)
            prepare_dataset(name, root / name, raw=root / "raw", workers=1, subset=True, progress=False)
        else:
            (root / name).symlink_to(prepared / name)
    return root


def fingerprint(folder: Path) -> str:
    frame = load_manifest(folder)
    drop = {"sha256", "offset", "length", "height", "width"} if folder.name.split("+")[0] not in LOSSLESS else set()
    kept = frame[[name for name in frame.columns if name not in drop]].round(6)
    return hashlib.sha256(kept.to_csv(index=False).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", KNOWN[1])
def test_the_same_files_give_the_same_rows_until_format_is_raised(folders, name):
    assert (FORMAT, fingerprint(folders / name)) == (KNOWN[0], KNOWN[1][name])


@pytest.mark.parametrize("pipeline", ["dvc.yaml", "data/dvc.yaml"])
def test_every_data_stage_depends_on_it(pipeline):
    from probmetric.io import read_yaml

    for name in ("prepare", "noise"):
        stage = read_yaml(ROOT / pipeline)["stages"][name]
        assert {"src/probmetric/data/manifest.py": ["FORMAT"]} in stage.get("do", stage)["params"]
