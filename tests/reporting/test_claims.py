from __future__ import annotations

import csv
import dataclasses
import io
import re

import numpy as np
import pytest
from fabricated_runs import Workspace, write_run
from scipy import stats

from probmetric.io import FileError, write_json, write_yaml
from probmetric.reporting import claims
from probmetric.reporting.aggregate import aggregate
from probmetric.reporting.claims import layout
from probmetric.reporting.claims.testing import evaluate_claims
from probmetric.reporting.html import render
from probmetric.reporting.published import load_published
from probmetric.reporting.tables import write_tables

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
            folder = write_run(tmp_path, runs[-1], {RECALL: 0.5})
            write_json(folder / "metrics.json", {metric: value})
            write_yaml(folder / "run.yaml", {"fidelity": "as_published" if "as_published" in place else "corrected"})
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


def test_every_opponent_must_be_beaten_and_holm_corrects(tmp_path):
    generator = np.random.default_rng(0)
    base = 0.7 + 0.01 * generator.normal(size=5)
    blur = 0.004 * generator.normal(size=(2, 5))
    values = {"a": base + 0.006, "b": base + blur[0], "c": base - 0.2 + blur[1]}
    context = study(tmp_path, {f"digits/{name}": list(found) for name, found in values.items()})
    (finding,) = evaluate_claims(context, [make(tmp_path, against=["b", "c", "d"])])
    raw = sorted(stats.ttest_rel(values["a"], values[name]).pvalue for name in "bc")
    corrected = [2 * raw[0], max(2 * raw[0], raw[1])]
    assert (finding.verdict == "holds") == all(p < 0.05 for p in corrected)
    assert finding.opponent == "b"
    assert finding.missing == ("d",)


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


@pytest.mark.parametrize(("margin", "verdict"), [(0.3, "holds"), (0.01, "does not hold")])
def test_not_worse_allows_a_margin(tmp_path, margin, verdict):
    context = study(tmp_path, {"digits/a": LOW, "digits/b": HIGH})
    (finding,) = evaluate_claims(context, [make(tmp_path, kind="not_worse", margin=margin)])
    assert finding.verdict == verdict
    assert finding.difference == pytest.approx(np.mean(LOW) - np.mean(HIGH))


def test_a_difference_without_spread_decides(tmp_path):
    context = study(tmp_path, {"digits/a": [0.5, 0.6], "digits/b": [0.75, 0.85]})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert finding.verdict == "does not hold"


def test_one_seed_decides_nothing(tmp_path):
    context = study(tmp_path, {"digits/a": [0.9], "digits/b": [0.1]})
    (finding,) = evaluate_claims(context, [make(tmp_path)])
    assert (finding.verdict, finding.half_width, finding.seeds) == ("undecided", None, 1)
    assert (finding.p_value, finding.effect_size) == (None, None)


@pytest.mark.parametrize("changes", [{"method": "z"}, {"against": ["z"]}, {"metric": "retrieval/map_at_r"}])
def test_a_claim_without_its_runs_is_not_run(tmp_path, changes):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW})
    (finding,) = evaluate_claims(context, [make(tmp_path, **changes)])
    assert (finding.verdict, finding.data, finding.difference) == ("not run", "", None)


def test_the_first_alternative_that_was_run_counts(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH, "digits/b": LOW, "digits/c": HIGH})
    (finding,) = evaluate_claims(context, [make(tmp_path, method=["z", "a"], against=[["y", "b", "c"]])])
    assert (finding.verdict, finding.opponent) == ("holds", "b")


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
    assert [f.verdict for f in evaluate_claims(study(tmp_path / "sweep", sweep), [make(tmp_path)])] == ["not run"]
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
    folders = [context.results / key.run for key in context.expected]
    aggregate(folders, context.folder / "runs.csv", context.folder / "metrics.json")
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
        ({"metrik": "x"}, "unknown key 'metrik': did you mean 'metric'"),
        ({"kind": "beter"}, "did you mean 'better'"),
        ({"against": []}, "'against' is missing"),
        ({"metric": "structure/richness_kl"}, "state `better_is"),
        ({"margin_is": "part"}, "allowed: difference, share"),
    ],
)
def test_a_wrong_claim_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(FileError, match=f"claim 'c'.*{message}"):
        make(tmp_path, **changes)


PAPERS = {"nivmf": 8, "nir": 7, "vmf": 6, "lam": 9, "pfml": 6}


def test_the_shipped_claims_are_complete_and_well_formed():
    found = claims.load_claims()
    assert len({claim.id for claim in found}) == len(found)
    assert {paper: sum(claim.paper == paper for claim in found) for paper in PAPERS} == PAPERS
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


def test_shipped_claims_ask_for_metrics_that_exist():
    measured = {number.metric for number in load_published()} | {"ood/auroc", "ambiguity/spearman"}
    assert {metric for claim in claims.load_claims() for metric in claim.metrics} <= measured


def verdicts(*found: str) -> list[claims.Finding]:
    claim = claims.Claim("c", "s", "A.", RECALL, ("a",))
    return [claims.Finding(claim, str(place), verdict) for place, verdict in enumerate(found)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (("holds", "holds"), "holds"),
        (("holds", "undecided"), "holds on some"),
        (("holds", "does not hold", "undecided"), "differs"),
        (("does not hold", "undecided"), "does not hold"),
        (("undecided",), "undecided"),
    ],
)
def test_verdicts_on_several_datasets_make_one(found, expected):
    assert layout.overall(verdicts(*found)) == expected


@pytest.fixture
def told(tmp_path):
    values = {"digits/laplace": LOW, "digits/contrastive": HIGH, "digits/proxy_anchor": LOW, "digits/pfml": HIGH}
    values |= {"glyphs/pfml": LOW, "glyphs/proxy_anchor": HIGH, "symbols/contrastive": HIGH}
    return study(tmp_path, values)


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
    assert len(board.not_run) == sum(PAPERS.values()) - 2
    assert board.summary == ("2 of 36 claims of the papers are tested here: 1 does not hold, 1 depends on the dataset.")


def test_the_papers_own_claims_come_first(told):
    findings = evaluate_claims(told, claims.load_claims())
    for name, first in (("pfml/table1@digits", "pfml"), ("study", "lam")):
        board = layout.board(dataclasses.replace(told, name=name), findings)
        assert board.lines[0].claim.paper == first


def test_the_page_opens_with_the_claims(told):
    text = render(told)
    assert text.index('id="claims"') < text.index('id="glance"')
    assert "2 of 36 claims of the papers are tested here" in text
    shown = re.search(r"does not hold</span> <span[^>]*>-0\.0\d\d ± 0\.0\d\d</span>.*", text)
    assert re.search(r"to contrastive, d -\d+\.\d, 4 seeds", shown[0])
    assert "34 claims not run" in text
    assert text.count('<span class="mark">not run</span>') == 34


def test_the_tables_carry_the_claims(told):
    paths = {path.name: path for path in write_tables(told)}
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
    assert text.index("## Claims") < text.index("## digits")
    assert "| **holds** +0.0" in text


def test_an_experiment_without_claims_says_so(tmp_path):
    context = study(tmp_path, {"digits/a": HIGH})
    board = layout.board(context, evaluate_claims(context, claims.load_claims()))
    assert board.summary == "None of 36 claims of the papers is tested here."
    assert layout.markdown(board, str, str) == [board.summary]
