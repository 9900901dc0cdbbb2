"""Samplers and transforms are functions of (seed, epoch, index): nothing else may change the data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probmetric.data.samplers import Batching, create_sampler, members_of, pair_sampler, pairs_of_classes
from probmetric.data.views import create_view, source_view
from probmetric.data.views._base import uniforms
from probmetric.data.views.small import Small, _affine_grid

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8))


def sampler_of(name, labels, size, per_class=1, seed=0, steps=None):
    return create_sampler(Batching(name, size, per_class, steps), np.asarray(labels), seed)


def pairs_among(labels, size, seed):
    return pair_sampler(*pairs_of_classes(labels), size, seed)


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    classes=st.integers(1, 6),
    per_class=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    replacement=st.booleans(),
)
def test_balanced_batches_have_p_classes_of_k_images(sizes, classes, per_class, seed, replacement):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    batches = sampler_of(
        "balanced_with_replacement" if replacement else "balanced", labels, classes * per_class, per_class, seed
    )
    for batch in batches.epoch(3):
        found, counts = np.unique(labels[batch], return_counts=True)
        assert len(found) == min(classes, len(sizes))
        assert (counts == per_class).all()
        if not replacement:
            for label in found:
                own = batch[labels[batch] == label]
                assert len(np.unique(own)) == min(per_class, (labels == label).sum())


def test_without_replacement_equal_classes_are_used_equally():
    labels = np.repeat(np.arange(12), 8)
    seen = np.bincount(np.concatenate(sampler_of("balanced", labels, 16, 4).epoch(0)), minlength=96)
    assert (seen == 1).all()


def test_every_class_is_used_almost_equally_when_sizes_differ():
    labels = np.repeat(np.arange(30), np.random.default_rng(0).integers(3, 40, 30))
    used = labels[np.concatenate(sampler_of("balanced", labels, 32, 4).epoch(0))]
    counts = np.bincount(used, minlength=30)
    assert counts.max() - counts.min() <= 4


def test_batches_depend_on_seed_and_epoch_alone():
    labels = np.repeat(np.arange(10), 10)
    for make in (
        lambda seed: sampler_of("balanced", labels, 20, 2, seed),
        lambda seed: sampler_of("shuffle", labels, 20, seed=seed),
    ):
        sampler = make(1)
        assert same(sampler.epoch(4), make(1).epoch(4))
        sampler.epoch(0)
        assert same(sampler.epoch(4), make(1).epoch(4))
        assert not same(sampler.epoch(4), sampler.epoch(5))
        assert not same(sampler.epoch(4), make(2).epoch(4))
        assert len(sampler.epoch(0)) == len(sampler)


def test_class_random_batches_draw_classes_and_images_with_replacement():
    labels = np.repeat(np.arange(6), [1, 2, 3, 30, 30, 30])
    sampler = sampler_of("class_random", labels, 8, 2)
    batches = [batch for epoch in range(60) for batch in sampler.epoch(epoch)]
    groups = np.stack(batches).reshape(-1, 2)
    assert (labels[groups[:, 0]] == labels[groups[:, 1]]).all()
    counts = np.bincount(labels[groups[:, 0]], minlength=6)
    assert np.abs(counts / counts.sum() - 1 / 6).max() < 0.03
    assert any(len(np.unique(labels[batch])) < 4 for batch in batches)
    same_image = (groups[:, 0] == groups[:, 1])[labels[groups[:, 0]] == 1].mean()
    assert abs(same_image - 0.5) < 0.1


def test_shuffled_batches_cover_distinct_images():
    batches = sampler_of("shuffle", np.zeros(103), 20).epoch(0)
    rows = np.concatenate(batches)
    assert [len(batch) for batch in batches] == [20] * 5
    assert len(np.unique(rows)) == 100
    assert len(sampler_of("shuffle", np.zeros(7), 20).epoch(0)[0]) == 7


def test_a_batch_size_that_does_not_fit_is_explained():
    with pytest.raises(ValueError, match="not a multiple of 4 images per class; nearest allowed: 20"):
        sampler_of("balanced", np.arange(50) // 5, 21, 4)
    with pytest.raises(ValueError, match="training split is empty"):
        sampler_of("balanced", np.empty(0, dtype=int), 8, 4)


def test_counter_numbers_are_uniform_and_independent_of_company():
    draws = uniforms(3, 7, np.arange(20000), 4)
    assert draws.min() >= 0
    assert draws.max() < 1
    for column in draws.T:
        assert abs(column.mean() - 0.5) < 4 / np.sqrt(12 * 20000)
        histogram = np.histogram(column, bins=50, range=(0, 1))[0]
        assert ((histogram - 400) ** 2 / 400).sum() < 49 + 5 * np.sqrt(98)
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.03
    np.testing.assert_array_equal(uniforms(3, 7, np.array([19, 4]), 4), draws[[19, 4]])
    neighbours = [uniforms(s, e, np.arange(20000), 1)[:, 0] for s, e in ((3, 7), (3, 8), (4, 7))]
    assert np.abs(np.corrcoef(neighbours) - np.eye(3)).max() < 0.03


def declared(source):
    view = source_view(source)
    return create_view(view["name"], **view["options"])


RECIPES = {
    **{name: declared(name) for name in ("digits", "glyphs", "symbols", "cifar10", "cifar100")},
    "zero": Small(shift=3, padding="zero", flip=True),
    "affine": Small(shift=2, rotation=15, scale=0.2, flip=True, padding="zero", erase=5),
}


@pytest.mark.parametrize("name", RECIPES)
def test_an_image_is_augmented_the_same_in_any_batch(name):
    transform, rows = RECIPES[name], np.arange(40) * 3 + 1
    whole = transform(IMAGES, rows, seed=1, epoch=2)
    assert whole.dtype == torch.float32
    assert whole.shape == IMAGES.shape
    order = np.random.default_rng(1).permutation(40)
    shuffled = transform(IMAGES[torch.from_numpy(order)], rows[order], seed=1, epoch=2)
    assert torch.equal(shuffled, whole[torch.from_numpy(order)])
    pieces = [transform(IMAGES[i : i + 7], rows[i : i + 7], seed=1, epoch=2) for i in range(0, 40, 7)]
    assert torch.equal(torch.cat(pieces), whole)
    if transform != transform.evaluation():
        assert not torch.equal(transform(IMAGES, rows, seed=1, epoch=3), whole)
        assert not torch.equal(transform(IMAGES, rows, seed=2, epoch=2), whole)


@pytest.mark.parametrize(("padding", "mode"), [("edge", "edge"), ("reflect", "reflect"), ("zero", "constant")])
def test_a_shift_is_a_crop_of_the_padded_image(padding, mode):
    out = Small(shift=3, padding=padding)(IMAGES, np.arange(40), seed=0, epoch=0).numpy() * 255
    padded = np.pad(IMAGES.numpy(), ((0, 0), (0, 0), (3, 3), (3, 3)), mode=mode)
    shifts = set()
    for image, source in zip(np.rint(out), padded, strict=True):
        hits = [(y, x) for y in range(7) for x in range(7) if (source[:, y : y + 32, x : x + 32] == image).all()]
        assert len(hits) == 1
        shifts.update(hits)
    assert len(shifts) > 20


def test_affine_maps_agree_with_scipy():
    from scipy.ndimage import affine_transform

    transform = Small(rotation=20, scale=0.2, padding="zero")
    smooth = np.random.default_rng(0).random((4, 1, 32, 24))
    smooth = np.kron(smooth[:, :, ::8, ::8], np.ones((8, 8)))
    images = torch.from_numpy((smooth * 255).astype(np.uint8))
    out = transform(images, np.arange(4), seed=0, epoch=0).numpy()
    draws = 2 * uniforms(0, 0, np.arange(4), 8) - 1
    for i in range(4):
        angle, zoom = np.deg2rad(20 * draws[i, 2]), 1 / (1 + 0.2 * draws[i, 3])
        matrix = zoom * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        centre = np.array([15.5, 11.5])
        source = images[i, 0].numpy() / 255.0
        expected = affine_transform(source, matrix, centre - matrix @ centre, order=1, mode="constant")
        np.testing.assert_allclose(out[i, 0][6:-6, 6:-6], expected[6:-6, 6:-6], atol=1e-4)


def test_flip_normalise_and_erase():
    out = Small(flip=True)(IMAGES, np.arange(40), seed=0, epoch=0)
    plain = IMAGES.float() / 255
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(out, plain, strict=True)]
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, out, plain, strict=True))
    assert 10 < sum(mirrored) < 30
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    erased = Small(mean=mean, std=std, erase=8)(IMAGES, np.arange(40), seed=0, epoch=0)
    normal = (plain - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)
    hole = erased != normal
    assert torch.allclose(erased[~hole], normal[~hole])
    assert (erased[hole] == 0).all()
    assert (hole.any(dim=1).sum(dim=(1, 2)) == 64).all()


@pytest.mark.parametrize("side", [1, 2, 28])
def test_a_long_shift_takes_pixels_of_its_own_image_only(side):
    images = torch.arange(50, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, side, side)
    shifted = Small(shift=40, padding="reflect")(images, np.arange(50), seed=0, epoch=0)
    assert torch.equal(shifted, images / 255.0)


def test_impossible_transforms_are_explained():
    with pytest.raises(ValueError, match=r"'rotation' is 5, which counts with padding='edge' or 'zero' only"):
        create_view("small", padding="reflect", rotation=5)
    with pytest.raises(ValueError, match="one of each per channel"):
        Small(mean=(0.5,))
    with pytest.raises(ValueError, match=r"'scale' is 1.0; allowed: a number at least 0, below 1"):
        create_view("small", scale=1.0)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (28, 28), (27, 40)])
def test_the_grid_of_an_affine_map_is_that_of_pytorch(height, width):
    matrix = torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.affine_grid(matrix, [7, 1, height, width], align_corners=False)
    torch.testing.assert_close(_affine_grid(matrix, height, width), expected, atol=1e-6, rtol=1e-6)


EPISODES = np.repeat([3, 1, 8, 5], [2, 3, 6, 1])


def test_episodes_are_n_classes_of_k_different_images_drawn_anew():
    labels = np.random.default_rng(1).permutation(EPISODES)
    sampler = sampler_of("episodic", labels, 4, 2, seed=4, steps=7)
    episodes = [episode for epoch in range(40) for episode in sampler.epoch(epoch)]
    assert len(sampler) == len(sampler.epoch(0)) == 7
    for episode in episodes:
        rows = labels[episode].reshape(2, 2)
        assert (rows == rows[:, :1]).all()
        assert len(set(rows[:, 0])) == 2
        assert len(set(episode)) == 4
    assert set(np.concatenate(episodes)) == set(np.flatnonzero(labels != 5)), "all but the class of one image"


def test_as_many_classes_as_have_k_images_make_an_episode():
    sampler = sampler_of("episodic", EPISODES, 6, 3)
    assert set(EPISODES[sampler.epoch(0)[0]]) == {1, 8}
    with pytest.raises(ValueError, match=r"3 classes x 3 images: only 2 of 4 classes .* at most 2 classes"):
        sampler_of("episodic", EPISODES, 9, 3)


POSITIVES = [np.array([7]), np.array([], dtype=int), np.array([8, 9]), np.array([10, 11, 12]), np.array([13])]


def test_every_query_with_a_positive_is_paired_once_with_any_of_them():
    sampler = pair_sampler(np.arange(5) + 20, POSITIVES, 2, seed=3)
    assert len(sampler) == len(sampler.epoch(0)) == 2
    seen = set()
    for epoch in range(60):
        pairs = np.concatenate(sampler.epoch(epoch)).reshape(-1, 2)
        assert len(set(pairs[:, 0])) == 4
        seen |= {tuple(pair) for pair in pairs.tolist()}
    assert seen == {(20 + query, found) for query, near in enumerate(POSITIVES) for found in near.tolist()}
    orders = {tuple(np.concatenate(sampler.epoch(epoch))[::2]) for epoch in range(10)}
    assert len(orders) > 5


def test_a_last_smaller_batch_of_pairs_is_dropped_unless_it_is_the_only_one():
    assert [len(batch) for batch in pair_sampler(np.arange(5), POSITIVES, 3, seed=0).epoch(0)] == [6]
    assert [len(batch) for batch in pair_sampler(np.arange(5), POSITIVES, 9, seed=0).epoch(0)] == [8]
    assert [len(batch) for batch in pair_sampler(np.arange(5), POSITIVES, 1, seed=0).epoch(0)] == [2] * 4
    for positives, size, message in (
        ([[], []], 1, "^0 queries have a positive, 1 pairs"),
        ([[1], [0]], 0, "^2 .*, 0 "),
    ):
        with pytest.raises(ValueError, match=message + ".* per batch: need at least 1"):
            pair_sampler(np.arange(2), [np.array(found) for found in positives], size, seed=0)


def test_pairs_of_classes_are_two_images_of_one():
    labels = np.array([4, 1, 4, 2, 1, 4])
    queries, partners = pairs_of_classes(labels)
    assert queries.tolist() == [0, 1, 2, 4, 5]
    assert [rows.tolist() for rows in partners] == [[2, 5], [4], [0, 5], [1], [0, 2]]


def test_images_of_a_class_stand_in_their_order_so_that_a_seed_means_the_same_everywhere():
    labels = np.random.default_rng(2).integers(0, 3, 3000)
    members = [np.flatnonzero(labels == label) for label in range(3)]
    assert all(np.array_equal(*both) for both in zip(members_of(labels), members, strict=True))
    first = pairs_of_classes(labels)[1][0]
    assert np.array_equal(first, members[labels[0]][members[labels[0]] != 0])


def test_episodes_and_pairs_depend_on_seed_and_epoch_alone():
    labels = np.repeat(np.arange(10), 10)
    for make in (
        lambda s: sampler_of("episodic", labels, 8, 2, s, steps=5),
        lambda s: pairs_among(labels, 8, s),
    ):
        sampler = make(1)
        assert same(sampler.epoch(4), make(1).epoch(4))
        assert not same(sampler.epoch(4), sampler.epoch(5))
        assert not same(sampler.epoch(4), make(2).epoch(4))
