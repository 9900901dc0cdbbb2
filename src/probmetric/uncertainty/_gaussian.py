"""Amortised variance: a second head on the features predicts log σ² of the embedding (PFE, HIB).

Head (paper 003, appendix G.4): Linear(D→M) - BN - ReLU - Linear(M→M) - BN. All dimensions share one scale γ and one
shift β in the last BN. (The authors' code overwrites γ and β by constants; here they train.)
Samples are μ + σ∘ε, projected onto the sphere. Each image has its own noise ε (aleatoric; Laplace shares its weight
draws between images). The image's bytes seed the noise, so it depends on neither batch size nor order. Class
probabilities are the classifier's mean over the samples. Each sample is scaled to the length of the raw embedding,
because the classifier was trained with that length.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor, nn

from probmetric.uncertainty._base import DirectionalBatch, Posterior, Predictor, embedded, polar
from probmetric.uncertainty._summary import Sampled, unit_deviation


class LogVarianceHead(nn.Module):
    """Network from features (B, D) to log σ² (B, M)."""

    def __init__(self, num_features: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_features, dim),
            nn.BatchNorm1d(dim),
            nn.ReLU(),
            nn.Linear(dim, dim),
            nn.BatchNorm1d(dim, affine=False),
        )
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return the log σ² (B, M) of features (B, D)."""
        return self.layers(features) * self.scale + self.shift

    def tensors(self) -> Posterior:
        """Return the state as a posterior."""
        return {f"variance.{key}": value.detach().cpu().clone() for key, value in self.state_dict().items()}


def stored_head(posterior: Posterior, like: Tensor) -> LogVarianceHead:
    """Return the head that `posterior` holds, in evaluation mode, on the device of `like`."""
    state = {key.removeprefix("variance."): value for key, value in posterior.items() if key.startswith("variance.")}
    dim, num_features = state["layers.0.weight"].shape
    with torch.device("meta"):
        head = LogVarianceHead(num_features, dim)
    head.load_state_dict({key: value.to(like.device) for key, value in state.items()}, assign=True)
    return head.eval()


class GaussianHead(Sampled):
    """Base of the methods that sample N(μ, σ²) with a learnt variance head."""

    fits = True
    needs = ("variance.layers.0.weight",)

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of `images` (B, ...)."""
        encoder = predictor.encoder
        features = encoder.features(images)
        raw = embedded(encoder, features)
        embeddings = self.locate(raw)
        std = (0.5 * stored_head(predictor.posterior, features)(features)).exp()
        noise = image_noise(images, (self.samples, embeddings.shape[1]), predictor.seed).to(embeddings)
        steps, length = (std * noise[:, draw] for draw in range(self.samples)), raw.norm(dim=1, keepdim=True)
        draws = ((unit_deviation(embeddings, step), length * polar(embeddings + step)[0]) for step in steps)
        result = self.summarise(polar(embeddings)[0], draws, predictor.probabilities)
        result.variance = std.square() / embeddings.square().sum(1, keepdim=True).clamp_min(torch.finfo(std.dtype).tiny)
        return result

    def locate(self, embeddings: Tensor) -> Tensor:
        """Return the Gaussian means μ (B, M) of raw embeddings (B, M)."""
        return embeddings


def image_noise(images: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return standard normal noise (B, *shape); row i depends only on the bytes of images[i] and on `seed`."""
    rows = images.detach().cpu().contiguous().numpy()
    generators = (np.random.default_rng([seed, zlib.crc32(row.tobytes())]) for row in rows)
    noise = [rng.standard_normal(shape, dtype=np.float32) for rng in generators]
    return torch.from_numpy(np.array(noise, dtype=np.float32).reshape(len(rows), *shape))
