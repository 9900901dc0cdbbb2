"""The posterior of `letters_exact` is the one of the images as they are stored."""

import numpy as np
import pytest
from scipy.stats import norm

from probmetric.data import load_columns, load_manifest, open_images, prepare_dataset
from probmetric.data.exact import INK, LEVELS, PAPER, Templates, drawn, log_likelihoods, split_posterior
from probmetric.data.manifest import OptionError


@pytest.fixture(scope="module")
def few():
    templates = Templates.of(["A", "B", "Ж"])
    return Templates(templates.ink[::9].copy(), templates.owner[::9].copy())


def test_pixel_likelihoods_are_those_of_rounded_and_cut_values():
    for sigma in LEVELS:
        table = np.exp(log_likelihoods(sigma))
        np.testing.assert_allclose(table.sum(axis=1), 1.0, atol=1e-12)
        for ink in (0, 1):
            edges = np.r_[-np.inf, np.arange(255) + 0.5, np.inf]
            expected = np.diff(norm.cdf(edges, PAPER + INK * ink, INK * sigma))
            np.testing.assert_allclose(table[ink], expected, rtol=1e-6, atol=1e-14)


def test_the_posterior_is_bayes_rule_term_by_term(few):
    rng = np.random.default_rng(0)
    image = drawn(few, 1, 1.6, rng)
    total = np.zeros(3)
    for sigma in LEVELS:
        for ink, owner in zip(few.ink, few.owner, strict=True):
            mean = PAPER + INK * ink
            value = image.ravel().astype(float)
            low = np.where(value == 0, -np.inf, value - 0.5)
            high = np.where(value == 255, np.inf, value + 0.5)
            below = norm.cdf(high, mean, INK * sigma) - norm.cdf(low, mean, INK * sigma)
            above = norm.sf(low, mean, INK * sigma) - norm.sf(high, mean, INK * sigma)
            chance = np.where(value > mean, above, below)
            total[owner] += np.exp(np.log(chance).sum() + 1400) / np.sum(few.owner == owner)
    np.testing.assert_allclose(few.posterior(image[None])[0], total / total.sum(), rtol=1e-6)


def test_stated_probabilities_come_true(few):
    rng = np.random.default_rng(1)
    owners = rng.integers(0, 3, 6000)
    images = np.stack([drawn(few, owner, rng.choice(LEVELS) * 2.5, rng) for owner in owners])
    assert few.posterior(images).shape == (6000, 3)  # at other levels than the posterior's nothing is promised
    images = np.stack([drawn(few, owner, rng.choice(LEVELS), rng) for owner in owners])
    posterior = few.posterior(images)
    stated, hit = posterior.max(axis=1), posterior.argmax(axis=1) == owners
    spread = np.sqrt(np.mean(stated * (1 - stated)) / 6000)
    assert abs(stated.mean() - hit.mean()) < 4 * spread
    same = np.einsum("nc,nc->n", posterior[::2], posterior[1::2])
    assert abs(same.mean() - np.mean(owners[::2] == owners[1::2])) < 0.03


def test_the_columns_are_what_is_computed_from_the_stored_images(prepared):
    frame = load_manifest(prepared / "letters_exact")
    rows = np.flatnonzero(frame.split == "test")[::40]
    posterior, labels = split_posterior(prepared / "letters_exact", rows)
    own = posterior[np.arange(len(rows)), np.searchsorted(labels, frame.label.to_numpy()[rows])]
    np.testing.assert_allclose(frame.true_probability.to_numpy()[rows], own, rtol=1e-9)
    np.testing.assert_allclose(frame.bayes_probability.to_numpy()[rows], posterior.max(axis=1), rtol=1e-9)
    entropy = -np.sum(posterior * np.log(np.maximum(posterior, 1e-300)), axis=1)
    np.testing.assert_allclose(frame.entropy.to_numpy()[rows], entropy, rtol=1e-6, atol=1e-12)
    assert open_images(prepared / "letters_exact").shape == (16, 16, 1)


def test_noise_makes_letters_ambiguous_and_classes_are_unseen(prepared):
    columns = load_columns(prepared / "letters_exact", ["label", "split", "noise", "bayes_probability"])
    means = [columns["bayes_probability"][columns["noise"] == level].mean() for level in LEVELS]
    assert means[0] > 0.98
    assert means[-1] < 0.6
    assert np.all(np.diff(means) < 0)
    parts = [columns["label"][columns["split"] == part] for part in ("train", "val", "test")]
    assert [len(set(part)) for part in parts] == [52, 18, 40]
    assert len(set(columns["label"])) == 110
    assert [len(part) // len(set(part)) for part in parts] == [24, 48, 48]  # with the defaults 480


@pytest.mark.parametrize("tested", [9, 12])
def test_testing_on_all_letters_or_all_but_one_is_refused(tmp_path, tested):
    with pytest.raises(OptionError, match=f"test_letters is {tested} of 10 letters"):
        prepare_dataset("letters_exact", tmp_path / "exact", letters=10, test_letters=tested, progress=False)


def test_images_of_another_kind_are_refused(few):
    with pytest.raises(ValueError, match="images have shape"):
        few.posterior(np.zeros((2, 32, 32, 1), dtype=np.uint8))
