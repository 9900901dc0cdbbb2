"""HYPERBOLIC: multinomial logistic regression on the Poincare ball (Ganea et al. 2018; Scott et al. 2021, section 3).

With curvature c, the embedding is moved onto the ball, x = project(exp_0(z)),

    exp_0(z) = tanh(sqrt(c) |z|) z / (sqrt(c) |z|)            project: |x| <= (1 - 1e-3) / sqrt(c)

and class j has a point p_j = project(exp_0(point_j)) and a normal a_j = normal_j (1 - c |p_j|^2). Its logit is

    (lambda_j |a_j| / sqrt(c)) arsinh( 2 sqrt(c) <w, a_j> / (|a_j| (1 - c |w|^2)) ),
    w = (-p_j) (+) x  (Moebius sum),    lambda_j = 2 / (1 - c |p_j|^2)

Because 1 - c |w|^2 = (1 - c |x|^2)(1 - c |p|^2) / D with D the Moebius sum's denominator, D cancels, and with
n_j = normal_j / |normal_j| every logit follows from two matrix products, x . p and x . n:

    logit_j = 2 |normal_j| / sqrt(c) arsinh( 2 sqrt(c) [(1 - c |p|^2) x.n - (1 - 2c x.p + c |x|^2) p.n]
                                             / ((1 - c |x|^2)(1 - c |p|^2)) )

    corrected      the gradient of this loss
    as_published   the gradient that reaches x is multiplied by (1 - c |x|^2)^2 / 4, the inverse metric of the ball, as
                   in the released code; at its c = 1e-5 this is a quarter of the Euclidean gradient

The constants of 1e-5 that the release adds to the Moebius denominators are not reproduced, because no denominator is
zero here. At c = 1e-5 the geometry is nearly Euclidean: logit = 4 <x - p, normal>.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from probmetric.losses import register
from probmetric.losses._base import Loss, unit
from probmetric.registry import Positive

LARGEST_RADIUS = 1.0 - 1e-3


@register
class Hyperbolic(Loss):
    """Hyperbolic softmax of the given `curvature` c > 0."""

    is_classifier = True
    starts_at_random = True

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        curvature: Positive = 1e-5,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.curvature, self.riemannian = curvature, fidelity == "as_published"
        self.points = nn.Parameter(torch.empty(num_classes, dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.normals = nn.Parameter(torch.empty(num_classes, dim).uniform_(-(dim**-0.5), dim**-0.5))

    def to_ball(self, vectors: Tensor) -> Tensor:
        """Return the exponential map at the origin of `vectors` (..., M), kept off the ball's boundary."""
        norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        radius = (self.curvature**0.5 * norm).clamp_max(15.0).tanh().clamp_max(LARGEST_RADIUS)
        return unit(vectors) * radius / self.curvature**0.5

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return signed, scaled hyperbolic distances (B, C) to the class hyperplanes."""
        c, points, normal_norm = self.curvature, self.to_ball(self.points), self.normals.norm(dim=1)
        x, directions = self.to_ball(embeddings), unit(self.normals)
        if self.riemannian and x.requires_grad:
            metric = (1.0 - c * x.detach().square().sum(dim=1, keepdim=True)).square() / 4.0
            x.register_hook(lambda gradient: gradient * metric)
        x_gap = 1.0 - c * x.square().sum(dim=1, keepdim=True)
        p_gap = 1.0 - c * points.square().sum(dim=1)
        along = p_gap * (x @ directions.T)
        offset = (2.0 - x_gap - 2.0 * c * (x @ points.T)) * (points * directions).sum(dim=1)
        return 2.0 * normal_norm / c**0.5 * torch.asinh(2.0 * c**0.5 * (along - offset) / (x_gap * p_gap))
