"""Distance from the training images, and predicted loss, against NumPy and SciPy."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.stats import spearmanr
from torch import nn

from probmetric.losses import create_loss
from probmetric.models._wrapped import wrapped
from probmetric.uncertainty import create_uncertainty

CLASSES, WIDTH = 4, 6


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(CLASSES, WIDTH, generator=generator)
    labels = torch.arange(CLASSES).repeat(20)
    rows = centres[labels] + torch.randn(len(labels), WIDTH, generator=generator)
    return rows, labels, torch.randn(7, WIDTH, generator=generator) * 2


def bound(uncertainty, rows, labels, loss=None, encoder=None):
    encoder = encoder or wrapped(nn.Identity(), WIDTH)
    batches = list(zip(rows.split(16), labels.split(16), strict=True))
    posterior = uncertainty.fit(encoder, batches, loss=loss, generator=torch.Generator().manual_seed(0))
    return uncertainty.bind(encoder, loss=loss, posterior=posterior, seed=0)


def unit(rows):
    return rows.double().numpy() / np.linalg.norm(rows.double().numpy(), axis=1, keepdims=True)


def test_doubt_is_the_distance_to_the_kth_nearest_training_image(data):
    rows, labels, asked = data
    doubt = bound(create_uncertainty("density", neighbours=5), rows, labels)(asked).uncertainty
    cosines = np.sort(unit(asked) @ unit(rows).T, axis=1)
    np.testing.assert_allclose(doubt, 1 - cosines[:, -5], atol=1e-6)


def test_more_neighbours_than_images_take_the_farthest(data):
    rows, labels, asked = data
    doubt = bound(create_uncertainty("density", neighbours=1000), rows, labels)(asked).uncertainty
    np.testing.assert_allclose(doubt, 1 - (unit(asked) @ unit(rows).T).min(axis=1), atol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_doubt_is_the_mahalanobis_distance_to_the_nearest_class(data, shrinkage):
    rows, labels, asked = data
    made = bound(create_uncertainty("density", kind="mahalanobis", shrinkage=shrinkage), rows, labels)
    points = unit(rows)
    means = np.stack([points[labels == label].mean(axis=0) for label in range(CLASSES)])
    within = points - means[labels]
    covariance = within.T @ within / len(points)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / WIDTH * np.eye(WIDTH)
    inverse = np.linalg.inv(covariance)
    expected = [min(mahalanobis(point, mean, inverse) ** 2 for mean in means) for point in unit(asked)]
    np.testing.assert_allclose(made(asked).uncertainty, expected, rtol=1e-3)


def test_predicted_loss_is_larger_where_the_classifier_is_wrong(data):
    rows, _, _ = data
    generator = torch.Generator().manual_seed(1)
    hard = torch.arange(len(rows)) % 2 == 0  # half of the images have a label drawn at random, told by a feature
    rows = torch.cat([rows[:, :-1], hard[:, None] * 4.0], dim=1)
    drawn = torch.randint(CLASSES, (len(rows),), generator=generator)
    labels = torch.where(hard, drawn, torch.arange(CLASSES).repeat(20))
    loss = create_loss("softmax", num_classes=CLASSES, dim=WIDTH)
    loss_of = nn.Linear(WIDTH, WIDTH)
    encoder = wrapped(nn.Sequential(nn.Identity(), loss_of), WIDTH)
    optimizer = torch.optim.Adam([*loss.parameters(), *loss_of.parameters()], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss(encoder(rows), labels).backward()
        optimizer.step()
    made = bound(create_uncertainty("loss_prediction", epochs=200, learning_rate=0.01), rows, labels, loss, encoder)
    truth = -torch.log(loss.probabilities(encoder(rows))[torch.arange(len(rows)), labels]).detach()
    assert spearmanr(made(rows).uncertainty, truth).statistic > 0.6
    again = bound(create_uncertainty("loss_prediction", epochs=200, learning_rate=0.01), rows, labels, loss, encoder)
    assert torch.equal(made(rows).uncertainty, again(rows).uncertainty)


def test_a_loss_without_classes_is_refused(data):
    rows, labels, _ = data
    with pytest.raises(ValueError, match=r"Contrastive, which defines no class probabilities; .*loss_prediction need"):
        bound(create_uncertainty("loss_prediction"), rows, labels, create_loss("contrastive", num_classes=4, dim=WIDTH))


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_beyond_the_classifier_is_named(label):
    loss = create_loss("cosine", num_classes=4, dim=WIDTH)
    low, high = min(label, 0), max(label, 0)
    with pytest.raises(ValueError, match=rf"training labels span {low}..{high}, the classifier knows 0..3; create"):
        bound(create_uncertainty("loss_prediction"), torch.ones(2, WIDTH), torch.tensor([0, label]), loss)
