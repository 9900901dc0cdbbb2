"""The library without the workflow: any network, any dataset, in a few lines."""

import copy
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import probmetric
from probmetric.config import ConfigError
from probmetric.data.loose import item_classes
from probmetric.data.views import register
from probmetric.data.views.photos import Photos
from probmetric.errors import ProbMetricError
from probmetric.retrieval import retrieval_metrics
from probmetric.testing import isolated_components
from probmetric.training.data import TrainingData

CLASSES, PER_CLASS = 6, 20
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")


class Blobs(torch.utils.data.Dataset):
    """Vectors around the corners of a simplex, seen through a fixed rotation into 12 dimensions."""

    def __init__(self, seed, *, shape=(12,), per_class=PER_CLASS, names=None):
        generator = torch.Generator().manual_seed(seed)
        directions = torch.randn(CLASSES, 12, generator=torch.Generator().manual_seed(99))
        self.y = torch.arange(CLASSES).repeat(per_class)
        self.x = (directions[self.y] + 0.6 * torch.randn(len(self.y), 12, generator=generator)).reshape(-1, *shape)
        self.names = names

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        label = int(self.y[index])
        return self.x[index], self.names[label] if self.names else label


class Spoilt(Blobs):
    """One of them holds a value that is no number."""

    def __init__(self, seed):
        super().__init__(seed)
        self.x[17, 3] = float("nan")


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))


def train(**options):
    given = {"epochs": 3, "batch_size": 24, "learning_rate": 0.01, "device": "cpu"} | options
    return probmetric.fit(given.pop("data", None) or Blobs(0), given.pop("encoder", None) or network(), **given)


def test_ten_lines_train_fit_evaluate_and_search():
    test = Blobs(2)
    model = train(uncertainty="laplace", validation=Blobs(1))
    measured = model.evaluate(test)
    found = model.embed(test)
    again = retrieval_metrics(found.mean.numpy(), test.y.numpy(), ks=(1,))
    assert measured["retrieval/recall_at_1"] == pytest.approx(again["recall_at_1"])
    assert measured["retrieval/recall_at_1"] > 0.6
    assert "sparsification/error_auroc" in measured
    with pytest.raises(ValueError, match="ks is 4; expected a sequence of integers"):
        model.evaluate(test, ks=4)
    gallery = probmetric.Gallery.create(model, Blobs(0))
    answer = model.search(gallery, [Blobs(0).x[3]], k=2)[0]
    assert (answer.matches[0].path, answer.matches[0].class_name) == ("image 3", "3")
    assert 0 <= answer.doubt <= 1


def test_training_changes_what_an_untrained_network_gives():
    before, after = train(epochs=0).evaluate(Blobs(2)), train(epochs=8).evaluate(Blobs(2))
    assert after["retrieval/map_at_r"] > before["retrieval/map_at_r"] + 0.05


def test_it_is_the_same_twice_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    encoders = network(), network()
    torch.manual_seed(5)
    models = [train(encoder=encoder, uncertainty="vmf") for encoder in encoders]
    assert torch.equal(torch.rand(3), expected)
    assert models[0].digest == models[1].digest
    assert torch.equal(models[0].embed(Blobs(2)).samples, models[1].embed(Blobs(2)).samples)


def test_the_best_epoch_on_validation_images_is_kept():
    """With a rate that ruins the network after the first epochs, the last one is not the best."""
    kept = train(validation=Blobs(1), epochs=6, learning_rate=0.01, schedule="constant")
    assert kept.reference is not None
    assert kept.evaluate(Blobs(1), ks=(1,))["retrieval/map_at_r"] > 0.5
    assert train(epochs=1).reference is None


@pytest.mark.parametrize("uncertainty", ["norm", "vmf", "softmax", "mc_dropout", "laplace", "pfe"])
def test_every_uncertainty_of_a_single_encoder(uncertainty):
    model = train(loss="arcface", uncertainty=uncertainty, epochs=1)
    found = model.embed(Blobs(2))
    assert found.uncertainty.shape == (len(Blobs(2)),)
    assert found.uncertainty.isfinite().all()


@pytest.mark.parametrize("uncertainty", ["density", {"name": "density", "kind": "mahalanobis"}])
def test_density_knows_every_training_image_whatever_the_steps(uncertainty):
    """Of 100, 10 and 10 images a sampler of balanced classes would show some twice and most not at all."""
    labels = torch.arange(3).repeat_interleave(torch.tensor([100, 10, 10]))
    rows = torch.randn(120, 12, generator=torch.Generator().manual_seed(3)) + 2 * labels[:, None]
    data = torch.utils.data.TensorDataset(rows, labels)
    model = train(data=data, uncertainty=uncertainty, epochs=1, steps_per_epoch=1)
    references = model.predictor.posterior["references"]
    if uncertainty == "density":
        torch.testing.assert_close(references, model.embed(rows).mean)
    else:
        means = torch.stack([model.embed(rows[labels == label]).mean.mean(0) for label in range(3)])
        torch.testing.assert_close(references, means @ model.predictor.posterior["whitening"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sampler", ["balanced", "episodic"])
def test_a_posterior_is_fitted_to_one_pass_whatever_the_steps(sampler):
    options = {"uncertainty": "laplace", "epochs": 0, "sampler": sampler}
    fitted = [train(**options, steps_per_epoch=steps) for steps in (None, 1, 12)]
    curvatures = [model.predictor.posterior["weight_curvature"] for model in fitted]
    assert torch.equal(curvatures[1], curvatures[0])
    assert torch.equal(curvatures[2], curvatures[0])


def test_an_added_head_can_be_warmed_up_alone():
    body = network()
    before = body[0].weight.clone()
    model = train(encoder=body, dim=5, warmup_epochs=1, epochs=1)
    assert model.embed(Blobs(2)).mean.shape[1] == 5
    assert torch.equal(body[0].weight, before)


@pytest.fixture
def steps(monkeypatch):
    """A list that grows by one with every step of a training."""
    from probmetric.training.loop import Trainer

    taken = []
    monkeypatch.setattr(
        Trainer, "_step", lambda self, *given, step=Trainer._step: taken.append(1) or step(self, *given)
    )
    return taken


def interrupt_after_two_epochs(monkeypatch, **options):
    from probmetric.training.loop import Trainer

    end_epoch = Trainer.end_epoch

    def interrupted(self, bar):
        end_epoch(self, bar)
        if self.progress.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "end_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(epochs=3, **options)


def test_an_interrupted_training_goes_on(tmp_path, monkeypatch, steps):
    whole = train(epochs=3)
    interrupt_after_two_epochs(monkeypatch, state=tmp_path)
    assert list(tmp_path.glob("step-*"))
    steps.clear()
    assert train(state=tmp_path, epochs=3).digest == whole.digest
    assert len(steps) == len(Blobs(0)) // 24
    assert not list(tmp_path.glob("step-*"))


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_fit_that_ended_after_its_training_does_not_train_again(tmp_path, monkeypatch, steps):
    """Whoever is killed while the posterior is fitted has lost no training."""
    whole = train(epochs=3, uncertainty="laplace")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingData, "fit_posterior", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(state=tmp_path, epochs=3, uncertainty="laplace")
    steps.clear()
    assert train(state=tmp_path, epochs=3, uncertainty="laplace").digest == whole.digest
    assert not steps
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_answers_alike_and_knows_its_training_images_without_having_them(copied):
    class Local(Pictures):
        """No pickle holds a class that a function makes."""

    view = {"name": "photos", "size": 16}
    model = train(data=Local(), encoder="compact", view=view, dim=8, epochs=1, batch_size=12)
    images = [np.asarray(Pictures()[0][0]), np.zeros((16, 16, 3), np.uint8)]
    again = copied(model)
    assert again.digest == model.digest
    assert torch.equal(again.embed(images).mean, model.embed(images).mean)
    assert not len(again.parts.training_images())
    assert again.trained_on(again.looks(images)).tolist() == [True, False]


def test_a_model_that_was_not_trained_names_no_loss():
    assert train(epochs=0).name == "untrained with norm"
    assert "loss none" in train(epochs=0).card
    assert train(epochs=1).name == "proxy_anchor with norm"
    assert "loss proxy_anchor" in train(epochs=1).card


@pytest.mark.parametrize(
    "other",
    [
        {"loss": "proxy_nca"},
        {"loss": {"name": "proxy_anchor", "margin": 0.9}},
        {"objective": {"name": "laplace_online", "memory": 0.5}},
    ],
)
def test_another_training_begins_anew(other, tmp_path, monkeypatch, steps):
    start = {"loss": "proxy_anchor"}
    if "objective" in other:
        start = {"objective": {"name": "laplace_online", "memory": 0.9}, "loss": "contrastive"}
    interrupt_after_two_epochs(monkeypatch, state=tmp_path, **start)
    steps.clear()
    assert train(state=tmp_path, epochs=3, **start | other).digest == train(epochs=3, **start | other).digest
    assert len(steps) == 2 * 3 * len(Blobs(0)) // 24


def test_names_of_classes_and_datasets_with_targets():
    class Listed(Blobs):
        classes = NAMES

        def __init__(self, seed):
            super().__init__(seed)
            self.targets = self.y.tolist()

    for data in (Listed(0), Blobs(0, names=NAMES), torch.utils.data.Subset(Listed(0), range(60))):
        assert train(data=data, epochs=1).classes == NAMES


class Pictures(torch.utils.data.Dataset):
    """Images of PIL's of different sizes: a colour per class."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        from PIL import Image

        colour = [(200, 30, 30), (30, 200, 30), (30, 30, 200)][index % 3]
        return Image.new("RGB", (20 + index, 30), colour), f"colour {index % 3}"


def test_images_of_pils_are_seen_through_a_view():
    view = {"name": "photos", "size": 16, "scale": [0.5, 1.0]}
    model = train(data=Pictures(), encoder="compact", view=view, dim=8, epochs=3, batch_size=12)
    assert model.evaluate(Pictures(), ks=(1,))["retrieval/recall_at_1"] == 1.0
    assert model.embed(np.zeros((9, 30, 3), np.uint8)).mean.shape == (1, 8)


def test_a_view_augments_unless_told_not_to():
    options = {"data": Pictures(), "encoder": "compact", "dim": 8, "epochs": 1, "batch_size": 12}
    view = {"name": "photos", "size": 16, "jitter": [0.5, 0.5, 0.5, 0.1]}
    plain = train(view={"name": "photos", "size": 16, "crop": False, "flip": False}, **options)
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    assert torch.equal(train(view=view, augment="none", **options).embed(image).mean, plain.embed(image).mean)
    assert not torch.equal(train(view=view, augment="standard", **options).embed(image).mean, plain.embed(image).mean)


def test_a_pretrained_network_starts_from_lda_and_trains_as_init_plans():
    body = network()
    train(encoder=body, data=Blobs(3), dim=8, epochs=8)
    start = probmetric.fit(Blobs(0), copy.deepcopy(body), pretrained=True, epochs=0, device="cpu")
    tuned = probmetric.fit(Blobs(0), copy.deepcopy(body), pretrained=True, device="cpu")
    training = tuned.record.members[0].settings.training
    assert (training.learning_rate, training.optimizer, training.batch_norm) == (2e-4, "adamw", "frozen")
    assert (training.epochs, training.steps_per_epoch) == (10, 3)  # 120 images make one batch: three passes
    assert tuned.predictor.encoder.dim == 8
    recall = "retrieval/recall_at_1"
    assert tuned.evaluate(Blobs(2))[recall] >= start.evaluate(Blobs(2))[recall] - 0.01
    assert not torch.equal(tuned.predictor.encoder.head.weight, start.predictor.encoder.head.weight)
    chosen = {"epochs": 0, "learning_rate": 0.5, "batch_size": 12.0}  # a whole number, however it is written
    ours = probmetric.fit(Blobs(0), copy.deepcopy(body), pretrained=True, device="cpu", **chosen)
    training = ours.record.members[0].settings.training
    assert (training.learning_rate, training.steps_per_epoch) == (0.5, 24)  # one pass is ten batches


@pytest.mark.parametrize("own", [False, True])
def test_the_usual_start_from_lda_gives_way_where_there_is_no_head_and_a_wanted_one_is_refused(own):
    headless = {"name": "timm", "tag": "tf_efficientnet_lite0.in1k", "head": "none"}
    encoder = probmetric.models.create_encoder("timm", tag=headless["tag"], head="none", dim=1280) if own else headless
    options = {"data": Pictures(), "encoder": encoder, "view": {"name": "photos", "size": 32}, "epochs": 0}
    model = train(pretrained=True, **options)
    assert model.record.members[0].settings.training.head_init == "random"
    with pytest.raises(ConfigError, match=r"'lda'.*no linear head"):
        train(pretrained=True, head_init="lda", **options)


def test_a_backbone_by_name_gets_its_published_weights():
    tag = {"name": "timm", "tag": "tf_efficientnet_lite0.in1k"}
    view = {"name": "photos", "size": 32}
    model = train(data=Pictures(), encoder=tag, pretrained=True, view=view, epochs=0)
    assert model.record.members[0].facts.pretrained_sha256
    assert model.predictor.encoder.dim == 1280
    again = train(data=Pictures(), encoder=tag, view=view, epochs=0)
    assert again.record.members[0].facts.pretrained_sha256 is None


def test_a_batch_of_tensors_is_many_images():
    model = train(epochs=0)
    assert len(model.embed(Blobs(2).x[:4])) == 4
    assert len(model.embed(Blobs(2).x[0])) == 1


class Wide(nn.Module):
    """A network that forgot to pool."""

    def forward(self, inputs):
        return inputs[:, :1].repeat(1, 20_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "proxy_ancor"}, "proxy_anchor"),
        ({"epoch": 3}, "epochs"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"uncertainty": "ensemble"}, "one encoder"),
        ({"selection": "refit"}, "validation"),
        ({"uncertainty": {"name": "laplace", "scale": -0.5}}, "scale"),
        ({"patience": 3}, "patience waits for .* validation images"),
        ({"schedule": "plateau"}, "schedule 'plateau' waits for .* validation images"),
        ({"augment": "lam"}, "'lam', .* knows 'standard' and 'none'"),
        ({"objective": "norm"}, "no objective"),
        ({"encoder": nn.Linear(7, 3)}, "cannot take inputs"),
        ({"encoder": nn.Unflatten(1, (3, 4))}, "one row of numbers"),
        ({"data": [1, 2]}, "no dataset"),
        ({"data": torch.utils.data.TensorDataset(torch.zeros(8, 12))}, "no label"),
        ({"data": torch.utils.data.TensorDataset(torch.zeros(8, 12), torch.zeros(8))}, "whole numbers"),
        ({"data": torch.utils.data.TensorDataset(torch.zeros(8, 12), torch.zeros(8).long())}, "at least 2"),
        ({"encoder": "compakt"}, "compact"),
        ({"encoder": {"name": "compact", "widht": 3}}, "width"),
        ({"loss": 3}, "loss|name|mapping"),
        ({"pretrained": "weights.pth"}, "load them into it and give True"),
        ({"data": Pictures(), "encoder": "compact", "pretrained": True}, r"50,176 features, .* takes 10 GB; choose"),
        ({"data": Pictures(), "encoder": "compact", "pretrained": True, "dim": 8}, "publishes no weights"),
        ({"dim": 0, "pretrained": True}, "2 to"),
        ({"encoder": nn.Linear(12, 1), "pretrained": True}, "1 number per input"),
        ({"encoder": Wide(), "pretrained": True}, r"20,000 features, .* takes 2 GB; choose a smaller dim"),
        ({"device": "tpu"}, "tpu"),
        ({"device": "cuda:9"}, "'cuda:9' is not available here; allowed: auto, cpu"),
        ({"optimizer": "sgd", "momentum": 0, "nesterov": True}, "nesterov: .* momentum, which is 0"),
        ({"data": Spoilt(0), "pretrained": True}, "training image 17 holds a value that is no finite number"),
        ({"data": Spoilt(0), "uncertainty": "laplace", "epochs": 0}, "image 17 holds"),
        ({"validation": Spoilt(1)}, "validation image 17 holds a value that is no finite number"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_sentence(options, says):
    with pytest.raises(ProbMetricError, match=says):
        train(**options)


@pytest.mark.parametrize("where", ["dataset", "validation"])
def test_no_item_and_no_dataset_are_said_in_a_sentence(where):
    empty = torch.utils.data.TensorDataset(torch.zeros(0, 12), torch.zeros(0))
    for lacking in (empty, None) if where == "dataset" else (empty,):
        with pytest.raises(ProbMetricError, match=r"is no dataset .* of one \(image, label\) or more"):
            probmetric.fit(**{"dataset": Blobs(0), "encoder": network(), "device": "cpu"} | {where: lacking})


class Whole(nn.Module):
    """A network of one's own, not in layers."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"uncertainty": "laplace"}, "'laplace' needs a last linear layer, .* Give `dim`"),
        ({"objective": "laplace_online", "uncertainty": "laplace_online"}, "'laplace_online' needs a last linear"),
        ({"uncertainty": "softmax"}, "loss 'proxy_anchor' is no classifier"),
        ({"uncertainty": "softmax", "loss": None}, "a network without loss is no classifier"),
        ({"uncertainty": "softmax", "loss": "cosine", "objective": "hib"}, "'hib', which takes .* is no classifier"),
        ({"uncertainty": "hib"}, "'hib' is learnt while training; set the objective to 'hib'"),
        ({"uncertainty": "laplace_online"}, "set the objective to 'laplace_online'"),
        ({"uncertainty": {"name": "laplace", "prior": "validation"}}, "fitted on validation images; give them as"),
        ({"selection_metric": "accuracy", "validation": Blobs(1)}, "loss 'proxy_anchor' is no classifier"),
        ({"validation": Blobs(1, per_class=1)}, "no validation image has a second one of its class"),
        ({"uncertainty": "temperature", "loss": "arcface"}, "validation images of the training classes"),
        ({"nesterov": True}, "training.nesterov does nothing with training.optimizer 'adam'; leave it out, or set "),
        ({"proxy_init": "class_means", "loss": "triplet"}, "training.proxy_init does nothing with loss 'triplet'"),
        ({"loss": {"name": "cosine", "scale": 5}, "objective": "hib", "uncertainty": "hib"}, "loss.scale does nothing"),
        ({"view": {"name": "photos", "crop": False, "scale": [0.5, 1]}}, "view.scale does nothing with view.crop"),
        ({"encoder": "compact", "warmup_epochs": 1}, "training.warmup_epochs does nothing with a network that nothing"),
    ],
)
def test_what_is_lacking_or_read_by_nothing_is_said_before_training(monkeypatch, options, says):
    from probmetric.training.loop import Trainer

    monkeypatch.setattr(Trainer, "fit", lambda _: pytest.fail("trained"))
    with pytest.raises(ProbMetricError, match=says):
        train(**{"encoder": Whole()} | options)


@pytest.mark.parametrize(("sampler", "size"), [("shuffle", 18), ("balanced", 16)])
def test_plain_shuffling_leaves_no_image_out_of_the_only_batch(sampler, size):
    model = train(data=Blobs(0, per_class=3), sampler=sampler, epochs=1)
    assert model.record.members[0].settings.training.batch_size == size


def test_few_images_make_one_batch_of_pairs():
    model = train(data=Blobs(0, per_class=3), sampler="pairs", epochs=1)
    assert model.record.members[0].settings.training.batch_size == 18


def test_what_an_uncertainty_cannot_be_fitted_to_is_said_in_a_sentence():
    with pytest.raises(ProbMetricError, match="'pfe' cannot be fitted: no batch had a mined positive pair"):
        train(data=Blobs(0, per_class=1), uncertainty="pfe", epochs=0, images_per_class=1)


def test_a_network_in_one_piece_has_its_last_layer_added():
    model = train(encoder=Whole(), dim=5, uncertainty="laplace", epochs=1)
    assert model.embed(Blobs(2)).concentration.shape == (len(Blobs(2)),)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (network, {"uncertainty": "laplace", "validation": Blobs(1)}),
        (Whole, {"dim": 5, "loss": "arcface", "uncertainty": "softmax"}),
        (Whole, {"objective": "laplace_online", "uncertainty": "laplace_online", "loss": "contrastive", "dim": 5}),
    ],
)
def test_a_model_of_ones_own_network_is_saved_and_loaded_with_that_network(build, options, tmp_path):
    model = train(encoder=build(), epochs=1, **options)
    folder = model.save(tmp_path / "m")
    with pytest.raises(ProbMetricError, match=r"network of your own, \w+, .* probmetric.load\(folder, network=...\)"):
        probmetric.load(folder, device="cpu")
    torch.manual_seed(7)
    fresh = build()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(1.0)
    again = probmetric.load(folder, device="cpu", network=fresh)
    assert again.digest == model.digest
    assert again.classes == model.classes
    for name, tensor in model.embed(Blobs(2)).tensors().items():
        assert torch.equal(again.embed(Blobs(2)).tensors()[name], tensor), name
    gallery = probmetric.Gallery.create(model, Blobs(0))
    assert again.search(gallery, [Blobs(0).x[3]], k=1)[0].matches[0].path == "image 3"
    assert (again.reference is None) == (model.reference is None)
    assert "network=" in again.card
    with pytest.raises(ProbMetricError, match="does not fit its record"):
        probmetric.load(folder, device="cpu", network=nn.Sequential(nn.Linear(12, 3)))


def test_a_model_of_a_named_backbone_is_saved_and_loaded_without_a_network(tmp_path):
    view = {"name": "photos", "size": 16}
    model = train(data=Pictures(), encoder="compact", view=view, dim=8, epochs=1, batch_size=12)
    again = probmetric.load(model.save(tmp_path / "m"), device="cpu")
    image = Pictures()[3][0]
    assert torch.equal(again.embed(image).mean, model.embed(image).mean)
    with pytest.raises(ProbMetricError, match="knows its network, compact"):
        probmetric.load(tmp_path / "m", device="cpu", network=network())


@pytest.mark.parametrize("options", [{"dim": 6}, {"dim": 6, "warmup_epochs": 1}, {}])
def test_frozen_layers_stay_frozen(options):
    body = network()
    body[0].requires_grad_(False)
    before = [body[0].weight.clone(), body[2].weight.clone()]
    train(encoder=body, weight_decay=0.1, epochs=2, **options)
    assert torch.equal(body[0].weight, before[0])
    assert not body[0].weight.requires_grad
    assert not torch.equal(body[2].weight, before[1])


@pytest.mark.parametrize("options", [{"freeze": "trunk"}, {"lora": 2}, {"warmup_epochs": 1, "epochs": 1}])
def test_what_one_training_freezes_the_next_one_trains(options):
    body = network()
    train(encoder=body, dim=4, **options)
    before = [parameter.clone() for parameter in body.parameters()]
    train(encoder=body, dim=4)
    assert not any(torch.equal(*pair) for pair in zip(body.parameters(), before, strict=True))


def test_a_frozen_network_trains_only_what_is_added():
    body = network().requires_grad_(False)
    before = {name: value.clone() for name, value in body.state_dict().items()}
    head = train(encoder=body, dim=6, loss="contrastive").predictor.encoder.head
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())
    assert not torch.equal(
        head.weight, train(encoder=body, dim=6, loss="contrastive", epochs=0).predictor.encoder.head.weight
    )
    with pytest.raises(ProbMetricError, match=r"parameters that train .* add a head"):
        train(encoder=body, loss="contrastive")


class Relabelled(torch.utils.data.Dataset):
    """Everything of an inner dataset but the labels."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return image, label // 2


def test_labels_are_those_of_the_items():
    class Listed(Blobs):
        classes = NAMES
        targets = torch.arange(CLASSES).repeat(PER_CLASS)

    for data in (Relabelled(Listed(0)), torch.utils.data.Subset(Relabelled(Listed(0)), range(60))):
        assert train(data=data, epochs=0).classes == ("0", "1", "2")
    halves = torch.utils.data.random_split(Listed(0), [60, 60], generator=torch.Generator().manual_seed(0))
    parts = torch.utils.data.ConcatDataset(
        [torch.utils.data.Subset(halves[0], range(50)), halves[1], Relabelled(Blobs(1))]
    )
    names = item_classes(parts)
    assert names[:50] == [NAMES[halves[0][row][1]] for row in range(50)]
    assert names[50:110] == [NAMES[halves[1][row][1]] for row in range(60)]
    assert names[110:] == [str(Relabelled(Blobs(1))[row][1]) for row in range(CLASSES * PER_CLASS)]


def test_labels_that_torchvision_lists_are_read_from_items_where_they_are_transformed(tmp_path):
    from PIL import Image
    from torchvision.datasets import ImageFolder

    for name in NAMES:
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    assert item_classes(ImageFolder(tmp_path)) == [name for name in NAMES for _ in range(2)]
    halved = ImageFolder(tmp_path, target_transform=lambda label: label // 2)
    assert item_classes(halved) == [str(number // 4) for number in range(12)]
    assert item_classes(torch.utils.data.Subset(halved, [11, 0])) == ["2", "0"]
    edited = ImageFolder(tmp_path)
    edited.samples = [(file, label // 2) for file, label in edited.samples]  # `targets` stay as they were
    assert item_classes(edited) == [NAMES[number // 4] for number in range(12)]
    edited = ImageFolder(tmp_path)
    edited.targets = [label // 2 for label in edited.targets]  # no item changes
    assert item_classes(edited) == [name for name in NAMES for _ in range(2)]


@pytest.mark.parametrize("label", [torch.tensor([1, 0, 1]), np.eye(3)[1], [0, 2], 1.5])
def test_labels_that_are_no_class_get_a_sentence(label):
    class Data(Blobs):
        def __getitem__(self, index):
            return self.x[index], label

    with pytest.raises(ProbMetricError, match=r"an item has .* label"):
        train(data=Data(0))


@pytest.mark.parametrize("shape", [(3, 32, 64), (3, 64, 32), (12,)])
def test_a_named_backbone_refuses_tensors_that_are_not_square(shape):
    data = torch.utils.data.TensorDataset(torch.rand(12, *shape), torch.arange(12) // 6)
    with pytest.raises(ProbMetricError, match="takes square images"):
        train(data=data, encoder="compact")


def test_another_shape_is_refused_by_name():
    with pytest.raises(ProbMetricError, match=r"image 1: an input of shape \(11,\)"):
        train(epochs=0).embed([torch.zeros(12), torch.zeros(11)])


def test_an_input_that_is_no_number_is_refused_by_name():
    with pytest.raises(
        ProbMetricError, match=r"(?s)1 of 2 images cannot be used.*image 1: holds a value that is no finite"
    ):
        train(epochs=0).embed([torch.zeros(12), torch.full((12,), float("inf"))])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": "feature"}, r"dim: should be a valid integer.*\nfit: dim: should be 'features'"),
        ({"loss": nn.Flatten()}, "loss: expected a mapping of settings, or a component's name, found Flatten"),
    ],
)
def test_a_wrong_kind_of_value_is_told_without_names_of_the_code(wrong, message):
    dataset = torch.utils.data.TensorDataset(torch.rand(20, 1, 8, 8), torch.arange(20) % 5)
    with pytest.raises(ConfigError, match=message):
        probmetric.fit(dataset, nn.Flatten(), **wrong)


def test_a_model_names_the_module_of_a_view_of_ones_own():
    class Greys(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return np.full((8, 8, 3), 9 * index, dtype=np.uint8), index % 3

    options = {"dim": 4, "epochs": 0, "loss": "softmax", "uncertainty": "norm", "device": "cpu"}
    with isolated_components():

        @register("ours")
        @dataclass(frozen=True, kw_only=True)
        class Ours(Photos):
            """As photographs."""

        view = {"name": "ours", "size": 8, "resize": 8}
        model = probmetric.fit(Greys(), nn.Flatten(), view=view, **options)
        assert model.parts.record.plugins == (__name__,)
