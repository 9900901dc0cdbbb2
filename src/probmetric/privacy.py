"""Nothing is sent anywhere: the settings by which the tools used here report home, all set to "off".

Snakemake and Optuna send nothing by themselves. DVC is also told so in `.dvc/config` (`core.analytics`).
"""

from __future__ import annotations

import os

TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # timm's model files
}


def switch_telemetry_off() -> None:
    """Set what is not set yet, for this process and the ones it starts; before the tools are imported."""
    for name, value in TELEMETRY_OFF.items():
        os.environ.setdefault(name, value)
