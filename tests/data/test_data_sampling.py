"""Every sampler a training setting names, on prepared datasets: faces, places, letters."""

import miniatures
import numpy as np
import pytest
import torch

from probmetric.config import Training
from probmetric.data import DataError, load_columns, prepare_dataset
from probmetric.data.samplers import Batching, create_sampler
from probmetric.training.data import TrainingData, training_images


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("batching")
    for name in ("lfw", "msls", "cub"):
        miniatures.build(name, root / "raw" / name)
        prepare_dataset(name, root / name, raw=root / "raw", workers=1, subset=True, progress=False)
    return root


def opened(folder, sampler, batch_size=8, **settings) -> TrainingData:
    chosen = Training(sampler=sampler, batch_size=batch_size, images_per_class=settings.pop("k", 2), **settings)
    return TrainingData(training_images(folder, chosen), chosen, seed=3, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "sampler", ["shuffle", "balanced", "balanced_with_replacement", "class_random", "episodic", "pairs"]
)
def test_batches_have_the_size_asked_for_and_depend_on_the_epoch_alone(folders, sampler):
    data, again = (opened(folders / "cub", sampler, steps_per_epoch=5) for _ in range(2))
    batches = [data.batches(epoch) for epoch in range(2)]
    assert [len(batch) for epoch in batches for batch in epoch] == [8] * 10
    assert not all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
    again.batches(0)
    assert all(torch.equal(a, b) for a, b in zip(again.batches(1), batches[1], strict=True))


@pytest.mark.parametrize("sampler", ["balanced", "balanced_with_replacement", "class_random", "episodic"])
def test_classes_give_k_images_side_by_side(folders, sampler):
    data = opened(folders / "cub", sampler, k=4)
    for batch in data.batches(0):
        labels = data.labels[batch].view(2, 4)
        assert (labels == labels[:, :1]).all()


def test_replacement_repeats_images_and_episodes_do_not(folders):
    def repeats(sampler):
        data = opened(folders / "cub", sampler, k=6, batch_size=12, steps_per_epoch=20)
        return sum(len(batch) - len(batch.unique()) for batch in data.batches(0))

    assert repeats("balanced_with_replacement") > 0
    assert repeats("class_random") > 0
    assert repeats("episodic") == repeats("balanced") == 0


def test_pairs_of_faces_are_two_images_of_one_person(folders):
    data = opened(folders / "lfw", "pairs", batch_size=6)
    pairs = torch.cat(data.batches(0)).view(-1, 2)
    assert (data.labels[pairs[:, 0]] == data.labels[pairs[:, 1]]).all()
    assert (pairs[:, 0] != pairs[:, 1]).all()


def test_pairs_of_places_are_a_query_and_a_database_image_within_ten_metres(folders):
    data = opened(folders / "msls", "pairs", batch_size=6)
    columns = load_columns(folders / "msls", ["role", "city", "easting", "northing"])
    rows = data.index[torch.cat(data.batches(0)).view(-1, 2)].numpy()
    for role, column in zip(("query", "database"), rows.T, strict=True):
        assert (columns["role"][column] == role).all()
    assert (columns["city"][rows[:, 0]] == columns["city"][rows[:, 1]]).all()
    step = [columns[name][rows[:, 0]] - columns[name][rows[:, 1]] for name in ("easting", "northing")]
    assert np.hypot(*step).max() <= 10


def test_impossible_batches_are_explained(folders):
    with pytest.raises(DataError, match="no training class has two images"):
        create_sampler(Batching("pairs", 4, 1), np.arange(9), 0)
    with pytest.raises(ValueError, match="must be even"):
        create_sampler(Batching("pairs", 5, 1), np.zeros(9), 0)
    with pytest.raises(ValueError, match="not a multiple of 4 images per class"):
        create_sampler(Batching("episodic", 6, 4), np.zeros(9), 0)
    with pytest.raises(ValueError, match="use at most"):
        opened(folders / "cub", "episodic", batch_size=80, k=2)
    far = {
        "city": np.array(["a", "a"]), "role": np.array(["query", "database"]),
        "easting": np.array([0.0, 50.0]), "northing": np.zeros(2), "night": np.zeros(2, bool),
    }  # fmt: skip
    with pytest.raises(DataError, match="none of the 1 training queries has a database image within 10 m"):
        create_sampler(Batching("pairs", 2, 1), np.arange(2), 0, far)
