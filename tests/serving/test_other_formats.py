"""Graphs of a model: onnxruntime and torch.export give what the model gives, from pixels of any size."""

import numpy as np
import pytest
import torch
from serving_helpers import ENSEMBLE, LAPLACE, PLAIN
from test_fit import Blobs, train
from torch import nn

import probmetric
from probmetric.data.images import Eye
from probmetric.errors import ProbMetricError
from probmetric.serving._resize import PIL_DIGITS, Axis, applied, fixed, pytorch_digits, weights

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
    agree(answers(path, images), model.embed(list(images)))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("uncertainty", ["norm", "vmf", "softmax", {"name": "mc_dropout", "samples": 4}])
def test_every_kind_of_uncertainty_is_in_the_graph(uncertainty, tmp_path):
    model = train(loss="arcface", uncertainty=uncertainty, epochs=1)
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


@pytest.fixture(scope="module", params=VIEWS)
def photographs(request, tmp_path_factory):
    """A model of photographs, its ONNX file and its program."""
    from PIL import Image

    options, reduced = VIEWS[request.param]
    torch.manual_seed(0)
    pictures = [(Image.new("RGB", (20, 30), (40 * k, 9, 9)), k % 2) for k in range(6)]

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return pictures[index]

    model = probmetric.fit(Pictures(), Colours(), view={"name": "photos", **options}, epochs=0, device="cpu")
    model.eye = Eye(model.eye.view, model.eye.shape, reduced)
    folder = tmp_path_factory.mktemp("graph")
    return model, model.to_onnx(folder / "m.onnx"), model.to_program().module()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [(12, 12), (20, 20), (50, 31), (31, 90), (90, 31), (13, 11), (3, 2), (200, 33)])
def test_photographs_of_any_size(photographs, size):
    model, path, program = photographs
    images = np.random.default_rng(1).integers(0, 256, (2, *size, 3), dtype=np.uint8)
    expected = model.embed(list(images))
    agree(answers(path, images), expected)
    agree(answers(path, images[:1]), model.embed(images[0]))
    with torch.no_grad():
        torch.testing.assert_close(program(torch.from_numpy(images))[0], expected.mean, atol=TOLERANCE, rtol=0)


def test_the_matrices_resize_as_pil_and_pytorch_do():
    from PIL import Image

    from probmetric.data.decode import _reduced
    from probmetric.data.views.photos import _resized

    rng = np.random.default_rng(2)
    pil = torch.tensor(float(PIL_DIGITS), dtype=torch.float64)
    for _ in range(60):
        height, width, new_height, new_width = rng.integers(2, 90, 4)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None].double()
        rows, columns = Axis.whole(int(height), image), Axis.whole(int(width), image)

        def matrices(size, digits=None, rows=rows, columns=columns):
            found = []
            for axis, length in zip((rows, columns), size, strict=True):
                length, places = torch.tensor(float(length), dtype=torch.float64), torch.arange(length).double()
                used = pytorch_digits(axis, length, places) if digits is None else digits
                found.append((fixed(weights(axis, length, places), used), used))
            (for_rows, first), (for_columns, second) = found
            return for_rows, for_columns, (first, second)

        found = applied(image, *matrices((int(new_height), int(new_width))))[0]
        assert torch.equal(found, _resized(pixels, int(new_height), int(new_width)).double())
        reduced = np.asarray(_reduced(Image.fromarray(pixels), 2 + int(min(height, width)) // 3))
        found = applied(image, *matrices(reduced.shape[:2], pil))[0].permute(1, 2, 0)
        if height <= 2 * width:  # PIL turns the order round for tall images
            np.testing.assert_array_equal(found.numpy(), reduced)


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_writes_the_format_of_the_name(exported, tmp_path, capsys):
    from probmetric import cli

    for name in ("m.onnx", "m.pt2"):
        assert cli.main(["export", str(exported[PLAIN]), str(tmp_path / name)]) == 0
    image = np.full((1, 32, 32, 1), 90, np.uint8)
    program = torch.export.load(tmp_path / "m.pt2").module()
    with torch.no_grad():
        found = program(torch.from_numpy(image))[0].numpy()
    np.testing.assert_allclose(answers(tmp_path / "m.onnx", image)["mean"], found, atol=TOLERANCE)


def test_what_cannot_be_exported_says_so(exported, tmp_path, monkeypatch):
    from dataclasses import replace

    from probmetric.serving import _graph

    model = probmetric.load(exported[PLAIN], device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(_graph, "LARGEST_FILE", 1000)
        with pytest.raises(ProbMetricError, match="an ONNX file holds 2 GiB"):
            model.to_onnx(tmp_path / "m.onnx")
        patch.setattr(_graph.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ProbMetricError, match=r"probmetric\[export\]"):
            model.to_onnx(tmp_path / "m.onnx")
    with pytest.raises(ProbMetricError, match="'pfe' draws from the bytes"):
        train(uncertainty="pfe", epochs=0).to_program()
    model.eye = replace(model.eye, view=object())
    with pytest.raises(ProbMetricError, match="cannot be exported"):
        model.to_program()
    assert not list(tmp_path.iterdir())


def test_a_network_that_pools_by_a_mean_can_be_exported(tmp_path):
    """Its mean and the graph's output of that name were one name twice: no ONNX runtime loaded the file."""
    images = torch.rand(16, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(images, torch.arange(16) % 4)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = probmetric.fit(data, network, dim=4, loss="proxy_anchor", uncertainty="norm", epochs=1)
    agree(answers(model.to_onnx(tmp_path / "m.onnx"), images.numpy()), model.embed(list(images)))
