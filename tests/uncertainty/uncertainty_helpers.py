"""Small encoders and data shared by the uncertainty tests."""

from probmetric.testing.uncertainties import TinyEncoder, tiny_batches

__all__ = ["TinyEncoder", "tiny_batches"]
