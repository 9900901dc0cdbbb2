"""Miniature archives of the ten real datasets, in exactly their on-disk layouts, with images a network can learn.

    build("cub", folder)            writes CUB_200_2011.tgz into `folder`
    build("cars", folder, "devkit") one of several layouts

Every class has its own colour, stripe direction and stripe width; noise and a random phase make images differ. All of
it is a function of (class, number), so two layouts of a dataset hold the same image files. Prepare with `subset: true`.
"""

from __future__ import annotations

import colorsys
import gzip
import io
import pickle
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

CUB_CLASSES = {
    1: "Black_footed_Albatross", 2: "Laysan_Albatross", 3: "Sooty_Albatross", 4: "Groove_billed_Ani",
    5: "Crested_Auklet", 6: "Least_Auklet", 7: "Parakeet_Auklet", 8: "Rhinoceros_Auklet",
    101: "White_Pelican", 102: "Western_Wood_Pewee", 103: "Sayornis", 104: "American_Pipit",
    105: "Whip_poor_Will", 106: "Horned_Puffin", 107: "Common_Raven", 108: "White_necked_Raven",
}  # fmt: skip
CAR_CLASSES = [
    "AM General Hummer SUV 2000",
    "Acura RL Sedan 2012",
    "Acura Integra Type R 2001",
    "BMW ActiveHybrid 5 Sedan 2012",
    "BMW 1 Series Coupe 2012",
    "Dodge Caliber Wagon 2012",
    "Ferrari FF Coupe 2012",
    "Mercedes-Benz 300-Class Convertible 1993",
    "Ram C/V Cargo Van Minivan 2012",
    "Rolls-Royce Ghost Sedan 2012",
    "Volvo C30 Hatchback 2012",
    "smart fortwo Convertible 2012",
]
LFW_TRAIN = {
    "Aaron_Peirsol": 4, "Aaron_Tippin": 1, "Abdoulaye_Wade": 4, "Adam_Sandler": 3,
    "Ai_Sugiyama": 5, "Al_Gore": 6, "Alan_Greenspan": 5, "Ana_Palacio": 4,
}  # fmt: skip
LFW_TEST = {"Abel_Pacheco": 4, "Ali_Naimi": 5, "Aicha_El_Ouafi": 3, "Bob_Dole": 1}
MSLS_CITIES = {"train_val": ["trondheim", "london", "cph"], "test": ["miami"]}
PER_CLASS = 6


def picture(kind: int, number: int, size: tuple[int, int] = (48, 64), channels: int = 3) -> np.ndarray:
    """Image (H, W, C) uint8 of class `kind`: stripes whose colour, direction and width tell the class."""
    rng = np.random.default_rng([kind, number])
    y, x = np.mgrid[0 : size[0], 0 : size[1]] / 32.0
    angle, width = 2.4 * kind, 1.5 + (kind * 7 % 5)
    wave = 0.5 + 0.5 * np.sin(2 * np.pi * (width * (x * np.cos(angle) + y * np.sin(angle)) + rng.random()))
    hue = (0.61803 * kind) % 1.0
    high, low = (np.array(colorsys.hsv_to_rgb(hue, s, v)) for s, v in ((0.9, 0.95), (0.5, 0.25)))
    image = low + wave[..., None] * (high - low) + 0.06 * rng.standard_normal((*size, 1))
    pixels = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    return pixels if channels == 3 else np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


def jpeg(kind: int, number: int, size: tuple[int, int] = (48, 64)) -> bytes:
    """The picture as a JPEG file."""
    buffer = io.BytesIO()
    Image.fromarray(picture(kind, number, size)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def build(name: str, folder: Path, layout: str = "archive") -> Path:
    """Write the miniature `name` into `folder`; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "folder" and name in _EXTRACTED:
        build(name, folder)
        _extract_all(folder)
    else:
        _BUILDERS[name](folder, layout)
    return folder


def _extract_all(folder: Path) -> None:
    for path in list(folder.iterdir()):
        if path.name.endswith((".tgz", ".tar.gz")):
            with tarfile.open(path) as archive:
                # Python 3.11.0 to 3.11.3, Debian 12's among them, know no filters; later ones warn without.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)
            path.unlink()
        elif path.suffix == ".zip":
            shutil.unpack_archive(path, folder)
            path.unlink()
        elif path.suffix == ".gz":
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()


def tgz(path: Path, files: dict[str, bytes]) -> None:
    """Write a .tgz with the given members."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def zipped(path: Path, files: dict[str, bytes]) -> None:
    """Write a .zip with the given members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def _cub(folder: Path, layout: str) -> None:
    files, images, labels = {}, [], []
    for number, bird in CUB_CLASSES.items():
        for i in range(PER_CLASS):
            path = f"{number:03d}.{bird}/{bird}_{i + 1:04d}_{796000 + 10 * number + i}.jpg"
            images.append(path)
            labels.append(number)
            files[f"CUB_200_2011/images/{path}"] = jpeg(number, i)
    files["CUB_200_2011/images.txt"] = "".join(f"{i + 1} {path}\n" for i, path in enumerate(images)).encode()
    files["CUB_200_2011/image_class_labels.txt"] = "".join(f"{i + 1} {n}\n" for i, n in enumerate(labels)).encode()
    files["CUB_200_2011/classes.txt"] = "".join(f"{n} {n:03d}.{b}\n" for n, b in CUB_CLASSES.items()).encode()
    files["attributes.txt"] = b"1 has_bill_shape::curved_(up_or_down)\n"
    if layout == "class_folders":
        for path in images:
            target = folder / "cub200" / "images" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[f"CUB_200_2011/images/{path}"])
        (target.parent / "._resource.jpg").write_bytes(b"macOS")
    else:
        tgz(folder / "CUB_200_2011.tgz", files)


def _cars(folder: Path, layout: str) -> None:
    rows = [(n + 1, i) for n in range(len(CAR_CLASSES)) for i in range(PER_CLASS)]
    names = np.array(CAR_CLASSES, dtype=object)
    box = {"bbox_x1": 1, "bbox_y1": 1, "bbox_x2": 60, "bbox_y2": 40}
    if layout == "class_folders":
        for k, (number, i) in enumerate(rows):
            name = CAR_CLASSES[number - 1].replace("/", "-")
            target = folder / "cars196" / "images" / name / f"{k:05d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(jpeg(200 + number, i))
        return
    if layout == "devkit":
        order = np.random.default_rng(0).permutation(len(rows))
        parts = {"train": order[: len(order) // 2], "test": order[len(order) // 2 :]}
        for part, members in parts.items():
            annotations = np.zeros(len(members), dtype=[*((key, "O") for key in box), ("class", "O"), ("fname", "O")])
            files = {}
            for k, member in enumerate(members):
                number, i = rows[member]
                files[f"cars_{part}/{k + 1:05d}.jpg"] = jpeg(200 + number, i)
                annotations[k] = (*box.values(), number, f"{k + 1:05d}.jpg")
            tgz(folder / f"cars_{part}.tgz", files)
            where = folder / ("devkit" if part == "train" else ".")
            where.mkdir(exist_ok=True)
            name = "cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat"
            savemat(where / name, {"annotations": annotations})
        savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
        return
    kinds = [("relative_im_path", "O"), *((key, "O") for key in box), ("class", "O"), ("test", "O")]
    annotations = np.zeros(len(rows), dtype=kinds)
    files = {}
    for k, (number, i) in enumerate(rows):
        path = f"car_ims/{k + 1:06d}.jpg"
        files[path] = jpeg(200 + number, i)
        annotations[k] = (path, *box.values(), number, i % 2)
    savemat(folder / "cars_annos.mat", {"annotations": annotations, "class_names": names})
    tgz(folder / "car_ims.tgz", files)


def _sop(folder: Path, layout: str) -> None:
    files, image, product = {}, 0, 0
    lists = {"train": [], "test": []}
    for lines in lists.values():
        for k in range(10):
            product += 1
            kind = ("bicycle", "chair", "lamp")[k % 3]
            for i in range(2 + k % 4):
                image += 1
                path = f"{kind}_final/{110000000000 + product}_{i}.JPG"
                files[path] = jpeg(300 + product, i)
                lines.append(f"{image} {product} {k % 3 + 1} {path}\n")
    texts = {f"Ebay_{part}.txt": "image_id class_id super_class_id path\n" + "".join(x) for part, x in lists.items()}
    if layout == "info_files":
        for path, data in files.items():
            target = folder / "online_products" / "images" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (folder / "online_products" / "Info_Files").mkdir()
        for name, text in texts.items():
            (folder / "online_products" / "Info_Files" / name).write_text(text)
        return
    members = {**files, **{name: text.encode() for name, text in texts.items()}}
    archive = {f"Stanford_Online_Products/{path}": data for path, data in members.items()}
    archive["__MACOSX/Stanford_Online_Products/._Ebay_test.txt"] = b"junk"
    zipped(folder / "Stanford_Online_Products.zip", archive)


def _lfw(folder: Path, layout: str) -> None:
    folder = folder / "lfw-py"
    folder.mkdir()
    files = {}
    for k, (name, count) in enumerate({**LFW_TRAIN, **LFW_TEST}.items()):
        for i in range(1, count + 1):
            files[f"lfw_funneled/{name}/{name}_{i:04d}.jpg"] = jpeg(400 + k, i, (64, 64))
    tgz(folder / "lfw-funneled.tgz", files)
    for part, people in (("Train", LFW_TRAIN), ("Test", LFW_TEST)):
        lines = "".join(f"{name}\t{count}\n" for name, count in people.items())
        (folder / f"peopleDev{part}.txt").write_text(f"{len(people)}\n{lines}")
        (folder / f"pairsDev{part}.txt").write_text(_pair_list(people))
    everyone = sorted({**LFW_TRAIN, **LFW_TEST}.items())
    (folder / "lfw-names.txt").write_text("".join(f"{name}\t{count}\n" for name, count in everyone))


def _pair_list(people: dict[str, int]) -> str:
    """As many pairs of one person as of two, in the format of pairsDevTest.txt."""
    several = [name for name, count in people.items() if count > 1]
    same = [f"{name}\t{i}\t{i + 1}\n" for name in several for i in range(1, people[name])]
    other = [f"{name}\t1\t{next_name}\t{1 + i % people[next_name]}\n" for i, (name, next_name) in enumerate(
        (a, b) for a in people for b in people if a < b for _ in range(3)
    )]  # fmt: skip
    count = min(len(same), len(other))
    return "".join([f"{count}\n", *same[:count], *other[:count]])


def _msls(folder: Path, layout: str) -> None:
    meta, images = {}, {}
    for first, (part, cities) in zip((500, 580), MSLS_CITIES.items(), strict=True):
        for c, city in enumerate(cities):
            for role in ("query", "database"):
                post = [",key,easting,northing,unique_cluster,night,control_panel,view_direction"]
                raw = [",key,lon,lat,ca,captured_at,pano"]
                sequence = [",key,sequence_key,frame_number"]
                for i in range(12):
                    place, copy = i // 2, i % 2
                    key = f"{city[:3]}{role[:1]}{i:018d}"
                    east = 500000 + 100 * place + (3 if role == "query" else 0) + copy
                    east += 5000 * (role == "query" and place == 5)
                    north = 7000000 + 1000 * c
                    post.append(
                        f"{i},{key},{east}.5,{north}.25,{place},{bool(copy)},False,{'Sideways' if copy else 'Forward'}"
                    )
                    raw.append(f"{i},{key},10.4,63.4,90.0,2019-01-{i + 1:02d},{role == 'database' and i == 0}")
                    sequence.append(f"{i},{key},{city}{role}{place},{copy}")
                    images[f"{part}/{city}/{role}/images/{key}.jpg"] = jpeg(
                        first + 20 * c + place, 2 * copy + (role == "query")
                    )
                base = f"{part}/{city}/{role}"
                for name, lines in (("postprocessed", post), ("raw", raw), ("seq_info", sequence)):
                    meta[f"{base}/{name}.csv"] = ("\n".join(lines) + "\n").encode()
                meta[f"{base}/subtask_index.csv"] = (
                    ",all,o2n\n" + "".join(f"{i},True,False\n" for i in range(12))
                ).encode()
    zipped(folder / "metadata.zip", meta)
    halves = list(images)
    zipped(folder / "images_vol_1.zip", {name: images[name] for name in halves[::2]})
    zipped(folder / "images_vol_2.zip", {name: images[name] for name in halves[1::2]})


def _idx(folder: Path, layout: str, first: int = 600) -> None:
    for stem, per_class, start in (("train", 12, 0), ("t10k", 4, 12)):
        labels = np.tile(np.arange(10, dtype=np.uint8), per_class)
        images = np.stack([picture(first + int(k), start + i // 10, (28, 28), 1)[..., 0] for i, k in enumerate(labels)])
        header = struct.pack(">IIII", 2051, len(images), 28, 28)
        with gzip.open(folder / f"{stem}-images-idx3-ubyte.gz", "wb") as file:
            file.write(header + images.tobytes())
        with gzip.open(folder / f"{stem}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 2049, len(labels)) + labels.tobytes())


def _fashion(folder: Path, layout: str) -> None:
    _idx(folder, layout, first=620)


def _cifar_batch(first: int, classes: int, numbers: range, key: str) -> bytes:
    labels = [k for _ in numbers for k in range(classes)]
    rows = [picture(first + k, i, (32, 32)).transpose(2, 0, 1).ravel() for i in numbers for k in range(classes)]
    names = [f"s_{i:06d}.png" for i in range(len(rows))]
    batch = {"data": np.stack(rows), key: labels, "filenames": names, "batch_label": "miniature"}
    return pickle.dumps(batch, protocol=2)


def _cifar10(folder: Path, layout: str) -> None:
    files = {f"data_batch_{b}": _cifar_batch(640, 10, range(2 * b, 2 * b + 2), "labels") for b in range(1, 6)}
    files["test_batch"] = _cifar_batch(640, 10, range(20, 24), "labels")
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    files["batches.meta"] = pickle.dumps({"label_names": names, "num_cases_per_batch": 20}, protocol=2)
    files["readme.html"] = b"<html>"
    tgz(folder / "cifar-10-python.tar.gz", {f"cifar-10-batches-py/{name}": data for name, data in files.items()})


def _cifar100(folder: Path, layout: str) -> None:
    files = {
        "train": _cifar_batch(700, 100, range(10), "fine_labels"),
        "test": _cifar_batch(700, 100, range(10, 12), "fine_labels"),
        "meta": pickle.dumps({"fine_label_names": [f"fine {k:02d}" for k in range(100)]}, protocol=2),
    }
    tgz(folder / "cifar-100-python.tar.gz", {f"cifar-100-python/{name}": data for name, data in files.items()})


def _svhn(folder: Path, layout: str) -> None:
    for part, numbers in (("train", range(12)), ("test", range(12, 16))):
        labels = [k for _ in numbers for k in range(10)]
        images = np.stack([picture(820 + k, i, (32, 32)) for i in numbers for k in range(10)], axis=3)
        column = np.array([[k or 10] for k in labels], dtype=np.uint8)
        savemat(folder / f"{part}_32x32.mat", {"X": images, "y": column})


_BUILDERS = {
    "cub": _cub, "cars": _cars, "sop": _sop, "lfw": _lfw, "msls": _msls, "mnist": _idx, "fashion_mnist": _fashion,
    "cifar10": _cifar10, "cifar100": _cifar100, "svhn": _svhn,
}  # fmt: skip
_EXTRACTED = ("cub", "sop", "msls", "mnist", "fashion_mnist", "cifar10", "cifar100")
NAMES = tuple(_BUILDERS)
LAYOUTS = {
    **dict.fromkeys(_EXTRACTED, ("archive", "folder")),
    "cub": ("archive", "folder", "class_folders"),
    "cars": ("archive", "devkit", "class_folders"),
    "sop": ("archive", "folder", "info_files"),
    "lfw": ("archive",),
    "svhn": ("archive",),
}
