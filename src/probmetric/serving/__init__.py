"""Trained models outside the workflow: a folder to load, a gallery to search, images in any form.

model = probmetric.load("shop-model")             a model folder, a run, or models:/<name>/<version> of MLflow
batch = model.embed([pil_image, array, tensor, "file.jpg"])
gallery = probmetric.Gallery.create(model, "photos/")
model = probmetric.fit(dataset, network)          a network and a torch.utils.data.Dataset of your own
answers = model.search(gallery, ["query.jpg"])
"""

from __future__ import annotations

from probmetric.lazy import exported

__getattr__ = exported(
    __name__,
    {
        "export": ("check_vectors_file", "write_program", "write_vectors"),
        "fitting": ("fit",),
        "gallery": ("Gallery",),
        "model": ("Model", "load"),
        "model_folder": ("MODEL_FOLDER", "run_gallery"),
        "registry": ("register",),
        "service": ("run_service",),
        "vectors": ("example_vectors",),
    },
)
