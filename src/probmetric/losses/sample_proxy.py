"""The analytic sample-proxy distances of paper 000 (appendix A), each under the softmax of `_sample_proxy`.

With nu = kappa mu, an image zeta = vMF(nu_z) and a proxy rho:

    distance   paper      d(z, p)                                                          proxy
    "cos"      d_Cos      -cos(mu_z, mu_p)                                                 a direction
    "l2"       d_L2       |nu_z - nu_p|^2                                                  a point
    "nivmf"    d_nivMF    -log rho(mu_z)                                                   non-isotropic vMF
    "b_vmf"    d_B-vMF    -log integral sqrt(rho zeta)                                     vMF
    "el_vmf"   d_EL-vMF   -log integral rho zeta                                           vMF
    "kl_vmf"   d_KL-vMF   KL(zeta | rho) = log C(kz) - log C(kp) + A_M(kz) (kz - kp cos)   vMF

(d_EL-nivMF has no closed form: loss `el_nivmf`.) A `concentration` of 0 stands for the value of the paper's comparison
(figure 5), for a `corrected` "l2" for the images' own mean concentration at the start: the paper's 200 was tuned for
other norms. `normalizer` is the factor D of "nivmf".

    corrected      exact log C_M; "kl_vmf" keeps A_M(kz), which eq. 39 drops; "nivmf" has its exact normaliser
    as_published   quadratic log C, under which "b_vmf" is a scaled "l2" and "el_vmf" a scaled dot product; "kl_vmf"
                   without A_M and with the released sign, which repels an image from its own proxy; "nivmf" with the
                   heuristic D and, like "kl_vmf", the fit for M = 512 whatever M is. Only "b_vmf" and "el_vmf"
                   warm-start.
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from probmetric.directional import kl, product_kernel
from probmetric.directional.nonisotropic import Normalizer
from probmetric.directional.normalizer import log_normalizer_of_square
from probmetric.losses import register
from probmetric.losses._base import cosine_similarities, unit
from probmetric.losses._nivmf import nivmf_log_densities
from probmetric.losses._released_vmf import quadratic_log_normalizer
from probmetric.losses._sample_proxy import LearningRateOrZero, Released, SampleProxyLoss, start_concentration
from probmetric.registry import LearningRate, NotNegative, Range

RELEASED = {
    "cos": Released(10.0, 1 / 256, 0.005),
    "l2": Released(200.0, 1.0, 0.005),
    "nivmf": Released(10.0, 1 / 32, 0.005),
    "b_vmf": Released(10.0, 1.0, 0.005),
    "el_vmf": Released(10.0, 1.0, 0.005),
    "kl_vmf": Released(10.0, 1.0, 0.005),
}
ORDER = {"b_vmf": 0.5, "el_vmf": 1.0}
FIT_OF_512 = 512


@register
class SampleProxy(SampleProxyLoss):
    """Softmax over one of the analytic distances between an image's and a proxy's distribution."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        distance: Literal["cos", "l2", "nivmf", "b_vmf", "el_vmf", "kl_vmf"] = "el_vmf",
        normalizer: Literal["by_fidelity", "exact", "paper", "none"] = "by_fidelity",
        concentration: NotNegative = 0.0,
        temperature: NotNegative = 0.0,
        proxy_lr: LearningRate = 0.05,
        concentration_lr: LearningRate = 0.01,
        temperature_lr: LearningRateOrZero = 0.0,
        embedding_scale: NotNegative = 0.0,
        resultant: Annotated[float, Range(above=0, below=1)] = 0.7,
        prior_strength: NotNegative = 0.0,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        released = RELEASED[distance]
        if distance == "l2" and fidelity == "corrected":
            released = released._replace(concentration=start_concentration(resultant, dim))
        super().__init__(
            num_classes=num_classes,
            dim=dim,
            concentration=concentration or released.concentration,
            temperature=temperature,
            proxy_lr=proxy_lr,
            concentration_lr=concentration_lr,
            temperature_lr=temperature_lr,
            embedding_scale=embedding_scale,
            resultant=resultant,
            prior_strength=prior_strength,
            fidelity=fidelity,
            released=released,
            per_dimension=distance == "nivmf",
        )
        self.distance = distance
        self.normalizer = by_fidelity(normalizer, self.published)
        self.wants_warm_start = not self.published or distance in ORDER

    def logits(self, embeddings: Tensor) -> Tensor:
        """-d / t (B, C), up to a constant per row."""
        nu_z = self.sample_parameters(embeddings)
        if self.distance == "cos":
            similarity = cosine_similarities(nu_z, self.proxies)
        elif self.distance == "nivmf":
            similarity = self._log_density(nu_z)
        elif self.distance == "l2":
            nu_p = self.proxy_parameters()
            similarity = 2 * nu_z @ nu_p.T - nu_p.square().sum(dim=1)
        else:
            similarity = self._similarity(nu_z, self.proxy_parameters())
        return self.inverse_temperature() * similarity

    def _log_density(self, nu_z: Tensor) -> Tensor:
        log_c = _quadratic_512 if self.published else log_normalizer_of_square
        return nivmf_log_densities(unit(nu_z), self.proxies, self.log_concentrations(), log_c, self.normalizer)

    def _similarity(self, nu_z: Tensor, nu_p: Tensor) -> Tensor:
        if not self.published:
            if self.distance == "kl_vmf":
                return -kl(nu_z, nu_p)
            return product_kernel(nu_z, nu_p, rho=ORDER[self.distance])
        square_z, square_p = nu_z.square().sum(dim=1, keepdim=True), nu_p.square().sum(dim=1)
        dot = nu_z @ nu_p.T
        if self.distance == "kl_vmf":
            length = square_z.clamp_min(1e-12).sqrt()
            return length - dot / length - _quadratic_512(square_p, self.dim)
        order = ORDER[self.distance]
        joint = order**2 * (square_z + square_p + 2 * dot).clamp_min(0)
        own = quadratic_log_normalizer(square_p, self.dim)
        return order * own - quadratic_log_normalizer(joint, self.dim)


def by_fidelity(normalizer: str, published: bool) -> Normalizer:
    """The factor D asked for, or the one that the fidelity implies."""
    if normalizer == "by_fidelity":
        return "paper" if published else "exact"
    return normalizer  # type: ignore[return-value]


def _quadratic_512(square: Tensor, dim: int) -> Tensor:
    return quadratic_log_normalizer(square, FIT_OF_512)
