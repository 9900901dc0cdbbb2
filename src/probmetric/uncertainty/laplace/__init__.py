"""Last-layer Laplace approximation for metric learning (paper 003, LAM)."""

from probmetric.uncertainty.laplace.curvature import dataset_pairs, mined_pairs, weigh_negatives
from probmetric.uncertainty.laplace.ggn import diag_ggn
from probmetric.uncertainty.laplace.model import Laplace

__all__ = ["Laplace", "dataset_pairs", "diag_ggn", "mined_pairs", "weigh_negatives"]
