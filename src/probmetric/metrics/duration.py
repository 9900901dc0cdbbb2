"""Metrics of time and of training, which the rooms that train and embed measure."""

from __future__ import annotations

from probmetric.metrics.record import table

METRICS = (
    *table(
        "training",
        "probmetric.reporting.results",
        """
        epoch_seconds | Seconds per epoch [s] ↓ | leaves out the first epoch; of the machine
        seconds | Seconds [s] ↓ | of all epochs; of the machine
        epochs | | epochs trained
        late_gain | Late gain | best validation metric of the last fifth of epochs over the best before, less one; above
            .01 not converged
        """,
    ),
    *table(
        "embedding",
        "probmetric.runs.embed",
        """
        test_seconds | Seconds to embed the test images [s] ↓ | test images on disk to distributions on the CPU, after
            the validation images have warmed everything up
        images_per_second | Images/s [1/s] ↑ | the same; of the machine
        """,
    ),
)
