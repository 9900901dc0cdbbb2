from __future__ import annotations

import numpy as np
import pytest
from fabricated_runs import Workspace, write_run
from scipy import stats

from probmetric.io import FileError, write_json, write_yaml
from probmetric.reporting import claims
from probmetric.reporting.aggregate import aggregate
from probmetric.reporting.html import render

RECALL = "retrieval/recall_at_1"


def statement(**changes: object) -> dict[str, object]:
    entry = {"id": "c", "source": "s, table 1", "statement": "A beats B.", "metric": RECALL}
    return entry | {"method": "a", "against": ["b"]} | changes


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
            write_run(tmp_path, runs[-1], {RECALL: 0.5})
            write_json(tmp_path / "results" / runs[-1] / "metrics.json", {metric: value})
    context = Workspace(tmp_path, tuple(runs)).context(metrics=(RECALL,), figures=(), labels={})
    folders = [context.results / run for run in runs]
    aggregate(folders, context.folder / "runs.csv", context.folder / "metrics.json")
    return context


HIGH, LOW = [0.80, 0.81, 0.79, 0.80], [0.70, 0.72, 0.69, 0.70]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [(HIGH, LOW, "holds"), (LOW, HIGH, "does not hold"), (HIGH, [0.79, 0.83, 0.78, 0.81], "undecided")],
)
def test_a_claim_is_judged_by_a_paired_test(tmp_path, first, second, verdict):
    context = study(tmp_path, {"digits/a": first, "digits/b": second})
    (finding,) = claims.evaluate_claims(context, [make(tmp_path)])
    difference = np.subtract(first, second)
    assert finding.verdict == verdict
    assert finding.difference == pytest.approx(difference.mean())
    assert finding.effect_size == pytest.approx(difference.mean() / difference.std(ddof=1))
    assert finding.half_width == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(difference))
    significant = stats.ttest_rel(first, second).pvalue < 0.05
    assert significant == (verdict != "undecided")


def test_lower_is_better_turns_the_sign(tmp_path):
    context = study(tmp_path, {"digits/a": LOW, "digits/b": HIGH}, metric="calibration/ece")
    (finding,) = claims.evaluate_claims(context, [make(tmp_path, metric="calibration/ece")])
    assert finding.verdict == "holds"
    assert finding.difference > 0


def test_every_opponent_must_be_beaten_and_holm_corrects(tmp_path):
    generator = np.random.default_rng(0)
    base = 0.7 + 0.01 * generator.normal(size=5)
    blur = 0.004 * generator.normal(size=(2, 5))
    values = {"a": base + 0.006, "b": base + blur[0], "c": base - 0.2 + blur[1]}
    context = study(tmp_path, {f"digits/{name}": list(found) for name, found in values.items()})
    (finding,) = claims.evaluate_claims(context, [make(tmp_path, against=["b", "c", "d"])])
    raw = sorted(stats.ttest_rel(values["a"], values[name]).pvalue for name in "bc")
    corrected = [2 * raw[0], max(2 * raw[0], raw[1])]
    assert (finding.verdict == "holds") == all(p < 0.05 for p in corrected)
    assert finding.opponent == "b"
    assert finding.missing == ("d",)


def test_each_dataset_is_judged_by_itself(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW, "glyphs/a": LOW, "glyphs/b": HIGH})
    found = {f.data: f.verdict for f in claims.evaluate_claims(context, [make(tmp_path)])}
    assert found == {"digits": "holds", "glyphs": "does not hold"}


def test_robust_compares_the_losses_through_noise(tmp_path):
    values = {"glyphs/a": HIGH, "glyphs/b": HIGH, "glyphs+noise0.2/a": [v - 0.02 for v in HIGH]}
    values["glyphs+noise0.2/b"] = [v - d for v, d in zip(HIGH, (0.2, 0.22, 0.21, 0.2), strict=True)]
    (finding,) = claims.evaluate_claims(study(tmp_path, values), [make(tmp_path, kind="robust")])
    assert (finding.data, finding.verdict) == ("glyphs+noise0.2", "holds")
    assert finding.difference == pytest.approx(np.mean([0.2, 0.22, 0.21, 0.2]) - 0.02)


@pytest.mark.parametrize(("margin", "verdict"), [(0.3, "holds"), (0.01, "does not hold")])
def test_not_worse_allows_a_margin(tmp_path, margin, verdict):
    context = study(tmp_path, {"digits/a": LOW, "digits/b": HIGH})
    (finding,) = claims.evaluate_claims(context, [make(tmp_path, kind="not_worse", margin=margin)])
    assert finding.verdict == verdict
    assert finding.difference == pytest.approx(np.mean(LOW) - np.mean(HIGH))


def test_a_difference_without_spread_decides(tmp_path):
    context = study(tmp_path, {"digits/a": [0.5, 0.6], "digits/b": [0.75, 0.85]})
    (finding,) = claims.evaluate_claims(context, [make(tmp_path)])
    assert finding.verdict == "does not hold"


def test_one_seed_decides_nothing_and_other_methods_are_left_out(tmp_path):
    context = study(tmp_path, {"digits/a": [0.9], "digits/b": [0.1]})
    (finding,) = claims.evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.half_width, finding.seeds) == ("undecided", None, 1)
    assert claims.evaluate_claims(context, [make(tmp_path, method="z")]) == []


def test_alternatives_and_missing_metrics(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW})
    (finding,) = claims.evaluate_claims(context, [make(tmp_path, method=["z", "a"], against=[["y", "b"]])])
    assert finding.verdict == "holds"
    (finding,) = claims.evaluate_claims(context, [make(tmp_path, metric="retrieval/map_at_r")])
    assert (finding.verdict, finding.data) == ("not run", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrik": "x"}, "unknown key 'metrik': did you mean 'metric'"),
        ({"kind": "beter"}, "did you mean 'better'"),
        ({"against": []}, "'against' is missing"),
        ({"metric": "structure/richness_kl"}, "state `better_is"),
    ],
)
def test_a_wrong_claim_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(FileError, match=f"claim 'c'.*{message}"):
        make(tmp_path, **changes)


def test_the_shipped_claims_are_well_formed():
    found = claims.load_claims()
    assert len({claim.id for claim in found}) == len(found) >= 5
    assert {"nivmf", "nir", "vmf", "lam", "pfml"} <= {claim.source.split(",")[0] for claim in found}


def test_the_page_states_the_verdicts(tmp_path):
    context = study(tmp_path, {"digits/laplace": LOW, "digits/contrastive": HIGH})
    text = render(context)
    assert "does not hold" in text
    assert "at most one point of recall@1" in text
