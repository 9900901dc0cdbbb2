"""The proxies a loss reports, with their classes, are those its value is about, and can start at class means."""

import pytest
import torch

from probmetric.losses import create_loss, list_losses
from probmetric.losses._base import point_at_class_means

CLASSES, DIM = 5, 8
# Its attraction grows with distance: with several proxies to a class it prefers their mean to each of them.
OPTIONS = {"contrastive_potential": {"proxies_per_class": 1}}


def proxied() -> list[str]:
    return [name for name in list_losses() if create(name).class_proxies() is not None]


def create(name: str):
    torch.manual_seed(0)
    return create_loss(name, num_classes=CLASSES, dim=DIM, **OPTIONS.get(name, {}))


def test_the_proxy_losses_are_among_them():
    assert {"proxy_anchor", "proxy_nca", "soft_triple", "potential_field", "nir", "el_nivmf"} <= set(proxied())
    assert "contrastive" not in proxied()


@pytest.mark.parametrize("name", proxied())
def test_an_image_on_a_proxy_suits_the_class_of_that_proxy_best(name):
    loss = create(name)
    proxies, owners = loss.class_proxies()
    torch.testing.assert_close(proxies.norm(dim=1), torch.ones(len(proxies)))
    assert torch.unique(owners).tolist() == list(range(CLASSES))
    judged = loss.base if name == "nir" else loss
    for proxy, owner in zip(10 * proxies.detach(), owners, strict=True):
        values = [judged(proxy[None], torch.tensor([label])).item() for label in range(CLASSES)]
        assert min(range(CLASSES), key=values.__getitem__) == owner


def with_vectors() -> list[str]:
    return [name for name in list_losses() if create(name).class_vectors() is not None]


def test_classifiers_and_pair_losses_say_what_stands_for_a_class():
    assert {"softmax", "cosine", "arcface", "vmf", "proxy_anchor", "soft_triple", "potential_field", "nir"} <= set(
        with_vectors()
    )
    assert not {"contrastive", "multi_similarity", "triplet"} & set(with_vectors())


@pytest.mark.parametrize("name", with_vectors())
def test_vectors_turn_to_the_means_of_their_classes_and_keep_their_lengths(name):
    """Images of classes 0 to 3 lie along the first four axes, at lengths that must not count; class 4 has none."""
    loss = create(name)
    rows, classes = loss.class_vectors()
    before = rows.detach().clone()
    labels = torch.arange(4).repeat_interleave(2)
    embeddings = torch.eye(DIM)[labels] * torch.tensor([1.0, 9.0]).repeat(4)[:, None]
    point_at_class_means(loss, embeddings, labels)
    rows = rows.detach()
    torch.testing.assert_close(rows.norm(dim=1), before.norm(dim=1))
    assert torch.equal(rows[classes == 4], before[classes == 4])
    seen = classes < 4
    directions = torch.nn.functional.normalize(rows[seen])
    if len(rows) == CLASSES:
        torch.testing.assert_close(directions, torch.eye(DIM)[classes[seen]])
    else:
        assert (directions.argmax(dim=1) == classes[seen]).all()
        assert len(torch.unique(directions, dim=0)) == len(directions), "those of one class differ"


def test_a_loss_without_vectors_is_left_alone():
    loss = create("contrastive")
    point_at_class_means(loss, torch.eye(DIM)[:2], torch.tensor([0, 1]))
    assert not list(loss.parameters())
