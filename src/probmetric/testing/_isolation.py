"""Components registered in a test are forgotten after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from probmetric.registry import _plugins, all_registries


@contextlib.contextmanager
def isolated_components() -> Iterator[None]:
    """What is registered, or loaded as a plugin, inside this context is forgotten at its end."""
    held = [vars(registry) for registry in all_registries()]
    before = [{name: state[name].copy() for name in ("_objects", "_entries", "_foreign")} for state in held]
    loaded = _plugins._LOADED.copy()
    try:
        yield
    finally:
        for registry, state, kept in zip(all_registries(), held, before, strict=True):
            own = {name: found for name, found in state["_objects"].items() if name in registry.own_names()}
            state.update(kept, _objects=kept["_objects"] | own)  # modules of the package are imported only once
        _plugins._LOADED.clear()
        _plugins._LOADED.update(loaded)
