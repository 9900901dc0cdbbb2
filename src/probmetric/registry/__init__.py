"""Find components by name: losses, uncertainties, backbones, views, metrics, figures and data sources.

A component gives its name when it registers, or takes the name of its module or, inside the package, of its folder.
To add a component, add a file; files that start with an underscore are helpers.

    from probmetric.losses import ProxyLoss, register

    @register("circle")
    class Circle(ProxyLoss):
        def __init__(self, *, num_classes: int, dim: int, margin: float = 0.4) -> None: ...

A module becomes known through `plugins: [my_package]` in params.yaml, `probmetric.load_plugins`, an entry point of the
group `probmetric.components`, or an import.

Configuration is checked in milliseconds, before PyTorch is loaded: a catalogue (`probmetric schema` writes it) holds
names, options and the constants that planning needs. A component that is newer than the catalogue is imported once.
"""

from __future__ import annotations

from probmetric.registry.options import (
    REQUIRED,
    Count,
    CountOrZero,
    Draws,
    Entry,
    Flag,
    Fraction,
    LearningRate,
    NotNegative,
    OpenShare,
    Option,
    OptionValueError,
    Pixels,
    PluginError,
    Positive,
    Range,
    RegistrationError,
    Share,
    StepCount,
    UnknownNameError,
    When,
)
from probmetric.registry.registry import (
    Registry,
    all_registries,
    isolated_components,
    load_plugins,
    registry_of,
    write_catalogue,
)

__all__ = [
    "REQUIRED",
    "Count",
    "CountOrZero",
    "Draws",
    "Entry",
    "Flag",
    "Fraction",
    "LearningRate",
    "NotNegative",
    "OpenShare",
    "Option",
    "OptionValueError",
    "Pixels",
    "PluginError",
    "Positive",
    "Range",
    "RegistrationError",
    "Registry",
    "Share",
    "StepCount",
    "UnknownNameError",
    "When",
    "all_registries",
    "isolated_components",
    "load_plugins",
    "registry_of",
    "write_catalogue",
]
