"""Import late: the modules behind a package's names on first use, and PyTorch's compiler only to compile."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from torch.optim import Optimizer

Kind = TypeVar("Kind", bound="type[Optimizer]")


def exported(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`, which imports the names below `if TYPE_CHECKING:` on first use."""

    @functools.cache
    def homes() -> dict[str, str]:
        source = Path(sys.modules[package].__file__ or "").read_text(encoding="utf-8")
        lines = next(line for line in ast.parse(source).body if isinstance(line, ast.If)).body
        imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
        return {alias.name: str(line.module) for line in imports for alias in line.names}

    def find(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes()[name]), name)

    return find


def uncompiled(kind: Kind) -> Kind:
    """Return the optimizer class `kind` without the decorators that hide its methods from `torch.compile`.

    The decorators import the compiler when an optimizer is made and when it steps, which takes every process 2.5 s. No
    compiled code here calls an optimizer. The optimizer's steps are not differentiable.
    """
    import torch

    names = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return cast("Kind", type(kind.__name__, (kind,), {**plain, "step": step}))
