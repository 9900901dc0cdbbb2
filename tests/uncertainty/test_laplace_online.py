"""Online LAM: equals post-hoc where it must, resumes exactly, and never poisons its curvature."""

import copy

import pytest
import torch
import torch.nn.functional as F
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.losses import create_loss
from probmetric.uncertainty import create_uncertainty


def online(encoder, **options):
    uncertainty = create_uncertainty("laplace_online", **({"margin": 1.0, "geometry": "euclidean"} | options))
    loss = create_loss("contrastive", num_classes=4, dim=4)
    return uncertainty, uncertainty.objective(encoder, loss, num_images=48)


def step(encoder, objective, batch, generator, optimizer=None):
    images, labels = batch
    value = objective.from_features(encoder.features(images), encoder.head, labels, generator=generator)
    if optimizer is not None:
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return value


@pytest.mark.parametrize("pairs", ["mined", "dataset"])
@pytest.mark.parametrize("bias", [True, False])
def test_zero_learning_rate_without_forgetting_equals_post_hoc(pairs, bias):
    """Weights at rest, m = 1, H starts at 0 and a posterior as narrow as δ = 1e12 makes it: the sum over batches."""
    encoder = TinyEncoder(bias=bias).eval()
    options = {"approximation": "positive", "pairs": pairs}
    uncertainty, objective = online(
        encoder,
        memory=1.0,
        initial_curvature=0.0,
        scale=1.0 if pairs == "mined" else 1 / 3,
        normalize="none",
        prior_precision=1e12,
        **options,
    )
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.0)
    for batch in tiny_batches():
        step(encoder, objective, batch, torch.Generator().manual_seed(0), optimizer)
    result = uncertainty.fit(encoder, [], loss=objective, generator=torch.Generator())
    post_hoc = create_uncertainty("laplace", geometry="euclidean", margin=1.0, **options)
    expected = post_hoc.fit(encoder, tiny_batches(), generator=torch.Generator())
    assert torch.allclose(result["weight_curvature"], expected["weight_curvature"], rtol=1e-4)
    assert result["weight_curvature"].shape == (4, 6 + bias)
    images = tiny_batches(1)[0][0]
    stored = result | {"prior_precision": expected["prior_precision"]}
    ours = uncertainty.bind(encoder, posterior=stored, seed=0)(images)
    theirs = post_hoc.bind(encoder, posterior=expected, seed=0)(images)
    assert torch.allclose(ours.uncertainty, theirs.uncertainty, rtol=1e-3)


def test_loss_without_draws_is_the_inner_loss():
    encoder = TinyEncoder().eval()
    _, objective = online(encoder, train_samples=0)
    images, labels = tiny_batches(1)[0]
    value = step(encoder, objective, (images, labels), torch.Generator())
    assert torch.equal(value, objective.inner(encoder(images), labels))


def test_gradient_is_that_of_the_drawn_weights():
    """∇_W of the objective is ∂L/∂W at W + σ∘ε, with the draw repeated outside."""
    encoder = TinyEncoder().eval()
    _, objective = online(encoder, prior_precision=4.0, initial_curvature=5.0)
    objective.eval()
    images, labels = tiny_batches(1)[0]
    step(encoder, objective, (images, labels), torch.Generator().manual_seed(1)).backward()
    generator = torch.Generator().manual_seed(1)
    bias = encoder.head.bias.detach() + torch.randn(4, generator=generator) / 3
    weight = (encoder.head.weight.detach() + torch.randn(4, 6, generator=generator) / 3).requires_grad_()
    objective.inner(F.linear(encoder.features(images).detach(), weight, bias), labels).backward()
    assert torch.allclose(encoder.head.weight.grad, weight.grad, atol=1e-6)
    assert encoder.trunk[1].weight.grad.abs().sum() > 0


def test_curvature_is_discounted_and_scaled():
    encoder = TinyEncoder().eval()
    uncertainty, objective = online(encoder, memory=0.9, train_samples=0)
    images, labels = tiny_batches(1)[0]
    with torch.no_grad():
        features = encoder.features(images)
        inputs = torch.cat([features, torch.ones(len(features), 1)], dim=1)
        diagonal, count = uncertainty.rule.curvature(inputs, encoder.head(features), labels)
        step(encoder, objective, (images, labels), torch.Generator())
    expected = 0.9 * 48 + (48**2 / count * diagonal).clamp_min(0)
    assert torch.allclose(objective.weight_curvature, expected, rtol=1e-5)
    assert int(objective.steps) == 1


def test_batch_without_triplets_or_not_finite_leaves_the_curvature():
    encoder = TinyEncoder().eval()
    _, objective = online(encoder)
    before = objective.weight_curvature.clone()
    generator = torch.Generator().manual_seed(0)
    step(encoder, objective, (torch.randn(4, 3, 2, 2), torch.zeros(4, dtype=torch.long)), generator)
    assert torch.equal(objective.weight_curvature, before)
    images, labels = tiny_batches(1)[0]
    with torch.no_grad():
        objective._update([(torch.full((4, 7), torch.nan), 5)])
    assert torch.equal(objective.weight_curvature, before)
    step(encoder, objective, (images, labels), generator)
    assert not torch.equal(objective.weight_curvature, before)
    assert torch.isfinite(objective.weight_curvature).all()


def test_resumed_training_is_bit_equal():
    def run(batches, encoder, objective, optimizer, start):
        for index, batch in enumerate(batches, start=start):
            step(encoder, objective, batch, torch.Generator().manual_seed(index), optimizer)

    def fresh():
        encoder = TinyEncoder()
        objective = online(encoder)[1]
        return encoder, objective, torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)

    batches = tiny_batches(6)
    whole = fresh()
    run(batches, *whole, 0)
    first = fresh()
    run(batches[:3], *first, 0)
    states = copy.deepcopy([part.state_dict() for part in first])
    assert "weight_curvature" in states[1]
    second = fresh()
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    run(batches[3:], *second, 3)
    for a, b in zip(whole[:2], second[:2], strict=True):
        assert all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())


def test_training_narrows_the_posterior_and_says_so():
    encoder = TinyEncoder()
    _, objective = online(encoder)
    wide = objective.diagnostics()["posterior_std_median"]
    for index, batch in enumerate(tiny_batches(6)):
        step(encoder, objective, batch, torch.Generator().manual_seed(index))
    assert 0 < objective.diagnostics()["posterior_std_median"] < wide


def test_errors_name_the_remedy():
    encoder = TinyEncoder()
    with pytest.raises(ValueError, match="objective: laplace_online"):
        create_uncertainty("laplace_online").fit(encoder, [], generator=torch.Generator())
    with pytest.raises(ValueError, match=r"'memory' is 0\.0; allowed: a number above 0, at most 1"):
        create_uncertainty("laplace_online", memory=0.0)
    with pytest.raises(ValueError, match="'train_samples' is -1; allowed: a number at least 0"):
        create_uncertainty("laplace_online", train_samples=-1)


def test_the_posterior_carries_its_record_and_may_take_its_prior_from_validation():
    encoder = TinyEncoder()
    uncertainty, objective = online(encoder)
    options = {"loss": objective, "generator": torch.Generator().manual_seed(0)}
    bare = uncertainty.fit(encoder, [], **options)
    assert "mean_resultant_length" not in bare
    posterior = uncertainty.fit(encoder, tiny_batches(), **options)
    assert float(posterior["prior_share"]) == 0.0
    assert 0.5 < float(posterior["mean_resultant_length"]) < 1.0
    validated = create_uncertainty("laplace_online", prior="validation", samples=20, margin=1.0)
    chosen = validated.fit(encoder, [], validation=tiny_batches(2, seed=7), **options)
    assert float(chosen["prior_precision"]) in [10.0**power for power in range(-3, 9)]
    with pytest.raises(ValueError, match="pass validation="):
        validated.fit(encoder, [], **options)
