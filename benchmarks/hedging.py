"""Which noise HIB's objective asks for: σ of every training image optimised by itself, the means as trained.

    python benchmarks/hedging.py results/glyphs/tuned-hib+training.epochs=90/seed0 [more runs]

Trained runs of HIB (`probmetric run RUN`) on data whose manifest has the column `distortion`. Rank correlation of
σ/|μ| with the distortion of the training images: as the network has it, and where the objective has it once every image
has a factor of its own on σ, from the network's σ and from one common σ; if both end alike, it is the objective's. For
the test images: what 1/|μ|, σ and σ/|μ| tell: AUROC of a wrong neighbour, rank correlation with the distortion.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import hardware, keep, parser
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probmetric.config import EncoderSettings
from probmetric.data.images import Eye, PreparedImages, batches
from probmetric.data.manifest import load_columns
from probmetric.metrics.correlation import spearman
from probmetric.metrics.ood import auroc
from probmetric.models import Encoder
from probmetric.runs.folder import RunFolder
from probmetric.training.assemble import load_encoder
from probmetric.training.data import training_view
from probmetric.uncertainty.hib import HIBObjective

CLASSES, PER_CLASS = 24, 4
EPOCHS, RATE = 60, 0.03


def represented(
    encoder: Encoder,
    objective: HIBObjective,
    settings: EncoderSettings,
    folder: Path,
    split: str,
    shape: tuple[int, int],
) -> dict[str, Any]:
    """Means and log variances (N, M), labels and distortions (N,) of a split."""
    source = PreparedImages.of_split(folder, split)
    eye = Eye(training_view(settings, folder).evaluation(), shape)
    with torch.no_grad():
        features = torch.cat([encoder.features(images) for images in batches(source, eye)])
        assert encoder.head is not None
        mean, log_variance = encoder.head(features), objective.variance(features)
    distortion = load_columns(folder, ["distortion"])["distortion"][source.index]
    return {
        "mean": mean,
        "log_variance": log_variance,
        "label": torch.from_numpy(source.labels),
        "distortion": distortion,
    }


def optimised(objective: HIBObjective, images: dict[str, Any], log_variance: Tensor) -> Tensor:
    """Log variances (N, M): the given ones, each image's σ multiplied by the factor that the objective prefers."""
    generator, draw = torch.Generator().manual_seed(0), np.random.default_rng(0)
    stretch = torch.zeros(len(log_variance), requires_grad=True)
    optimizer = torch.optim.Adam([stretch], lr=RATE)
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - epoch / EPOCHS)
        for rows in _balanced(images["label"].numpy(), draw):
            own = log_variance[rows] + 2 * stretch[rows][:, None]
            optimizer.zero_grad()
            objective.of_gaussians(images["mean"][rows], own, images["label"][rows], generator=generator).backward()
            optimizer.step()
    return (log_variance + 2 * stretch[:, None]).detach()


def _balanced(labels: NDArray[np.int64], draw: np.random.Generator) -> Iterator[Tensor]:
    """Batches of `CLASSES` times `PER_CLASS` rows in which every row comes at most once."""
    orders = [draw.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    groups = [order[k : k + PER_CLASS] for order in orders for k in range(0, len(order) - PER_CLASS + 1, PER_CLASS)]
    draw.shuffle(groups)
    for k in range(0, len(groups) - CLASSES + 1, CLASSES):
        yield torch.from_numpy(np.concatenate(groups[k : k + CLASSES]))


def correlations(objective: HIBObjective, images: dict[str, Any]) -> dict[str, float]:
    """Rank correlation of σ/|μ| with the distortion: as trained, and once σ is optimised from two starts."""
    trained = images["log_variance"]
    common = torch.full_like(trained, float(trained.exp().mean().log()))
    found = {
        "trained": trained,
        "optimised": optimised(objective, images, trained),
        "optimised from one common sigma": optimised(objective, images, common),
    }
    length = images["mean"].norm(dim=1)
    return {
        name: spearman((value.exp().sum(1).sqrt() / length).numpy(), images["distortion"])
        for name, value in found.items()
    }


def told(images: dict[str, Any]) -> dict[str, Any]:
    """What 1/|μ|, σ and σ/|μ| tell of the images: AUROC of a wrong neighbour, rank correlation with the distortion."""
    length, noise = images["mean"].norm(dim=1), images["log_variance"].exp().sum(1).sqrt()
    cosine = F.normalize(images["mean"], dim=1) @ F.normalize(images["mean"], dim=1).T
    nearest = cosine.fill_diagonal_(-2).argmax(dim=1)
    wrong = (images["label"][nearest] != images["label"]).numpy()
    scores = {"1/|mu|": -length, "sigma": noise, "sigma/|mu|": noise / length}
    told = {
        name: {
            "wrong, AUROC": auroc(score.numpy()[~wrong], score.numpy()[wrong]),
            "distortion, rho": spearman(score.numpy(), images["distortion"]),
        }
        for name, score in scores.items()
    }
    return {"recall@1": 1 - float(wrong.mean()), "median sigma/|mu|": float((noise / length).median())} | told


def main() -> None:
    """Measure, print and write the results."""
    arguments = parser(__doc__)
    arguments.add_argument("runs", nargs="+", type=Path)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    records = []
    for path in options.runs:
        encoder, objective, settings = load_encoder(path)
        if not isinstance(objective, HIBObjective):
            raise SystemExit(f"{path} was not trained with objective hib.")
        facts = RunFolder(path).encoder["encoder"]
        given = encoder, objective, settings, Path("data/prepared", settings.dataset)
        train, test = (
            represented(*given, split, (facts["in_channels"], facts["image_size"])) for split in ("train", "test")
        )
        found = {"run": f"{path.parent.name}/{path.name}", "rho of training images": correlations(objective, train)}
        records.append(found | told(test))
        print(records[-1])
    keep({"hardware": hardware("torch", device=torch.device("cpu")), "runs": records}, options.output)


if __name__ == "__main__":
    main()
