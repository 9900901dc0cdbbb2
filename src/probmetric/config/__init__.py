"""Configuration: `params.yaml` and the experiment files, validated before any job exists.

Every model forbids unknown keys, and component names and options are checked against the registries, which read
source text only: a misspelt key or option is found in milliseconds, without loading PyTorch. `ConfigError` states
where, the value, what is allowed and the nearest match.

    components   a registered name with options, and how it is checked
    training     how an encoder is trained
    params       params.yaml and the experiment files
    tuning       hyper-parameter searches
    settings     everything that decides one run, fully resolved
    parsing      YAML -> models, and messages people can act on
"""

from __future__ import annotations

from probmetric.config._components import OWN_VIEW, Component
from probmetric.config._params import Evaluation, Experiment, Grid, Method, Methods, Params, Preset
from probmetric.config._parsing import ConfigError, load, parse
from probmetric.config._settings import EncoderSettings, RunSettings
from probmetric.config._training import Training
from probmetric.config._tuning import SearchRange, Tuning

__all__ = [
    "OWN_VIEW",
    "Component",
    "ConfigError",
    "EncoderSettings",
    "Evaluation",
    "Experiment",
    "Grid",
    "Method",
    "Methods",
    "Params",
    "Preset",
    "RunSettings",
    "SearchRange",
    "Training",
    "Tuning",
    "load",
    "parse",
]
