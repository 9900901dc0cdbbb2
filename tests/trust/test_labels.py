"""Suspected labels: planted ones come first; what cannot be judged comes last; copies that contradict each other."""

import numpy as np
import pytest

from probmetric.trust import contradictory_copies, suspect_labels


def blobs(classes=12, images=20, dim=16, spread=0.6, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), images)
    return centres[labels] + spread * rng.normal(size=(len(labels), dim)), labels


def reference(embeddings, labels):
    """The definition, one image at a time."""
    z = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    values = []
    for i, label in enumerate(labels):
        others = np.arange(len(labels)) != i
        cosines = {}
        for name in np.unique(labels):
            mean = z[(labels == name) & others].sum(axis=0)
            cosines[name] = z[i] @ mean / np.linalg.norm(mean)
        own = cosines.pop(label)
        values.append(max(cosines.values()) - own)
    return np.array(values)


def test_agrees_with_the_definition():
    embeddings, labels = blobs(classes=4, images=6)
    np.testing.assert_allclose(suspect_labels(embeddings, labels).suspicion, reference(embeddings, labels), atol=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_planted_labels_come_first(share):
    embeddings, labels = blobs()
    rng = np.random.default_rng(1)
    wrong = rng.random(len(labels)) < share
    planted = np.where(wrong, (labels + 1 + rng.integers(0, 11, len(labels))) % 12, labels)
    suspected = suspect_labels(embeddings, planted)
    first = suspected.order[: wrong.sum()]
    assert wrong[first].mean() > 0.9
    assert (suspected.proposed[wrong] == labels[wrong]).mean() > 0.9
    assert abs(suspected.count - wrong.sum()) <= 0.1 * len(labels)


def test_an_image_alone_in_its_class_is_not_judged():
    suspected = suspect_labels([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], ["a", "a", "b"])
    assert np.isnan(suspected.suspicion[2])
    assert suspected.order[-1] == 2
    assert suspected.proposed.tolist() == ["b", "b", "a"]


def test_copies_with_two_labels():
    embeddings = np.array([[1.0, 2.0], [2.0, 4.0], [1.0, 2.0], [2.0, 1.0]])
    assert contradictory_copies(embeddings, ["a", "b", "a", "b"]).tolist() == [[0, 1], [1, 2]]
    assert contradictory_copies(embeddings[::-1], ["a", "b", "a", "b"]).tolist() == [[1, 2], [2, 3]]
    assert contradictory_copies(embeddings, ["a"] * 4).shape == (0, 2)


@pytest.mark.parametrize(
    ("embeddings", "labels", "words"),
    [
        (np.eye(3), [0, 0, 0], "one class"),
        (np.eye(3), [0, 1], "one for each row"),
        (np.full((3, 2), np.nan), [0, 1, 1], "not finite"),
    ],
)
def test_wrong_input(embeddings, labels, words):
    with pytest.raises(ValueError, match=words):
        suspect_labels(embeddings, labels)
