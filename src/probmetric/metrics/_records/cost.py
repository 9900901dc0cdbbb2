"""Of time."""

from __future__ import annotations

from probmetric.metrics._metric import Metric, measured

TRAINING = measured(
    ("training",),
    "reporting.results",
    Metric("epoch_seconds", "Seconds per epoch", "lower", "leaves out the first epoch; of the machine", unit="s"),
    Metric("seconds", "Seconds", "lower", "of all epochs; of the machine", unit="s"),
    Metric("epochs", "", "none", "epochs trained"),
    Metric(
        "late_gain",
        "Late gain",
        "none",
        "best validation metric of the last fifth of epochs over the best before, less one; above .01 not converged",
    ),
)

EMBEDDING = measured(
    ("embedding",),
    "pipeline",
    Metric(
        "test_seconds",
        "Seconds to embed the test images",
        "lower",
        "test images on disk to distributions on the CPU, after the validation images have warmed everything up",
        unit="s",
    ),
    Metric("images_per_second", "Images/s", "higher", "the same; of the machine", unit="1/s"),
)
