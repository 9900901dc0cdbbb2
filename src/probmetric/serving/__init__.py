"""Trained models outside the workflow: a folder to load, a gallery to search, images in any form.

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
    from probmetric.serving.fitting import fit
    from probmetric.serving.gallery import Gallery
    from probmetric.serving.model import Model, load
    from probmetric.serving.model_folder import MODEL_FOLDER, run_gallery
    from probmetric.serving.registry import register
    from probmetric.serving.search import Answer, Match
    from probmetric.serving.service import run_service
    from probmetric.serving.vectors import example_vectors

__all__ = [
    "MODEL_FOLDER",
    "Answer",
    "Gallery",
    "Match",
    "Model",
    "check_vectors_file",
    "example_vectors",
    "fit",
    "load",
    "register",
    "run_gallery",
    "run_service",
    "write_program",
    "write_vectors",
]

__getattr__ = exported(
    __name__,
    {
        "Answer": "search",
        "Match": "search",
        "Gallery": "gallery",
        "Model": "model",
        "fit": "fitting",
        "load": "model",
        "register": "registry",
        "run_gallery": "model_folder",
        "check_vectors_file": "export",
        "write_program": "export",
        "write_vectors": "export",
        "MODEL_FOLDER": "model_folder",
        "run_service": "service",
        "example_vectors": "vectors",
    },
)
