from __future__ import annotations

import csv
import dataclasses
import io
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fabricated_runs import Workspace, gathered, write_run
from printed_numbers import printed_numbers
from scipy import stats

from probmetric.config import ConfigError
from probmetric.io import FileError, write_json, write_yaml
from probmetric.reporting import claims
from probmetric.reporting.claims import board as layout
from probmetric.reporting.claims.preconditions import tuned_elsewhere
from probmetric.reporting.claims.testing import evaluate_claims
from probmetric.reporting.comparison import usual
from probmetric.reporting.page import render
from probmetric.reporting.published import load_published
from probmetric.reporting.report import contents_of, markdown, write_tables
from probmetric.reporting.words import plus_minus
from probmetric.runs.names import RunKey

RECALL = "retrieval/recall_at_1"


def statement(**changes: object) -> dict[str, object]:
    entry = {"id": "c", "source": "s, table 1", "statement": "A beats B.", "metric": RECALL, "quoted": "A beats B."}
    return entry | {"method": "a", "against": ["b"], "needs": []} | changes


def make(tmp_path, **changes: object) -> claims.Claim:
    write_yaml(tmp_path / "claims" / "x.yaml", [statement(**changes)])
    (claim,) = claims.load_claims(tmp_path / "claims")
    return claim


def study(tmp_path, values: dict[str, list[float]], metric: str = RECALL):
    """Context over runs `<data>/<method>`, one value per seed."""
    runs = []
    for place, found in values.items():
        for seed, value in enumerate(found):
            runs.append(f"{place}/seed{seed}")
            folder = write_run(tmp_path, runs[-1], {RECALL: 0.5})
            write_json(folder / "metrics.json", {metric: value})
            write_yaml(
                folder / "run.yaml",
                {"run": place, "settings": {}, "fidelity": "as_published" if "as_published" in place else "corrected"},
            )
    context = Workspace(tmp_path, tuple(runs)).context(metrics=(RECALL,), figures=(), labels={})
    return gathered(context)


HIGH, LOW = [0.80, 0.81, 0.79, 0.80], [0.70, 0.72, 0.69, 0.70]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [(HIGH, LOW, "holds"), (LOW, HIGH, "does not hold"), (HIGH, [0.79, 0.83, 0.78, 0.81], "undecided")],
)
def test_a_claim_is_judged_by_a_paired_test(tmp_path, first, second, verdict):
    context = study(tmp_path, {"digits/a": first, "digits/b": second})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    difference = np.subtract(first, second)
    assert finding.verdict == verdict
    assert finding.difference == pytest.approx(difference.mean())
    assert finding.effect_size == pytest.approx(difference.mean() / difference.std(ddof=1))
    assert finding.half_width == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(difference))
    significant = stats.ttest_rel(first, second).pvalue < 0.05
    assert significant == (verdict != "undecided")


def test_lower_is_better_turns_the_sign(tmp_path):
    context = study(tmp_path, {"digits/a": LOW, "digits/b": HIGH}, metric="calibration/ece")
    (finding,) = evaluate_claims(context, [make(tmp_path, metric="calibration/ece")])
    assert finding.verdict == "holds"
    assert finding.difference > 0


def test_verdicts_are_corrected_over_all_claims(tmp_path):
    """Twenty tests of equal methods and one clear difference: what 5 % decides alone is undecided among all."""
    generator = np.random.default_rng(5)
    values = {f"digits/m{k}": list(0.7 + 0.01 * generator.normal(size=4)) for k in range(21)}
    values |= {"digits/a": [0.9, 0.901, 0.899, 0.9], "digits/b": LOW, "digits/c": [0.73, 0.74, 0.726, 0.73]}
    chance = [make(tmp_path, id=f"c{k}", method=f"m{k}", against=[f"m{k + 1}"]) for k in range(20)]
    clear, close = make(tmp_path, id="clear"), make(tmp_path, id="close", method="c")
    context = study(tmp_path, values)
    found = {each.claim.id: each for each in evaluate_claims(context, [*chance, clear, close])}
    assert (found["clear"].verdict, found["clear"].corrected) == ("holds", "holds")
    assert (found["close"].verdict, found["close"].corrected) == ("holds", "undecided")
    board = layout.board(context, list(found.values()))
    decided = [each for each in found.values() if each.verdict != "undecided"]
    assert (
        f"22 tests were made at a level of 5 % each. Corrected over all of them (Holm), 1 of the {len(decided)}"
        in board.corrected
    )
    assert {line.claim.id: line.corrected for line in board.lines}["close"] == "undecided"
    shown = dataclasses.replace(contents_of(context), findings=list(found.values()))
    assert f"{board.summary} {board.corrected}\n" in markdown(shown)


def test_a_claim_with_an_unsound_metric_is_decided_on_the_sound_one(tmp_path):
    context = study(tmp_path, {"digits/a": LOW, "digits/b": HIGH}, metric="calibration/retrieval_ece")
    published = "calibration/retrieval_ece_as_published"
    for key, value in zip(context.expected, HIGH + LOW, strict=True):
        path = context.results / key.run / "metrics.json"
        write_json(
            path, {"calibration/retrieval_ece": (LOW + HIGH)[key.seed + 4 * (key.method == "b")], published: value}
        )
    claim = make(tmp_path, metric="calibration/retrieval_ece", as_printed=published)
    (finding,) = evaluate_claims(gathered(context), [claim])
    assert (finding.verdict, finding.as_printed.verdict) == ("holds", "does not hold")
    assert "by ECE (retrieval as published): does not hold, -0.09" in layout.details(finding, str)
    (shipped,) = [each for each in claims.load_claims() if each.id == "lam-online-calibrated"]
    assert (shipped.metric, shipped.as_printed) == ("calibration/retrieval_ece", published)


def test_an_interval_that_rounds_to_nothing_says_so():
    assert (plus_minus(0.0004, 3), plus_minus(0.0006, 3)) == (" ± <0.001", " ± 0.001")
    assert (plus_minus(None, 3), plus_minus(float("nan"), 3)) == ("", "")


NOISY = [0.7 + d for d in (0.004, -0.012, 0.009, -0.001)]


def test_opponents_are_corrected_for_by_holm(tmp_path):
    """Two opponents each beaten at 2.5 to 5 %: of two such tests one may be luck."""
    values = {"a": [value + 0.0133 for value in NOISY], "b": [0.7] * 4, "c": [0.70001, 0.7, 0.7, 0.7]}
    raw = [stats.ttest_rel(values["a"], values[name]).pvalue for name in "bc"]
    assert all(0.05 / 2 < p < 0.15 for p in raw)
    values["a"] = [value + 0.0175 for value in NOISY]
    raw = sorted(stats.ttest_rel(values["a"], values[name]).pvalue for name in "bc")
    assert all(0.025 < p < 0.05 for p in raw)
    context = study(tmp_path, {f"digits/{name}": list(found) for name, found in values.items()})
    (finding,) = evaluate_claims(context, [make(tmp_path, against=["b", "c"])])
    assert finding.verdict == "undecided"
    assert finding.p_value == pytest.approx(2 * raw[0], rel=1e-6)


def test_who_has_not_met_every_opponent_has_won_in_part(tmp_path):
    values = {"digits/a": HIGH, "digits/b": LOW, "digits/z": [0.95, 0.96, 0.94, 0.95]}
    context = study(tmp_path, values)
    against = ["b", "d", "e"]
    (finding,) = evaluate_claims(context, [make(tmp_path, against=against)])
    assert (finding.verdict, finding.missing) == ("holds in part", ("d", "e"))
    assert layout.verdict(finding) == "holds against the 1 of 3 that ran"
    assert "opponents not run alike: d, e" in layout.details(finding, str)
    (beaten,) = evaluate_claims(context, [make(tmp_path, against=["z", "d"])])
    assert beaten.verdict == "does not hold"
    (met,) = evaluate_claims(context, [make(tmp_path, against=["b"])])
    assert met.verdict == "holds"


@pytest.mark.parametrize(
    ("values", "verdict", "opponent"),
    [
        ({"b": [0.85, 0.86, 0.84, 0.85], "c": [0.99, 0.72, 0.98, 0.80]}, "does not hold", "b"),
        ({"b": [0.40, 0.90, 0.50, 0.70], "c": [0.75, 0.76, 0.74, 0.75]}, "undecided", "b"),
        ({"b": [0.78, 0.79, 0.771, 0.78], "c": LOW}, "holds", "b"),
    ],
)
def test_the_opponent_named_is_the_one_behind_the_verdict(tmp_path, values, verdict, opponent):
    context = study(tmp_path, {"digits/a": HIGH} | {f"digits/{name}": found for name, found in values.items()})
    (finding,) = evaluate_claims(context, [make(tmp_path, against=["b", "c"])])
    assert (finding.verdict, finding.opponent) == (verdict, opponent)
    assert finding.difference == pytest.approx(np.subtract(HIGH, values[opponent]).mean())


def test_a_claim_holds_as_surely_as_the_least_sure_of_its_tests(tmp_path):
    """The larger difference is known worse: over claims its p-value counts, not that of the steadier opponent."""
    values = {"a": HIGH, "b": [0.78, 0.79, 0.77, 0.78], "c": [0.66, 0.75, 0.68, 0.72]}
    context = study(tmp_path, {f"digits/{name}": found for name, found in values.items()})
    (finding,) = evaluate_claims(context, [make(tmp_path, against=["b", "c"])])
    assert (finding.verdict, finding.opponent) == ("holds", "b")
    assert finding.p_value == pytest.approx(stats.ttest_rel(HIGH, values["c"]).pvalue)


def test_each_dataset_is_judged_by_itself(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW, "glyphs/a": LOW, "glyphs/b": HIGH})
    found = {f.data: f.verdict for f in evaluate_claims(context, [make(tmp_path)])}
    assert found == {"digits": "holds", "glyphs": "does not hold"}


@pytest.mark.parametrize("noisy", ["glyphs+noise0.2", "glyphs+nearest0.4"])
def test_robust_compares_the_losses_through_noise(tmp_path, noisy):
    values = {"glyphs/a": HIGH, "glyphs/b": HIGH, f"{noisy}/a": [v - 0.02 for v in HIGH]}
    values[f"{noisy}/b"] = [v - d for v, d in zip(HIGH, (0.2, 0.22, 0.21, 0.2), strict=True)]
    (finding,) = evaluate_claims(study(tmp_path, values), [make(tmp_path, kind="robust")])
    assert (finding.data, finding.verdict) == (noisy, "holds")
    assert finding.difference == pytest.approx(np.mean([0.2, 0.22, 0.21, 0.2]) - 0.02)


def test_robust_looks_at_losses_not_at_values(tmp_path):
    """The method ends below its opponent everywhere, but started lower still: it lost less."""
    noisy, clean_b = "glyphs+noise0.2", [0.90, 0.91, 0.89, 0.90]
    values = {"glyphs/a": [0.60, 0.61, 0.59, 0.60], f"{noisy}/a": [0.58, 0.585, 0.57, 0.581]}
    values |= {"glyphs/b": clean_b, f"{noisy}/b": [0.79, 0.80, 0.785, 0.80]}
    (finding,) = evaluate_claims(study(tmp_path / "less", values), [make(tmp_path, kind="robust")])
    assert finding.verdict == "holds"
    values = {"glyphs/a": clean_b, f"{noisy}/a": [0.79, 0.80, 0.785, 0.80]}
    values |= {"glyphs/b": [0.60, 0.61, 0.59, 0.60], f"{noisy}/b": [0.58, 0.585, 0.57, 0.581]}
    (finding,) = evaluate_claims(study(tmp_path / "more", values), [make(tmp_path, kind="robust")])
    assert finding.verdict == "does not hold"


@pytest.mark.parametrize(("margin", "verdict"), [(0.3, "holds"), (0.01, "does not hold")])
def test_not_worse_allows_a_margin(tmp_path, margin, verdict):
    context = study(tmp_path, {"digits/a": LOW, "digits/b": HIGH})
    (finding,) = evaluate_claims(context, [make(tmp_path, kind="not_worse", margin=margin)])
    assert finding.verdict == verdict
    assert finding.difference == pytest.approx(np.mean(LOW) - np.mean(HIGH))


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_seeds_decide_nothing(tmp_path, seeds):
    """Equal differences over two seeds once gave p = 0."""
    context = study(tmp_path, {"digits/a": [0.5, 0.6][:seeds], "digits/b": [0.75, 0.85][:seeds]})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.p_value, finding.seeds) == ("undecided", None, seeds)
    assert "about 3 seeds would decide" in layout.details(finding, str)


def test_equal_differences_are_luck_not_certainty(tmp_path):
    """Three seeds, each .002 ahead, while the methods themselves spread by .05."""
    base = [0.70, 0.75, 0.80]
    context = study(tmp_path, {"digits/a": [value + 0.002 for value in base], "digits/b": base})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert finding.verdict == "undecided"
    assert finding.p_value is not None
    assert finding.p_value > 0.05


def test_methods_without_anything_random_are_not_tested(tmp_path):
    context = study(tmp_path, {"digits/a": [0.8] * 5, "digits/b": [0.7] * 5})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.p_value) == ("undecided", None)


def test_the_seeds_a_decision_needs_are_those_of_a_power_analysis(tmp_path):
    first, second = [0.80, 0.82, 0.78, 0.81], [0.79, 0.795, 0.785, 0.80]
    context = study(tmp_path, {"digits/a": first, "digits/b": second})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert finding.verdict == "undecided"
    found = finding.seeds_needed
    effect = np.subtract(first, second).mean() / np.subtract(first, second).std(ddof=1)

    def power(n: int) -> float:
        limit = stats.t.ppf(0.975, n - 1)
        return stats.nct.sf(limit, n - 1, effect * np.sqrt(n))

    assert power(found) >= 0.8 > power(found - 1)
    assert f"about {found} seeds would decide" in layout.details(finding, str)


def with_classes(context, values):
    """Leave the contributions of single test classes, method -> (seeds, classes), where an evaluation leaves them."""
    for place, rows in values.items():
        for seed, row in enumerate(rows):
            curves = {"units/retrieval/recall_at_1": {"value": list(map(float, row)), "class": list(range(len(row)))}}
            write_json(context.results / place / f"seed{seed}" / "curves.json", curves)


def test_test_classes_are_a_sample_too(tmp_path):
    """The same three of forty classes decide in every seed: certain over seeds, luck of three classes."""
    generator = np.random.default_rng(3)
    images = np.ones((2, 4, 40))
    for seed in range(4):
        images[:, seed, generator.choice(np.arange(10, 40), size=5 + seed, replace=False)] = 0
    images[1, :, :3] = 0
    context = study(tmp_path, {f"digits/{name}": list(images[place].mean(axis=1)) for place, name in enumerate("ab")})
    (seeds_only,) = evaluate_claims(context, [make(tmp_path)])
    assert seeds_only.verdict == "holds"
    with_classes(context, {f"digits/{name}": images[place] for place, name in enumerate("ab")})
    (both,) = evaluate_claims(gathered(context), [make(tmp_path)])
    assert (both.verdict, both.difference) == ("undecided", seeds_only.difference)
    assert both.half_width > 1.96 * (0.075 * 0.925 / 40) ** 0.5 > seeds_only.half_width
    assert "too few test classes" in layout.details(both, str)


@pytest.mark.parametrize("metric", ["sparsification/error_auroc", "ood/auroc"])
def test_the_error_over_test_classes_counts_where_single_classes_say_nothing(tmp_path, metric):
    """Error AUROC of .80 and .70, certain over seeds: with an error of .05 over classes each, it is not."""
    values = {"digits/a": HIGH, "digits/b": LOW}
    claim = make(tmp_path, metric=metric)
    (seeds_only,) = evaluate_claims(study(tmp_path / "plain", values, metric=metric), [claim])
    assert (seeds_only.verdict, seeds_only.units_counted) == ("holds", False)
    assert "test classes not counted" in layout.details(seeds_only, str)
    context = study(tmp_path / "known", values, metric=metric)
    where = "ood/symbols/auroc" if metric == "ood/auroc" else metric
    for key in context.expected:
        write_json(context.results / key.run / "curves.json", {"unit_errors": {where: [0.05, 1e6]}})
    context = gathered(context)
    (both,) = evaluate_claims(context, [claim])
    assert (both.verdict, both.difference) == ("undecided", seeds_only.difference)
    assert both.half_width == pytest.approx(np.hypot(seeds_only.half_width, 1.96 * np.sqrt(2) * 0.05), rel=1e-3)
    assert "test classes not counted" not in layout.details(both, str)
    assert ",yes," in layout.csv_text([both])
    (above,) = evaluate_claims(context, [claim.model_copy(update={"kind": "exceeds", "threshold": 0.7, "against": ()})])
    assert above.half_width < both.half_width


def test_what_noise_takes_is_compared_class_by_class(tmp_path):
    """Noise costs b the same three of forty classes in every seed: certain over seeds, luck of three classes."""
    generator = np.random.default_rng(3)
    images = {place: np.ones((4, 40)) for place in product(("glyphs", "glyphs+noise0.2"), "ab")}
    for seed in range(4):
        images["glyphs+noise0.2", "a"][seed, generator.choice(np.arange(10, 40), size=seed, replace=False)] = 0
        images["glyphs+noise0.2", "b"][seed, generator.choice(np.arange(10, 40), size=seed, replace=False)] = 0
        images["glyphs", "a"][seed, 10 + seed] = images["glyphs", "b"][seed, 10 + seed] = 0
    images["glyphs+noise0.2", "b"][:, :3] = 0
    values = {f"{data}/{name}": list(found.mean(axis=1)) for (data, name), found in images.items()}
    context = study(tmp_path, values)
    claim = make(tmp_path, kind="robust")
    (seeds_only,) = evaluate_claims(context, [claim])
    assert seeds_only.verdict == "holds"
    with_classes(context, {f"{data}/{name}": found for (data, name), found in images.items()})
    (both,) = evaluate_claims(gathered(context), [claim])
    assert (both.verdict, both.units_counted) == ("undecided", True)


UNPREPARED = "the prepared data are not here, so it is unknown whether test classes were trained on"


@pytest.mark.parametrize(
    ("needs", "changed", "reason"),
    [
        (
            ["converged"],
            {"longer": 0.02},
            "{} had not converged: 0.020 better after 12 instead of 6 epochs, 4 shared seeds",
        ),
        (
            ["converged"],
            {"longer": None},
            "{} was not trained for twice or half as long, so nobody knows whether it had converged",
        ),
        (["converged"], {"val": [0.1, 0.4, 0.5, 0.5, 0.5, 0.2]}, "the training of {} fell apart or overfitted"),
        (["tuned_or_published"], {"budgets": {}}, "settings neither tuned nor published"),
        (["tuned_or_published"], {"budgets": {"a": 20, "b": 5}}, "tuned with unequal budgets"),
        (["resnet50"], {"backbone": {"name": "compact"}}, "the backbone is compact, not a ResNet-50"),
        (["closed_set"], {"protocol": "open_set"}, "test classes are no training classes"),
        (["open_set"], {"protocol": "closed_set"}, "test classes are training classes"),
        (["open_set"], {"protocol": ""}, UNPREPARED),
        (
            ["closed_set"],
            {"protocol": ""},
            UNPREPARED,
        ),
        (["clean_labels"], {"data": "digits+noise0.2"}, "wrong training labels"),
        (["noise_as_published"], {"data": "digits+nearest0.2"}, "not 20 % of the labels replaced at random"),
        (["noise_as_published"], {"data": "digits+noise0.4"}, "not 20 % of the labels replaced at random"),
        (["noise_as_published"], {"data": "digits"}, "not 20 % of the labels replaced at random"),
        (["few_samples"], {"samples": 10}, "a draws 10 samples"),
        (
            ["same_hardware"],
            {"gpus": ["H200", "A100"]},
            "the runs were timed on different machines, or with other threads",
        ),
    ],
)
def test_outside_its_preconditions_a_claim_is_not_testable(tmp_path, needs, changed, reason):
    given = {"val": [0.1, 0.4, 0.5, 0.5, 0.5, 0.5], "longer": 0.005, "budgets": {"a": 20, "b": 20}, "data": "digits"}
    given |= {"backbone": {"name": "timm", "options": {"tag": "resnet50.tv_in1k"}}, "samples": 5}
    given |= {"gpus": ["H200"]}
    given |= {"protocol": "open_set" if "open_set" in needs else "closed_set"}
    given |= {"data": "digits+noise0.2"} if "noise_as_published" in needs else {}
    for name, found in (("unmet", given | changed), ("met", given)):
        data = found["data"]
        values = {f"{data}/a": LOW, f"{data}/b": HIGH}
        if found["longer"] is not None:
            longer = {
                f"{place}+training.epochs=12": [v + found["longer"] for v in each] for place, each in values.items()
            }
            values |= longer
        context = study(tmp_path / name, values)
        for key in context.expected:
            validated = found["val"] * 2 if key.overrides else found["val"]
            history = "\n".join(["epoch,val_metric", *(f"{i},{v}" for i, v in enumerate(validated))]) + "\n"
            folder = context.results / key.run
            folder.joinpath("history.csv").write_text(history)
            settings = {"backbone": found["backbone"], "loss": {"options": {"samples": found["samples"]}}}
            record = {"run": key.run, "fidelity": "corrected", "settings": settings}
            record["hardware"] = {"gpu": found["gpus"][key.seed % len(found["gpus"])]}
            write_yaml(folder / "run.yaml", record)
        if found["protocol"]:
            write_json(context.prepared / data / "summary.json", {"protocol": found["protocol"], "splits": {}})
        context = dataclasses.replace(context, budgets=found["budgets"])
        (finding,) = evaluate_claims(context, [make(tmp_path / name, needs=needs)])
        if name == "unmet":
            both = "; ".join(reason.format(name) for name in "ab") if "{}" in reason else reason
            assert (finding.verdict, finding.unmet) == ("not testable here", (both,))
            assert both in layout.details(finding, str)
        else:
            assert (finding.verdict, finding.unmet) == ("does not hold", ())


def of_lengths(tmp_path, values, metric=RECALL):
    """Context of runs with a history of as many epochs as their names say, validation flat."""
    context = study(tmp_path, values, metric=metric)
    for key in context.expected:
        epochs = int(key.overrides.rpartition("=")[2])
        rows = "".join(f"{i},0.5\n" for i in range(epochs))
        (context.results / key.run / "history.csv").write_text(f"epoch,val_metric\n{rows}")
    return context


@pytest.mark.parametrize(("gains", "met"), [((0.02, 0.0, 0.01, 0.0), True), ((0.03, 0.0, 0.02, 0.0), False)])
@pytest.mark.parametrize("most_have", [6, 12])
def test_training_has_converged_if_twice_as_much_gains_little_in_the_claims_metric(tmp_path, gains, met, most_have):
    """On average over seeds, whichever of both lengths the claim is about; the validation metric says nothing."""
    longer = [value + gain for value, gain in zip(HIGH, gains, strict=True)]
    places = {"digits/a+training.epochs=6": HIGH, "digits/a+training.epochs=12": longer}
    places |= {f"digits/b+training.epochs={most_have}": LOW}
    places |= {f"digits/b+training.epochs={18 - most_have}": LOW} if most_have == 12 else {}
    context = of_lengths(tmp_path, places)
    claim = (
        make(tmp_path, needs=["converged"], against=["b"] if most_have == 12 else [], kind="better")
        if most_have == 12
        else make(tmp_path, needs=["converged"], kind="exceeds", threshold=0.5, against=[])
    )
    (finding,) = evaluate_claims(context, [claim])
    assert (finding.verdict == "holds") == met
    if not met:
        (reason,) = finding.unmet
        assert "had not converged: 0.012 better after 12 instead of 6 epochs, 4 shared seeds" in reason


def test_lengths_are_compared_on_the_seeds_of_a_split_that_both_have(tmp_path):
    """The second seed is .03 better and was not trained for half as long: what doubling gains is .005."""
    places = {f"digits{split}/a+training.epochs=6": [0.70, 0.73] for split in ("", "+split1", "+split2")}
    context = of_lengths(tmp_path, places | {"digits/a+training.epochs=3": [0.695]})
    claim = make(tmp_path, needs=["converged"], kind="exceeds", threshold=0.5, against=[])
    (finding,) = evaluate_claims(context, [claim])
    assert finding.unmet == ()


def test_without_run_folders_a_claim_that_needs_convergence_is_not_testable(tmp_path):
    """`probmetric figure` draws from runs.parquet, also where the results were removed."""
    context = of_lengths(tmp_path, {"digits/a+training.epochs=6": HIGH, "digits/a+training.epochs=12": HIGH})
    shutil.rmtree(context.results)
    claim = make(tmp_path, needs=["converged"], kind="exceeds", threshold=0.5, against=[])
    (finding,) = evaluate_claims(dataclasses.replace(context), [claim])
    (reason,) = finding.unmet
    assert reason.endswith("has no learning curve left, so nobody knows whether it had converged")


def test_lower_is_better_converges_downwards(tmp_path):
    metric, less = "calibration/ece", [value - 0.05 for value in LOW]
    for name, longer, met in (("worse", HIGH, True), ("better", less, False)):
        places = {"digits/a+training.epochs=6": LOW, "digits/a+training.epochs=12": longer}
        context = of_lengths(tmp_path / name, places, metric=metric)
        claim = make(tmp_path, metric=metric, needs=["converged"], kind="exceeds", threshold=0.9, against=[])
        (finding,) = evaluate_claims(context, [claim])
        assert (finding.unmet == ()) == met


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["a", "b", "a+loss.scale=2"], ""),
        (["a+training.epochs=30", "b+training.epochs=30", "a+training.epochs=90", "raw"], "training.epochs=30"),
        ([f"{m}+training.epochs={n}" for m, n in product("ab", (30, 180, 90))], "training.epochs=180"),
        ([*"ab", "a+training.epochs=30", "b+training.epochs=30"], ""),
        ([f"{m}+loss.scale={n}" for m, n in product("ab", (1, 2))], ""),
    ],
)
def test_methods_stand_for_claims_with_the_overrides_most_have(runs, expected):
    keys = [RunKey.parse(f"digits/{run}/seed0") for run in runs]
    assert "+".join(usual(keys)) == expected


def test_claims_are_judged_by_the_longest_training_of_all(tmp_path):
    values = {"a": (LOW, HIGH), "b": (HIGH, LOW)}
    places = {f"digits/{m}+training.epochs={n}": values[m][i] for m in "ab" for i, n in enumerate((9, 10))}
    context = study(tmp_path, places)
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.difference) == ("holds", pytest.approx(np.subtract(HIGH, LOW).mean()))


def test_a_length_with_one_seed_stands_for_no_claim(tmp_path):
    """Half of the methods, frozen features, have every seed and no length."""
    values = {"digits/a": LOW[:1], "digits/b": HIGH[:1], "digits/frozen": LOW, "digits/lda": LOW}
    context = study(tmp_path, values | {"digits/a+training.epochs=12": HIGH, "digits/b+training.epochs=12": LOW})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.seeds) == ("holds", 4)


def test_a_papers_own_experiment_has_published_settings(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW})
    claim = make(tmp_path, needs=["tuned_or_published"])
    for name, verdict in (("pfml/table1", "holds"), ("pfml/table1@digits", "not testable here")):
        (finding,) = evaluate_claims(dataclasses.replace(context, name=name), [claim])
        assert finding.verdict == verdict


def test_a_posterior_has_converged_if_its_encoder_has(tmp_path):
    values = {"digits/a": HIGH, "digits/b": LOW, "digits/base": LOW}
    context = study(tmp_path, values | {f"{place}+training.epochs=12": each for place, each in values.items()})
    for key in context.expected:
        flat = "epoch,val_metric\n" + "".join(f"{i},0.5\n" for i in range(12 if key.overrides else 6))
        folder = context.results / key.run
        folder.joinpath("history.csv").write_text(flat)
        if key.method == "a":
            folder.joinpath("history.csv").unlink()
            write_yaml(
                folder / "run.yaml",
                {"run": key.run, "settings": {}, "fidelity": "corrected", "encoder": key.run.replace("/a", "/base")},
            )
    (finding,) = evaluate_claims(context, [make(tmp_path, needs=["converged"])])
    assert finding.verdict == "holds"


@pytest.mark.parametrize("changes", [{"method": "z"}, {"against": ["z"]}, {"metric": "retrieval/map_at_r"}])
def test_a_claim_without_its_runs_is_not_run(tmp_path, changes):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW})
    (finding,) = evaluate_claims(context, [make(tmp_path, **changes)])
    assert (finding.verdict, finding.data, finding.difference) == ("not run", "", None)


def test_the_first_alternative_that_was_run_counts(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW, "digits/c": HIGH})
    (finding,) = evaluate_claims(context, [make(tmp_path, method=["z", "a"], against=[["y", "b", "c"]])])
    assert (finding.verdict, finding.opponent) == ("holds", "b")


def test_tuned_versions_play_the_part_of_their_method(tmp_path):
    """Three tuned methods win, lose or are missing; what the untuned ones did beside them does not matter."""
    values = {"digits/a": LOW, "digits/b": HIGH, "digits/best-a": HIGH, "digits/best-b": LOW}
    context = study(tmp_path, values)
    chosen = {"tuned": {"best-a": "a", "best-b": "b"}, "budgets": {"best-a": 12, "best-b": 12}}
    claim = make(tmp_path, needs=["tuned_or_published"])
    (untold,) = evaluate_claims(context, [claim])
    assert untold.unmet == ("settings neither tuned nor published",)
    (finding,) = evaluate_claims(dataclasses.replace(context, **chosen), [claim])
    assert (finding.verdict, finding.opponent) == ("holds", "best-b")
    assert finding.difference == pytest.approx(np.subtract(HIGH, LOW).mean())
    assert "tuned on" not in layout.details(finding, str)
    places = {"best-a": "digits", "best-b": "glyphs", "a": "symbols"}
    (elsewhere,) = evaluate_claims(dataclasses.replace(context, **chosen, tuned_on=places), [claim])
    assert (elsewhere.verdict, elsewhere.tuned_on) == ("holds", ("glyphs",))
    assert "settings tuned on glyphs" in layout.details(elsewhere, str)
    expected = (*context.expected, RunKey.parse("digits+split1/best-a/seed0"))
    several = dataclasses.replace(context, expected=expected)
    assert tuned_elsewhere(several, "digits", ["a"]) == ()
    several = dataclasses.replace(several, tuned_on={"a": "digits"})
    assert tuned_elsewhere(several, "digits", ["a"]) == ("one split of digits: other splits test some of its classes",)
    half = {"tuned": {"best-a": "a"}, "budgets": {"best-a": 12}}
    (unequal,) = evaluate_claims(dataclasses.replace(context, **half), [claim])
    assert (unequal.opponent, unequal.unmet) == ("b", ("tuned with unequal budgets",))


def test_a_tuned_alternative_comes_before_an_untuned_one_named_earlier(tmp_path):
    context = study(tmp_path, {"digits/z": LOW, "digits/best-a": HIGH, "digits/b": LOW})
    chosen = dataclasses.replace(context, tuned={"best-a": "a"}, budgets={"best-a": 12})
    (finding,) = evaluate_claims(chosen, [make(tmp_path, method=["z", "a"])])
    assert finding.verdict == "holds"


def test_fidelities_are_judged_apart(tmp_path):
    values = {"digits/a": HIGH, "digits/a-as_published": LOW, "digits/b": [0.75, 0.76, 0.74, 0.75], "digits/c": HIGH}
    context = study(tmp_path, values)
    found = evaluate_claims(context, [make(tmp_path)])
    assert {f.fidelity: f.verdict for f in found} == {"corrected": "holds", "as_published": "does not hold"}
    (finding,) = evaluate_claims(context, [make(tmp_path, method="c", against=["a"])])
    assert (finding.fidelity, finding.opponent, finding.difference) == ("corrected", "a", 0.0)


def test_overrides_all_runs_share_are_ignored_and_a_sweep_has_no_representative(tmp_path):
    values = {"digits/a+dim=8+training.epochs=2": HIGH, "digits/b+dim=8+training.epochs=2": LOW}
    context = study(tmp_path, values)
    assert [f.verdict for f in evaluate_claims(context, [make(tmp_path)])] == ["holds"]
    sweep = {"digits/a+loss.x=1": HIGH, "digits/a+loss.x=2": LOW, "digits/b": LOW}
    context = study(tmp_path / "sweep", sweep)
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.difference) == ("not testable here", None)
    assert layout.details(finding, str).startswith("a, x 1 and a, x 2 were run, and most methods here have none of")
    assert layout.board(context, [finding]).lines[0].overall == "not testable here"
    lengths = {"digits/a+loss.x=1+training.epochs=4": LOW, "digits/a+loss.x=1+training.epochs=8": HIGH, "digits/b": LOW}
    (finding,) = evaluate_claims(study(tmp_path / "lengths", lengths), [make(tmp_path)])
    assert finding.verdict == "holds", "the longest of versions that differ in nothing but length"
    sweep["digits/a"] = LOW
    (finding,) = evaluate_claims(study(tmp_path / "plain", sweep), [make(tmp_path)])
    assert finding.difference == 0.0


@pytest.mark.parametrize(("threshold", "verdict"), [(0.5, "holds"), (0.795, "undecided"), (0.9, "does not hold")])
def test_exceeds_is_a_one_sample_test(tmp_path, threshold, verdict):
    context = study(tmp_path, {"digits/a": HIGH})
    (finding,) = evaluate_claims(context, [make(tmp_path, kind="exceeds", threshold=threshold, against=[])])
    assert (finding.verdict, finding.opponent) == (verdict, "")
    assert finding.difference == pytest.approx(np.mean(HIGH) - threshold)
    assert finding.p_value == pytest.approx(stats.ttest_1samp(HIGH, threshold).pvalue)


def test_a_method_is_compared_with_itself_under_another_metric(tmp_path):
    other = "retrieval_euclidean/recall_at_1"
    context = study(tmp_path, {"digits/a": HIGH})
    for seed, value in enumerate(LOW):
        folder = tmp_path / "results" / "digits" / "a" / f"seed{seed}"
        write_json(folder / "metrics.json", {RECALL: HIGH[seed], other: value})
    context = gathered(context)
    (finding,) = evaluate_claims(context, [make(tmp_path, against=["a"], against_metric=other)])
    assert finding.verdict == "holds"
    assert finding.difference == pytest.approx(np.subtract(HIGH, LOW).mean())


@pytest.mark.parametrize(("margin", "verdict"), [(0.10, "does not hold"), (0.25, "holds")])
def test_a_margin_can_be_a_share_of_the_opponents_value(tmp_path, margin, verdict):
    values = {"digits/a": [11.9, 12.1, 12.0], "digits/b": [10.0, 10.1, 9.9]}
    context = study(tmp_path, values, metric="classification/nll")
    changes = {"metric": "classification/nll", "better_is": "lower", "kind": "not_worse"}
    (finding,) = evaluate_claims(context, [make(tmp_path, margin=margin, margin_is="share", **changes)])
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrik": "x"}, "metrik: unknown key. did you mean 'metric'"),
        ({"kind": "beter"}, "kind: should be 'better', .* \\(found 'beter'\\)"),
        ({"against": []}, "'against' is missing"),
        ({"metric": "structure/richness_kl"}, "better_is: should be 'higher' or 'lower'"),
        ({"margin_is": "part"}, "margin_is: should be 'difference' or 'share'"),
        ({"needs": ["clean"]}, "needs.0: should be 'clean_labels'"),
        ({"quoted": ""}, "state the printed numbers it rests on"),
        ({"margin": "small"}, "margin: should be a valid number.* \\(found 'small'\\)"),
        ({"method": ""}, "method.0: String should have at least 1 character"),
        ({"needs": 5}, "needs: should be a list"),
    ],
)
def test_a_wrong_claim_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=f"claim 'c'.*{message}"):
        make(tmp_path, **changes)


PAPERS = {"nivmf": 8, "nir": 7, "vmf": 6, "lam": 8, "pfml": 6}
OURS = {"ours": 1}


def test_the_shipped_claims_are_complete_and_well_formed():
    found = claims.load_claims()
    assert len({claim.id for claim in found}) == len(found)
    assert {paper: sum(claim.paper == paper for claim in found) for paper in PAPERS | OURS} == PAPERS | OURS
    for claim in found:
        assert claim.id.startswith(f"{claim.paper}-")
        assert (claim.margin == 0) == (claim.kind != "not_worse")
        assert claim.against or claim.kind == "exceeds"


def test_shipped_claims_name_the_parts_of_the_published_tables():
    parts = {number.method for number in load_published()}
    for claim in claims.load_claims():
        for names in (claim.method, *claim.against):
            named = [name for name in names if name.split("-")[0] in PAPERS and "-" in name]
            assert named, claim.id
            assert set(named) <= parts, claim.id


def test_shipped_claims_quote_numbers_that_stand_in_the_papers_tables():
    numbers = load_published()
    for claim in claims.load_claims():
        found = printed_numbers(claim, numbers)
        assert bool(claim.rests_on) == (not claim.ours), claim.id
        assert set(claim.printed) == set(found)
        rated = [verdict for line in found.values() if (verdict := favours(claim, line)) is not None]
        assert not rated or sum(rated) > len(rated) / 2, f"{claim.id}: most printed numbers speak against it"


def favours(claim, line):
    """Whether a table's numbers on one dataset speak for a claim about the best; None if they cannot say."""
    method = [number for part, number in line.items() if part in claim.method]
    others = [number for part, number in line.items() if part not in claim.method]
    if claim.kind != "better" or claim.against_metric or not method or not others:
        return None
    sign = 1 if claim.better_is == "higher" else -1
    return all(sign * (method[0].value - other.value) >= 0 for other in others)


def test_no_printed_opponent_that_speaks_against_a_claim_is_left_out():
    """Online LAM "finds errors best" left out the table of CUB, where post-hoc is better."""
    numbers = load_published()
    for claim in claims.load_claims():
        if claim.kind == "better" and not claim.against_metric and not claim.ours:
            for line, quoted in printed_numbers(claim, numbers).items():
                left_out = better_and_left_out(claim, quoted, numbers)
                assert not left_out, f"{claim.id}, {line}: {left_out}"


def better_and_left_out(claim, quoted, numbers):
    """Opponents in the same place that are not quoted and beat the method by more than both spreads."""
    mine = next((number for part, number in quoted.items() if part in claim.method), None)
    if mine is None:
        return []
    place = (mine.table, mine.datasets, mine.noise, mine.metric)
    opponents = {name for names in claim.against for name in names} - set(quoted)
    sign = 1 if claim.better_is == "higher" else -1
    return [
        number.method
        for number in numbers
        if (number.table, number.datasets, number.noise, number.metric) == place
        and number.method in opponents
        and sign * (number.value - mine.value) > (number.spread or 0) + (mine.spread or 0)
    ]


def test_an_opponent_left_out_is_found():
    numbers = load_published()
    (claim,) = [each for each in claims.load_claims() if each.id == "lam-online-finds-strangers"]
    (line,) = [found for name, found in printed_numbers(claim, numbers).items() if "cub ood/cars" in name]
    turned = claim.model_copy(update={"method": ("lam-pfe",), "against": (("lam-hib",), ("lam-online",))})
    weak = next(n for n in numbers if (n.method, n.metric, n.table) == ("lam-pfe", "ood/cars/auroc", "lam/table3"))
    assert better_and_left_out(claim, line, numbers) == []
    assert better_and_left_out(turned, {"lam-pfe": weak}, numbers) == ["lam-online"]


@pytest.mark.parametrize(
    "line",
    [
        "lam/table3 cub: lam-posthoc=0.66±0.03 lam-online=0.73±0.01",
        "lam/table3 lfw sparsification/ausc_as_published: lam-online=0.63±0.01",
        "lam/table3 cub: lam-online=0.63",
        "lam/table3: lam-online",
    ],
)
def test_a_number_that_is_not_in_the_table_is_found_out(tmp_path, line):
    claim = make(tmp_path, metric="sparsification/ausc_as_published", printed=[line])
    with pytest.raises(FileError, match="claim 'c'"):
        printed_numbers(claim, load_published())


def test_shipped_claims_about_uncertainty_do_not_measure_accuracy_with_it():
    assert not [claim.id for claim in claims.load_claims() if re.search("ausc|aurc", claim.metric)]


def test_the_documentation_lists_the_shipped_claims():
    text = (Path(__file__).parents[2] / "docs/reference/claims.md").read_text(encoding="utf-8")
    for claim in claims.load_claims():
        assert f"| {claim.statement} | {claim.source}" in text


def test_claims_about_retrieval_of_unseen_classes_are_not_tested_on_known_ones():
    """The papers of proxies evaluate unseen classes only; the calibration of a classifier needs known ones."""
    for claim in claims.load_claims():
        if claim.metric == RECALL and claim.paper in ("nivmf", "nir", "pfml"):
            assert "open_set" in claim.needs, claim.id
        if claim.metric.startswith(("classification/", "calibration/")):
            assert "closed_set" in claim.needs, claim.id


def test_shipped_claims_ask_for_metrics_that_exist():
    measured = {number.metric for number in load_published()} | {"ood/auroc", "distortion/spearman"}
    measured |= {"sparsification/error_auroc", "calibration/retrieval_ece"}
    assert {metric for claim in claims.load_claims() for metric in claim.metrics} <= measured


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (("holds", "holds"), "holds"),
        (("holds", "undecided"), "holds on some"),
        (("holds", "does not hold", "undecided"), "differs"),
        (("does not hold", "undecided"), "does not hold"),
        (("undecided",), "undecided"),
        (("holds in part", "holds in part"), "holds in part"),
        (("holds in part", "undecided"), "holds on some"),
        (("holds", "holds in part"), "holds in part"),
        (("holds in part", "does not hold"), "differs"),
        (("holds", "not testable here"), "holds"),
        (("not testable here", "not testable here"), "not testable here"),
    ],
)
def test_verdicts_on_several_datasets_make_one(found, expected):
    assert layout.overall(found) == expected


@pytest.fixture
def told(tmp_path):
    values = {"digits/laplace": LOW, "digits/contrastive": HIGH, "digits/proxy_anchor": LOW, "digits/pfml": HIGH}
    values |= {"glyphs/pfml": LOW, "glyphs/proxy_anchor": HIGH, "symbols/contrastive": HIGH}
    values |= {"digits/proxy_nca_pp": LOW}
    values |= {f"{place}+training.epochs=12": of_seeds for place, of_seeds in values.items()}
    context = study(tmp_path, values)
    for key in context.expected:
        flat = "epoch,val_metric\n" + "".join(f"{i},0.5\n" for i in range(12 if key.overrides else 6))
        (context.results / key.run / "history.csv").write_text(flat)
        write_json(context.prepared / key.data / "summary.json", {"protocol": "open_set", "splits": {}})
    return dataclasses.replace(context, budgets=dict.fromkeys(("pfml", "proxy_anchor", "proxy_nca_pp"), 8))


def test_the_board_has_a_line_per_claim_and_a_column_per_dataset(told):
    board = layout.board(told, evaluate_claims(told, claims.load_claims()))
    assert board.titles == ("digits", "glyphs")
    lines = {line.claim.id: line for line in board.lines}
    assert set(lines) == {"lam-posthoc-keeps-retrieval", "pfml-best"}
    assert lines["pfml-best"].overall == "differs"
    assert [[finding.verdict for finding in cell] for cell in lines["pfml-best"].cells] == [
        ["holds"],
        ["does not hold"],
    ]
    assert lines["lam-posthoc-keeps-retrieval"].cells[1] == ()
    assert len(board.not_run) == sum(PAPERS.values()) + 1 - 2
    assert board.summary == "2 of 35 claims of the papers were run here: 1 does not hold, 1 depends on the dataset."


def test_the_papers_own_claims_come_first(told):
    findings = evaluate_claims(told, claims.load_claims())
    for name, first in (("pfml/table1@digits", "pfml"), ("study", "lam")):
        board = layout.board(dataclasses.replace(told, name=name), findings)
        assert board.lines[0].claim.paper == first


def test_the_claims_stand_behind_the_answer(told):
    text = render(contents_of(told))
    assert text.index('id="answer"') < text.index('id="tables"') < text.index('id="claims"')
    assert "2 of 35 claims of the papers were run here" in text
    shown = re.search(r"does not hold</span> <span[^>]*>-0\.0\d\d ± 0\.0\d\d</span>.*", text)
    assert re.search(r"to contrastive, allowed: -0.01, d -\d+\.\d, 4 seeds", shown[0])
    assert "After correction over all claims" in text
    assert re.search(r"\d+ tests were made at a level of 5 % each\. Corrected over all of them \(Holm\)", text)


def test_the_tables_carry_the_claims(told):
    paths = {path.name: path for path in write_tables(contents_of(told))}
    rows = {(row["claim"], row["dataset"]): row for row in csv.DictReader(io.StringIO(paths["claims.csv"].read_text()))}
    row = rows["pfml-best", "glyphs"]
    assert (row["verdict"], row["opponent"], row["opponents_not_run"]) == (
        "does not hold",
        "proxy_anchor",
        "proxy_nca_pp",
    )
    assert float(row["p_holm"]) == pytest.approx(stats.ttest_rel(LOW, HIGH).pvalue)
    assert rows["vmf-calibrated", ""]["verdict"] == "not run"
    text = paths["table.md"].read_text()
    assert text.index("## digits") < text.index("## Claims")
    assert "| **holds** +0.0" in text


def test_an_experiment_without_claims_says_so(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH})
    board = layout.board(context, evaluate_claims(context, claims.load_claims()))
    assert board.summary == "None of 35 claims of the papers was run here."
    assert board.lines == ()
    assert "## Claims" not in markdown(contents_of(context)), "a table of one's own data is not told what papers claim"
