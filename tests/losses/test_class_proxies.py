"""The proxies a loss reports, with their classes, are those its value is about."""

import pytest
import torch

from probmetric.losses import create_loss, list_losses

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
