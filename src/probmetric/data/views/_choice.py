"""Which view a dataset's images get: the one a run asks for, else the one its source declares.

standard   `Source.view`
vmf, lam   `Source.views["vmf"]`, `["lam"]`: as a paper's code has it; where it has none, the standard one
none       the standard view without its augmentation
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.data.views import REGISTRY, create_view

if TYPE_CHECKING:
    from probmetric.data.views._base import View


def view_of(
    folder: str | Path, *, augment: str = "standard", chosen: Mapping[str, Any] | None = None, statistics: Any = None
) -> View:
    """The training view of a prepared dataset; its `evaluation()` is what validation and every later step use.

    Args:
        folder: the prepared dataset.
        augment: `training.augment`: standard, none, or the recipe of a paper.
        chosen: `name` and `options` of the view a run asks for, if it does.
        statistics: (mean, standard deviation) the backbone was trained with, where it has such.
    """
    if chosen is None:
        chosen = declared(folder, augment)
    view = create_view(chosen["name"], **chosen["options"]).for_backbone(statistics)
    return view.evaluation() if augment == "none" else view


def declared(folder: str | Path, augment: str = "standard") -> dict[str, Any]:
    """`name` and `options` of the view that the source of a prepared dataset declares.

    Where it declares none, square images of one size are taken as they are and all others as photographs.
    """
    from probmetric.data.manifest import load_metadata
    from probmetric.data.store import open_images

    found = source_view(load_metadata(folder)["dataset"], augment)
    if found is None:
        shape = open_images(folder).shape
        found = {"name": "small" if shape and shape[0] == shape[1] else "photos", "options": {}}
    return found


def source_view(source: str, augment: str = "standard") -> dict[str, Any] | None:
    """`name` and `options` of the view that `source` declares for `augment`; None where it declares none."""
    papers: Mapping[str, Any] = SOURCES.constant(source, "views", {})
    view = papers.get(augment) or SOURCES.constant(source, "view", {})
    if not view:
        return None
    options = {key: value for key, value in view.items() if key != "name"}
    REGISTRY.check_options(view["name"], options)
    return {"name": view["name"], "options": options}
