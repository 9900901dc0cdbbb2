"""Views: how a stored image becomes the network's input. Size, resizing and crop, augmentation, normalisation.

    small    images of one size as they are stored, shifted, turned, erased
    photos   images of natural size, cropped and resized

A source names the view of its images (`Source.view`, and those of single papers in `Source.views`, chosen by
`training.augment`); a method or `defaults` of params.yaml may change options of it, or name another:

    view: {size: 128, resize: 144}                        the dataset's own view, smaller
    view: {name: photos, size: 384, scale: [0.5, 1.0]}    another one, with its own defaults

`from probmetric.data.views import View, register` is what a view of your own needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probmetric.lazy import exported
from probmetric.registry import Registry

if TYPE_CHECKING:
    from probmetric.data.views._base import View
    from probmetric.data.views._choice import source_view, view_of

REGISTRY = Registry("view", "probmetric.data.views")
register, list_views = REGISTRY.register, REGISTRY.names

__all__ = ["REGISTRY", "View", "create_view", "list_views", "register", "source_view", "view_of"]

__getattr__ = exported(__name__, {"View": "_base", "source_view": "_choice", "view_of": "_choice"})


def create_view(name: str, **options: Any) -> View:
    """Create the view `name`; unknown names and options are answered with the nearest valid one."""
    view: View = REGISTRY.create(name, **options)
    return view
