"""Damaged and odd raw data of every source: an error that names the file, or the right dataset; nothing else."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import miniatures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import loadmat, savemat

from probmetric.data import DataError, archives, load_manifest, prepare_dataset
from probmetric.data.archives import extract
from probmetric.data.prepare import work_folder
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY, _listing
from probmetric.data.sources._base import Table
from probmetric.data.sources._listing import Row, check_table, csv_lines, numbers, once, rows, stays_inside

OPEN = {"lfw": "archive", "svhn": "archive", "cars": "class_folders"}
WORDS = [
    "",
    "²",
    "٣",
    "-1",
    "0",
    "nan",
    "inf",
    "1e400",
    "abc",
    "9" * 30,
    "../../x",
    "/etc/passwd",
    "\0",
    "a b",
    "é",
    "1_0",
]


@pytest.fixture(scope="session")
def raw_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Miniatures as the user keeps them, by name and layout, made once and to be copied."""
    root = tmp_path_factory.mktemp("raw")

    def get(name: str, layout: str) -> Path:
        place = root / layout / name
        if not place.exists():
            miniatures.build(name, place, layout)
        return place

    return get


@pytest.fixture
def copy(raw_of: Callable[[str, str], Path], tmp_path: Path) -> Callable[..., Path]:
    def get(name: str, layout: str = "folder") -> Path:
        shutil.copytree(raw_of(name, layout), tmp_path / "raw" / name)
        return tmp_path / "raw" / name

    return get


def read(name: str, raw: Path, target: Path) -> Table:
    """What `prepare_dataset` lists, with every image decoded once."""
    with work_folder(target) as work:
        source = REGISTRY.create(name, subset=True)
        table = source.read(RawFiles(name, raw, work, subset=True), seed=0)
        check_table(name, table)
        for row in range(len(table.columns["path"])):
            table.image(row)
        return table


def prepared(name: str, raw: Path, target: Path) -> Path:
    return prepare_dataset(name, target, raw=raw.parent, workers=1, subset=True, progress=False)


def replace(path: Path, old: str, new: str, *, encoding: str = "utf-8") -> None:
    content = path.read_bytes()
    assert old.encode() in content
    path.write_bytes(content.replace(old.encode(), new.encode(encoding), 1))


CUB = "CUB_200_2011/images.txt"
SOP = "Stanford_Online_Products/Ebay_train.txt"
MSLS = "train_val/cph/query/postprocessed.csv"
BIRD = "001.Black_footed_Albatross/Black_footed_Albatross_0001_796010.jpg"


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        ("cub", CUB, f"1 {BIRD}\n", "1\n", r"images.txt, line 1: 1 of 2 columns"),
        ("cub", CUB, "Laysan", "La\xffsan", r"images.txt, line 7: byte 0xff"),
        ("cub", CUB, "2 001.", f"2 {BIRD}\n2 001.", r"images.txt, line 2: .* is listed already in line 1"),
        ("cub", CUB, f"1 {BIRD}", "1 001.x/../../../secret.jpg", r"images.txt, line 1: the path .* leaves"),
        ("cub", CUB, f"1 {BIRD}", "1 ²01.x/y.jpg", r"images.txt, line 1: '\\xb201.x/y.jpg' does not begin"),
        ("sop", SOP, "2 1 1 ", "2 ² 1 ", r"Ebay_train.txt, line 3: '\\xb2' is no whole number from 1"),
        ("sop", SOP, "2 1 1 ", "2 99999999999999999999999 1 ", r"Ebay_train.txt, line 3: '9+' is no whole number"),
        ("sop", SOP, "1 1 1 bicycle", "1 1 bicycle", r"Ebay_train.txt, line 2: 3 of 4 columns"),
        ("sop", SOP, "_1.JPG", "_0.JPG", r"Ebay_train.txt, line 3: .* is listed already in line 2"),
        ("msls", MSLS, ",500003.5", ",abc", r"line 2: 'abc' is no number from -1e\+08 to 1e\+08"),
        ("msls", MSLS, ",500003.5", ",nan", r"postprocessed.csv, line 2: 'nan' is no number"),
        ("msls", MSLS, ",500003.5", ",inf", r"postprocessed.csv, line 2: 'inf' is no number"),
        ("msls", MSLS, ",500003.5", ",1e400", r"postprocessed.csv, line 2: '1e400' is no number"),
        ("msls", MSLS, "cphq000000000000000001", "../x", r"postprocessed.csv, line 3: the key '../x' is no file name"),
        ("msls", MSLS, "cphq000000000000000001", "cphq000000000000000000", r"line 3: the key .* is listed already"),
        ("msls", MSLS, "Forward", "x" * 200_000, r"postprocessed.csv, line 2: .*field larger than field limit"),
        ("msls", MSLS, "Forward", '"Forward', r"postprocessed.csv, line \d+: .*unexpected end of data"),
        ("msls", "train_val/cph/query/seq_info.csv", ",0\n", ",x\n", r"seq_info.csv, line 2: 'x' is no number"),
    ],
)
def test_a_wrong_line_is_named(
    copy: Callable[..., Path], tmp_path: Path, name: str, file: str, old: str, new: str, message: str
) -> None:
    replace(copy(name) / file, old, new, encoding="latin-1" if "\xff" in new else "utf-8")
    with pytest.raises(DataError, match=message):
        read(name, tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize(("name", "file"), [("cub", CUB), ("sop", SOP), ("lfw", "lfw-py/peopleDevTrain.txt")])
def test_an_empty_listing_is_named(copy: Callable[..., Path], tmp_path: Path, name: str, file: str) -> None:
    path = copy(name, OPEN.get(name, "folder")) / file
    path.write_text("0\n" if name == "lfw" else path.read_text().splitlines()[0] + "\n" if name == "sop" else "\n\n")
    with pytest.raises(DataError, match=rf"{path.name} lists nothing"):
        read(name, tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize(("name", "file"), [("cub", CUB), ("sop", SOP), ("msls", MSLS)])
def test_byte_order_marks_and_windows_line_ends_change_nothing(
    copy: Callable[..., Path], tmp_path: Path, name: str, file: str
) -> None:
    plain = read(name, copy(name).parent, tmp_path / "out").columns
    path = tmp_path / "raw" / name / file
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    for column, values in read(name, tmp_path / "raw", tmp_path / "out").columns.items():
        assert np.array_equal(values, plain[column]), column


def test_spaces_in_a_path_are_kept(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy("sop") / "Stanford_Online_Products"
    (folder / "bicycle_final").rename(folder / "bicycle final")
    for part in ("train", "test"):
        listing = folder / f"Ebay_{part}.txt"
        listing.write_text(listing.read_text().replace("bicycle_final", "bicycle final"))
    assert "bicycle final/110000000001_0.JPG" in read("sop", tmp_path / "raw", tmp_path / "out").columns["path"]


def test_two_spaces_in_a_path_stay_two(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text(" 1  a  b/c d.jpg \t\r\n")
    assert [row.cells for row in rows(tmp_path / "images.txt", 2)] == [["1", "a  b/c d.jpg"]]


def test_product_numbers_in_any_order_keep_products_apart(copy: Callable[..., Path], tmp_path: Path) -> None:
    """A training product whose number is larger than the test products'."""
    listing = copy("sop") / SOP
    listing.write_text(listing.read_text().replace(" 3 3 lamp", " 900 3 lamp"))
    columns = prepared("sop", tmp_path / "raw" / "sop", tmp_path / "out")
    frame = load_manifest(columns)
    assert frame.groupby("label").class_name.nunique().eq(1).all()
    assert frame.groupby("class_name").label.nunique().eq(1).all()


@pytest.mark.parametrize(("name", "layout"), [("cub", "class_folders"), ("cars", "class_folders")])
def test_upper_case_suffixes_lose_no_image(copy: Callable[..., Path], tmp_path: Path, name: str, layout: str) -> None:
    folder = copy(name, layout)
    images = sorted(path for path in folder.rglob("*.jpg") if not path.name.startswith("._"))
    images[3].rename(images[3].with_suffix(".JPG"))
    assert len(read(name, tmp_path / "raw", tmp_path / "out").columns["path"]) == len(images)


def test_cars_classes_that_differ_in_punctuation_are_not_merged(copy: Callable[..., Path], tmp_path: Path) -> None:
    top = copy("cars", "class_folders") / "cars196" / "images"
    (top / "Acura RL Sedan 2012").rename(top / "BMW 1-Series Coupe 2012")
    with pytest.raises(DataError, match=r"'BMW 1 Series.*' and 'BMW 1-Series.*' differ in punctuation only"):
        read("cars", tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class": 99}, "annotation 3: the class 99 is none of the numbers 1 to 12"),
        ({"class": 0}, "annotation 3: the class 0 is none of the numbers 1 to 12"),
        ({"class": 1.5}, "annotation 3: the class 1.5 is none of the numbers 1 to 12"),
        ({"relative_im_path": "../../x.jpg"}, "annotation 3: '../../x.jpg' is no path inside"),
        ({"relative_im_path": 7}, "annotation 3: 7 is no path inside"),
    ],
)
def test_cars_annotations(copy: Callable[..., Path], tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = copy("cars", "archive") / "cars_annos.mat"
    content = loadmat(path, squeeze_me=True)
    for key, value in change.items():
        content["annotations"][2][key] = value
    savemat(path, {key: content[key] for key in ("annotations", "class_names")})
    with pytest.raises(DataError, match=f"cars_annos.mat.*{message}"):
        read("cars", tmp_path / "raw", tmp_path / "out")
    for key in ("annotations", "class_names"):
        savemat(path, {key: content[key]})
        with pytest.raises(DataError, match=r"cars_annos.mat holds no variable '(class_names|annotations)'"):
            read("cars", tmp_path / "raw", tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "pairsDevTest.txt",
            "Abel_Pacheco\t1\t2",
            "Al_Gore\t1\t2",
            "line 2: image 1 of 'Al_Gore' is none",
        ),
        ("pairsDevTest.txt", "Abel_Pacheco\t1\t2", "Abel_Pacheco\t1\t99", "line 2: image 99 of 'Abel_Pacheco' is none"),
        ("pairsDevTest.txt", "Abel_Pacheco\t1\t2", "Abel_Pacheco\t1\t²", r"line 2: '\\xb2' is no whole number"),
        ("pairsDevTest.txt", "Abel_Pacheco\t1\t2\n", "", "is no list of pairs of the test people"),
        ("pairsDevTest.txt", "\n", "0" * 15 + "\n", "is no list of pairs of the test people"),
        ("peopleDevTrain.txt", "Al_Gore\t6", "Al_Gore\t0", "peopleDevTrain.txt, line 7: '0' is no whole number from 1"),
        ("peopleDevTrain.txt", "Al_Gore", "Adam_Sandler", "line 7: 'Adam_Sandler' is listed already in line 5"),
        ("peopleDevTrain.txt", "8\n", "9\n", "line 1: announces 9 people, and 8 follow"),
        ("peopleDevTest.txt", "Ali_Naimi", "Al_Gore", "a person is in both lists"),
    ],
)
def test_lfw_lists(copy: Callable[..., Path], tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    replace(copy("lfw", "archive") / "lfw-py" / file, old, new)
    with pytest.raises(DataError, match=message):
        read("lfw", tmp_path / "raw", tmp_path / "out")


def test_lfw_pairs_of_the_training_people_are_refused(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy("lfw", "archive") / "lfw-py"
    shutil.copy(folder / "pairsDevTrain.txt", folder / "pairsDevTest.txt")
    with pytest.raises(DataError, match=r"pairsDevTest.txt, line 2: .* is none of the test people's images"):
        read("lfw", tmp_path / "raw", tmp_path / "out")


def _labels(values: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(">II", 2049, len(values)) + values.astype(np.uint8).tobytes(), mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_labels(np.arange(100) % 10), r"mnist, training images: 120 images, but labels of shape \(100,\)"),
        (
            _labels(np.r_[17, np.arange(119) % 10]),
            r"mnist, training images: label 17 of image 0 .* none of",
        ),
        (_labels(np.arange(120) % 9), "ok"),
        (_labels(np.arange(120))[:-20], r"train-labels-idx1-ubyte.gz is damaged or truncated"),
        (
            bytes(_labels(np.arange(120) % 10)[:12]) + b"\xff" * 40,
            r"train-labels-idx1-ubyte.gz is damaged or truncated",
        ),
        (gzip.compress(b"\0" * 3, mtime=0), r"train-labels-idx1-ubyte cannot be read"),
    ],
)
def test_ubyte_files(copy: Callable[..., Path], tmp_path: Path, content: bytes, message: str) -> None:
    (copy("mnist", "archive") / "train-labels-idx1-ubyte.gz").write_bytes(content)
    if message == "ok":
        assert set(read("mnist", tmp_path / "raw", tmp_path / "out").columns["label"]) == set(range(10))
        return
    with pytest.raises(DataError, match=message):
        read("mnist", tmp_path / "raw", tmp_path / "out")


def test_a_ubyte_file_that_unpacks_to_too_much(
    copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MIN_LIMIT", 2**20)
    (copy("mnist", "archive") / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(2**21)))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte' exceeds what the archive may unpack to"):
        read("mnist", tmp_path / "raw", tmp_path / "out")


def test_a_class_without_images_is_refused_when_preparing(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy("mnist", "archive")
    for stem, count in (("train", 120), ("t10k", 40)):
        labels = np.arange(count) % 10
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(_labels(np.where(labels == 3, 4, labels)))
    with pytest.raises(DataError, match=r"mnist: no image has the label 3"):
        read("mnist", tmp_path / "raw", tmp_path / "out")


def test_file_names_that_are_not_utf8_are_named(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy("cub", "class_folders") / "cub200" / "images"
    try:
        (folder / "001.Black_footed_Albatross").rename(folder / b"001.B\xff".decode(errors="surrogateescape"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(DataError, match=r"cub: the file name '001.B\\udcff/.*' is not UTF-8; rename it") as caught:
        read("cub", tmp_path / "raw", tmp_path / "out")
    str(caught.value).encode()


def _tar(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a/x", b"1"), ("a/x", b"2")], "member 'a/x' has the name of an earlier member"),
        ([("a", b"1"), ("a/x", b"2")], "member 'a/x' has the name of an earlier member"),
        ([("a/x", b"1"), ("a", b"2")], "member 'a' has the name of an earlier member"),
        ([(b"a\xff".decode(errors="surrogateescape"), b"1")], r"member 'a\\udcff' has a name that is not UTF-8"),
    ],
)
def test_archives_whose_members_collide(tmp_path: Path, members: list[tuple[str, bytes]], message: str) -> None:
    archive = _tar(tmp_path / "a.tgz", members, tarfile.GNU_FORMAT)
    with pytest.raises(DataError, match=message):
        extract(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_archives_of_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MEMBERS", 10)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for i in range(11):
            archive.writestr(str(i), b"")
    monkeypatch.setattr(archives, "MIN_MEMBER", (tmp_path / "a.zip").stat().st_size // 10 + 1)
    with pytest.raises(DataError, match=r"member '10' is one too many: more than 10 for an archive of this size"):
        extract(tmp_path / "a.zip", tmp_path / "out")
    monkeypatch.setattr(archives, "MEMBERS", 11)
    assert len(list(extract(tmp_path / "a.zip", tmp_path / "out").iterdir())) == 11


KINDS = ["flip", "cut", "empty", "folder", "remove", "append", "case", *["word"] * 3, *["line"] * 2]


def spoil(folder: Path, rng: np.random.Generator) -> str:
    """Change one file of `folder` at random, a listing rather than an image; says what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lists = [path for path in files if path.suffix.lower() != ".jpg"] or files
    path = Path(rng.choice([str(path) for path in (lists if rng.random() < 0.8 else files)]))
    data = path.read_bytes()
    kind = str(rng.choice(KINDS))
    if kind == "flip":
        spoilt = bytearray(data)
        for at in rng.integers(len(data), size=3) if data else ():
            spoilt[at] ^= 1 << rng.integers(8)
        path.write_bytes(spoilt)
    elif kind in ("cut", "empty"):
        path.write_bytes(data[: rng.integers(len(data) + 1)] if kind == "cut" else b"")
    elif kind in ("folder", "remove"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
    elif kind == "append":
        path.write_bytes(data + rng.bytes(40))
    elif kind == "case":
        path.rename(path.with_suffix(path.suffix.upper()))
    else:
        path.write_bytes(_respelt(data, kind, rng))
    return f"{kind} {path.relative_to(folder)}"


def _respelt(data: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """A listing with a cell replaced, or a line twice or left out; other files with 8 bytes replaced."""
    word = WORDS[rng.integers(len(WORDS))].encode()
    lines = data.split(b"\n")
    if b"\0" in data[:1000] or len(lines) < 3:
        at = rng.integers(len(data) + 1)
        return data[:at] + rng.bytes(8) + data[at + 8 :]
    at = int(rng.integers(len(lines)))
    if kind == "line":
        return b"\n".join(lines[:at] + lines[at : at + 1] * int(rng.choice([0, 2])) + lines[at + 1 :])
    separator = next((mark for mark in (b"\t", b",", b" ") if mark in lines[at]), b" ")
    cells = lines[at].split(separator)
    cells[rng.integers(len(cells))] = word
    return b"\n".join([*lines[:at], separator.join(cells), *lines[at + 1 :]])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", miniatures.NAMES)
def test_a_spoilt_dataset_is_refused_by_name_or_read_right(
    copy: Callable[..., Path], tmp_path: Path, name: str, seed: int
) -> None:
    layouts = miniatures.LAYOUTS[name]
    folder = copy(name, layouts[seed % len(layouts)])
    done = spoil(folder, np.random.default_rng([seed, miniatures.NAMES.index(name)]))
    try:
        table = read(name, tmp_path / "raw", tmp_path / "out")
    except DataError as error:
        message = str(error)
    else:
        message = name if len(table.columns["path"]) else "no image"
    assert name in message or str(tmp_path) in message, done


def check_named(error: DataError, name: str) -> None:
    assert name in str(error)


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200), columns=st.integers(0, 4), separator=st.sampled_from([None, "\t", ","]))
def test_any_listing_is_rows_or_an_error_with_its_name(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, columns: int, separator: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "listing.txt"
    path.write_bytes(content)
    try:
        found = rows(path, columns, separator=separator)
    except DataError as error:
        check_named(error, "listing.txt")
        return
    lines = content.decode("utf-8-sig").split("\n")
    assert [row.number for row in found] == [i for i, line in enumerate(lines, start=1) if line.rstrip("\r").strip()]
    assert all(len(row.cells) == columns or not columns for row in found)


@settings(max_examples=300, deadline=None)
@given(cells=st.lists(st.text(max_size=8) | st.sampled_from(WORDS) | st.integers().map(str), min_size=1, max_size=4))
def test_cells_are_plain_numbers_or_refused(cells: list[str]) -> None:
    row = Row(Path("a.txt"), 7, cells)
    for column, cell in enumerate(cells):
        plain = cell != "" and all(c in "0123456789" for c in cell) and len(cell) <= 18 and int(cell) <= 1000
        if plain:
            assert row.whole(column, 0, 1000) == int(cell)
        else:
            with pytest.raises(DataError, match=r"a.txt, line 7: "):
                row.whole(column, 0, 1000)
        if not stays_inside(cell):
            with pytest.raises(DataError, match=r"a.txt, line 7: .* leaves"):
                row.inside(column)


@settings(max_examples=300, deadline=None)
@given(path=st.text(alphabet="ab./\\:c\0", max_size=9))
def test_a_path_inside_never_leaves_its_folder(path: str) -> None:
    if stays_inside(path):
        root = Path("/top/data")
        assert not path.startswith(("/", "\\"))
        depth = 0
        for part in path.replace("\\", "/").split("/"):
            depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
            assert depth >= 0
        assert (root / path).is_relative_to(root)


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=120) | st.text(alphabet='a1",\n\r', max_size=60).map(str.encode))
def test_any_csv_is_lines_or_an_error_with_its_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_bytes(content)
    try:
        found = list(csv_lines(path))
    except DataError as error:
        check_named(error, "table.csv, line ")
        return
    assert all(1 <= number <= 1 + content.count(b"\n") + content.count(b"\r") for number, _ in found)


@settings(max_examples=200, deadline=None)
@given(cells=st.lists(st.sampled_from(WORDS) | st.floats().map(str) | st.integers().map(str), min_size=1, max_size=5))
def test_columns_are_finite_numbers_or_an_error_with_the_line(cells: list[str]) -> None:
    packed = np.array([cell.encode() for cell in cells], dtype="S")
    try:
        found = numbers(Path("t.csv"), np.arange(2, 2 + len(cells)), packed, np.float64, -1e8, 1e8)
    except DataError as error:
        line = int(str(error).split("line ")[1].split(":")[0])
        value = _number(packed[line - 2].decode())
        assert value is None or not abs(value) <= 1e8
        return
    assert found.tolist() == [_number(cell.decode()) for cell in packed.tolist()]


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell.isascii() else None
    except ValueError:
        return None


def test_a_key_listed_twice_is_named_with_both_lines() -> None:
    listed = [Row(Path("a.txt"), number, [cell]) for number, cell in ((3, "x"), (5, "y"), (9, "x"))]
    with pytest.raises(DataError, match=r"a.txt, line 9: 'x' is listed already in line 3"):
        once(listed, 0)


def _table(**changes: object) -> Table:
    columns = {
        "path": np.array(["a", "b", "c", "d"], dtype=object),
        "label": np.array([0, 0, 1, 1]),
        "class_name": np.array(["x", "x", "y", "y"], dtype=object),
        "split": np.array(["train", "train", "test", "test"]),
    }
    pairs = changes.pop("pairs", ())
    return Table({**columns, **changes}, lambda row: np.zeros((2, 2, 1), np.uint8), "open_set", "", pairs=pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": np.array(["a", "b", "a", "d"], dtype=object)}, "'a' is listed twice"),
        ({"path": np.array([b"a", b"b", b"c", b"c"])}, "'c' is listed twice"),
        ({"path": np.array([], dtype=object)}, "no image is listed, or columns of unequal length"),
        ({"label": np.array([0, 0, 2, 2])}, "no image has the label 1; labels must be 0 to 1"),
        ({"label": np.array([-1, -1, 0, 0])}, "no image has the label 0"),
        ({"class_name": np.array(["x", "z", "y", "y"], dtype=object)}, "class 0 has two names, 'x' and 'z'"),
        ({"split": np.array(["train", "Train", "test", "test"])}, "the split 'Train' is none of train, val, test"),
        ({"pairs": [(2, 3, True), (0, 2, False)]}, "1 pairs to be verified are not of test images, e.g. a and c"),
        ({"pairs": [(2, 9, True)]}, "a pair to be verified names an image that is not listed"),
        ({"pairs": [(-1, 2, True)]}, "a pair to be verified names an image that is not listed"),
    ],
)
def test_tables_of_any_source_are_checked(changes: dict[str, object], message: str) -> None:
    check_table("mine", _table())
    check_table("mine", _table(pairs=[(2, 3, True)]))
    with pytest.raises(DataError, match=f"mine: {message}"):
        check_table("mine", _table(**changes))


def test_a_digest_record_that_is_none_is_named(copy: Callable[..., Path], tmp_path: Path) -> None:
    record = copy("cub", "archive") / ".probmetric-digests.json"
    for content in ("[]", '{"CUB_200_2011.tgz": 3}', "nonsense", '{"CUB_200_2011.tgz": {}}'):
        record.write_text(content)
        with pytest.raises(DataError.__mro__[1], match=r"probmetric-digests.json is damaged .*delete it"):
            read("cub", tmp_path / "raw", tmp_path / "out")


def test_the_listing_layer_is_the_only_reader_of_text() -> None:
    """A source that opens a listing itself would miss every check above."""
    folder = Path(_listing.__file__).parent
    for path in sorted(folder.glob("*.py")):
        if path.name != "_listing.py":
            assert "read_text(" not in path.read_text(encoding="utf-8"), path.name
            assert "import csv" not in path.read_text(encoding="utf-8"), path.name


def test_an_image_named_in_another_case_is_missing_not_another(copy: Callable[..., Path], tmp_path: Path) -> None:
    image = next((copy("cub") / "CUB_200_2011" / "images").glob("*/*.jpg"))
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    image.unlink()
    image.with_name(image.name.upper()).write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"1 of 96 images are missing"):
        read("cub", tmp_path / "raw", tmp_path / "out")
