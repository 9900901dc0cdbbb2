"""Decode image files to 8-bit pixels, with a decision for everything that is not plain 8-bit RGB.

    greyscale where colour is expected   the channel is repeated                       counted
    colour where grey is expected        ITU-R 601 luma                                counted
    CMYK, YCCK                           converted to RGB by PIL (no colour profile)   counted
    palette                              its colours                                   counted
    transparency, also by colour key     laid on white                                 counted
    16 bits per channel                  scaled to 8 bits                              counted
    floating point                       0 to 1 or 0 to 255; else from smallest to     counted
                                         largest value
    EXIF orientation                     turned upright                                counted
    several frames                       the first one                                 counted
    truncated, unreadable, no image, a   error that names the file
    kind that is not read, without area or
    palette, no finite numbers as pixels
    more than 80 million pixels          error that names the file

The counts are in summary.json. An unreadable image is always an error.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import io
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from probmetric.data.manifest import DataError, refusing

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 80_000_000
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
NEEDED = {  # endings whose reader may be missing -> the format and how to install the reader
    **dict.fromkeys((".jp2", ".j2k", ".j2c", ".jpf", ".jpx"), ("JPEG2000", "pip install -U pillow")),
    **dict.fromkeys((".avif", ".avifs"), ("AVIF", "pip install -U 'pillow>=11.3'")),
    **dict.fromkeys((".heic", ".heif", ".heics", ".heifs", ".hif"), ("HEIF", "pip install 'probmetric[heif]'")),
}
# Endings of the files that are read; the bytes of a file, not its ending, decide how it is decoded.
IMAGE_KINDS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm", *NEEDED),
)
# Endings of pictures that are not read: such a file is an error, or it is left out and named.
UNREAD_KINDS = (
    *(".jxl", ".psd", ".tga", ".dds", ".exr", ".hdr", ".ico", ".pcx", ".sgi", ".qoi", ".jxr", ".xcf", ".svg"),
    *(".dcm", ".nii", ".fits", ".dng", ".crw", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw"),
)
Mode = Literal["RGB", "L"]
ORIENTATION = 0x0112
TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip
WIDEST = 65535
STRETCHED = "scaled from each image's smallest value to its largest"
CONVERT = "convert it to JPEG or PNG"
AGAIN = "get the file again, or leave it out"
NAMELESS = ""  # the ending of a file that has none
JPEG, END = b"\xff\xd8\xff", b"\xff\xd9"
TRAILER = 2**14  # what cameras write behind the end


class UnusableError(ValueError):
    """An image can be read but not used; the message says why."""


class Decoded(NamedTuple):
    """Pixels (H, W, C) uint8 and the decisions taken, in words."""

    pixels: np.ndarray
    remarks: tuple[str, ...]


def decode_file(path: str | Path, *, mode: Mode = "RGB", shorter_side: int | None = None) -> Decoded:
    """Decode an image file; see `decode`."""
    return decode(content(path), str(path), mode=mode, shorter_side=shorter_side)


def content(path: str | Path) -> bytes:
    """Read a file; a pipe (it may never answer) or a device (it may never end) is an error."""
    with (
        refusing(f"{path} cannot be read", "the dataset is incomplete", OSError, ValueError),
        open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file,
    ):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.ENXIO, "it is a pipe, a socket or a device")
        return file.read()


def decode(data: bytes, name: str, *, mode: Mode = "RGB", shorter_side: int | None = None) -> Decoded:
    """Decode an image.

    Args:
        data: the file's bytes.
        name: its name, for messages.
        mode: RGB (3 channels) or L (1 channel).
        shorter_side: reduce the shorter side to this many pixels (bilinear with antialiasing, as torchvision's
            Resize); smaller images keep their size. None keeps every size.

    Raises:
        DataError: the file is empty, truncated, too large or not an image.
    """
    from PIL import Image, UnidentifiedImageError

    with _concerning(name):
        try:
            image = Image.open(io.BytesIO(data), formats=_formats())
        except UnidentifiedImageError as error:
            raise DataError(f"{name} {_not_read(data, name)}.") from error
        if shorter_side and image.format == "JPEG" and image.width * image.height <= MAX_PIXELS:
            image.draft(None, (2 * shorter_side, 2 * shorter_side))
    return decoded(image, name, mode=mode, shorter_side=shorter_side)


@contextlib.contextmanager
def _concerning(name: str) -> Iterator[None]:
    """Turn any error of an image reader into a `DataError` that names the image."""
    from PIL import Image

    with refusing(f"{name} is truncated or damaged", AGAIN):
        try:
            yield
        except UnusableError as error:
            raise DataError(f"{name} {error}; mend the image, or leave it out.") from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise _too_large(name, error) from error


def decoded(
    image: Image.Image, name: str = "the image", *, mode: Mode = "RGB", shorter_side: int | None = None
) -> Decoded:
    """Return the pixels of a PIL image, with the decisions of `decode`.

    Args:
        image: the image; it may be opened from a file and not read yet.
        name: its name in messages.
        mode: see `decode`.
        shorter_side: see `decode`.

    Raises:
        DataError: the image has no area or more than `MAX_PIXELS` pixels, or its file is damaged.
    """
    if not image.width * image.height:
        raise DataError(f"{name} has no area ({image.width}x{image.height} pixels); leave it out.")
    if image.width * image.height > MAX_PIXELS:
        raise _too_large(name, f"{image.width}x{image.height} pixels")
    with _concerning(name):
        turned, remarks = upright(image)
        picture, more = plain(turned, mode)
        pixels = np.asarray(reduced(picture, shorter_side))
        return Decoded(pixels[..., None] if pixels.ndim == 2 else pixels, (*remarks, *more))


def unread_advice(names: Iterable[str]) -> str:
    """Return how many pictures of each kind cannot be read with the installed packages, and what to do; "" for none."""
    lacking = (kind for kind, (form, _) in NEEDED.items() if form not in _formats())
    unread = {NAMELESS, *UNREAD_KINDS, *lacking}
    pictures = [name for name in names if Path(name).suffix.lower() in unread]
    fixes: dict[str, list[str]] = {}
    for kind, count in sorted(Counter(Path(name).suffix.lower() for name in pictures).items()):
        fix = NEEDED[kind][1] if kind in NEEDED else CONVERT if kind else "name it .jpg, .png or what it is"
        fixes.setdefault(fix, []).append(f"{count} {kind or 'without an ending'}")
    advice = "; ".join(f"{', '.join(kinds)}: {fix}" for fix, kinds in fixes.items())
    return (
        f"{len(pictures)} picture(s) of kinds that are not read, such as {pictures[0]} ({advice})" if pictures else ""
    )


def is_picture(path: Path) -> bool:
    """Say whether the first bytes of a file, whatever its name, are those of an image that can be read."""
    from PIL import Image

    with contextlib.suppress(Exception):  # whatever a reader of bytes that may be anything stumbles over
        if path.is_file():  # a pipe would be waited for
            Image.open(path, formats=_formats()).close()
            return True
    return False


def damage(path: Path) -> str:
    """Return what the first and last bytes of an image file show to be wrong; "" if they are right.

    A file is decoded, to be sure, only if it does not begin as an image or is a JPEG without an end.
    """
    try:
        if is_picture(path):
            with path.open("rb") as file:
                begins = file.read(len(JPEG))
                file.seek(-min(TRAILER, path.stat().st_size), os.SEEK_END)
                if begins != JPEG or END in file.read():
                    return ""
        decode_file(path, shorter_side=1)
    except (DataError, OSError) as error:
        return str(error)
    return ""


def _too_large(name: str, what: object) -> DataError:
    return DataError(f"{name} is too large to be a photograph ({what}); at most {MAX_PIXELS:,} pixels.")


def _not_read(data: bytes, name: str) -> str:
    """Return why no reader knows these bytes, and what to do."""
    kind = Path(name).suffix.lower()
    if not data:
        return f"is empty; {AGAIN}"
    if kind in NEEDED and NEEDED[kind][0] not in _formats():
        return f"cannot be read: {NEEDED[kind][1]}, or {CONVERT}"
    if kind in UNREAD_KINDS:
        return f"is of a kind that is not read ({kind}): {CONVERT}"
    return f"is no image (it begins with {data[:8]!r}); {AGAIN}"


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return the `FORMATS` whose readers are installed; HEIF needs a package of its own."""
    from PIL import Image

    if importlib.util.find_spec("pillow_heif") is not None:
        import pillow_heif

        pillow_heif.register_heif_opener()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def decode_jpeg(data: np.ndarray) -> np.ndarray | None:
    """Return pixels (H, W, 3) uint8 of a plain RGB JPEG (L,) uint8: the bits of PIL, a third faster.

    None where torchvision is not installed or cannot read the data; `decode` then reads it or says what is wrong.
    """
    if bytes(data[:3]) != JPEG or not _has_torchvision():
        return None
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        image = decode_jpeg(torch.from_numpy(np.array(data)), mode=ImageReadMode.RGB)
    except RuntimeError:
        return None
    return np.asarray(image.permute(1, 2, 0).numpy())


@functools.cache
def _has_torchvision() -> bool:
    return importlib.util.find_spec("torchvision") is not None


def upright(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Return the image, read and turned as its EXIF orientation says; unreadable EXIF data are ignored."""
    from PIL import Image

    remarks: tuple[str, ...] = ()
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        remarks = ("several frames: the first is used",)
    image.load()  # frames are counted before: after loading, which turns a TIFF, seeking reads EXIF data again
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # many programs write EXIF data, and some write it wrongly
        return image, (*remarks, "EXIF data that cannot be read are ignored")
    if turn is None:
        return image, remarks
    return image.transpose(Image.Transpose[turn]), (*remarks, "turned upright by its EXIF orientation")


def plain(image: Image.Image, mode: Mode) -> tuple[Image.Image, tuple[str, ...]]:
    """Return the image as 8-bit RGB or L, and the decisions taken."""
    from PIL import Image

    kind = image.mode
    if kind == "F" or kind.startswith("I"):
        values, remark = (floats if kind == "F" else wide)(np.asarray(image))
        key = image.info.get("transparency")
        if isinstance(key, int):
            values[np.asarray(image) == key] = 255
            remark = f"{remark}, transparency laid on white"
        return Image.fromarray(values).convert(mode), (remark,)
    if kind == "LAB":
        image = image.convert("RGB")
    if kind == "P" and not image.getpalette():
        raise UnusableError("has no colours in its palette")
    if image.has_transparency_data:
        key = image.info.get("transparency")
        if isinstance(key, tuple) and max(key) > 255:  # of 16 bits, of which Pillow reads the upper 8 as pixels
            image = image.copy()
            image.info["transparency"] = tuple(part >> 8 for part in key)
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert(mode), ("transparency laid on white",)
    if kind == mode:
        return image, ()
    names = {
        "L": "greyscale repeated in three channels",
        "1": "black and white",
        "P": "palette colours",
        "RGB": "luma of a colour image",
    }
    return image.convert(mode), (names.get(kind, f"{kind} converted to {mode}"),)


def wide(values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return whole numbers of more than 8 bits (H, W) as 8 bits, and the decisions taken."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > WIDEST:
        return stretched(values, low, high), f"whole numbers beyond 16 bits, {STRETCHED}"
    if high <= 255 and values.dtype.itemsize > 2:
        return values.astype(np.uint8), "32 bits per channel, 0 to 255, cut to 8"
    dark = "" if high > WIDEST // 16 else "; nearly black: if these are 12-bit data, scale them yourself"
    return stretched(values, 0, WIDEST), f"16 bits per channel scaled to 8{dark}"


def stretched(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return values (H, W) as 8 bits, `low` as 0 and `high` as 255."""
    scaled = (values.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.rint(255 * scaled).astype(np.uint8)


def floats(values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return floating-point values (H, W) as 8 bits, and the decisions taken."""
    numbers = np.isfinite(values)
    if not numbers.all():
        raise UnusableError(
            f"has {numbers.size - numbers.sum():,} of {numbers.size:,} pixels that are no finite numbers"
        )
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return stretched(values, 0.0, 1.0), "floating point, 0 to 1, scaled to 8 bits"
    if low >= 0 and high <= 255:
        return stretched(values, 0.0, 255.0), "floating point, 0 to 255, rounded to 8 bits"
    return stretched(values, low, high), f"floating point beyond 0 to 255, {STRETCHED}"


def reduced(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Return the image with a shorter side of at most `shorter_side` pixels; 0 or None leaves it as it is."""
    from PIL import Image

    width, height = image.size
    if not shorter_side or min(width, height) <= shorter_side:
        return image
    scale = shorter_side / min(width, height)
    size = (max(shorter_side, int(width * scale)), max(shorter_side, int(height * scale)))
    return image.resize(size, Image.Resampling.BILINEAR)


def plain_jpeg_shape(data: bytes) -> tuple[int, int, int] | None:
    """Return (H, W, 3) of a complete, upright JPEG of three 8-bit channels; None for anything else.

    Only the header and the marker that ends the file are read; the picture is not decoded.
    """
    if data[:3] != JPEG or data[-1024:].rstrip(b"\0")[-2:] != END:
        return None
    from PIL import Image

    with contextlib.suppress(Exception), Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        width, height = image.size
        upright = image.getexif().get(ORIENTATION, 1) == 1
        if image.mode == "RGB" and upright and 0 < height * width <= MAX_PIXELS:
            return height, width, 3
    return None  # also for a header that cannot be read: decoding the file will raise the error


def as_png(pixels: np.ndarray) -> bytes:
    """Return pixels (H, W, C) uint8 as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
