"""What MLflow calls for a model it holds: images in, a table of embeddings out. Named in `MLmodel`, never pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from probmetric.serving._model import Model

IMAGE = "image"


class Served:
    """A model behind MLflow's interface."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Columns `mean` (M numbers each) and `uncertainty` for the column `image`: bytes of image files, or paths."""
        import pandas as pd

        found = self.model.embed(list(data[IMAGE]))
        return pd.DataFrame({"mean": list(found.mean.numpy()), "uncertainty": found.uncertainty.numpy()})


def _load_pyfunc(path: str) -> Served:
    from probmetric.serving._loading import load

    return Served(load(path))
