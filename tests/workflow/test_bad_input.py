"""Wrong input stops before the first job, in under three seconds, with the fix; damaged files name themselves."""

import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

SECONDS = 3.0


def stop(workspace, *arguments):
    started = time.perf_counter()
    result = workspace.command("snakemake", "--cores", "1", *arguments, check=False)
    seconds = time.perf_counter() - started
    assert result.returncode != 0
    assert "Traceback" not in result.stdout
    assert not (workspace.folder / "results").exists()
    return result.stdout, seconds


WRONG = {
    "misspelt key": (lambda params: params.update(methodz={}), "did you mean 'methods'"),
    "unknown loss": (lambda params: params["methods"]["cosine"].update(loss="cosin"), "did you mean 'cosine'"),
    "noise rate": (lambda params: params["noise"].update(variants=["noise1.4"]), "noise1.4"),
    "unknown dataset": (lambda params: params.update(datasets=["digits", "glyfs"]), "did you mean 'glyphs'"),
    "experiment DVC cannot name": (
        lambda params: params.update(experiments=["smoke@glyphs"]),
        "snakemake --config experiments=smoke@glyphs",
    ),
    "unknown experiment": (lambda params: params.update(experiments=["dmo"]), "did you mean 'demo'"),
    "dataset not prepared": (lambda params: params["datasets"].remove("glyphs"), "'glyphs' is not declared"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_configuration_stops_before_any_job(fresh, case):
    change, expected = WRONG[case]
    fresh.edit_yaml("params.yaml", change)
    output, seconds = stop(fresh)
    assert expected in output
    # On a loaded machine the whole process may be slowed down; Snakemake's own start is the yardstick.
    yardstick = time.perf_counter()
    subprocess.run([sys.executable, "-m", "snakemake", "--version"], check=True, capture_output=True)
    assert seconds < max(SECONDS, 4 * (time.perf_counter() - yardstick))


def test_a_dataset_whose_archives_are_missing_stops_before_any_job(fresh):
    fresh.edit_smoke(datasets=["digits", "cub"])
    output, _ = stop(fresh, "--config", "experiments=smoke")
    assert "dataset 'cub' is missing: CUB_200_2011.tgz" in output
    assert "dataset 'cars' is missing" not in output, "its out-of-distribution set is optional"
    assert "data/raw/cub" in output


def test_an_experiment_that_is_no_yaml_is_told_by_its_line(fresh):
    (fresh.folder / "workflow" / "experiments" / "smoke.yaml").write_text(
        "title: a\nruns:\n  - datasets: [digits\n    b: 1\n"
    )
    output, _ = stop(fresh, "--config", "experiments=smoke")
    assert "smoke.yaml is not valid YAML: while parsing a flow sequence\n  in smoke.yaml, line 3" in output
    assert "src/probmetric" not in output, "no lines of code below the sentence"


def test_params_that_are_no_yaml_are_told_by_their_line(fresh):
    text = (fresh.folder / "params.yaml").read_text()
    (fresh.folder / "params.yaml").write_text("a: [1\n" + text)
    output, _ = stop(fresh)
    assert "params.yaml is not valid YAML: while parsing a flow sequence\n  in params.yaml, line 1" in output


def test_unknown_method_in_an_experiment(fresh):
    fresh.edit_smoke(methods=["contrastiv"])
    output, _ = stop(fresh, "--config", "experiments=smoke")
    assert "did you mean 'contrastive'" in output


DAMAGED = {
    "results/digits/contrastive+training.epochs=2/seed0/model.safetensors": "fit",
    "results/digits/contrastive+training.epochs=2/seed0/embeddings/test.safetensors": "evaluate",
    "data/prepared/digits/images.bin": "train",
    "data/prepared/digits/manifest.parquet": "train",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_truncated_file_is_named_with_the_fix(workspace, name):
    path = workspace.folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    step = DAMAGED[name]
    run = "digits/laplace+training.epochs=2/seed0" if step == "fit" else "digits/contrastive+training.epochs=2/seed0"
    (workspace.folder / f"results/{run}/made/{step}.json").unlink()  # the step is to be made again
    result = workspace.command("probmetric", "run", run, "--until", step, check=False)
    assert result.returncode == 2
    assert path.name in result.stdout
    assert "Traceback" not in result.stdout
    assert len(result.stdout) < 1500


def test_two_workflows_at_once_on_one_folder(workspace):
    workspace.edit_smoke(seeds=[5])
    command = ["snakemake", "--cores", "1", "--config", "experiments=smoke"]
    first = subprocess.Popen(command, cwd=workspace.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        locks = workspace.folder / ".snakemake/locks"
        deadline = time.monotonic() + 60
        while not (locks.exists() and any(locks.iterdir())):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = workspace.snakemake(check=False)
        assert "lock" in second.lower()
    finally:
        assert first.wait(timeout=300) == 0
    assert workspace.planned() == {}


def test_a_read_only_results_folder(workspace, request):
    """Root ignores permissions, so a read-only mount stands for the folder."""
    folder = workspace.folder / "results"
    (folder / "digits/contrastive+training.epochs=2/seed0/made/evaluate.json").unlink()
    mounted = subprocess.run(
        ["mount", "--bind", "-o", "ro", str(folder), str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    request.addfinalizer(lambda: subprocess.run(["umount", str(folder)], check=True))
    result = workspace.command("probmetric", "run", "digits/contrastive+training.epochs=2/seed0", check=False)
    assert result.returncode == 2
    assert "read-only" in result.stdout


def test_a_full_disk(workspace, request):
    folder = workspace.folder / "results/digits/contrastive+training.epochs=2/seed3"
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    request.addfinalizer(lambda: subprocess.run(["umount", str(folder)], check=True))
    result = workspace.command("probmetric", "run", "digits/contrastive+training.epochs=2/seed3", check=False)
    assert result.returncode == 2
    assert "disk is full" in result.stdout
    assert not list(folder.glob("*.tmp"))


def test_the_workflow_is_lint_clean(fresh):
    assert "good condition" in fresh.command("snakemake", "--lint").stdout


def test_the_catalogues_quick_test_is_the_smoke_experiment(fresh):
    output = fresh.command("snakemake", "-n", "--configfile", ".test/config.yaml").stdout
    assert "Report on smoke" in output
    assert "Report on demo" not in output


def test_a_missing_weight_file_stops_before_any_job(fresh):
    fresh.edit_yaml("params.yaml", lambda params: params["methods"]["cosine"].update(pretrained="weights/start.pth"))
    output, _ = stop(fresh, "--config", "experiments=smoke")
    assert "pretrained: there is no weight file weights/start.pth; correct it or put it there." in output
