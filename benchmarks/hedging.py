"""Where HIB's noise goes: how its likelihood and its divergence pull at the noise of clear and of distorted images.

    python benchmarks/hedging.py results/glyphs/tuned-hib+training.epochs=90/seed0 [more runs]

Finished runs of HIB on data whose manifest has the column `distortion`. For the training images, in balanced batches:
derivatives of both terms with respect to the logarithm of an image's σ as a whole, by thirds of the distortion;
positive where less noise lowers the loss. For the test images: σ as a share of |μ|, and what 1/|μ|, σ and σ/|μ| tell,
as AUROC of a wrong nearest neighbour and as rank correlation with the distortion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from _machine import hardware, keep, parser
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probmetric.config import EncoderSettings
from probmetric.data.manifest import load_columns
from probmetric.data.reader import SplitReader
from probmetric.evaluation.correlation import spearman
from probmetric.evaluation.ood import auroc
from probmetric.models import Encoder
from probmetric.run_folder import RunFolder
from probmetric.training.data import training_view
from probmetric.training.network import load_encoder
from probmetric.uncertainty.hib import HIBObjective

CLASSES, PER_CLASS = 24, 4


def represented(
    encoder: Encoder,
    objective: HIBObjective,
    settings: EncoderSettings,
    folder: Path,
    split: str,
    shape: tuple[int, int],
) -> dict[str, Any]:
    """Means and log variances (N, M), labels and distortions (N,) of a split."""
    reader = SplitReader(folder, split, training_view(settings, folder).evaluation(), shape=shape)
    with torch.no_grad():
        features = torch.cat([encoder.features(images) for images in reader.batches()])
        assert encoder.head is not None
        mean, log_variance = encoder.head(features), objective.variance(features)
    distortion = load_columns(folder, ["distortion"])["distortion"][reader.index.numpy()]
    return {"mean": mean, "log_variance": log_variance, "label": reader.labels, "distortion": distortion}


def pulls(objective: HIBObjective, images: dict[str, Any], batches: int = 150) -> dict[str, list[float]]:
    """Mean derivatives by thirds of the distortion, of the likelihood and of the weighted divergence."""
    generator, draw = torch.Generator().manual_seed(0), np.random.default_rng(0)
    labels = images["label"].numpy()
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    found, distortion = [], []
    for _ in range(batches):
        classes = draw.choice(len(members), CLASSES, replace=False)
        rows = np.concatenate([draw.choice(members[k], PER_CLASS, replace=False) for k in classes])
        found.append(_pulls_of(objective, images, rows, generator))
        distortion.append(images["distortion"][rows])
    values, order = np.concatenate(found), np.argsort(np.concatenate(distortion), kind="stable")
    thirds = [values[part].mean(axis=0) for part in np.array_split(order, 3)]
    return {name: [float(third[k]) for third in thirds] for k, name in enumerate(("likelihood", "divergence"))}


def _pulls_of(
    objective: HIBObjective, images: dict[str, Any], rows: NDArray[np.int64], generator: torch.Generator
) -> NDArray[np.float32]:
    mean, labels = images["mean"][rows], images["label"][torch.from_numpy(rows)]
    stretch = torch.zeros(len(rows), requires_grad=True)
    log_variance = images["log_variance"][rows] + 2 * stretch[:, None]
    noise = torch.randn(objective.train_samples, *mean.shape, generator=generator)
    samples = F.normalize(mean + (0.5 * log_variance).exp() * noise, dim=-1)
    match, mismatch = objective.log_probabilities(samples)
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(rows), dtype=torch.bool)
    terms: tuple[Tensor, Tensor] = (
        -match[positive].mean() - mismatch[~same].mean(),
        objective.kl_weight * objective.divergence(mean, log_variance).mean(),
    )
    slopes = [torch.autograd.grad(term, stretch, retain_graph=True)[0] for term in terms]
    return (len(rows) * torch.stack(slopes, dim=1)).numpy()


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
        records.append(
            {"run": f"{path.parent.name}/{path.name}", "pull on log sigma": pulls(objective, train)} | told(test)
        )
        print(records[-1])
    keep({"hardware": hardware("torch", device=torch.device("cpu")), "runs": records}, options.output)


if __name__ == "__main__":
    main()
