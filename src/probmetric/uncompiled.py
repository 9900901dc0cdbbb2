"""Optimisers that leave PyTorch's compiler unimported: one to two seconds per process, for nothing it would compile."""

from __future__ import annotations

import inspect
import sys

import torch


def spare_compiler_import() -> None:
    """Keep PyTorch from importing its compiler to manage an optimiser; to be called before one is made.

    The first call of these methods imports `torch._dynamo` for the one purpose of exempting them from compilation.
    Where nothing is compiled they may as well be called directly; where PyTorch lacks the mechanism this does
    nothing.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        function = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if function is not None:
            vars(function).setdefault("__dynamo_disable", function)


@torch.no_grad()
def update_parameters(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()` without its decorators, which import the compiler and serve only it and step hooks."""
    inspect.unwrap(type(optimizer).step)(optimizer)
