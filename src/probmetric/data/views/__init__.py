"""Turn stored images into the network's input by views: size, resizing and crop, augmentation, normalisation.

    small    images of one size, not resized; training may shift, turn and erase
    photos   images of natural size, cropped and resized
    vectors  stored vectors of a frozen model

A source names the view of its images (`Source.view`, and those of single papers in `Source.views`, chosen by
`training.augment`); a method or `defaults` of params.yaml may change options of it, or name another:

    view: {size: 128, resize: 144}                        the dataset's own view, smaller
    view: {name: photos, size: 384, scale: [0.5, 1.0]}    another one, with its own defaults

`training.augment` is one of

    standard   `Source.view`
    vmf, lam   `Source.views["vmf"]`, `["lam"]`: as in a paper's code; the standard view if the source has none
    none       the standard view without its augmentation

A view of your own starts with `from probmetric.data.views import View, register, uniforms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.lazy import exported
from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.data.views._base import View, uniforms

REGISTRY = Registry("view", "probmetric.data.views")
register, list_views = REGISTRY.register, REGISTRY.names

__all__ = ["REGISTRY", "View", "create_view", "list_views", "register", "source_view", "uniforms", "view_of"]

__getattr__ = exported(__name__)


def create_view(name: str, **options: Any) -> View:
    """Create the view `name`; the error for an unknown name or option suggests the nearest valid one."""
    view: View = REGISTRY.create(name, **options)
    return view


def view_of(
    folder: str | Path, *, augment: str = "standard", chosen: Mapping[str, Any] | None = None, statistics: Any = None
) -> View:
    """Return the training view of a prepared dataset; validation and every later step use its `evaluation()`.

    Args:
        folder: the prepared dataset.
        augment: `training.augment`, see above.
        chosen: `name` and `options` of the view that the run sets; None if it sets none.
        statistics: (mean, standard deviation) that the backbone was trained with, if it has them.
    """
    if chosen is None:
        chosen = declared(folder, augment)
    view = create_view(chosen["name"], **chosen["options"]).for_backbone(statistics)
    return view.evaluation() if augment == "none" else view


def declared(folder: str | Path, augment: str = "standard") -> dict[str, Any]:
    """Return `name` and `options` of the view that the source of a prepared dataset declares.

    Where it declares none, square images of one size are taken as they are and all others as photographs.
    """
    from probmetric.data.manifest import load_metadata  # here: views are listed without NumPy
    from probmetric.data.store import open_images

    view = source_view(load_metadata(folder)["dataset"], augment)
    if view is None:
        shape = open_images(folder).shape
        view = {"name": "small" if shape and shape[0] == shape[1] else "photos", "options": {}}
    return view


def source_view(source: str, augment: str = "standard") -> dict[str, Any] | None:
    """Return `name` and `options` of the view that `source` declares for `augment`; None where it declares none."""
    papers: Mapping[str, Any] = SOURCES.constant(source, "views", {})
    view = papers.get(augment) or SOURCES.constant(source, "view", {})
    if not view:
        return None
    options = dict(view)
    name = options.pop("name", "")
    REGISTRY.check_options(name, options)
    return {"name": name, "options": options}
