"""Export a model for other programs: network and uncertainty as ONNX or torch.export, embeddings as Parquet.

    model.to_onnx("shop.onnx")       ONNX
    model.to_program()               torch.export.ExportedProgram
    write_vectors(...)               path, label, split, vector, uncertainty, concentration

The input of a graph is normalised, as by `Model.preprocess`. `preprocess` below does the same with Pillow and NumPy,
for programs without this package; rounding after the two resizes changes pixels by a grey level or two. An ONNX file
holds its `spec` in its metadata, a model folder in its README, with the function's source.

If the uncertainty samples, its draws, made with the model's seed, are constants of the graph.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from probmetric.data import decode
from probmetric.data.decode import plain, reduced, upright
from probmetric.data.manifest import DataError
from probmetric.data.views.photos import Photos
from probmetric.data.views.small import Small
from probmetric.errors import ServingError
from probmetric.io import atomic_path
from probmetric.io.folders import check_new_parquet
from probmetric.serving.frames import MODEL, model_of
from probmetric.uncertainty import Predictor, Uncertainty, create_uncertainty

if TYPE_CHECKING:
    import pyarrow as pa
    from torch.export import ExportedProgram
    from torch.onnx import ONNXProgram

    from probmetric.data.images import Eye
    from probmetric.data.loose import LooseImages
    from probmetric.data.views import View
    from probmetric.serving.gallery import Embedder, OnError

OUTPUTS = ("mean", "uncertainty", "concentration")
LARGEST_BATCH = 1024
LARGEST_FILE = 2**31 - 2**20
VECTOR_ROWS = 4096
_MISSING = "pip install 'probmetric[export]'"


class Graph(nn.Module):
    """A predictor as a module; `forward` gives the `outputs` of a batch."""

    def __init__(self, predictor: Predictor, example: Tensor) -> None:
        """Prepare a graph of a predictor on the CPU; `example` is a network input (2, ...)."""
        super().__init__()
        if next(iter(predictor.encoder.parameters()), torch.empty(0)).device.type != "cpu":
            raise ServingError("export from a model on the CPU: probmetric.load(..., device='cpu').")
        self.example = example
        self.outputs: tuple[str, ...] = OUTPUTS
        self.encoder, self._posterior, self._seed = predictor.encoder, predictor.posterior, predictor.seed
        self._uncertainty = _in_a_graph(predictor.uncertainty)
        self.loss = predictor.loss if self._uncertainty.needs_classifier else None
        self._whole_loss = [predictor.loss]  # in a list: not part of the module, of which few numbers are used
        self._draws = Draws()
        self.eval()
        with torch.no_grad():
            self(example)  # this pass gives the names of the outputs, and the draws
        self._draws.repeated = True

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return mean direction (B, M), uncertainty (B,) and any concentration (B,) of inputs (B, ...)."""
        predictor = Predictor(
            self._uncertainty, self.encoder, self._whole_loss[0], self._posterior, self._seed, classifies=False
        )
        with self._draws:  # the predictor's own call depends on values of its images, which a graph cannot do
            batch = predictor.describe([self._uncertainty.represent(images, predictor)])
        named = {name: getattr(batch, name) for name in OUTPUTS if getattr(batch, name) is not None}
        self.outputs = tuple(named)
        return tuple(named.values())


def _in_a_graph(uncertainty: Uncertainty) -> Uncertainty:
    """Return an uncertainty that computes the same numbers without loops whose length depends on data."""
    from probmetric.uncertainty._gaussian import GaussianHead
    from probmetric.uncertainty.vmf import VMF

    if isinstance(uncertainty, GaussianHead):
        raise ServingError(
            f"uncertainty {type(uncertainty).__name__.lower()!r} draws from the bytes of an image, which no graph can; "
            "export a model with norm, vmf, softmax, laplace, mc_dropout or ensemble."
        )
    return create_uncertainty("norm") if isinstance(uncertainty, VMF) else uncertainty


class Draws(TorchFunctionMode):
    """Keep random draws and the numbers read from a posterior; once `repeated`, return the same ones in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.repeated, self._kept, self._next = False, list[Any](), 0

    def __enter__(self) -> Draws:
        """Begin a pass."""
        self._next = 0
        super().__enter__()
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`; values that it draws, or reads as a number from a plain tensor, are kept and later repeated."""
        named = kwargs or {}
        reads = func in (Tensor.item, Tensor.__float__) and type(args[0]) in (Tensor, nn.Parameter)
        if not (reads or named.get("generator") is not None):
            return func(*args, **named)
        if not self.repeated:
            self._kept.append(func(*args, **named))
        value = self._kept[self._next]
        self._next += 1
        return value.clone() if isinstance(value, Tensor) else value


def exported(graph: Graph) -> ExportedProgram:
    """Return a graph as a program of torch.export, for any number of images up to `LARGEST_BATCH`."""
    batch = {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # the exporters warn about their own code
        return torch.export.export(graph, (graph.example,), dynamic_shapes=(batch,), strict=False)


def write_program(program: ExportedProgram, path: Path) -> Path:
    """Write a program of torch.export to a .pt2 file."""
    with atomic_path(path) as temporary, temporary.open("wb") as file, warnings.catch_warnings(action="ignore"):
        torch.export.save(program, file)
    return path


def write_onnx(graph: Graph, path: Path, eye: Eye) -> Path:
    """Write a graph as an ONNX file, with the preprocessing of images as `eye` sees them in its metadata.

    Raises:
        ServingError: ONNX is not installed, or the model is too large for an ONNX file.
    """
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxscript") is None:
        raise ServingError(f"ONNX files are written by onnx and onnxscript, which are not installed; {_MISSING}.")
    program = exported(graph)
    _check_size(program)
    with warnings.catch_warnings(action="ignore"):
        onnx = torch.onnx.export(
            program, dynamo=True, input_names=["input"], output_names=list(graph.outputs), verbose=False
        )
    assert onnx is not None
    _rename_within(onnx, graph.outputs)
    spec = preprocessing(eye.view, eye.shape, eye.shorter_side)
    if spec is not None:
        onnx.model.metadata_props["preprocessing"] = json.dumps(spec)
    with atomic_path(path) as temporary:
        onnx.save(temporary, external_data=False)
    return path


def _rename_within(onnx: ONNXProgram, outputs: Sequence[str]) -> None:
    """Rename nodes that have the name of an output: for example, the mean by which a network pools is called `mean`."""
    outputs_of_graph = {id(value) for value in onnx.model.graph.outputs}
    for node in onnx.model.graph.all_nodes():
        for value in node.outputs:
            if value.name in outputs and id(value) not in outputs_of_graph:
                value.name = f"{value.name}_within"


def _check_size(program: ExportedProgram) -> None:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    if size > LARGEST_FILE:
        raise ServingError(
            f"the model has {size / 2**30:.1f} GiB of weights and draws, an ONNX file holds 2 GiB; train it with fewer "
            "`samples` of its uncertainty, or a smaller last layer, or keep it as a program (.pt2)."
        )


def write_vectors(
    model: Embedder, items: LooseImages, path: Path, *, on_error: OnError = "raise"
) -> tuple[int, list[Any]]:
    """Embed images into a Parquet file, block by block; return their number, and (name, reason) of those left out.

    Raises:
        DataError: there is no image, or images cannot be read; all those of a block are named.
        FileError: the file cannot be written, or has no name of a Parquet file.
    """
    check_vectors_file(path)
    if not len(items):
        raise DataError("there is no image to embed.")
    import pyarrow.parquet as pq

    count, problems = 0, list[Any]()
    with atomic_path(path) as temporary:
        writer = None
        try:
            # blocks have nearly the same size, since an image alone in the last block could not be skipped
            for rows in np.array_split(range(len(items)), math.ceil(len(items) / VECTOR_ROWS)):
                table, left = _block(model, items, rows, on_error)
                problems += left
                writer = writer or pq.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
                count += len(table)
        finally:
            if writer is not None:
                writer.close()
    return count, problems


def check_vectors_file(path: Path) -> None:
    """Raise an error if `path` has no name of a Parquet file, or is a file that `write_vectors` did not write."""
    check_new_parquet(path, lambda file: bool(model_of(file)))


def _block(model: Embedder, items: LooseImages, rows: np.ndarray, on_error: OnError) -> tuple[pa.Table, list[Any]]:
    import pyarrow as pa

    embedded = model.embedded(items.images[rows[0] : rows[-1] + 1], on_error=on_error)
    kept = [rows[number] for number in embedded.kept.tolist()]
    mean = embedded.batch.mean.numpy()
    concentration = embedded.batch.concentration
    columns = {
        "path": pa.array([str(items.paths[row]) for row in kept], pa.string()),
        "label": pa.array([items.class_names[row] for row in kept], pa.string()),
        "split": pa.array([items.splits[row] if items.splits else "" for row in kept], pa.string()),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(mean.ravel().astype(np.float32)), mean.shape[1]),
        "uncertainty": pa.array(embedded.batch.uncertainty.numpy(), pa.float32()),
        "concentration": pa.array([None] * len(kept) if concentration is None else concentration.numpy(), pa.float32()),
    }
    about = {MODEL: model.digest, "probmetric.name": model.name}
    return pa.table(columns).replace_schema_metadata(about), embedded.problems


def preprocess(image: Image.Image, spec: dict[str, Any]) -> np.ndarray:
    """Return a Pillow image, of any mode, as network input (1, C, S, S) float32."""
    image = reduced(plain(upright(image)[0], spec["mode"])[0], spec["shorter_side"])
    if spec["square"]:
        size = [spec["resize"], spec["resize"]]
    else:
        scale = spec["resize"] / min(image.size)
        size = [max(spec["resize"], int(side * scale)) for side in image.size]
    image = image.resize(size, 2)
    left, top = (round((side - spec["size"]) / 2) for side in size)
    image = image.crop((left, top, left + spec["size"], top + spec["size"]))
    pixels = np.asarray(image, dtype=np.float32).reshape(spec["size"], spec["size"], -1).transpose(2, 0, 1)
    scale, offset = (np.array(spec[name], dtype=np.float32)[:, None, None] for name in ("scale", "offset"))
    return (pixels[spec["channels"]] * scale + offset)[None]


def preprocessing_code() -> str:
    """Return the source of `preprocess` and of the functions that it calls."""
    constants = {name: getattr(decode, name) for name in ("ORIENTATION", "TURNS", "WIDEST", "STRETCHED")}
    lines = ["Mode = str", *(f"{name} = {value!r}" for name, value in constants.items())]
    called: list[Any] = [decode.UnusableError, upright, plain, decode.wide, decode.stretched, decode.floats, reduced]
    source = "\n\n".join(["\n".join(lines) + "\n", *map(inspect.getsource, [*called, preprocess])])
    return source.replace("image: Image.Image, spec: dict[str, Any]", "image, spec")


def preprocessing(view: View, shape: tuple[int, int], shorter_side: int) -> dict[str, Any] | None:
    """Return the arguments with which `preprocess` does what a view does; None for a model whose inputs are no images.

    Args:
        view: the evaluation view.
        shape: channels C and side S of the network's input.
        shorter_side: shorter side to which preparation reduced the images; 0: not reduced.

    Returns:
        mode: RGB or L; shorter_side: larger images are reduced to it first; resize: then the shorter side, or with
        `square` both, become this; size: S of the central crop; channels: for each channel of the input, its channel of
        the pixels; scale, offset: by channel, applied to the values 0 to 255.
    """
    count, side = shape
    if not isinstance(view, Photos | Small):
        return None
    square = isinstance(view, Photos) and (view.square or not view.shorter)
    black, white = (view.normalise(torch.full((1, count, 1, 1), value)).flatten() for value in (0, 255))
    first = view.normalise(torch.tensor([255] + [0] * (count - 1)).view(1, count, 1, 1)).flatten()
    channels = list(range(count))
    return {
        "mode": "L" if count == 1 else "RGB",
        "shorter_side": shorter_side,
        "resize": (view.shorter or side) if isinstance(view, Photos) else side,
        "square": square,
        "size": side,
        "channels": channels if float(first[0]) == float(white[0]) else channels[::-1],
        "scale": ((white - black) / 255).tolist(),
        "offset": black.tolist(),
    }
