"""Training that keeps what a network knows: fitted heads, frozen parts, shared features, rates, moving averages."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import os
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from training_helpers import quick_settings

from probmetric.config import ConfigError, RunSettings, Training
from probmetric.io import tensors_digest
from probmetric.launch import ALONE
from probmetric.losses import create_loss
from probmetric.models import Encoder, create_encoder
from probmetric.models._wrapped import HeadOnly, input_of, rest_of, wrapped
from probmetric.registry import UnknownNameError
from probmetric.retrieval import retrieval_metrics
from probmetric.runs.embed import embed_splits, fit_posterior
from probmetric.runs.names import FEATURES, RESULTS
from probmetric.runs.plan import Run
from probmetric.training import features
from probmetric.training.assemble import Sizes, assemble, load_encoder
from probmetric.training.batch_norm import synchronise_batch_norm
from probmetric.training.checkpoint import Checkpoints
from probmetric.training.data import TrainingData, training_images
from probmetric.training.features import start_head
from probmetric.training.forward import Network
from probmetric.training.head_init import initialise_head
from probmetric.training.loop import Conduct, Trainer, moving_average
from probmetric.training.optimizer import create_optimizer
from probmetric.training.run import train_run
from probmetric.uncertainty import create_uncertainty

FROZEN = {"freeze": "trunk", "augment": "none", "steps_per_epoch": 3, "epochs": 2}
CPU = torch.device("cpu")


def classes_in_noise() -> tuple[torch.Tensor, torch.Tensor]:
    """Features (60, 6) of six classes that differ along two axes, beside one axis of loud noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    angle = labels * (torch.pi / 3)
    signal = torch.stack([angle.cos(), angle.sin()], dim=1)
    noise = torch.randn(60, 6, generator=generator) * torch.tensor([0.2, 0.2, 5.0, 0.2, 0.2, 0.2])
    return noise + F.pad(signal, (0, 4)) + 3.0, labels


def recall(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    values = retrieval_metrics(embeddings.detach().numpy(), labels.numpy(), ks=(1,), normalize=True)
    return float(values["recall_at_1"])


@pytest.mark.parametrize("dim", [6, 9])
def test_a_pca_head_keeps_all_cosines(dim: int) -> None:
    features, labels = classes_in_noise()
    head = nn.Linear(6, dim)
    initialise_head(head, features, labels, "pca")
    unseen = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    cosines = [F.normalize(rows) @ F.normalize(rows).T for rows in (head(unseen), unseen)]
    torch.testing.assert_close(*cosines, rtol=0, atol=1e-5)


def test_a_pca_head_of_fewer_dimensions_keeps_the_widest() -> None:
    features, labels = classes_in_noise()
    head = nn.Linear(6, 2)
    initialise_head(head, features, labels, "pca")
    rows = F.normalize(features).double()
    kept = torch.linalg.svd(rows, full_matrices=False).Vh[:2]
    basis = F.normalize(head.weight.double())
    torch.testing.assert_close((basis @ kept.T).abs(), torch.eye(2).double(), rtol=0, atol=1e-5)


def test_whitening_and_lda_find_classes_below_the_noise() -> None:
    """Of two dimensions LDA takes those of the classes; a PCA takes that of the noise."""
    features, labels = classes_in_noise()
    reached = {}
    for kind in ("pca", "whitening", "lda"):
        head = nn.Linear(6, 2 if kind != "whitening" else 6)
        initialise_head(head, features, labels, kind)
        reached[kind] = recall(head(features), labels)
        if kind != "pca":
            torch.testing.assert_close(head(features).mean(0), torch.zeros(head.out_features), rtol=0, atol=1e-4)
        assert float(head.weight.detach().square().mean().sqrt()) == pytest.approx((3 * 6) ** -0.5, rel=1e-5)
    assert reached["lda"] > 0.8
    assert reached["pca"] < 0.6
    assert reached["whitening"] > recall(features, labels) + 0.05


def trained(digits: Path, folder: Path, *, shared: Path | None = None, **changes: object) -> dict[str, torch.Tensor]:
    """Weights a run ends with."""
    run = folder / "run"
    train_run(
        quick_settings(**changes),
        prepared_folder=digits,
        run_folder=run,
        state_folder=folder / "state",
        device="cpu",
        features=shared,
    )
    return load_file(run / "model.safetensors")


def test_heads_on_shared_features_are_those_of_the_network_itself(digits: Path, tmp_path: Path) -> None:
    """To rounding; features are computed once for two heads, and a damaged file is computed anew."""
    shared = tmp_path / "features"
    plain = trained(digits, tmp_path / "plain", **FROZEN)
    cached = trained(digits, tmp_path / "cached", shared=shared, **FROZEN)
    assert plain.keys() == cached.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(cached[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    files = sorted(shared.rglob("*.safetensors"))
    assert len(files) == 2
    before = [file.stat().st_mtime_ns for file in files]
    again = trained(digits, tmp_path / "again", shared=shared, loss="arcface", **FROZEN)
    assert sorted(shared.rglob("*.safetensors")) == files
    assert [file.stat().st_mtime_ns for file in files] == before
    assert not torch.equal(again["encoder.head.weight"], cached["encoder.head.weight"])
    os.truncate(files[0], 100)
    repaired = trained(digits, tmp_path / "repaired", shared=shared, **FROZEN)
    assert all(torch.equal(repaired[name], tensor) for name, tensor in cached.items())


def test_other_code_of_the_view_or_the_network_makes_other_features(digits: Path, tmp_path: Path, monkeypatch) -> None:
    """A run that was made again because `normalise` had changed computed with the features of before."""
    shared, true = tmp_path / "features", features.module_digests
    for number, changed in enumerate(["", "probmetric.data.views.photos", "probmetric.models._heads"]):
        digests = dict.fromkeys([changed] if changed else [], "other")
        monkeypatch.setattr(features, "module_digests", lambda *names, digests=digests: true(*names) | digests)
        trained(digits, tmp_path / str(number), shared=shared, **FROZEN)
        assert len(list(shared.iterdir())) == number + 1


def test_augmented_images_share_no_features(digits: Path, tmp_path: Path) -> None:
    trained(digits, tmp_path, shared=tmp_path / "features", **FROZEN | {"augment": "vmf"})
    assert not (tmp_path / "features").exists()


@pytest.mark.parametrize("shared", [False, True])
def test_a_frozen_trunk_stays_as_it_is_while_its_head_trains(digits: Path, tmp_path: Path, shared: bool) -> None:
    folder = tmp_path / "features" if shared else None
    start = trained(digits, tmp_path / "start", **FROZEN | {"epochs": 0})
    end = trained(digits, tmp_path / "end", shared=folder, **FROZEN)
    changed = {name for name, tensor in start.items() if name in end and not torch.equal(tensor, end[name])}
    assert {"encoder.head.weight", "encoder.head.bias"} <= changed
    assert not {name for name in changed if name.startswith("encoder.layers")}


def test_without_epochs_the_head_is_the_fitted_one(digits: Path, tmp_path: Path) -> None:
    weights = [
        trained(digits, tmp_path / kind, head_init=kind, epochs=0, loss=None)["encoder.head.weight"]
        for kind in ("random", "pca", "lda")
    ]
    assert not torch.allclose(weights[1], weights[0])
    torch.testing.assert_close(
        F.normalize(weights[1]) @ F.normalize(weights[1]).T, torch.eye(len(weights[1])), rtol=0, atol=1e-4
    )
    assert not torch.allclose(weights[2], weights[1])


def test_a_head_that_is_not_there_cannot_start(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="head_init is 'lda', but the encoder has no linear head"):
        trained(digits, tmp_path, backbone="pixels", head_init="lda", epochs=0)


@pytest.mark.parametrize("kind", ["pca", "whitening", "lda"])
def test_a_map_that_centres_wants_a_bias(digits: Path, kind: str) -> None:
    settings = Training(head_init=kind, augment="none")
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    encoder = wrapped(nn.Sequential(nn.Flatten(), nn.Linear(data.image_size**2, 4, bias=False)), 4)
    with contextlib.nullcontext() if kind == "pca" else pytest.raises(ConfigError, match="has no bias; use pca"):
        start_head(encoder, data)


def small_resnet() -> Encoder:
    return create_encoder("timm", dim=4, in_channels=1, image_size=32, tag="test_resnet")


def test_training_begins_at_the_stage_asked_for() -> None:
    encoder = small_resnet()
    encoder.freeze_trunk("layer3")
    frozen = {name for name, parameter in encoder.named_parameters() if not parameter.requires_grad}
    parts = {name.split(".")[1] for name in frozen}
    assert parts == {"conv1", "bn1", "layer1", "layer2"}
    encoder.train()
    assert not encoder.backbone.bn1.training
    assert encoder.backbone.layer3.training
    with pytest.raises(UnknownNameError, match=r"train_from is 'layer9'.*layer4"):
        encoder.freeze_trunk("layer9")


def test_trunk_and_head_have_their_rates_and_deeper_layers_larger_ones() -> None:
    encoder, loss = small_resnet(), create_loss("contrastive", num_classes=3, dim=4)
    settings = Training(learning_rate=1e-3, learning_rates={"trunk": 1e-4, "head": 1e-2}, layer_decay=0.5)
    optimizer = create_optimizer(settings, encoder, loss)
    rates = {id(p): group["base_lr"] for group in optimizer.param_groups for p in group["params"]}
    named = {name: rates[id(parameter)] for name, parameter in encoder.named_parameters()}
    assert len(rates) == len(named)
    assert named["head.weight"] == pytest.approx(1e-2)
    stages = [named[f"backbone.layer{stage}.0.conv1.weight"] for stage in (1, 2, 3, 4)]
    assert stages[-1] == pytest.approx(1e-4)
    assert [b / a for a, b in itertools.pairwise(stages)] == pytest.approx([2.0] * 3)


@pytest.mark.parametrize(
    "encoder", ["compact", "resnet50_small", "bn_inception", nn.Sequential(nn.Flatten(), nn.Linear(9, 3))]
)
def test_layers_that_a_network_does_not_name_cannot_differ(encoder: str | nn.Module) -> None:
    if isinstance(encoder, str):
        encoder = create_encoder(encoder, dim=4, in_channels=3, image_size=32)
    else:
        encoder = wrapped(encoder, 3, dim=4)
    for settings, whole in ((Training(layer_decay=1.0), encoder), (Training(layer_decay=0.75), HeadOnly(encoder))):
        create_optimizer(settings, whole, create_loss("cosine", num_classes=2, dim=4))
    with pytest.raises(ConfigError, match=r"layer_decay changes nothing: .* learning_rates.trunk"):
        create_optimizer(Training(layer_decay=0.75), encoder, create_loss("cosine", num_classes=2, dim=4))


def trainer(digits: Path, folder: Path, encoder: Encoder | None = None, **changes: object) -> Trainer:
    settings = quick_settings(**{"epochs": 1, "steps_per_epoch": 3, **changes}).training
    torch.manual_seed(0)
    encoder = encoder or create_encoder("compact", dim=8, in_channels=1, width=4)
    data = TrainingData(training_images(digits, settings), settings, seed=0, device=CPU)
    return Trainer(encoder, create_loss("cosine", num_classes=10, dim=8), data, Conduct(Checkpoints(folder), "x"))


def test_the_moving_average_is_what_is_measured_and_written(digits: Path, tmp_path: Path) -> None:
    """avg_1 = w_1, then avg = d avg + (1 - d) w; by hand for one weight of the head."""
    made = trainer(digits, tmp_path, ema=0.6)
    seen, update = [], made._update

    def recorded(*arguments: object) -> None:
        update(*arguments)
        seen.append(made.encoder.head.weight.detach().clone())

    made._update = recorded
    made.fit()
    expected = seen[0]
    for weight in seen[1:]:
        expected = 0.6 * expected + 0.4 * weight
    torch.testing.assert_close(made.last["encoder.head.weight"], expected)
    assert torch.equal(made.best["encoder.head.weight"], made.last["encoder.head.weight"])
    assert not torch.allclose(expected, seen[-1])


def test_a_moving_average_takes_indices_over() -> None:
    """The permutations of NIR's flow, the relative positions of a Swin transformer: 0.9 * 3 + 0.1 * 3 is cut to 2."""
    value, average = torch.arange(512), torch.arange(512)
    weight, mean = torch.tensor([1.0]), torch.tensor([0.0])
    for decay in (0.9, 0.9999):
        update = moving_average(decay)
        update([average], [value], torch.tensor(1))
        update([mean], [weight], torch.tensor(1))
    assert torch.equal(average, value)
    torch.testing.assert_close(mean, torch.tensor([0.1 * 0.9999 + 0.0001]))


def test_a_resumed_average_has_the_same_bits(digits: Path, tmp_path: Path) -> None:
    whole = trainer(digits, tmp_path / "whole", ema=0.9, epochs=2)
    whole.fit()
    first = trainer(digits, tmp_path / "parts", ema=0.9, epochs=2)
    with first._progress_bar() as bar:
        first.train_epoch(bar)
        first.end_epoch(bar)
    second = trainer(digits, tmp_path / "parts", ema=0.9, epochs=2)
    second.fit()
    assert tensors_digest(second.last) == tensors_digest(whole.last)


class Saved:
    """Bytes of activations that a block keeps for the backward pass."""

    def __enter__(self) -> Saved:
        self.bytes = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity"])
def test_a_gradient_cache_gives_the_gradient_of_the_whole_batch(name: str) -> None:
    """In float64 to 1e-6, for parts that do not divide the batch, and holds a part's activations only."""
    torch.manual_seed(0)
    encoder = create_encoder("lam_fashion", dim=8, in_channels=1, image_size=16).double().train()
    loss = create_loss(name, num_classes=5, dim=8).double()
    images, labels = torch.randn(22, 1, 16, 16, dtype=torch.float64), torch.arange(22) % 5
    gradients, held = [], []
    for part in (None, 5):
        network = Network(encoder, torch.float64, stop_before_head=True, held_at_once=part)
        encoder.zero_grad()
        with Saved() as saved:
            features = network(images)
        loss(encoder.head(features), labels, generator=torch.Generator().manual_seed(0)).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in encoder.parameters()]))
        held.append(saved.bytes)
    assert gradients[0].norm() > 1e-3
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-12)
    assert held[1] < held[0] / 10


def test_a_gradient_cache_wants_fixed_batch_normalisation(digits: Path, tmp_path: Path) -> None:
    shared, layer = (create_encoder("compact", dim=8, in_channels=1, width=4) for _ in range(2))
    synchronise_batch_norm(shared, CPU)  # as with several processes
    for encoder in (layer, shared, nn.SyncBatchNorm.convert_sync_batchnorm(layer)):
        with pytest.raises(ConfigError, match=r"set training\.batch_norm to frozen"):
            trainer(digits, tmp_path, encoder, gradient_cache=4)
    encoder = create_encoder("compact", dim=8, in_channels=1, width=4)
    encoder.set_batch_norm("frozen")
    trainer(digits, tmp_path, encoder, gradient_cache=4).fit()


def test_norm_and_mc_dropout_read_features_as_they_read_images(digits: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = create_encoder("compact", dim=8, in_channels=1, image_size=16, width=4).eval()
    images = torch.randn(6, 1, 16, 16)
    features = encoder.features(images).detach()
    for name in ("norm", "mc_dropout"):
        uncertainty = create_uncertainty(name)
        whole = uncertainty.bind(encoder, seed=0)(images).tensors()
        head = uncertainty.bind(HeadOnly(encoder), seed=0)(features).tensors()
        assert all(torch.allclose(head[key], value, atol=1e-5) for key, value in whole.items())


@pytest.mark.parametrize("uncertainty", ["norm", "laplace", "pixel_statistic"])
def test_embeddings_on_shared_features_are_those_of_the_images(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncertainty: str
) -> None:
    """A run's posterior and embeddings, with and without the store; what looks at pixels reads the images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prepared").symlink_to(digits.parent)
    encoder = quick_settings(**FROZEN, prepared="prepared", dataset=digits.name)
    settings = RunSettings(**encoder.plain() | {"uncertainty": uncertainty})
    run = Run("digits/quick/seed0", "digits/quick/seed0", settings)
    place = {"prepared_folder": digits, "run_folder": RESULTS / run.name, "state_folder": tmp_path / "state" / "one"}
    train_run(encoder, **place, device="cpu", features=FEATURES)
    written = []
    for shared in (True, False):
        if not shared:
            for module in ("probmetric.runs.embed.shared", "probmetric.training.features.shared"):
                monkeypatch.setattr(module, lambda *_: None)
        if run.fits_posterior:
            fit_posterior(run)
        before = {file: file.stat().st_mtime_ns for file in FEATURES.rglob("*.safetensors")}
        embed_splits(run, ALONE)
        read = {file: file.stat().st_mtime_ns for file in FEATURES.rglob("*.safetensors")}
        assert before.items() <= read.items()
        assert (len(read) - len(before)) == (1 if shared else 0)  # the test split's
        written.append(load_file(RESULTS / run.name / "embeddings" / "test.safetensors"))
    for name, tensor in written[1].items():
        torch.testing.assert_close(written[0][name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_an_ensemble_of_heads_reads_the_features_once(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members with the same frozen trunk share its features; their embeddings are those of the images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prepared").symlink_to(digits.parent)

    def place(name: str) -> dict[str, Path]:
        return {"prepared_folder": digits, "run_folder": RESULTS / name, "state_folder": tmp_path / "state" / name}

    start = quick_settings(dataset=digits.name, epochs=0, prepared="prepared")
    train_run(start, **place("start"), device="cpu")
    weights = {"pretrained": str(RESULTS / "start" / "model.safetensors")}
    for seed in range(2):
        settings = quick_settings(**FROZEN, **weights, seed=seed, prepared="prepared", dataset=digits.name)
        train_run(settings, **place(f"digits/quick/seed{seed}"), device="cpu", features=FEATURES)
    chosen = {"uncertainty": {"name": "ensemble", "members": 2}}
    run = Run("digits/many/seed0", "digits/quick/seed0", RunSettings(**settings.plain() | {"seed": 0} | chosen))
    written = []
    for shared in (True, False):
        if not shared:
            for module in ("probmetric.runs.embed.shared", "probmetric.training.features.shared"):
                monkeypatch.setattr(module, lambda *_: None)
        fit_posterior(run)
        before = len(list(FEATURES.rglob("*.safetensors")))
        embed_splits(run, ALONE)
        assert len(list(FEATURES.rglob("*.safetensors"))) - before == (1 if shared else 0)  # the test split's
        written.append(load_file(RESULTS / run.name / "embeddings" / "test.safetensors"))
    for name, tensor in written[1].items():
        torch.testing.assert_close(written[0][name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    assert len(list(FEATURES.iterdir())) == 1


def test_parts_that_want_no_gradient_keep_their_statistics() -> None:
    """A part of a network of one's own with `requires_grad_(False)` stays in evaluation mode, also in copies."""
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5))
    network[:2].requires_grad_(False)
    encoder = wrapped(network, 5, dim=3)
    encoder.hold_still()
    for each in (encoder.train(), copy.deepcopy(encoder).train()):
        assert [part.training for part in each.network] == [False, False, True, True]


def test_a_frozen_trunk_and_a_first_trained_part_are_two_wishes() -> None:
    for two in ({"freeze": "trunk", "train_from": "blocks.5"}, {"freeze": "trunk", "lora": 4}):
        with pytest.raises(ValidationError, match="give one of them"):
            Training(**two)


def transformer() -> Encoder:
    torch.manual_seed(0)
    return create_encoder("timm", dim=8, in_channels=1, image_size=32, tag="test_vit")


def test_low_rank_changes_of_a_transformer_train_and_are_written_as_plain_weights(digits: Path, tmp_path: Path) -> None:
    start, images = transformer(), torch.randn(6, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = start.eval()(images)
    made = trainer(digits, tmp_path / "whole", transformer(), lora=2, ema=0.5, epochs=2)
    with torch.no_grad():
        assert torch.equal(made.encoder.eval()(images), before)
    made.fit()
    plain = transformer()
    plain.load_state_dict({name.removeprefix("encoder."): w for name, w in made.best.items() if "encoder." in name})
    was, now = transformer().state_dict(), plain.state_dict()
    ranks = {name: int(torch.linalg.matrix_rank(now[name] - was[name])) for name in was if was[name].ndim == 2}
    assert {ranks[name] for name in ranks if "blocks" in name} == {2}
    changed = {name for name in was if not torch.equal(was[name], now[name])}
    assert changed == {name for name in ranks if "blocks" in name} | {"head.weight", "head.bias"}
    first = trainer(digits, tmp_path / "parts", transformer(), lora=2, ema=0.5, epochs=2)
    with first._progress_bar() as bar:
        first.train_epoch(bar)
        first.end_epoch(bar)
    second = trainer(digits, tmp_path / "parts", transformer(), lora=2, ema=0.5, epochs=2)
    second.fit()
    assert tensors_digest(second.best) == tensors_digest(made.best)
    assert set(second.encoder.state_dict()) == set(was)


def test_low_rank_changes_of_weights_from_a_file_wait_for_the_warm_up(digits: Path, tmp_path: Path) -> None:
    encoder = transformer()
    weights = {name: value for name, value in encoder.state_dict().items() if not name.startswith("head.")}
    torch.save(weights, tmp_path / "start.pth")
    encoder.load_pretrained(tmp_path / "start.pth")
    made = trainer(digits, tmp_path, encoder, lora=2, warmup_epochs=1, epochs=2)
    with made._progress_bar() as bar:
        for changes in (False, True):
            made.train_epoch(bar)
            made.end_epoch(bar)
            moved = {bool(each.any()) for name, each in made.encoder.named_parameters() if name.endswith(".left")}
            assert moved == {changes}


def test_a_run_with_low_rank_changes_and_an_average_is_written(digits: Path, tmp_path: Path) -> None:
    backbone = {"name": "timm", "tag": "test_vit"}
    settings = quick_settings(backbone=backbone, lora=2, ema=0.5, epochs=2, steps_per_epoch=3)
    train_run(settings, prepared_folder=digits, run_folder=tmp_path / "run", state_folder=tmp_path / "state")
    made = load_encoder(tmp_path / "run", which="last")
    start = assemble(settings, Sizes(1, 32, 10))
    was, now = start.encoder.state_dict(), made.encoder.state_dict()
    assert set(was) == set(now)
    name = "backbone.blocks.0.attn.qkv.weight"
    assert torch.linalg.matrix_rank(now[name] - was[name]) == 2


def test_a_training_that_is_interrupted_leaves_plain_layers(digits: Path, tmp_path: Path) -> None:
    made = trainer(digits, tmp_path, transformer(), lora=2)

    def interrupt(_row: object) -> None:
        raise KeyboardInterrupt

    made.conduct = dataclasses.replace(made.conduct, on_epoch=interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    assert set(made.encoder.state_dict()) == set(transformer().state_dict())


def test_low_rank_changes_want_linear_layers(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has none before its head"):
        trainer(digits, tmp_path, lora=2)


@pytest.mark.parametrize(("tag", "part"), [("test_efficientnet", "blocks.2"), ("test_resnet", "layer3")])
def test_a_network_goes_on_from_the_input_of_a_part(tag: str, part: str) -> None:
    encoder = create_encoder("timm", dim=4, in_channels=1, image_size=32, tag=tag).eval()
    images = torch.randn(3, 1, 32, 32)
    rest = rest_of(encoder, part, (1, 32))
    activations, done = input_of(encoder, part, images)
    assert rest is not None
    assert done
    torch.testing.assert_close(rest(activations), encoder(images))
    assert {id(each) for each in rest.parameters()} < {id(each) for each in encoder.parameters()}


def test_a_network_that_is_no_chain_is_not_cut() -> None:
    """A transformer adds positions, which no module does."""
    encoder = create_encoder("timm", dim=4, in_channels=3, image_size=160, tag="test_vit").eval()
    assert rest_of(encoder, "blocks.2", (3, 160)) is None


def test_a_run_that_trains_from_a_part_on_keeps_the_input_of_that_part(digits: Path, tmp_path: Path) -> None:
    """Weights are those of the whole network's training to rounding; another loss reads the same file."""
    network = {"backbone": {"name": "timm", "tag": "test_resnet"}, "augment": "none", "train_from": "layer3"}
    network |= {"steps_per_epoch": 3, "epochs": 2, "learning_rate": 1e-4, "batch_norm": "frozen"}
    folder = tmp_path / "features"
    plain = trained(digits, tmp_path / "plain", **network)
    kept = trained(digits, tmp_path / "kept", shared=folder, **network)
    assert plain.keys() == kept.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(kept[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    files = sorted(folder.rglob("*.safetensors"))
    assert len(files) == 2
    trained(digits, tmp_path / "again", shared=folder, loss="arcface", **network)
    assert sorted(folder.rglob("*.safetensors")) == files
