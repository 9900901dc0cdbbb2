"""Read and validate `params.yaml` and the experiment files before any job exists.

Every model forbids unknown keys, and component names and options are checked against the registries, which read
source text only. So a misspelt key or option is found in milliseconds, without loading PyTorch. `ConfigError` states
the place, the value, the allowed values and the nearest match.

    components   a registered name with options, and its check; YAML -> models
    settings     everything that decides one run, fully resolved
    params       the files a user writes: params.yaml, experiments, methods, hyper-parameter searches
"""

from __future__ import annotations

from probmetric.config.components import (
    ELSEWHERE,
    OWN_VIEW,
    Component,
    ConfigError,
    NamedView,
    Strict,
    UncertaintyChoice,
    deeper,
    load,
    naming,
    parse,
    with_tag,
)
from probmetric.config.params import (
    DataFolders,
    DataSource,
    Experiment,
    Grid,
    Method,
    Methods,
    Params,
    Preset,
    SearchRange,
    Tuning,
    check_store,
)
from probmetric.config.settings import EncoderSettings, Evaluation, RunSettings, Training, fine_tuning
