"""Trained models outside the workflow: a folder to load, a gallery to search, images in any form.

model = probmetric.load("shop-model")             a model folder, a run, or models:/<name>/<version> of MLflow
found = model.embed([pil_image, array, tensor, "file.jpg"])
gallery = probmetric.Gallery.create(model, "photos/")
model = probmetric.fit(dataset, network)          a network and a torch.utils.data.Dataset of your own
answers = model.search(gallery, ["query.jpg"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.serving._answers import Answer, Match
    from probmetric.serving._gallery import Gallery
    from probmetric.serving._loading import load
    from probmetric.serving._model import Model
    from probmetric.serving.fitting import fit

__all__ = ["Answer", "Gallery", "Match", "Model", "fit", "load"]

__getattr__ = exported(
    __name__,
    {
        "Answer": "_answers",
        "Match": "_answers",
        "Gallery": "_gallery",
        "Model": "_model",
        "fit": "fitting",
        "load": "_loading",
    },
)
