"""What components must be able to do for a run to end: checked before any job, from what their classes declare.

evaluation.proxies                     a loss that has proxies, not hidden by an objective
training.selection_metric: accuracy    a loss that is a classifier
uncertainty softmax, temperature       a loss that is a classifier
an objective                           a backbone with a head, which the objective perturbs or reads
uncertainty laplace                    a backbone with a head
a view's normalisation                 a backbone that does not convert another one's statistics
uncertainty temperature, prior: validation   validation images that were not trained on in the end
"""

from __future__ import annotations

from collections.abc import Iterator

from probmetric import losses, models, uncertainty
from probmetric.config import Component, ConfigError, RunSettings
from probmetric.registry import Registry


def check_capabilities(settings: RunSettings, where: str) -> None:
    """Raise `ConfigError`, beginning with `where`, for what the run's loss, uncertainty or backbone cannot give."""
    for problem in _problems(settings):
        raise ConfigError(f"{where}: {problem}")


def _problems(settings: RunSettings) -> Iterator[str]:
    trains = settings.loss is not None and settings.training.epochs > 0
    if settings.evaluation.proxies and settings.objective is not None:
        yield f"evaluation.proxies: objective {settings.objective.name!r} hides the loss's proxies; leave it out."
    elif settings.evaluation.proxies and not _can(losses.REGISTRY, settings.loss, "has_proxies"):
        yield f"evaluation.proxies: {_loss(settings)} has no proxies; set evaluation.proxies: false for this method."
    if trains and settings.training.selection_metric == "accuracy" and not _classifies(settings):
        yield (
            f"training.selection_metric 'accuracy': {_loss(settings)} is no classifier. Use recall_at_1 or map_at_r."
        )
    name = settings.uncertainty.name
    if _can(uncertainty.REGISTRY, settings.uncertainty, "needs_classifier") and not _classifies(settings):
        yield f"uncertainty {name!r} needs class probabilities; {_loss(settings)} is no classifier."
    selection = settings.training.selection
    if selection != "validation" and _reads_validation(settings.uncertainty):
        yield (
            f"uncertainty {name!r} is fitted on validation images, but training.selection {selection!r} trains on them "
            "too. Use selection: validation, or an uncertainty (or prior) that needs none."
        )
    yield from _unreadable_images(settings)
    if not _can(models.REGISTRY, settings.backbone, "has_head"):
        headless = f"a linear head; backbone {settings.backbone.name!r} has none with these options."
        if settings.objective is not None and trains:
            yield f"objective {settings.objective.name!r} needs {headless}"
        if _can(uncertainty.REGISTRY, settings.uncertainty, "needs_head"):
            yield f"uncertainty {name!r} needs {headless}"


def _unreadable_images(settings: RunSettings) -> Iterator[str]:
    wanted = models.REGISTRY.constant(settings.backbone.name, "wants_statistics_of", "")
    found = settings.view.options.get("normalisation", "backbone") if settings.view else "backbone"
    if wanted and found not in ("backbone", wanted):
        yield (
            f"view.normalisation {found!r}: backbone {settings.backbone.name!r} converts images with the statistics of "
            f"{wanted} itself; leave view.normalisation out."
        )


def _can(registry: Registry, component: Component | None, flag: str) -> bool:
    return component is not None and registry.holds(component.name, flag, component.options)


def _reads_validation(component: Component) -> bool:
    return _can(uncertainty.REGISTRY, component, "closed_set") or component.options.get("prior") == "validation"


def _classifies(settings: RunSettings) -> bool:
    return _can(losses.REGISTRY, settings.loss, "is_classifier")


def _loss(settings: RunSettings) -> str:
    return f"loss {settings.loss.name!r}" if settings.loss else "a method without loss"
