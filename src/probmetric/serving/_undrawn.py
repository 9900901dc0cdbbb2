"""A network whose weights are about to be loaded: its first weights are not drawn.

Drawing the 11 million weights of a ResNet-18 costs more than a forward pass, and loading overwrites all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWING = frozenset({nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, Tensor.uniform_, Tensor.normal_})


class Undrawn(TorchFunctionMode):
    """Within, parameters are filled with zeros in place of random numbers; whatever else is drawn, is."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, unless it would fill a parameter with random numbers."""
        given = dict(kwargs or {})
        if func in _DRAWING and isinstance(filled := args[0] if args else given.get("tensor"), nn.Parameter):
            filled.detach().zero_()
            return filled
        return func(*args, **given)
