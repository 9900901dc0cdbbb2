"""The ten real datasets, read from miniature archives in their true layouts."""

import io
import json
import os
import pickle
import shutil
from pathlib import Path

import miniatures
import numpy as np
import pytest
from PIL import Image

from probmetric.data import DataError, doctor, load_manifest, open_images, prepare_dataset
from probmetric.data.sources import REGISTRY
from probmetric.data.sources._files import validation_classes
from probmetric.data.sources.cars import class_key
from probmetric.data.sources.cifar import safe_pickle

CASES = [(name, layout) for name in miniatures.NAMES for layout in miniatures.LAYOUTS[name]]


@pytest.fixture(scope="session")
def minis(tmp_path_factory):
    """Prepared miniatures by (name, layout), made when first asked for; paths are relative, as in a project."""
    root, done = tmp_path_factory.mktemp("minis"), {}

    def get(name: str, layout: str = "archive") -> Path:
        if (name, layout) not in done:
            raw = miniatures.build(name, root / "raw" / layout / name, layout)
            done[name, layout] = root / "out" / layout / name
            place, archives = (Path(os.path.relpath(path)) for path in (done[name, layout], raw.parent))
            prepare_dataset(name, place, raw=archives, workers=1, subset=True, progress=False)
        return done[name, layout]

    return get


def prepare(name, raw, out, **options):
    return prepare_dataset(name, out / name, raw=raw, workers=1, progress=False, **{"subset": True, **options})


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_every_layout_is_read_and_healthy(minis, name, layout):
    assert doctor(minis(name, layout)) == []


@pytest.mark.parametrize("name", miniatures.NAMES)
def test_miniatures_can_be_learned(minis, name):
    """Colour and spectrum of an image tell its class: the nearest neighbour is right far more often than chance."""
    frame, store = load_manifest(minis(name)), open_images(minis(name))
    features = []
    for row in range(len(store)):
        image = store[row].astype(float)[:28, :28]
        spectrum = np.abs(np.fft.fft2(image.mean(axis=2)))[:14, :]
        spectrum[0, 0] = 0
        features.append(np.concatenate([image.mean(axis=(0, 1)) / 8, spectrum.ravel() / np.linalg.norm(spectrum) * 20]))
    points = np.array(features)
    squared = (points**2).sum(axis=1)
    distance = squared[:, None] + squared[None] - 2 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    label = frame.label.to_numpy()
    alone = np.bincount(label)[label] == 1
    right = (label[distance.argmin(axis=1)] == label)[~alone].mean()
    assert right > 5 * max(np.bincount(label)) / len(label) or right > 0.8


@pytest.mark.parametrize("name", [name for name in miniatures.NAMES if len(miniatures.LAYOUTS[name]) > 1])
def test_all_layouts_lead_to_the_same_bytes(minis, name):
    digests = {layout: (minis(name, layout) / "digest").read_text() for layout in miniatures.LAYOUTS[name]}
    assert len(set(digests.values())) == 1, digests


def test_cub_splits_and_names(minis):
    frame = load_manifest(minis("cub"))
    number = frame.path.str[:3].astype(int)
    assert (number[frame.split == "test"] > 100).all()
    assert (number[frame.split != "test"] <= 100).all()
    assert frame.class_name[0] == "Black footed Albatross"
    assert (np.diff(frame.label) >= 0).all()
    assert len(frame) == 16 * miniatures.PER_CLASS


def test_pixels_are_the_decoded_files(minis):
    store, frame = open_images(minis("cub")), load_manifest(minis("cub"))
    for row in (0, 41, 95):
        number, i = int(frame.path[row][:3]), int(frame.path[row].rsplit("_", 2)[1]) - 1
        np.testing.assert_array_equal(store[row], np.asarray(Image.open(io.BytesIO(miniatures.jpeg(number, i)))))


def test_cars_halves_follow_the_published_order_and_names_are_common_to_all_layouts(minis):
    frame = load_manifest(minis("cars"))
    first = {class_key(name) for name in miniatures.CAR_CLASSES[:6]}
    assert set(frame.class_name[frame.split != "test"]) == first
    assert "Ram C V Cargo Van Minivan 2012" in set(frame.class_name)
    assert class_key("Ram C/V Cargo Van") == class_key("Ram C-V Cargo Van") == class_key("Ram C_V Cargo Van")
    assert frame.groupby("class_name").size().eq(miniatures.PER_CLASS).all()


def test_sop_keeps_the_published_lists(minis):
    frame = load_manifest(minis("sop"))
    number = frame.class_name.str.split().str[1].astype(int)
    assert set(number[frame.split == "test"]) == set(range(11, 21))
    assert set(frame.super_class) == {"bicycle", "chair", "lamp"}


def test_lfw_identities_are_disjoint_and_complete(minis):
    frame = load_manifest(minis("lfw"))
    counts = frame.groupby("identity").size().to_dict()
    assert counts == {**miniatures.LFW_TRAIN, **miniatures.LFW_TEST}
    assert set(frame.identity[frame.split == "test"]) == set(miniatures.LFW_TEST)


def test_msls_columns_and_what_is_left_out(minis):
    frame = load_manifest(minis("msls"))
    assert dict(frame.groupby("split").city.unique().map(set)) == {
        "train": {"trondheim", "london"},
        "val": {"cph"},
        "test": {"miami"},
    }
    assert not frame.path.str.contains("database/images/.*d000000000000000000.jpg").any()
    queries = frame[(frame.city == "cph") & (frame.role == "query")]
    assert len(queries) == 10
    assert queries.night.sum() == 5
    notes = json.loads((minis("msls") / "summary.json").read_text())["notes"]
    assert "4 left out: panoramas" in notes
    assert "8 left out: queries without a database image within the radius" in notes
    assert (frame.easting % 1 == 0.5).all()


@pytest.mark.parametrize(
    ("name", "size", "channels", "classes"),
    [
        ("mnist", 28, 1, 10),
        ("fashion_mnist", 28, 1, 10),
        ("cifar10", 32, 3, 10),
        ("cifar100", 32, 3, 100),
        ("svhn", 32, 3, 10),
    ],
)
def test_small_images_arrive_unchanged(minis, name, size, channels, classes):
    folder = minis(name)
    store, frame = open_images(folder), load_manifest(folder)
    assert store.shape == (size, size, channels)
    assert frame.label.nunique() == classes
    first = {"mnist": 600, "fashion_mnist": 620, "cifar10": 640, "cifar100": 700, "svhn": 820}[name]
    tests = np.flatnonzero(frame.split == "test")
    start = {"mnist": 12, "fashion_mnist": 12, "cifar10": 20, "cifar100": 10, "svhn": 12}[name]
    for row in tests[:3]:
        expected = miniatures.picture(first + int(frame.label[row]), start, (size, size), channels)
        np.testing.assert_array_equal(store[row], expected)
    val = frame[frame.split != "test"].groupby("label").split.agg(lambda s: (s == "val").sum())
    assert val.min() == val.max() == 2


def test_the_vmf_protocol_holds_out_what_scikit_learn_draws(minis, tmp_path):
    from sklearn.model_selection import train_test_split

    raw = miniatures.build("mnist", tmp_path / "raw" / "mnist")
    frame = load_manifest(prepare("mnist", raw.parent, tmp_path / "out", protocol="vmf"))
    train = frame[frame.split != "test"]
    _, held = train_test_split(train.index, test_size=0.15, stratify=train.label, random_state=1234)
    assert set(held) == set(frame.index[frame.split == "val"])


def test_named_protocols_hold_out_the_classes_they_say():
    cub = np.arange(1, 101)
    folds = [validation_classes(cub, "mlrc", fold, 0) for fold in range(4)]
    np.testing.assert_array_equal(np.concatenate(folds), cub)
    assert [len(fold) for fold in folds] == [25] * 4
    np.random.seed(1234)  # noqa: NPY002 - the released code draws from the global generator
    expected = np.sort(np.random.choice(100, 15, replace=False)) + 1  # noqa: NPY002
    np.testing.assert_array_equal(validation_classes(cub, "vmf", 0, 7), expected)
    assert len(validation_classes(np.arange(98), "vmf", 0, 0)) == 15
    assert len(validation_classes(np.arange(11318), "vmf", 0, 0)) == 1698
    first, second = (validation_classes(cub, "standard", 0, seed) for seed in (0, 1))
    assert len(first) == 15
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match="option 'fold' is 4; allowed: a number at least 0, at most 3"):
        REGISTRY.create("cub", protocol="mlrc", fold=4)


def test_the_lam_protocol_drops_the_last_training_class_of_cars(tmp_path, minis):
    raw = miniatures.build("cars", tmp_path / "raw" / "cars")
    frame = load_manifest(prepare("cars", raw.parent, tmp_path / "out", protocol="lam"))
    assert frame.label.nunique() == 11
    assert class_key(miniatures.CAR_CLASSES[5]) not in set(frame.class_name)


def test_published_counts_are_asserted(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    with pytest.raises(DataError, match=r"images 96 instead of 11,788.*subset: true"):
        prepare("cub", raw, tmp_path / "out", subset=False)


def test_a_foreign_archive_is_refused_by_digest(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw")
    with pytest.raises(DataError, match=r"CUB_200_2011\.tgz is not the published file: MD5"):
        prepare("cub", raw, tmp_path / "out", subset=False)


def test_a_foreign_archive_once_accepted_is_refused_without_the_option(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw")
    prepare("cub", raw, tmp_path / "out")
    with pytest.raises(DataError, match=r"CUB_200_2011\.tgz is not the published file: MD5"):
        prepare("cub", raw, tmp_path / "again", subset=False)


def test_an_archive_that_changes_after_first_use_is_refused(tmp_path):
    raw = miniatures.build("sop", tmp_path / "raw")
    prepare("sop", raw, tmp_path / "out")
    with (raw / "Stanford_Online_Products.zip").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="changed since it was first used"):
        prepare("sop", raw, tmp_path / "again")


def test_a_truncated_archive_is_named_and_the_next_try_starts_cleanly(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw")
    path, whole = raw / "CUB_200_2011.tgz", (raw / "CUB_200_2011.tgz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"CUB_200_2011\.tgz is damaged or truncated"):
        prepare("cub", raw, tmp_path / "out")
    path.write_bytes(whole)
    (raw / ".probmetric-digests.json").unlink()
    assert doctor(prepare("cub", raw, tmp_path / "out")) == []


def test_cub_2010_is_recognised(tmp_path):
    folder = tmp_path / "raw" / "CUB_200_2011" / "images" / "001.Black_footed_Albatross"
    folder.mkdir(parents=True)
    (folder / "Black_footed_Albatross_0001_2950163169.jpg").write_bytes(miniatures.jpeg(1, 0))
    with pytest.raises(DataError, match="CUB-200 of 2010"):
        prepare("cub", tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize("name", miniatures.NAMES)
def test_missing_files_are_asked_for_by_name(tmp_path, name):
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataError, match=r"Put there .*; `probmetric data status`") as error:
        prepare(name, tmp_path / "raw", tmp_path / "out")
    source = REGISTRY.get(name)
    assert any(file.name.removesuffix(".gz") in str(error.value) for file in source.files)
    folder, common = tmp_path / "raw", name in ("mnist", "fashion_mnist")  # two datasets have files of these names
    searched = [folder / home for home in source.homes] if common else [folder / name, folder]
    assert f"its files are not in {' or '.join(map(str, searched))}. Put" in str(error.value)


def test_a_missing_image_is_named(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    victim = sorted((raw / "CUB_200_2011" / "images").glob("*/*.jpg"))[7]
    victim.unlink()
    with pytest.raises(DataError, match=rf"1 of 96 images are missing.*{victim.name}"):
        prepare("cub", raw, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"<html>404</html>", "is no image"), (miniatures.jpeg(1, 0)[:900], "truncated or damaged")],
)
def test_an_unreadable_image_stops_with_its_name(tmp_path, content, message):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    victim = sorted((raw / "CUB_200_2011" / "images").glob("*/*.jpg"))[7]
    victim.write_bytes(content)
    with pytest.raises(DataError, match=rf"{victim.name} .*{message}"):
        prepare("cub", raw, tmp_path / "out")


def test_decisions_about_odd_images_are_counted(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    paths = sorted((raw / "CUB_200_2011" / "images").glob("*/*.jpg"))
    Image.open(paths[0]).convert("L").save(paths[0])
    Image.open(paths[1]).convert("CMYK").save(paths[1])
    Image.open(paths[2]).convert("CMYK").save(paths[2])
    folder = prepare("cub", raw, tmp_path / "out")
    notes = json.loads((folder / "summary.json").read_text())["notes"]
    assert any(note.startswith("1 image(s): greyscale repeated") and paths[0].name in note for note in notes)
    assert any(note.startswith("2 image(s): CMYK converted to RGB") for note in notes)


def test_copies_across_splits_are_left_out_of_training_and_listed(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    paths = sorted((raw / "CUB_200_2011" / "images").glob("*/*.jpg"))
    test = next(path for path in paths if path.parent.name.startswith("101."))
    shutil.copy(test, paths[3])
    folder = prepare("cub", raw, tmp_path / "out")
    assert doctor(folder) == []
    frame = load_manifest(folder)
    assert len(frame) == 95
    assert not frame.path.str.endswith(paths[3].name).any()
    assert frame.path.str.endswith(test.name).any()
    assert any(paths[3].name in note for note in json.loads((folder / "summary.json").read_text())["notes"])


def test_original_files_can_be_stored(tmp_path, minis):
    raw = miniatures.build("cub", tmp_path / "raw", "folder")
    paths = sorted((raw / "CUB_200_2011" / "images").glob("*/*.jpg"))
    Image.open(paths[0]).convert("L").save(paths[0])
    folder = prepare("cub", raw, tmp_path / "out", store="files")
    assert doctor(folder) == []
    encoded, pixels = open_images(folder), open_images(minis("cub"))
    assert encoded.encoded
    np.testing.assert_array_equal(encoded[5], pixels[5])
    assert encoded[0].shape == (48, 64, 3)
    assert bytes(encoded.stored(5)) == paths[5].read_bytes()


def test_the_shorter_side_is_reduced(tmp_path):
    raw = miniatures.build("cub", tmp_path / "raw")
    folder = prepare("cub", raw, tmp_path / "out", shorter_side=24)
    assert open_images(folder).shape == (24, 32, 3)


def test_pickles_that_would_run_code_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    for protocol in (2, 4):
        path = tmp_path / f"data_batch_{protocol}"
        path.write_bytes(pickle.dumps({"data": Evil()}, protocol=protocol))
        with pytest.raises(DataError, match="would run code"):
            safe_pickle(path)
        path.write_bytes(pickle.dumps({"data": np.zeros((2, 3), np.uint8), "labels": [1, 2]}, protocol=protocol))
        assert safe_pickle(path)["labels"] == [1, 2]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_truncated_small_files_are_named(tmp_path, name):
    raw = miniatures.build(name, tmp_path / "raw", "folder" if name != "svhn" else "archive")
    victim = {
        "mnist": "train-images-idx3-ubyte", "cifar10": "cifar-10-batches-py/data_batch_2", "svhn": "test_32x32.mat",
    }[name]  # fmt: skip
    data = (raw / victim).read_bytes()
    (raw / victim).write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"damaged|truncated") as error:
        prepare(name, raw, tmp_path / "out")
    assert name in str(error.value) or Path(victim).name in str(error.value)
