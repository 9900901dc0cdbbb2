"""ProxyNCA in the shape of ProxyAnchor (Roth et al. 2022, NIR eq. 6); their tables call it ProxyNCA.

With cosines s_ic between embedding i and proxy c, scale alpha and margin delta,

    L = mean_i log(1 + exp(-alpha (s_{i,y_i} - delta))) + mean_i log(1 + sum_{c != y_i} exp(alpha (s_ic + delta)))

    corrected      eq. 6
    as_published   the released code multiplies the first exponential by n_i, the number of samples of class y_i in the
                   batch (its mask sums over the batch)
"""

from __future__ import annotations

import torch
from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import cosine_similarities, log_one_plus_exp, without_target
from probmetric.losses.proxy_anchor import ProxyAnchor


@register
class ProxyAnchorNCA(ProxyAnchor):
    """NCA-shaped ProxyAnchor: proxies are contrasted per sample."""

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the attraction to the own proxy plus repulsion from all others, means over the batch."""
        cosine = cosine_similarities(embeddings, self.proxies)
        exponent = -self.scale * (cosine.gather(1, labels[:, None]).squeeze(1) - self.margin)
        if self.per_sample:
            exponent = exponent + (labels[:, None] == labels).sum(dim=1).to(exponent.dtype).log()
        others = without_target(self.scale * (cosine + self.margin), labels)
        return log_one_plus_exp(exponent).mean() + log_one_plus_exp(others.logsumexp(dim=1)).mean()
