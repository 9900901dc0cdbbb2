"""A model as one graph: pixels in, mean direction and uncertainty out, for programs that have no Python of ours.

    model.to_onnx("shop.onnx")       ONNX
    model.to_program()               torch.export.ExportedProgram

Resizing, crop and normalisation are inside. Draws of an uncertainty that samples are constants of the graph: those of
the model's seed, so that graph and model agree. Input of a model of images: uint8 (B, H, W, C), upright, C = 3 (RGB) or
1, of any height and width; of a model of vectors or tensors: float32 (B, ...). A JPEG file that preparation would
reduce while decoding (`data.decode`) differs by that much.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import _disable_current_modes

from probmetric.data.views import View
from probmetric.data.views._base import RawTensors
from probmetric.errors import ServingError
from probmetric.io import atomic_path
from probmetric.serving._resize import PIL_DIGITS, Axis, applied, fixed, pytorch_digits, weights
from probmetric.uncertainty import Predictor, Uncertainty, create_uncertainty

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.onnx import ONNXProgram

    from probmetric.data.images import Eye
    from probmetric.serving._model import Model

OUTPUTS = ("mean", "uncertainty", "concentration")
LARGEST_BATCH = 1024
LARGEST_FILE = 2**31 - 2**20
_LONGEST = 20_000
_MISSING = "pip install 'probmetric[export]'"


class Graph(nn.Module):
    """The model as a module; `forward` gives the `outputs` of a batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        predictor = model.predictor
        lens = lens_of(model.eye)
        self.encoder, self.lens, self.example, self.open = predictor.encoder, lens, lens.example, lens.open
        self._uncertainty, self._posterior, self._seed = _graphed(model), predictor.posterior, predictor.seed
        self.loss = predictor.loss if self._uncertainty.needs_classifier else None
        self.outputs: tuple[str, ...] = OUTPUTS

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Mean direction (B, M), uncertainty (B,) and, where there is one, concentration (B,)."""
        images = self.lens(inputs)
        given = Predictor(self._uncertainty, self.encoder, self.loss, self._posterior, self._seed)
        with Constants():
            found = given(images)
        named = {name: getattr(found, name) for name in OUTPUTS if getattr(found, name) is not None}
        self.outputs = tuple(named)
        return tuple(named.values())


def _graphed(model: Model) -> Uncertainty:
    """What gives the same mean, uncertainty and concentration without loops that depend on data."""
    from probmetric.uncertainty._gaussian import GaussianHead
    from probmetric.uncertainty.vmf import VMF

    found = model.predictor.uncertainty
    if isinstance(found, GaussianHead):
        raise ServingError(
            f"uncertainty {model.record.uncertainty.name!r} draws from the bytes of an image, which no graph can; "
            "export a model with norm, vmf, softmax, laplace, mc_dropout or ensemble."
        )
    return create_uncertainty("norm") if isinstance(found, VMF) else found


class Constants(TorchFunctionMode):
    """Computes at once what depends on no input: draws, and what is read of a posterior."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`; outside of tracing where all it gets is known."""
        given = kwargs or {}
        parts = [part for part in tree.tree_leaves((args, given)) if isinstance(part, Tensor | torch.SymInt)]
        if any(isinstance(part, torch.SymInt) or _traced(part) for part in parts):
            return func(*args, **given)
        with _disable_current_modes():
            return func(*args, **given)


def _traced(part: Tensor) -> bool:
    from torch._subclasses import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(part, FakeTensor | FunctionalTensor) or torch._is_functional_tensor(part)


# ---- from pixels to input ----------------------------------------------------------------------------------------


class Lens(nn.Module):
    """Turns the graph's input into the network's.

    Attributes:
        example: two inputs.
        open: axis of the input -> name, of those that may have any size.
    """

    def __init__(self, example: Tensor, **axes: int) -> None:
        super().__init__()
        self.example, self.open = example, {axis: name for name, axis in axes.items()}


def lens_of(eye: Eye) -> Lens:
    """The module that turns the graph's input into the network's.

    Raises:
        ServingError: a view that cannot be put into a graph.
    """
    from probmetric.data.views.photos import Photos
    from probmetric.data.views.small import Small
    from probmetric.data.views.vectors import Vectors

    view, (channels, side) = eye.view, eye.shape
    if isinstance(view, RawTensors):
        return Given(torch.zeros(2, *view.shape))
    if isinstance(view, Vectors):
        return Rows(torch.zeros(2, channels * side**2 // 4))
    if isinstance(view, Small):
        return Pixels(view, Frame(side, side, square=False, reduced=eye.shorter_side), channels)
    if isinstance(view, Photos):
        return Pixels(view, Frame(view.size, view.shorter, square=view.square, reduced=eye.shorter_side), channels)
    raise ServingError(f"the view {type(view).__name__} cannot be exported; views photos, small and vectors can.")


class Given(Lens):
    """Tensors of a known shape, as they are."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, ...) to the same."""
        return inputs


class Rows(Lens):
    """Vectors (B, D) as the encoder of vectors takes them."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, D) to (B, 1, 1, D)."""
        return inputs[:, None, None]


@dataclass(frozen=True)
class Frame:
    """What of an image is seen.

    Attributes:
        side: of the crop in the middle.
        shorter: to which the shorter side is resized before; 0: both are resized to `side`.
        square: whether both sides are resized to `shorter`.
        reduced: to which preparation had reduced the shorter side before that; 0: not.
    """

    side: int
    shorter: int
    square: bool
    reduced: int

    def __post_init__(self) -> None:
        if self.reduced and (self.square or not self.shorter):
            raise ServingError(
                "images were reduced when they were prepared and are then resized to a square; a graph cannot do "
                "both. Export a run on data prepared with `store: files`."
            )

    @property
    def window(self) -> int:
        """Pixels of the reduced image, along an axis, that the crop can depend on."""
        return math.ceil((self.side + 2) * max(self.reduced / self.shorter, 1.0)) + 4

    def size(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Size () and () of the whole image that is cropped."""
        if self.square or not self.shorter:
            both = torch.full_like(height, float(self.shorter or self.side))
            return both, both
        return kept_aspect(height, width, self.shorter)

    def crop(self, size: Tensor) -> Tensor:
        """Pixels (S,) of an axis of `size` () that are seen."""
        start = ((size - self.side) / 2).round()
        return start + torch.arange(self.side, dtype=torch.float64, device=size.device)


def kept_aspect(height: Tensor, width: Tensor, shorter: int) -> tuple[Tensor, Tensor]:
    """Size with the `shorter` side, as `Photos` and `decode` compute it."""
    scale = float(shorter) / torch.minimum(height, width)
    return (height * scale).floor().clamp_min(float(shorter)), (width * scale).floor().clamp_min(float(shorter))


class Pixels(Lens):
    """Upright 8-bit images of any size as the network's input, equal to the pixel to what the model sees."""

    def __init__(self, view: View, frame: Frame, channels: int) -> None:
        example = torch.zeros(2, frame.side + 7, frame.side + 11, channels, dtype=torch.uint8)
        super().__init__(example, height=1, width=2)
        self._view, self._frame = view, frame

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, H, W, C) uint8 to (B, C, S, S) float32."""
        images = inputs.permute(0, 3, 1, 2).to(torch.float64)
        rows, columns = Axis.whole(images.shape[2], images), Axis.whole(images.shape[3], images)
        if self._frame.reduced:
            images, rows, columns = self._reduced(images, rows, columns)
        height, width = self._frame.size(rows.size, columns.size)
        seen = self._frame.crop(height), self._frame.crop(width)
        digits = pytorch_digits(rows, height, seen[0]), pytorch_digits(columns, width, seen[1])
        for_rows = fixed(weights(rows, height, seen[0]), digits[0])
        for_columns = fixed(weights(columns, width, seen[1]), digits[1])
        return self._view.normalise(applied(images, for_rows, for_columns, digits).to(torch.float32))

    def _reduced(self, images: Tensor, rows: Axis, columns: Axis) -> tuple[Tensor, Axis, Axis]:
        """The part of the image, reduced as preparation does, that the crop depends on."""
        frame = self._frame
        height, width = kept_aspect(rows.size, columns.size, frame.reduced)
        small = torch.minimum(rows.size, columns.size) <= frame.reduced
        height, width = torch.where(small, rows.size, height), torch.where(small, columns.size, width)
        whole = frame.size(height, width)
        parts = [self._part(axis, size) for axis, size in ((height, whole[0]), (width, whole[1]))]
        digits = torch.full_like(height, float(PIL_DIGITS))
        for_rows = fixed(weights(rows, height, parts[0].places), digits)
        for_columns = fixed(weights(columns, width, parts[1].places), digits)
        across_first = applied(images, for_rows, for_columns, (digits, digits))
        turned = applied(images.transpose(-1, -2), for_columns, for_rows, (digits, digits)).transpose(-1, -2)
        return torch.where(rows.size > 2 * columns.size, turned, across_first), parts[0], parts[1]

    def _part(self, length: Tensor, size: Tensor) -> Axis:
        """The window on an axis of `length` () whose image of `size` () is cropped."""
        first = (self._frame.crop(size)[0] * (length / size)).floor() - 2
        window = torch.arange(self._frame.window, dtype=torch.float64, device=length.device)
        return Axis(length, first + window)


# ---- export ------------------------------------------------------------------------------------------------------


def program(model: Model) -> ExportedProgram:
    """See `Model.to_program`."""
    return _exported(_graph(model))


def write_program(model: Model, path: Path) -> Path:
    """Write the program of `torch.export` to a .pt2 file."""
    with atomic_path(path) as temporary, _quiet(), temporary.open("wb") as file:
        torch.export.save(program(model), file)
    return path


def write_onnx(model: Model, path: Path) -> Path:
    """See `Model.to_onnx`."""
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxscript") is None:
        raise ServingError(f"ONNX files are written by onnx and onnxscript, which are not installed; {_MISSING}.")
    graph = _graph(model)
    exported = _exported(graph)
    _check_size(exported)
    with _quiet():
        found = torch.onnx.export(
            exported, dynamo=True, input_names=["input"], output_names=list(graph.outputs), verbose=False
        )
    assert found is not None
    _rename_within(found, graph.outputs)
    with atomic_path(path) as temporary:
        found.save(temporary, external_data=False)
    return path


def _rename_within(found: ONNXProgram, outputs: Sequence[str]) -> None:
    """Name anew what is no output and is called like one: the mean that a network pools by is called `mean`."""
    given = {id(value) for value in found.model.graph.outputs}
    for node in found.model.graph.all_nodes():
        for value in node.outputs:
            if value.name in outputs and id(value) not in given:
                value.name = f"{value.name}_within"


def _exported(graph: Graph) -> ExportedProgram:
    with _quiet(), torch.no_grad():
        graph(graph.example)  # names the outputs
        return torch.export.export(graph, (graph.example,), dynamic_shapes=(_shapes(graph),), strict=False)


def _check_size(exported: ExportedProgram) -> None:
    tensors = [*exported.state_dict.values(), *exported.constants.values()]
    size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    if size > LARGEST_FILE:
        raise ServingError(
            f"the model has {size / 2**30:.1f} GiB of weights and draws, an ONNX file holds 2 GiB; train it with fewer "
            "`samples` of its uncertainty, or a smaller last layer, or keep it as a program (.pt2)."
        )


def _graph(model: Model) -> Graph:
    predictor = model.predictor
    if next(iter(predictor.encoder.parameters()), torch.empty(0)).device.type != "cpu":
        raise ServingError("export from a model on the CPU: probmetric.load(..., device='cpu').")
    return Graph(model).eval()


def _shapes(graph: Graph) -> dict[int, Any]:
    from torch.export import Dim

    return {0: Dim("batch", min=1, max=LARGEST_BATCH)} | {
        axis: Dim(name, min=2, max=_LONGEST) for axis, name in graph.open.items()
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters' remarks on their own making."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
