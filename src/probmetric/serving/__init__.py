"""Use trained models outside the workflow: load a model folder, embed images in any form, search a gallery.

model = probmetric.load("shop-model")             a model folder, a run, or models:/<name>/<version> of MLflow
batch = model.embed([pil_image, array, tensor, "file.jpg"])
gallery = probmetric.Gallery.create(model, "photos/")
model = probmetric.fit(dataset, network)          a network and a torch.utils.data.Dataset of your own
answers = model.search(gallery, ["query.jpg"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.serving.export import check_vectors_file, write_program, write_vectors
    from probmetric.serving.model import Model, load
    from probmetric.serving.model_folder import MODEL_FOLDER, run_gallery
    from probmetric.serving.registry import register
    from probmetric.serving.service import run_service

__all__ = [
    "MODEL_FOLDER",
    "Model",
    "check_vectors_file",
    "load",
    "register",
    "run_gallery",
    "run_service",
    "write_program",
    "write_vectors",
]

__getattr__ = exported(__name__)
