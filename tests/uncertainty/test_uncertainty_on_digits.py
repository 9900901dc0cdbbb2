"""On real handwriting (scikit-learn's digits): uncertainty grows on average with blur, noise and occlusion."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probmetric.losses import create_loss
from probmetric.uncertainty import create_uncertainty


class DigitNet(nn.Module):
    """Two small convolutions, 64 features, linear head to 16 dimensions."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, 16)

    def features(self, images):
        return self.trunk(images)

    def forward(self, images):
        return self.head(self.features(images))


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return images, torch.tensor(labels)


def train(loss_name, digits):
    """A net trained on the first 1,000 images, its loss, and training batches."""
    images, labels = digits[0][:1000], digits[1][:1000]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder, loss = DigitNet(), create_loss(loss_name, num_classes=10, dim=16)
        optimizer = torch.optim.Adam([*encoder.parameters(), *loss.parameters()], lr=2e-3)
        for _ in range(8):
            for rows in torch.randperm(1000).split(100):
                optimizer.zero_grad()
                loss(encoder(images[rows]), labels[rows]).backward()
                optimizer.step()
    return encoder, loss, [(images[k : k + 100], labels[k : k + 100]) for k in range(0, 1000, 100)]


@pytest.fixture(scope="module")
def contrastive(digits):
    return train("contrastive", digits)


@pytest.fixture(scope="module")
def softmax(digits):
    return train("softmax", digits)


def blurred(images, strength):
    sigma = 0.01 + 1.5 * strength
    weights = torch.exp(-(torch.arange(-4.0, 5.0) ** 2) / (2 * sigma**2))
    kernel = torch.outer(weights, weights) / weights.sum() ** 2
    return F.conv2d(images, kernel[None, None], padding=4)


def noisy(images, strength):
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + 0.5 * strength * noise).clamp(0, 1)


def occluded(images, strength):
    result = images.clone()
    result[:, :, : round(6 * strength)] = 0
    return result


EVIDENCE = {"prior": "marginal_likelihood", "score": "std_sum"}
DISTORTIONS = {"blur": blurred, "noise": noisy, "occlusion": occluded}


def mean_uncertainties(uncertainty, trained, images, distortion):
    encoder, loss, batches = trained
    posterior = None
    if uncertainty.fits:
        posterior = uncertainty.fit(encoder, batches, loss=loss, generator=torch.Generator().manual_seed(0))
    return [
        float(
            uncertainty.bind(encoder, posterior=posterior, loss=loss, seed=0)(
                DISTORTIONS[distortion](images, strength)
            ).uncertainty.mean()
        )
        for strength in (0.0, 0.5, 1.0)
    ]


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("options", [{"prior_precision": 10.0}, EVIDENCE, EVIDENCE | {"geometry": "euclidean"}])
def test_laplace_uncertainty_grows(distortion, options, contrastive, digits):
    """With a prior above 1: at 1 the draws of these small weights scatter, and the record warns of it."""
    uncertainty = create_uncertainty("laplace", samples=30, **options)
    clean, half, full = mean_uncertainties(uncertainty, contrastive, digits[0][1200:1500], distortion)
    assert clean < half
    assert clean < full


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_norm_uncertainty_grows(distortion, softmax, digits):
    clean, half, full = mean_uncertainties(create_uncertainty("norm"), softmax, digits[0][1200:1500], distortion)
    assert clean < half < full


def test_laplace_ranks_errors_and_distorted_images(contrastive, digits):
    """Default Laplace: wrongly retrieved and blurred images are more uncertain than the rest, far above chance.

    Weight noise of the same size, without the curvature, finds blurred images surer than clean ones.
    """
    images, labels = digits[0][1200:], digits[1][1200:]
    uncertainty, (encoder, _, batches) = create_uncertainty("laplace", samples=50), contrastive
    posterior = uncertainty.fit(encoder, batches, generator=torch.Generator().manual_seed(0))
    measured = uncertainty.bind(encoder, posterior=posterior, seed=0)(images)
    similarity = (measured.mean @ measured.mean.T).fill_diagonal_(-1)
    wrong = labels[similarity.argmax(1)] != labels
    assert 5 < int(wrong.sum()) < 100
    assert auroc(measured.uncertainty[~wrong], measured.uncertainty[wrong]) > 0.7
    blur = uncertainty.bind(encoder, posterior=posterior, seed=0)(blurred(images, 1.0))
    assert auroc(measured.uncertainty, blur.uncertainty) > 0.75
    control = create_uncertainty("laplace", samples=50, noise="isotropic")
    posterior = control.fit(encoder, batches, generator=torch.Generator().manual_seed(0))
    noise = control.bind(encoder, posterior=posterior, seed=0)
    assert auroc(noise(images).uncertainty, noise(blurred(images, 1.0)).uncertainty) < 0.5


def hib_recall(digits, fidelity):
    """Recall@1 of the samples' mean on held-out digits after 60 steps with HIB's objective."""
    images, labels = digits
    hib = create_uncertainty("hib", samples=20, train_samples=4, fidelity=fidelity)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = DigitNet()
        objective = hib.objective(encoder, create_loss("contrastive", num_classes=10, dim=16), num_images=1000)
        if objective.wants_warm_start:
            with torch.no_grad():
                objective.warm_start(encoder(images[:1000]), labels[:1000])
        optimizer = torch.optim.Adam([*encoder.parameters(), *objective.parameters()], lr=2e-3)
        for step, rows in enumerate(rows for _ in range(6) for rows in torch.randperm(1000).split(100)):
            generator = torch.Generator().manual_seed(step)
            optimizer.zero_grad()
            features = encoder.features(images[rows])
            objective.from_features(features, encoder.head, labels[rows], generator=generator).backward()
            optimizer.step()
    posterior = hib.fit(encoder, [], loss=objective, generator=torch.Generator())
    measured = hib.bind(encoder, posterior=posterior, seed=0)(images[1200:])
    similarity = (measured.mean @ measured.mean.T).fill_diagonal_(-1)
    return float((labels[1200:][similarity.argmax(1)] == labels[1200:]).float().mean())


def test_hib_trains_from_its_start_and_the_published_one_does_not(digits):
    assert hib_recall(digits, "corrected") > 0.85
    assert hib_recall(digits, "as_published") < 0.5


def auroc(low, high):
    """Probability that a value of `high` exceeds one of `low`."""
    return float((high[:, None] > low[None, :]).float().mean())
