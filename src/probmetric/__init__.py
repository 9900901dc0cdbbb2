"""ProbMetric: train, compare and use probabilistic image embeddings."""

__version__ = "0.1.0"
