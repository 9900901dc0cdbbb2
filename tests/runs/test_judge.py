"""What is made again: verdicts on records of steps, without training anything."""

import re
from pathlib import Path

import numpy as np
import pytest

from probmetric import __version__
from probmetric.cli import main
from probmetric.config import Params, RunSettings, load
from probmetric.data.manifest import DataError
from probmetric.io import FileError, read_json, write_json, write_tensors, write_text, write_yaml
from probmetric.planning.expansion import plan_experiment
from probmetric.planning.plans import ReportPlan, reporting_code
from probmetric.planning.workflow import WorkflowPlan
from probmetric.reporting.experiment import REPORTS, signed_record
from probmetric.reporting.report import make_report
from probmetric.reporting.results import read_results
from probmetric.runs import identity, source
from probmetric.runs import made as made_module
from probmetric.runs.folder import RunFolder
from probmetric.runs.identity import Ingredients, ingredients, planned_steps, steps_before
from probmetric.runs.made import Judge, record
from probmetric.runs.plan import Run, RunPlan
from probmetric.runs.steps import make, unfinished

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


def made_of(run: Run, step: str) -> Ingredients:
    return ingredients(run, step, Judge({run.name: run}).upstream(run, step))


def finish(run: Run, *, value: float = 0.5, release: str = __version__) -> None:
    """Pretend to have made every step of a run."""
    folder = RunFolder.named(run.name)
    for step in run.steps:
        found = made_of(run, step)
        for file in folder.step_files(step):
            if file.suffix == ".safetensors":
                write_tensors(file, {"x": np.full(1, value + len(step))})
            elif file.suffix == ".yaml":
                write_yaml(
                    file, {"run": run.name, "settings": run.settings.plain(), "encoder": {}, "training": {"epochs": 1}}
                )
            else:
                write_json(file, {"retrieval/recall_at_1": value} if file.name == "metrics.json" else {})
        folder.history_file.write_text("epoch,seconds\n")
        record(run.name, found, release=release)


def state(run: Run) -> str:
    return Judge({run.name: run}).run_verdict(run.name).state


def why(run: Run) -> str:
    return Judge({run.name: run}).run_verdict(run.name).why


@pytest.fixture
def other_code(monkeypatch):
    """The loss's formula has changed since."""

    def change(module: str = ARCFACE, moved: str = "", gone: str = "") -> None:
        true = identity.module_digests

        def digests(*names: str) -> dict[str, str]:
            found = {key: "0" * 16 if key == module else value for key, value in true(*names).items() if key != gone}
            return {"probmetric.elsewhere" if key == moved else key: value for key, value in found.items()}

        monkeypatch.setattr(identity, "module_digests", digests)
        identity.code_of.cache_clear()

    yield change
    identity.code_of.cache_clear()


def test_a_finished_run_is_fresh_whatever_the_times_of_its_files(place):
    run = planned()
    assert state(run) == "missing"
    finish(run)
    assert state(run) == "finished"
    for path in sorted(place.rglob("*")):
        path.touch()
    assert state(run) == "finished"


def test_what_equals_its_default_does_not_count_written_or_not():
    finish(planned())
    same = {"loss": {"name": "arcface", "margin": 0.3}, "training": {"epochs": 3, "momentum": 0.9}, "label": "Named"}
    assert state(planned(**same)) == "finished"


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
    assert state(planned(evaluation={"ks": [1, 3]})) == "finished"


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
    assert steps_before(base, "embed") == steps_before(fitted, "fit") == one
    assert steps_before(fitted, "embed") == one | {"posterior": (fitted.name, "fit")}
    assert steps_before(ensemble, "fit") == train
    assert steps_before(ensemble, "evaluate") == {"embed": (base.name, "embed")}


def test_a_run_on_the_encoder_of_a_stale_run_is_stale():
    base = planned()
    run = on_encoder_of(base)
    assert run.steps == ("fit", "embed", "evaluate")
    finish(base)
    finish(run)
    assert Judge({base.name: base, run.name: run}).run_verdict(run.name).state == "finished"
    base = planned(training={"epochs": 4})
    run = on_encoder_of(base)
    judge = Judge({base.name: base, run.name: run})
    for step in ("fit", "embed"):
        verdict = judge.verdict(run.name, step)
        assert (verdict.state, verdict.why) == ("stale", f"train of {base.name} is stale")


def test_a_run_from_the_weights_of_another_follows_it_while_it_is_planned():
    origin = planned()
    finish(origin)
    weights = str(RunFolder.named(origin.name).weights_file())
    run = Run("digits/tuned/seed0", "digits/tuned/seed0", planned(pretrained=weights).settings)
    finish(run)
    changed = planned(training={"epochs": 4})
    assert Judge({run.name: run, origin.name: origin}).run_verdict(run.name).state == "finished"
    verdict = Judge({run.name: run, origin.name: changed}).verdict(run.name, "train")
    assert (verdict.state, verdict.why) == ("stale", f"train of {origin.name} is stale")
    assert state(run) == "finished", "nobody here makes its origin: its file counts"


def test_a_step_does_not_depend_on_the_settings_of_later_ones():
    finish(planned())
    run = planned(evaluation={"calibration_bins": 10})
    judge = Judge({run.name: run})
    assert [judge.verdict(run.name, step).state for step in ("train", "embed", "evaluate")] == [
        "finished",
        "finished",
        "stale",
    ]


def test_other_data_makes_it_stale_and_unprepared_data_does_not(place):
    run = planned()
    finish(run)
    digest = place / "data/prepared/digits/digest"
    digest.unlink()
    assert state(run) == "finished"
    digest.write_text("other  manifest\n")
    assert why(run) == "dataset digits has other content"


@pytest.mark.parametrize(
    ("step", "known"),
    [
        ("train", ["digits"]),
        ("fit", ["digits"]),
        ("embed", ["digits", "glyphs"]),
        ("evaluate", ["digits", "glyphs"]),
    ],
)
def test_strangers_count_from_where_they_are_embedded(place, step, known):
    write_text(place / "data/prepared/glyphs/digest", "b  manifest\n")
    assert sorted(ingredients(planned(ood=("glyphs",)), step).data) == known


def test_weights_that_were_made_anew_repeat_what_was_computed_from_them():
    run = planned()
    finish(run)
    folder = RunFolder.named(run.name)
    write_tensors(folder.weights_file(), {"x": np.full(1, 9.0)})
    record(run.name, made_of(run, "train"), release="0.1.0")
    judge = Judge({run.name: run})
    assert judge.verdict(run.name, "train").state == "finished"
    assert judge.verdict(run.name, "embed").why == "encoder 0 was made anew"


def test_a_weight_file_counts_while_it_is_there(place):
    weights = place / "start.pth"
    weights.write_bytes(b"first")
    run = planned(pretrained=str(weights))
    finish(run)
    assert state(run) == "finished"
    weights.write_bytes(b"other")
    assert why(run) == "pretrained was made anew"
    weights.unlink()
    assert state(run) == "finished"


def test_results_nobody_recorded_are_made_again():
    run = planned()
    finish(run)
    RunFolder.named(run.name).made_file("evaluate").unlink()
    assert why(run) == "no record says what made it"


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


def test_a_raised_version_of_a_step_counts_as_other_code(monkeypatch):
    run = planned()
    finish(run)
    version = identity.VERSIONS["embed"]
    monkeypatch.setitem(identity.VERSIONS, "embed", version + 1)
    judge = Judge({run.name: run})
    assert judge.verdict(run.name, "train").state == "finished"
    assert f"step embed version {version} -> {version + 1}" in judge.verdict(run.name, "embed").why


def experiment(*runs: Run) -> ReportPlan:
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
    )
    return ReportPlan.read(plan.write())


def test_the_code_of_reports_is_all_that_they_compute_with(monkeypatch, tmp_path):
    """LEVEL = 0.01 in the statistics once left every report as it was."""
    before, file = reporting_code.__wrapped__(), source.source_file
    statistics = "probmetric.metrics.statistics"
    changed = tmp_path / "statistics.py"
    changed.write_text(file(statistics).read_text().replace("LEVEL = 0.05", "LEVEL = 0.01"))
    monkeypatch.setattr(source, "source_file", lambda module: changed if module == statistics else file(module))
    assert reporting_code.__wrapped__() != before
    changed.write_text("# A comment.\n" + file(statistics).read_text())
    for cached in (source._facts, source._kept):
        cached.cache_clear()
    assert reporting_code.__wrapped__() == before


def test_stale_results_are_in_no_table(other_code):
    runs = [planned(seed) for seed in (0, 1)]
    finish(runs[0], value=0.9)
    other_code()
    finish(runs[1], value=0.1)
    plan = experiment(*runs)
    make_report(plan)
    assert set(read_results(Path("reports/small"))["seed"]) == {1}
    assert signed_record(REPORTS / "small")["stale"] == {runs[0].name: "probmetric.losses.arcface changed"}


def test_the_guide_of_a_loss_counts_as_its_code():
    plain = identity.step_code(planned(loss={"name": "el_nivmf"}).settings, "train")
    guided = identity.step_code(planned(loss={"name": "el_nivmf", "guidance": "proxy_anchor"}).settings, "train")
    assert set(guided) - set(plain) == {"probmetric.losses.proxy_anchor"}


def test_more_than_three_reasons_are_counted():
    finish(planned())
    changes = {"training": {"epochs": 4, "batch_size": 6, "momentum": 0.5}}
    reasons = ", ".join(
        ["training.batch_size default -> 6", "training.epochs 3 -> 4", "training.momentum default -> 0.5"]
    )
    assert why(planned(**changes)) == reasons
    more = changes["training"] | {"weight_decay": 0.5}
    assert why(planned(training=more)) == f"{reasons} and 1 more"


def test_results_without_weights_are_judged_by_what_they_were_made_from():
    """A clone that has the metrics, not the weights: the evaluation is not held to be made anew."""
    run = planned()
    finish(run)
    for step in ("train", "embed"):
        made_module.forget(run.name, step)
        for file in RunFolder.named(run.name).step_files(step):
            file.unlink()
    assert Judge({run.name: run}).verdict(run.name, "evaluate").state == "finished"


def test_edited_code_of_any_release_repeats(other_code):
    run = planned()
    finish(run, release="0.0.9")
    assert state(run) == "finished", "a release that changed nothing of this run changes nothing"
    other_code()
    assert (state(run), why(run)) == ("stale", "probmetric.losses.arcface changed")


def test_the_first_step_that_does_not_fit_and_all_after_it_are_made():
    run = planned()
    assert unfinished(run) == ("train", "embed", "evaluate")
    assert unfinished(run, "train") == ("train",)
    finish(run)
    assert unfinished(run) == ()
    assert unfinished(planned(evaluation={"calibration_bins": 10})) == ("evaluate",)
    assert unfinished(planned(ood=("glyphs",))) == ("embed", "evaluate")
    made_module.forget(run.name, "embed")
    assert unfinished(run) == ("embed", "evaluate")
    assert unfinished(run, "train") == ()


def test_data_of_a_later_step_are_asked_for_before_the_first_step():
    """By hand, a run trained for its whole time, and only then missed the set of strangers."""
    Path("data/prepared/digits/digest").write_text("0  manifest.parquet\n0  images.bin\n")
    run = planned(ood=("glyphs",))
    with pytest.raises(DataError, match=r"glyphs.digest is missing.*probmetric data ensure glyphs"):
        make(RunPlan(run), ("train", "embed", "evaluate"))
    assert not RunFolder.named(run.name).path.exists()


@pytest.mark.parametrize(
    ("facts", "message"),
    [({"dimensions": 16}, "vectors of 16 dimensions, .*vectors of 8 d"), ({}, "images, .*digits vectors of 8 d")],
)
def test_strangers_that_the_network_cannot_read_are_refused_before_the_first_step(facts, message):
    for name, more in {"digits": {"dimensions": 8}, "glyphs": facts}.items():
        folder = Path("data/prepared") / name
        folder.mkdir(exist_ok=True)
        (folder / "digest").write_text("0  manifest.parquet\n0  images.bin\n")
        write_json(folder / "summary.json", {"splits": {}, **more})
    run = planned(ood=("glyphs",))
    with pytest.raises(DataError, match=rf"glyphs holds {message}.*Leave one of them out of `ood`"):
        make(RunPlan(run), ("train", "embed", "evaluate"))
    assert not RunFolder.named(run.name).path.exists()


def test_lost_metrics_come_back_from_the_record_and_other_lost_files_are_made_again():
    run = planned()
    finish(run)
    folder = RunFolder.named(run.name)
    metrics = folder.metrics_file.read_bytes()
    folder.metrics_file.unlink()
    assert unfinished(run) == ()
    assert folder.metrics_file.read_bytes() == metrics
    folder.weights_file().unlink()
    assert unfinished(run) == (), "nothing needs the weights any more"
    folder.curves_file.unlink()
    assert unfinished(run) == ("evaluate",)
    folder.embeddings_file("test").unlink()
    assert unfinished(run) == ("train", "embed", "evaluate")


def test_a_plan_file_keeps_its_time_until_the_plan_changes():
    run = planned(uncertainty="vmf")
    plan = RunPlan(run, "http://127.0.0.1:5000")
    path = plan.write(planned_steps(run))
    assert RunPlan.read(path) == plan
    path.touch()
    before = path.stat().st_mtime_ns
    assert plan.write(planned_steps(run)) == path
    assert path.stat().st_mtime_ns == before
    other = planned(uncertainty="vmf", training={"epochs": 4})
    RunPlan(other, "http://127.0.0.1:5000").write(planned_steps(other))
    assert path.stat().st_mtime_ns > before
    assert RunPlan.read(path).run == other


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 1'])
def test_a_damaged_plan_is_refused(text):
    path = RunPlan(planned()).write()
    path.write_text(text)
    with pytest.raises(FileError, match=r"seed0\.json.*plan again"):
        RunPlan.read(path)


def test_the_plan_of_a_run_on_another_encoder_knows_how_that_is_trained(other_code):
    base, other = planned(), planned(training={"epochs": 4})
    steps = planned_steps(on_encoder_of(base))
    changed = {step for step, digest in planned_steps(on_encoder_of(other)).items() if digest != steps[step]}
    assert changed == {"train"}
    other_code()
    assert planned_steps(on_encoder_of(base))["train"] != steps["train"]


def test_seeds_differ_in_the_plan_of_every_step_that_draws():
    first, second = planned_steps(planned(0)), planned_steps(planned(1))
    assert {step for step in first if first[step] != second[step]} == {"train", "embed"}


def test_status_says_what_is_stale_and_why(place, other_code, capsys):
    (place / "workflow/experiments").mkdir(parents=True)
    grid = {"datasets": ["digits"], "methods": ["mine"], "seeds": [0]}
    write_yaml(place / "workflow/experiments/mine.yaml", {"title": "Mine", "runs": [grid]})
    method = {"loss": {"name": "arcface"}, "training": {"epochs": 3}}
    params = {"datasets": ["digits"], "experiments": ["mine"], "methods": {"mine": method}}
    write_yaml(place / "params.yaml", params)
    finish(plan_experiment(load(Params, "params.yaml"), "mine").runs[0])
    WorkflowPlan.from_config(params).write()
    plan = place / "state/plans/digits/mine/seed0.json"
    before = read_json(plan)
    main(["status"])
    main(["experiments"])
    assert re.search(r"^mine +1 +1 +Mine", capsys.readouterr().out.partition("1 finished")[2], re.MULTILINE)
    other_code()
    main(["status"])
    assert "mine: 1 runs: 1 stale" in capsys.readouterr().out
    main(["experiments"])
    assert re.search(r"^mine +1 +0 +Mine", capsys.readouterr().out, re.MULTILINE)
    WorkflowPlan.from_config(params).write()
    after = read_json(plan)
    assert {name for name in after if after[name] != before[name]} == {"steps"}, "Snakemake sees the changed code"
