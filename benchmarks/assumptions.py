"""How often are promises broken where an assumption of theirs does not hold? Simulated shares, with standard errors.

added        95 % intervals of `trust/added` that leave out the gain of the maps fitted, on 400 other classes
noise        such intervals that lie above 0 although the own score is noise
classes      95 % intervals of recall@1 over classes that leave out the truth: classes of equal size, sizes drawn
             from Pareto's distribution, and one class in 20 of which half of the answers are wrong, others right
spot_checks  logs of which the spot checks alarm within 60 daily looks (20 rows of 5,000 each) although the promise
             of 10 % holds, at a level of 1 %: looked at in order of checking, and in order of the log

python benchmarks/assumptions.py --output benchmarks/results/assumptions.json    # 5 to 15 minutes on one core
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _machine import keep, parser
from scipy.special import ndtr, stdtrit

from probmetric import trust
from probmetric.metrics import auroc
from probmetric.metrics.units import Images, error_of, of_mean
from probmetric.trust.p_right import added_auroc, class_folds, fit_p_right

Draw = Callable[[int], np.ndarray]
Scored = tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]
LEVEL = 0.05


def share(broken: list[bool]) -> dict[str, float]:
    """Return the share of broken promises, its standard error and the number of repetitions."""
    mean, count = float(np.mean(broken)), len(broken)
    return {"share": mean, "error": (mean * (1 - mean) / count) ** 0.5, "repetitions": count}


def answers(generator: np.random.Generator, classes: int, each: int, effect: float) -> Scored:
    """Draw the class (N,), a free and an own score (N,) of answers, and whether each is right (N,)."""
    label = np.repeat(np.arange(classes), each)
    of_class, shift = 0.7 * generator.normal(size=(2, classes))[:, label]
    free, of_method = generator.normal(size=(2, len(label)))
    right = generator.random(len(label)) < 1 / (1 + np.exp(-(1 + 1.2 * free + effect * of_method + of_class)))
    return label, {"free": free, "own": of_method + shift}, right


def gain(fitted: Scored, judged: Scored) -> float:
    """Return what the own score adds to the AUROC of `judged` answers, by the maps fitted to parts of the others."""
    label, scores, right = fitted
    classes, of_judged, truth = judged
    part = class_folds(label)
    turn = classes % (part.max() + 1)
    areas = []
    for names in (["free"], ["free", "own"]):
        stated = np.empty(len(truth))
        for fold in range(part.max() + 1):
            to_fit, to_judge = part != fold, turn == fold
            fit = fit_p_right({name: scores[name][to_fit] for name in names}, right[to_fit])
            stated[to_judge] = fit.probability({name: of_judged[name][to_judge] for name in names})
        areas.append(auroc(-stated[truth], -stated[~truth]))
    return areas[1] - areas[0]


def added(classes: int, each: int, repetitions: int) -> dict[str, float]:
    """Measure the intervals of `trust/added` for an own score that adds something."""
    generator, missed = np.random.default_rng(classes), []
    for _ in range(repetitions):
        calibration, others = answers(generator, classes, each, 0.6), answers(generator, 400, 20, 0.6)
        label, scores, right = calibration
        measured = added_auroc({"free": scores["free"]}, {"own": scores["own"]}, right, label, resamples=400)
        missed.append(not measured["added_low"] <= gain(calibration, others) <= measured["added_high"])
    return share(missed)


def noise(classes: int, each: int, repetitions: int) -> dict[str, float]:
    """Measure the intervals of `trust/added` for an own score that is noise."""
    generator, above = np.random.default_rng(classes), []
    for _ in range(repetitions):
        label, scores, right = answers(generator, classes, each, 0.0)
        measured = added_auroc({"free": scores["free"]}, {"own": scores["own"]}, right, label, resamples=200)
        above.append(measured["added_low"] > 0)
    return share(above)


def leaves_out(right: np.ndarray, label: np.ndarray, truth: float) -> bool:
    """Say whether the interval of the mean of `right` (N,) over the classes `label` (N,) leaves out the truth."""
    values = of_mean(Images.of(right, label)).values
    return bool(abs(values.mean() - truth) > stdtrit(len(values) - 1, 1 - LEVEL / 2) * error_of(values))


def over_classes(sizes: Draw, classes: int, repetitions: int) -> dict[str, float]:
    """Measure the intervals of recall@1 where classes differ in size and difficulty."""
    generator, missed = np.random.default_rng(classes), []
    many = sizes(200_000)
    truth = float((ndtr(0.8 + 0.6 * np.random.default_rng(0).normal(size=len(many))) * many).sum() / many.sum())
    for _ in range(repetitions):
        label = np.repeat(np.arange(classes), sizes(classes))
        rate = ndtr(0.8 + 0.6 * generator.normal(size=classes))
        missed.append(leaves_out(generator.random(len(label)) < rate[label], label, truth))
    return share(missed)


def few_bad(classes: int, repetitions: int) -> dict[str, float]:
    """Measure the intervals of recall@1 where one class in 20 is half wrong and all others are right."""
    generator, missed, label = np.random.default_rng(classes), [], np.repeat(np.arange(classes), 20)
    for _ in range(repetitions):
        bad = generator.random(classes) < 0.05
        missed.append(leaves_out(~(bad[label] & (generator.random(len(label)) < 0.5)), label, 1 - 0.05 / 2))
    return share(missed)


def looks(repetitions: int, *, in_order: bool) -> dict[str, float]:
    """Measure the false alarms of spot checks that are looked at each day."""
    generator, alarmed = np.random.default_rng(0), []
    for _ in range(repetitions):
        wrong, checked = generator.random(5000) < 0.1, generator.permutation(5000)[:1200]
        days = (checked[: 20 * day] for day in range(1, 61))
        rows = (day if in_order else np.sort(day) for day in days)
        alarmed.append(any(trust.spot_checks(wrong[each], risk=0.1).alarm is not None for each in rows))
    return share(alarmed)


def main() -> None:
    """Print the shares and write the record."""
    command = parser(__doc__)
    command.add_argument("--repetitions", type=int, default=1000, help="of the fast simulations; the others a fifth")
    options = command.parse_args()
    fast, slow = options.repetitions, options.repetitions // 5
    generator = np.random.default_rng(1)

    def equal(classes: int) -> np.ndarray:
        return np.full(classes, 40)

    def pareto(classes: int) -> np.ndarray:
        return np.minimum(np.ceil(3 * (1 + generator.pareto(1.2, classes))).astype(int), 1000)

    keep(
        {
            "added": {str(count): added(count, each, slow) for count, each in ((10, 40), (30, 20), (100, 10))},
            "noise": {str(count): noise(count, each, slow) for count, each in ((10, 40), (30, 20), (100, 10))},
            "classes": {
                "equal sizes": {str(count): over_classes(equal, count, fast) for count in (5, 30)},
                "Pareto's sizes": {str(count): over_classes(pareto, count, fast) for count in (5, 30, 100)},
                "one bad class in 20": {str(count): few_bad(count, fast) for count in (30, 100)},
            },
            "spot_checks": {
                "in order of checking": looks(slow, in_order=True),
                "in order of the log": looks(slow, in_order=False),
            },
        },
        options.output,
    )


if __name__ == "__main__":
    main()
