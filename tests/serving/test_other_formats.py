"""Graphs of a model: onnxruntime and torch.export give what the model gives; others can preprocess as it does."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from serving_helpers import ENSEMBLE, LAPLACE, PLAIN
from test_fit import Blobs, train
from torch import nn

import probmetric
from probmetric.data.decode import decode
from probmetric.errors import ProbMetricError
from probmetric.serving.export import preprocess, preprocessing_code

ort = pytest.importorskip("onnxruntime")
TOLERANCE = 1e-5


def answers(path, inputs):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: inputs}), strict=True))


def agree(found, record):
    np.testing.assert_allclose(found["mean"], record.mean.numpy(), atol=TOLERANCE)
    np.testing.assert_allclose(found["uncertainty"], record.uncertainty.numpy(), rtol=TOLERANCE)
    assert ("concentration" in found) == (record.concentration is not None)
    if record.concentration is not None:
        np.testing.assert_allclose(found["concentration"], record.concentration.numpy(), rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("run", [PLAIN, LAPLACE, ENSEMBLE])
def test_an_exported_run_gives_what_the_run_gives(run, exported, tmp_path):
    model = probmetric.load(exported[run], device="cpu")
    path = model.to_onnx(tmp_path / "m.onnx")
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 1), dtype=np.uint8)
    agree(answers(path, model.preprocess(list(images)).numpy()), model.embed(list(images)))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("loss", "uncertainty"),
    [
        *(("arcface", each) for each in ("norm", "vmf", "softmax", {"name": "mc_dropout", "samples": 4})),
        *(("vmf", each) for each in ("norm", "vmf")),  # whose loss scales embeddings
    ],
)
def test_every_kind_of_uncertainty_is_in_the_graph(loss, uncertainty, tmp_path):
    model = train(loss=loss, uncertainty=uncertainty, epochs=1)
    agree(answers(model.to_onnx(tmp_path / "m.onnx"), Blobs(2).x.numpy()), model.embed(Blobs(2)))


class Colours(nn.Module):
    """Sensitive to single grey levels at every place of a 12 x 12 image."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 12 * 12, 5)

    def forward(self, images):
        return self.layer(images.flatten(1))


VIEWS = {
    "crop": ({"size": 12}, 0),
    "crop of what preparation reduced": ({"size": 12}, 20),
    "a larger crop than what it reduced to": ({"size": 12, "resize": 40}, 20),
    "both sides": ({"size": 12, "resize": 0}, 0),
    "square": ({"size": 12, "resize": 15, "square": True}, 0),
    "own statistics": ({"size": 12, "mean": [0.4, 0.5, 0.6], "std": [0.1, 0.2, 0.3]}, 20),
}


class Pictures(torch.utils.data.Dataset):
    """Six images of PIL's, of two classes."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return Image.new("RGB", (20, 30), (40 * index, 9, 9)), index % 2


@pytest.fixture(scope="module", params=VIEWS)
def photographs(request, tmp_path_factory):
    """A model of photographs, its ONNX file and its program."""
    options, reduced = VIEWS[request.param]
    torch.manual_seed(0)
    model = probmetric.fit(Pictures(), Colours(), view={"name": "photos", **options}, epochs=0, device="cpu")
    model.eye = replace(model.eye, shorter_side=reduced)
    folder = tmp_path_factory.mktemp("graph")
    return model, model.to_onnx(folder / "m.onnx"), model.to_program().module()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [(12, 12), (20, 20), (50, 31), (31, 90), (90, 31), (13, 11), (3, 2), (200, 33)])
def test_photographs_of_any_size(photographs, size):
    model, path, program = photographs
    images = list(np.random.default_rng(1).integers(0, 256, (2, *size, 3), dtype=np.uint8))
    expected, inputs = model.embed(images), model.preprocess(images)
    agree(answers(path, inputs.numpy()), expected)
    agree(answers(path, inputs[:1].numpy()), model.embed(images[:1]))
    with torch.no_grad():
        torch.testing.assert_close(program(inputs)[0], expected.mean, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [(12, 12), (50, 31), (31, 90), (13, 11), (200, 33)])
def test_others_can_preprocess_an_image_by_what_the_file_says(photographs, size):
    """With Pillow and NumPy alone, up to the rounding of two resizes."""
    import onnx

    model, path, _ = photographs
    spec = json.loads({each.key: each.value for each in onnx.load(path).metadata_props}["preprocessing"])
    pixels = np.random.default_rng(2).integers(0, 256, (*size, 3), dtype=np.uint8)
    found, expected = preprocess(Image.fromarray(pixels), spec), model.preprocess(pixels).numpy()
    assert found.shape == expected.shape
    levels = (found - expected) / np.array(spec["scale"])[:, None, None]
    assert np.abs(levels).mean() < 0.5
    assert np.abs(levels).max() < 4


def pictures_of_every_kind():
    """Yield name and bytes of one picture in files of every kind that `data.decode` tells apart."""
    colour = Image.fromarray(
        np.kron(np.random.default_rng(3).integers(0, 256, (6, 8, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
    )
    grey, exif = colour.convert("L"), Image.Exif()
    exif[0x0112] = 6
    wide = np.asarray(grey).astype(np.uint16) * 257
    cut_out = colour.convert("RGBA")
    cut_out.putalpha(grey)
    frames = [colour.convert("P"), grey.convert("P")]
    kinds = [
        ("PNG", colour, {}),
        ("PNG", grey, {}),
        ("PNG", grey.convert("1"), {}),
        ("PNG", colour.convert("P"), {}),
        ("PNG", colour.convert("P"), {"transparency": 3}),
        ("PNG", cut_out, {}),
        ("PNG", cut_out.convert("LA"), {}),
        ("PNG", cut_out.quantize(), {}),
        ("PNG", colour, {"transparency": colour.getpixel((0, 0))}),
        ("PNG", Image.fromarray(wide), {}),
        ("PNG", Image.fromarray(wide), {"transparency": int(wide[0, 0])}),
        ("TIFF", Image.fromarray(wide), {}),
        ("TIFF", Image.fromarray(wide // 200), {}),
        ("TIFF", Image.fromarray(wide.astype(np.int32) - 9000), {}),
        ("TIFF", Image.fromarray(np.asarray(grey).astype(np.int32)), {}),
        ("TIFF", Image.fromarray(np.asarray(grey) / np.float32(255)), {}),
        ("TIFF", Image.fromarray(wide.astype(np.float32) - 9000), {}),
        (
            "TIFF",
            ImageCms.profileToProfile(
                colour, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
            ),
            {},
        ),
        ("TIFF", colour, {"exif": exif}),
        ("JPEG", colour, {"exif": exif}),
        ("JPEG", colour.convert("CMYK"), {}),
        ("JPEG", grey, {}),
        ("GIF", frames[0], {"save_all": True, "append_images": frames[1:]}),
        ("WEBP", cut_out, {"save_all": True, "append_images": [colour], "lossless": True}),
    ]
    for number, (kind, image, options) in enumerate(kinds):
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        yield f"{number} {kind} {image.mode} {' '.join(options)}", buffer.getvalue()


PICTURES = dict(pictures_of_every_kind())


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", PICTURES)
def test_others_see_files_of_every_kind_as_the_library_does(name, mode):
    """By the function, and by the code of the card, which runs without ours: the same pixels, to the bit."""
    place = {"np": np, "Image": Image}
    exec(preprocessing_code(), place)
    count = len(mode)
    spec = {"mode": mode, "shorter_side": 40, "resize": 32, "square": False, "size": 24, "channels": list(range(count))}
    spec |= {"scale": [1.0] * count, "offset": [0.0] * count}
    pixels = decode(PICTURES[name], name, mode=mode).pixels
    expected = preprocess(Image.fromarray(pixels if mode == "RGB" else pixels[..., 0]), spec)
    assert np.ptp(expected) >= 1, "a picture, not one colour"
    for function in (preprocess, place["preprocess"]):
        with Image.open(io.BytesIO(PICTURES[name])) as image:
            np.testing.assert_array_equal(function(image, spec), expected)


def test_the_card_holds_the_function_that_preprocesses(exported, photos):
    """It runs as it stands there, and gives what the model sees."""
    card = (exported[PLAIN] / "README.md").read_text()
    code = card.partition("## Preprocessing")[2].partition("```python\n")[2].partition("```")[0]
    place: dict = {}
    exec(code, place)
    model, path = probmetric.load(exported[PLAIN], device="cpu"), next(iter(photos[1]))
    with Image.open(path) as image:
        found = place["preprocess"](image, place["spec"])
    np.testing.assert_allclose(found, model.preprocess(path).numpy(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_writes_the_format_of_the_name(exported, tmp_path, capsys):
    from probmetric import cli

    for name in ("m.onnx", "m.pt2"):
        assert cli.main(["export", str(exported[PLAIN]), str(tmp_path / name)]) == 0
    image = torch.full((1, 1, 32, 32), 0.35)
    program = torch.export.load(tmp_path / "m.pt2").module()
    with torch.no_grad():
        found = program(image)[0].numpy()
    np.testing.assert_allclose(answers(tmp_path / "m.onnx", image.numpy())["mean"], found, atol=TOLERANCE)


def test_what_cannot_be_exported_says_so(exported, tmp_path, monkeypatch):
    from probmetric.serving import export

    model = probmetric.load(exported[PLAIN], device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(export, "LARGEST_FILE", 1000)
        with pytest.raises(ProbMetricError, match="an ONNX file holds 2 GiB"):
            model.to_onnx(tmp_path / "m.onnx")
        patch.setattr(export.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ProbMetricError, match=r"probmetric\[export\]"):
            model.to_onnx(tmp_path / "m.onnx")
    with pytest.raises(ProbMetricError, match="'pfe' draws from the bytes"):
        train(uncertainty="pfe", epochs=0).to_program()
    assert not list(tmp_path.iterdir())


def test_a_network_that_pools_by_a_mean_can_be_exported(tmp_path):
    """Its mean and the graph's output of that name were one name twice: no ONNX runtime loaded the file."""
    images = torch.rand(16, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(images, torch.arange(16) % 4)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = probmetric.fit(data, network, dim=4, loss="proxy_anchor", uncertainty="norm", epochs=1)
    agree(answers(model.to_onnx(tmp_path / "m.onnx"), images.numpy()), model.embed(list(images)))
