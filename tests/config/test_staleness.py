"""What is made again, kept and mixed: verdicts on records of steps, without training anything."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probmetric.cli import main
from probmetric.config import Params, RunSettings, load
from probmetric.io import write_json, write_tensors, write_text, write_yaml
from probmetric.planning import staleness
from probmetric.planning.plans import ReportPlan, RunPlan
from probmetric.planning.runs import Run, plan_experiment
from probmetric.planning.staleness import Judge, report_state, step_ingredients, steps_before, steps_of
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.record import read_record
from probmetric.reporting.report import make_report
from probmetric.reporting.results import read_results
from probmetric.reporting.tables import result_table
from probmetric.runs import identity
from probmetric.runs import made as made_module
from probmetric.runs.folder import RunFolder
from probmetric.runs.made import read_made, record, restore, superseded

ARCFACE, SHARED = "probmetric.losses.arcface", "probmetric.losses._base"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty project with one prepared dataset."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/prepared/digits").mkdir(parents=True)
    (tmp_path / "data/prepared/digits/digest").write_text("a  manifest\n")
    return tmp_path


def planned(seed: int = 0, uncertainty: str = "norm", **changes) -> Run:
    values = {"loss": {"name": "arcface"}, "training": {"epochs": 3}} | changes
    settings = RunSettings(dataset="digits", method="mine", seed=seed, uncertainty=uncertainty, **values)
    return Run(f"digits/mine/seed{seed}", f"digits/mine/seed{seed}", settings)


def finish(run: Run, *, value: float = 0.5, release: str = staleness.__version__) -> None:
    """Pretend to have made every step of a run."""
    folder = RunFolder.named(run.name)
    for step in steps_of(run):
        before = {name: read_made(*key) for name, key in steps_before(run, step).items()}
        found = step_ingredients(run, step, before)
        for file in folder.step_files(step):
            if file.suffix == ".safetensors":
                write_tensors(file, {"x": np.full(1, value + len(step))})
            elif file.suffix == ".yaml":
                write_yaml(file, {"run": run.name, "settings": run.settings.plain()})
            else:
                write_json(file, {"retrieval/recall_at_1": value} if file.name == "metrics.json" else {})
        folder.history_file.write_text("epoch,seconds\n")
        record(run.name, found, release=release)


def state(run: Run, policy: str = "auto") -> str:
    return Judge({run.name: run}, policy).run_verdict(run.name).state


def why(run: Run, policy: str = "auto") -> str:
    return Judge({run.name: run}, policy).run_verdict(run.name).why


@pytest.fixture
def other_code(monkeypatch):
    """The loss's formula has changed since."""

    def change(module: str = ARCFACE, moved: str = "", gone: str = "") -> None:
        true = identity.module_digests

        def digests(name: str) -> dict[str, str]:
            found = {key: "0" * 16 if key == module else value for key, value in true(name).items() if key != gone}
            return {"probmetric.elsewhere" if key == moved else key: value for key, value in found.items()}

        monkeypatch.setattr(identity, "module_digests", digests)
        identity.component_code.cache_clear()

    yield change
    identity.component_code.cache_clear()


def test_a_finished_run_is_fresh_whatever_the_times_of_its_files(place):
    run = planned()
    assert state(run) == "missing"
    finish(run)
    assert state(run) == "fresh"
    for path in sorted(place.rglob("*")):
        path.touch()
    assert state(run) == "fresh"


def test_what_equals_its_default_does_not_count_written_or_not():
    finish(planned())
    same = {"loss": {"name": "arcface", "margin": 0.3}, "training": {"epochs": 3, "momentum": 0.9}, "label": "Named"}
    assert state(planned(**same)) == "fresh"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": {"name": "arcface", "margin": 0.1}}, "loss.margin default -> 0.1"),
        ({"training": {"epochs": 4}}, "training.epochs 3 -> 4"),
        ({"loss": {"name": "cosine"}}, "loss arcface -> cosine"),
        ({"uncertainty": "vmf"}, "uncertainty"),
        ({"evaluation": {"calibration_bins": 10}}, "evaluation.calibration_bins default -> 10"),
        ({"dim": 64}, "dim 32 -> default"),
    ],
)
def test_other_settings_make_it_stale_and_say_which(changes, expected):
    finish(planned(dim=32))
    other = planned(**{"dim": 32} | changes)
    assert state(other) == "stale"
    assert expected in why(other)


def test_settings_that_are_lists_come_back_equal():
    finish(planned(evaluation={"ks": [1, 3]}))
    assert state(planned(evaluation={"ks": [1, 3]})) == "fresh"


@pytest.mark.parametrize("recorded", [True, False])
def test_without_its_last_files_a_run_is_missing_and_the_others_may_be_elsewhere(recorded):
    run = planned()
    finish(run)
    folder = RunFolder.named(run.name)
    folder.weights_file().unlink()
    assert state(run) == "fresh"
    folder.metrics_file.unlink()
    if not recorded:
        made_module.forget(run.name, "evaluate")
    assert (state(run), why(run)) == ("missing", "")


def on_encoder_of(base: Run) -> Run:
    """A run that fits a posterior on the encoder of `base`."""
    settings = base.settings.model_dump() | {"method": "mine_laplace", "uncertainty": "laplace"}
    return Run("digits/mine_laplace/seed0", base.name, RunSettings(**settings))


def test_steps_before_have_the_names_that_records_know_them_by():
    """Under other names every result of an earlier release would be stale."""
    base = planned()
    fitted, ensemble = on_encoder_of(base), planned(uncertainty={"name": "ensemble", "members": 2})
    start = planned(pretrained="results/digits/other/seed0/model.safetensors")
    train = {f"encoder {seed}": (f"digits/mine/seed{seed}", "train") for seed in range(2)}
    one = {"encoder 0": train["encoder 0"]}
    assert steps_before(base, "train") == {}
    assert steps_before(start, "train") == {"pretrained": ("digits/other/seed0", "train")}
    assert steps_before(base, "embed") == steps_before(fitted, "fit_posterior") == one
    assert steps_before(fitted, "embed") == one | {"posterior": (fitted.name, "fit_posterior")}
    assert steps_before(ensemble, "fit_posterior") == train
    assert steps_before(ensemble, "evaluate") == {"embed": (base.name, "embed")}


def test_a_run_on_the_encoder_of_a_stale_run_is_stale():
    base = planned()
    run = on_encoder_of(base)
    assert steps_of(run) == ("fit_posterior", "embed", "evaluate")
    finish(base)
    finish(run)
    assert Judge({base.name: base, run.name: run}).run_verdict(run.name).state == "fresh"
    base = planned(training={"epochs": 4})
    run = on_encoder_of(base)
    judge = Judge({base.name: base, run.name: run})
    for step in ("fit_posterior", "embed"):
        verdict = judge.verdict(run.name, step)
        assert (verdict.state, verdict.why) == ("stale", f"train of {base.name} is stale")


def test_a_run_from_the_weights_of_another_follows_it_while_it_is_planned():
    origin = planned()
    finish(origin)
    weights = str(RunFolder.named(origin.name).weights_file())
    run = Run("digits/tuned/seed0", "digits/tuned/seed0", planned(pretrained=weights).settings)
    finish(run)
    changed = planned(training={"epochs": 4})
    assert Judge({run.name: run, origin.name: origin}).run_verdict(run.name).state == "fresh"
    verdict = Judge({run.name: run, origin.name: changed}).verdict(run.name, "train")
    assert (verdict.state, verdict.why) == ("stale", f"train of {origin.name} is stale")
    assert state(run) == "fresh", "nobody here makes its origin: its file counts"


def test_a_step_does_not_depend_on_the_settings_of_later_ones():
    finish(planned())
    run = planned(evaluation={"calibration_bins": 10})
    judge = Judge({run.name: run})
    assert [judge.verdict(run.name, step).state for step in ("train", "embed", "evaluate")] == [
        "fresh",
        "fresh",
        "stale",
    ]


def test_other_data_makes_it_stale_and_unprepared_data_does_not(place):
    run = planned()
    finish(run)
    digest = place / "data/prepared/digits/digest"
    digest.unlink()
    assert state(run) == "fresh"
    digest.write_text("other  manifest\n")
    assert why(run) == "dataset digits has other content"


@pytest.mark.parametrize(
    ("step", "known"),
    [
        ("train", ["digits"]),
        ("fit_posterior", ["digits"]),
        ("embed", ["digits", "glyphs"]),
        ("evaluate", ["digits", "glyphs"]),
    ],
)
def test_strangers_count_from_where_they_are_embedded(place, step, known):
    write_text(place / "data/prepared/glyphs/digest", "b  manifest\n")
    assert sorted(step_ingredients(planned(ood=("glyphs",)), step, {}).data) == known


def test_weights_that_were_made_anew_repeat_what_was_computed_from_them():
    run = planned()
    finish(run)
    folder = RunFolder.named(run.name)
    write_tensors(folder.weights_file(), {"x": np.full(1, 9.0)})
    record(run.name, step_ingredients(run, "train", {}), release="0.1.0")
    judge = Judge({run.name: run})
    assert judge.verdict(run.name, "train").state == "fresh"
    assert judge.verdict(run.name, "embed").why == "encoder 0 was made anew"


def test_results_without_weights_are_judged_by_what_they_were_made_from():
    """A clone that has the metrics, not the weights: nothing is trained again unless its settings changed."""
    run = planned()
    finish(run)
    for step in ("train", "embed"):
        made_module.forget(run.name, step)
        for file in RunFolder.named(run.name).step_files(step):
            file.unlink()
    assert Judge({run.name: run}).verdict(run.name, "evaluate").state != "stale"
    other = planned(training={"epochs": 9})
    verdict = Judge({other.name: other}).verdict(other.name, "evaluate")
    assert (verdict.state, verdict.why) == ("stale", f"embed of {run.name} is missing, and was another one")


def test_a_weight_file_counts_while_it_is_there(place):
    weights = place / "start.pth"
    weights.write_bytes(b"first")
    run = planned(pretrained=str(weights))
    finish(run)
    assert state(run) == "fresh"
    weights.write_bytes(b"other")
    assert why(run) == "pretrained was made anew"
    weights.unlink()
    assert state(run) == "fresh"


def test_results_nobody_recorded_are_made_again():
    run = planned()
    finish(run)
    RunFolder.named(run.name).made_file("evaluate").unlink()
    assert why(run) == "no record says what made it"


def test_edited_code_repeats_and_the_code_of_a_release_is_kept(other_code):
    run = planned()
    finish(run)
    other_code()
    assert (state(run), why(run)) == ("stale", "probmetric.losses.arcface changed")
    assert state(run, "keep") == "kept"
    assert state(run, "rerun") == "stale"


def test_code_that_only_moved_is_not_named(other_code):
    run = planned()
    finish(run)
    other_code(moved=SHARED)
    assert why(run) == f"{ARCFACE} changed"


def test_code_that_is_used_no_more_is_named(other_code):
    run = planned()
    finish(run)
    other_code(module="", gone=SHARED)
    assert (state(run), why(run)) == ("stale", f"{SHARED} changed")


def test_results_of_an_earlier_release_are_kept_and_say_so(other_code):
    run = planned()
    finish(run, release="0.0.9")
    assert state(run) == "fresh", "a release that changed nothing of this run changes nothing"
    other_code()
    assert state(run) == "kept"
    assert why(run) == "made by release 0.0.9: probmetric.losses.arcface changed"
    assert state(run, "rerun") == "stale"


def test_a_raised_version_of_a_step_counts_as_other_code(monkeypatch):
    run = planned()
    finish(run)
    version = identity.VERSIONS["embed"]
    monkeypatch.setitem(identity.VERSIONS, "embed", version + 1)
    judge = Judge({run.name: run})
    assert judge.verdict(run.name, "train").state == "fresh"
    assert f"step embed version {version} -> {version + 1}" in judge.verdict(run.name, "embed").why


def experiment(*runs: Run, stale: str = "auto") -> ReportPlan:
    plan = ReportPlan(
        experiment="small",
        shown=[run.name for run in runs],
        runs={run.name: str(RunPlan(run).write()) for run in runs},
        report={
            "title": "Small",
            "description": "",
            "metrics": ["retrieval/recall_at_1"],
            "figures": [],
            "labels": {"mine": "Mine"},
            "prepared": "data/prepared",
        },
        tracking={},
        stale=stale,
    )
    return ReportPlan.read(plan.write())


def test_one_cell_never_mixes_old_and_new_code(other_code):
    old = [planned(seed) for seed in (0, 1)]
    for run in old:
        finish(run, value=0.9, release="0.0.9")
    other_code()
    new = planned(2)
    finish(new, value=0.1)
    plan = experiment(*old, new)
    make_report(plan, plan.judge(), "state")
    (row,) = result_table(ReportContext.of(plan)).itertuples()
    assert (row.label, row.finished, row.mean) == ("Mine", 1, pytest.approx(0.1))
    assert "arcface changed" in read_record("small")["stale"][old[0].name]


def test_stale_results_are_in_no_table(other_code):
    runs = [planned(seed) for seed in (0, 1)]
    finish(runs[0], value=0.9)
    other_code()
    finish(runs[1], value=0.1)
    plan = experiment(*runs)
    make_report(plan, plan.judge(), "state")
    assert set(read_results(Path("reports/small"))["seed"]) == {1}
    assert read_record("small")["stale"] == {runs[0].name: "probmetric.losses.arcface changed"}


def test_going_back_brings_the_old_files_back():
    first, second = planned(), planned(training={"epochs": 9})
    finish(first, value=0.25)
    weights = RunFolder.named(first.name).weights_file().read_bytes()
    wanted = step_ingredients(first, "train", {})
    assert not restore(first.name, wanted), "the latest files are computed again, if they are asked for"
    finish(second, value=0.75)
    assert state(first) == "stale"
    assert [path.parent.name for path in superseded()] == ["embed", "evaluate", "train"]
    for step in steps_of(first):
        before = {name: read_made(*key) for name, key in steps_before(first, step).items()}
        assert restore(first.name, step_ingredients(first, step, before))
    assert state(first) == "fresh"
    assert RunFolder.named(first.name).weights_file().read_bytes() == weights
    assert RunFolder.named(first.name).metrics == {"retrieval/recall_at_1": 0.25}


def test_kept_files_take_no_room_of_their_own():
    run = planned()
    finish(run)
    file = RunFolder.named(run.name).weights_file()
    assert file.stat().st_nlink == 2


def test_seeds_share_a_cohort_and_settings_do_not():
    cohorts = {step_ingredients(planned(seed), "train", {}).cohort for seed in range(3)}
    assert len(cohorts) == 1
    assert step_ingredients(planned(training={"epochs": 4}), "train", {}).cohort not in cohorts
    found = step_ingredients(planned(), "train", {})
    assert replace(found, upstream={"pretrained": "other"}).identity != found.identity


def test_the_guide_of_a_loss_counts_as_its_code():
    plain = identity.step_code(planned(loss={"name": "el_nivmf"}).settings, "train")
    guided = identity.step_code(planned(loss={"name": "el_nivmf", "guidance": "proxy_anchor"}).settings, "train")
    assert set(guided) - set(plain) == {"probmetric.losses.proxy_anchor"}


def test_a_plan_is_read_back_and_an_edited_one_is_refused():
    run = planned(uncertainty="vmf")
    path = RunPlan(run, "http://127.0.0.1:5000").write()
    assert RunPlan.read(path) == RunPlan(run, "http://127.0.0.1:5000")
    path.write_text(path.read_text().replace('"epochs": 3', '"epochs": 4'))
    with pytest.raises(Exception, match="was edited: it does not fit its name"):
        RunPlan.read(path)


def test_more_than_three_reasons_are_counted():
    finish(planned())
    changes = {"training": {"epochs": 4, "batch_size": 6, "momentum": 0.5}}
    reasons = ", ".join(
        ["training.batch_size default -> 6", "training.epochs 3 -> 4", "training.momentum default -> 0.5"]
    )
    assert why(planned(**changes)) == reasons
    more = changes["training"] | {"weight_decay": 0.5}
    assert why(planned(training=more)) == f"{reasons} and 1 more"


def test_a_kept_run_is_marked_with_its_release_and_the_cohort_of_its_results(other_code):
    run = planned()
    finish(run, release="0.0.9")
    assert Judge({run.name: run}).mark(run.name) == ""
    other_code()
    judge = Judge({run.name: run})
    results, weights = judge.made(run.name, "evaluate"), judge.made(run.name, "train")
    assert results.ingredients.cohort[:4] != weights.ingredients.cohort[:4]
    assert judge.mark(run.name) == f"0.0.9-{results.ingredients.cohort[:4]}"
    made_module.forget(run.name, "evaluate")
    assert Judge({run.name: run}).mark(run.name) == f"0.0.9-{weights.ingredients.cohort[:4]}"


def test_a_report_is_made_again_where_its_plan_its_results_or_their_verdicts_change(other_code, monkeypatch):
    runs = [planned(seed) for seed in (0, 1)]
    plan = experiment(*runs)

    def digest(plan: ReportPlan = plan, policy: str = "auto") -> str:
        return report_state(plan, Judge({run.name: run for run in runs}, policy))

    missing = digest()
    for run in runs:
        finish(run)
    made = digest()
    assert digest() == made
    finish(runs[1], value=0.7)
    other_results = digest()
    other_plan = digest(replace(plan, report=plan.report | {"title": "Other"}))
    finish(runs[0], release="0.0.9")
    other_code()
    kept, stale = digest(policy="keep"), digest()
    monkeypatch.setattr(staleness, "_reporting_code", lambda: "other")
    assert len({missing, made, other_results, other_plan, kept, stale, digest()}) == 7


@pytest.mark.parametrize(
    ("policy", "said"),
    [("auto", "1 stale"), ("rerun", "1 stale"), ("error", "1 stale"), ("keep", "1 finished by earlier code (kept)")],
)
def test_status_judges_by_the_rule_of_the_project(place, other_code, capsys, policy, said):
    (place / "workflow/experiments").mkdir(parents=True)
    grid = {"datasets": ["digits"], "methods": ["mine"], "seeds": [0]}
    write_yaml(place / "workflow/experiments/mine.yaml", {"title": "Mine", "runs": [grid]})
    method = {"loss": {"name": "arcface"}, "training": {"epochs": 3}}
    params = {"datasets": ["digits"], "experiments": ["mine"], "methods": {"mine": method}, "stale": policy}
    write_yaml(place / "params.yaml", params)
    finish(plan_experiment(load(Params, "params.yaml"), "mine").runs[0])
    other_code()
    main(["status"])
    assert f"mine: 1 runs: {said}" in capsys.readouterr().out
