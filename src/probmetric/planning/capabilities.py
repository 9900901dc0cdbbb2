"""Check before any job that a run's components can do what the run needs, from what their classes declare.

training.batch_size                    a multiple of images_per_class, or even for pairs
evaluation.proxies                     a loss that has proxies, not hidden by an objective
training.selection_metric: accuracy    a loss that is a classifier
uncertainty softmax, temperature       a loss that is a classifier
an objective                           a backbone with a head, which the objective perturbs or reads
uncertainty laplace                    a backbone with a head
training.head_init (not random)        a backbone with a head
a view's normalisation                 a backbone that does not convert another one's statistics
view or backbone vectors               a dataset of vectors; no other view or backbone of ours reads vectors
uncertainty temperature, prior: validation   validation images that were not trained on in the end
uncertainty temperature, selection by accuracy   data with validation images of the training classes
an uncertainty learnt while training   the objective of that name
uncertainty mc_dropout with rate 0     a backbone whose own rate of dropout is above 0
an ensemble                            a base; over folds, a dataset for each
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from probmetric import losses, models, uncertainty
from probmetric.config import Component, ConfigError, RunSettings, Training
from probmetric.data import views
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.registry import Registry
from probmetric.runs.names import RunKey, split_data_name, without_split
from probmetric.runs.source import is_own

if TYPE_CHECKING:
    from probmetric.config import DataSource


class UnsuitableError(ConfigError):
    """A method cannot work on this kind of data; `reason` says why without naming the run."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason


def check_run(
    settings: RunSettings, encoders: Sequence[str], source: DataSource, datasets: Collection[str], where: str
) -> None:
    """Raise an error, whose message begins with `where`, if a run's components or data lack something it needs.

    Args:
        settings: the run's settings.
        encoders: runs whose encoders it uses.
        source: source of its data.
        datasets: the declared datasets.
        where: the place of the mistake, for the message.

    Raises:
        UnsuitableError: the method cannot use this data.
        ConfigError: the method cannot use any data.
    """
    _check_encoders(settings, encoders, datasets, where)
    _check_data(settings, source, where)
    for problem in (*training_problems(settings), *_problems(settings)):
        raise ConfigError(f"{where}: {problem}")


def _check_encoders(settings: RunSettings, encoders: Sequence[str], datasets: Collection[str], where: str) -> None:
    """Raise `ConfigError` if the uncertainty needs more than the trained encoders can give."""
    name = settings.uncertainty.name
    if len(encoders) > 1 and settings.base is None:
        raise ConfigError(
            f"{where}: uncertainty {name!r} combines the encoders of {len(encoders)} seeds of another method; "
            "name that method as `base`."
        )
    folds = [RunKey.parse(encoder).dataset for encoder in encoders]
    missing = [fold for fold in folds if without_split(split_data_name(fold)[0]) not in datasets]
    if missing:
        raise UnsuitableError(
            where,
            f"uncertainty {name!r} combines encoders over folds, but there is no dataset {missing[0]!r}; use "
            "it on the first of several numbered ones, such as cub-mlrc1.",
        )


def _check_data(settings: RunSettings, source: DataSource, where: str) -> None:
    """Raise `UnsuitableError` if a method reads another kind of data, or needs test images of the training classes."""
    _check_content(settings, source, where)
    if DATASETS.holds(source.source, "closed_set", source.options):
        return
    if uncertainty.REGISTRY.constant(settings.uncertainty.name, "closed_set", False):
        raise UnsuitableError(
            where,
            f"uncertainty {settings.uncertainty.name!r} needs validation images of the training classes; "
            f"{settings.dataset} holds out whole classes.",
        )
    if settings.learns and settings.training.selection_metric == "accuracy":
        raise UnsuitableError(
            where,
            f"training.selection_metric 'accuracy' needs validation images of the training classes; "
            f"{settings.dataset} holds out whole classes. Use recall_at_1 or map_at_r.",
        )


def check_strangers(source: DataSource, strangers: Mapping[str, DataSource], where: str) -> None:
    """Raise `ConfigError` if a run's data are vectors and one of its out-of-distribution sets images, or reverse.

    Args:
        source: source of the run's data.
        strangers: name of an out-of-distribution set -> its source.
        where: the place of the mistake, for the message.
    """
    for name, other in strangers.items():
        if {_content(source), _content(other)} == {"images", "vectors"}:
            raise ConfigError(
                f"{where}: its data are {_content(source)}, those of {name!r} {_content(other)}, and no network reads "
                "both; name other sets in `ood`."
            )


def _content(source: DataSource) -> str:
    """Return the content of a source, "images" or "vectors"; "" if a user's own source does not declare it."""
    view = DATASETS.constant(source.source, "view", {})
    if not view and not is_own(DATASETS.module(source.source)):
        return ""
    return "vectors" if view.get("name") == "vectors" else "images"


def _check_content(settings: RunSettings, source: DataSource, where: str) -> None:
    """Raise `UnsuitableError` if a view or backbone of ours reads vectors and the data are images, or reverse."""
    holds = _content(source)
    for part, registry in (("view", views.REGISTRY), ("backbone", models.REGISTRY)):
        component = getattr(settings, part)
        reads = "vectors" if component and component.name == "vectors" else "images"
        if component and holds not in ("", reads) and is_own(registry.module(component.name)):
            names = [name for name in registry.names() if (name == "vectors") == (holds == "vectors")]
            reason = f"{part} {component.name!r} reads {reads}, but {settings.dataset} holds {holds}; use "
            raise UnsuitableError(where, f"{reason}{', '.join(names)}.")


def training_problems(settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for each thing that loss and objective lack for choosing epochs or for the uncertainty."""
    chosen, objective = settings.uncertainty, settings.objective
    learnt = _can(uncertainty.REGISTRY, chosen, "trains_encoder") and _can(uncertainty.REGISTRY, chosen, "fits")
    if learnt and (objective is None or objective.name != chosen.name):
        base = f" of method {settings.base!r}" if settings.base else ""
        yield f"uncertainty {chosen.name!r} is learnt while training; set the objective{base} to {chosen.name!r}, too."
    if settings.learns and settings.training.selection_metric == "accuracy" and not _classifies(settings):
        yield (
            f"training.selection_metric 'accuracy': {_loss(settings)} is no classifier. Use recall_at_1 or map_at_r."
        )
    if _can(uncertainty.REGISTRY, chosen, "needs_classifier") and not _classifies(settings):
        yield f"uncertainty {chosen.name!r} needs class probabilities; {_loss(settings)} is no classifier."


def _problems(settings: RunSettings) -> Iterator[str]:
    name = settings.uncertainty.name
    if settings.evaluation.proxies and settings.objective is not None:
        yield f"evaluation.proxies: objective {settings.objective.name!r} hides the loss's proxies; leave it out."
    elif settings.evaluation.proxies and not _can(losses.REGISTRY, settings.loss, "has_proxies"):
        yield f"evaluation.proxies: {_loss(settings)} has no proxies; set evaluation.proxies: false for this method."
    selection = settings.training.selection
    if selection != "validation" and reads_validation(settings.uncertainty):
        yield (
            f"uncertainty {name!r} is fitted on validation images, but training.selection {selection!r} trains on them "
            "too. Use selection: validation, or an uncertainty (or prior) that needs none."
        )
    if settings.learns:
        yield from _batches(settings.training)
    yield from _unreadable_images(settings)
    yield from _nothing_to_drop(settings)
    yield from _without_head(settings)


def _without_head(settings: RunSettings) -> Iterator[str]:
    if _can(models.REGISTRY, settings.backbone, "has_head"):
        return
    headless = f"a linear head; backbone {settings.backbone.name!r} has none with these options."
    if settings.objective is not None and settings.learns:
        yield f"objective {settings.objective.name!r} needs {headless}"
    if _can(uncertainty.REGISTRY, settings.uncertainty, "needs_head"):
        yield f"uncertainty {settings.uncertainty.name!r} needs {headless}"
    if settings.training.head_init != "random":
        yield f"training.head_init {settings.training.head_init!r} starts {headless} Set it to random."


def _batches(training: Training) -> Iterator[str]:
    """Yield why batches of that size cannot be drawn from any images; `data.samplers` checks the images."""
    size, per_class = training.batch_size, training.images_per_class
    if training.sampler == "pairs" and size % 2:
        yield f"training.batch_size {size}: with the sampler 'pairs' it must be even; nearest allowed: {size + 1}."
    elif training.sampler not in ("shuffle", "pairs") and size % per_class:
        yield (
            f"training.batch_size {size} is not a multiple of training.images_per_class {per_class}; nearest allowed: "
            f"{max(1, round(size / per_class)) * per_class}."
        )


def _unreadable_images(settings: RunSettings) -> Iterator[str]:
    wanted = models.REGISTRY.constant(settings.backbone.name, "wants_statistics_of", "")
    options = settings.view.options if settings.view else {}
    for name in ("mean", "std"):
        if wanted and options.get(name):
            yield (
                f"view.{name} {options[name]!r}: backbone {settings.backbone.name!r} converts images with the "
                f"statistics of {wanted} itself; leave view.{name} out."
            )


def _nothing_to_drop(settings: RunSettings) -> Iterator[str]:
    """Yield an error for MC dropout of rate 0 if the backbone's own rate is 0, too."""
    name, options = settings.backbone.name, models.REGISTRY.options(settings.backbone.name)
    rates = [settings.backbone.options.get(n, options[n].default) for n in ("dropout", "drop_rate") if n in options]
    thinned = settings.uncertainty.name != "mc_dropout" or settings.uncertainty.options.get("rate") != 0
    if not thinned and rates and not any(rates):
        yield (
            f"uncertainty 'mc_dropout' with rate 0 needs dropout in the network; backbone {name!r} has a rate of 0. "
            "Set uncertainty.rate or the backbone's rate above 0."
        )


def _can(registry: Registry, component: Component | None, flag: str) -> bool:
    return component is not None and registry.holds(component.name, flag, component.options)


def reads_validation(component: Component) -> bool:
    """Tell whether the uncertainty is fitted on validation images."""
    return _can(uncertainty.REGISTRY, component, "closed_set") or component.options.get("prior") == "validation"


def _classifies(settings: RunSettings) -> bool:
    return _can(losses.REGISTRY, settings.loss, "is_classifier") and not _replaced(settings)


def _replaced(settings: RunSettings) -> bool:
    return _can(uncertainty.REGISTRY, settings.objective, "replaces_loss")


def _loss(settings: RunSettings) -> str:
    if settings.objective and _replaced(settings):
        return f"objective {settings.objective.name!r}, which takes the loss's place,"
    return f"loss {settings.loss.name!r}" if settings.loss else "a network without loss"
