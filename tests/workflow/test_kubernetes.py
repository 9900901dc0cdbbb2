"""The Kubernetes profile: its keys are the executor plugin's, and the whole workflow plans under it."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from probmetric.io import read_yaml

plugin = pytest.importorskip("snakemake_executor_plugin_kubernetes")

PROFILE = "workflow/profiles/kubernetes"
SLURM = "workflow/profiles/slurm"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def profile():
    return read_yaml(ROOT / PROFILE / "profile.yaml")


def test_its_keys_are_settings_of_the_plugin(profile):
    known = {f"kubernetes-{field.name.replace('_', '-')}" for field in fields(plugin.ExecutorSettings)}
    used = {key for key in profile if key.startswith("kubernetes-")}
    assert {"kubernetes-namespace", "kubernetes-persistent-volumes"} <= used <= known
    volumes = plugin.parse_persistent_volumes(profile["kubernetes-persistent-volumes"])
    assert len({volume.name for volume in volumes}) == len(volumes), "a claim can be mounted once"
    places = {str(volume.path) for volume in volumes}
    assert {profile["default-storage-prefix"], "/workdir/data", "/workdir/results", "/workdir/state"} == places


def test_gpu_jobs_name_their_manufacturer(profile):
    """The plugin refuses a GPU without one."""
    for rule, resources in profile["set-resources"].items():
        assert ("gpu" in resources) == ("gpu_manufacturer" in resources), rule


def test_it_asks_for_what_the_slurm_profile_asks_for(profile):
    slurm = read_yaml(ROOT / SLURM / "profile.yaml")
    for key in ("set-threads", "retries", "keep-going", "rerun-triggers"):
        assert profile[key] == slurm[key], key
    for rule, resources in slurm["set-resources"].items():
        mine = profile["set-resources"][rule]
        assert {name: resources.get(name) for name in ("gpu", "mem_mb")} == {
            name: mine.get(name) for name in ("gpu", "mem_mb")
        }


@pytest.mark.workflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "pages"),
    [(PROFILE, ["guide/kubernetes.md"]), (SLURM, ["guide/clusters.md", "examples/cluster.md"])],
)
def test_the_workflow_plans_under_it_and_prints_what_the_pages_say(fresh, profile, pages):
    """Settings of the plugins are parsed; under Kubernetes every file lies below the storage prefix."""
    output = fresh.command("snakemake", "-n", "--workflow-profile", profile, "--config", "experiments=smoke").stdout
    for page in pages:
        shown = re.search(r"^```text\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)[1]
        assert all(line in output for line in shown.splitlines())
    assert output.count(": Run digits/") == 3


@pytest.mark.workflow
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("rsync") is None, reason="Snakemake's fs storage needs rsync")
def test_the_workflow_runs_on_such_storage(fresh, finished, tmp_path):
    """What the profile assumes, on one machine: files in a store, local copies in the working folder through a link."""
    store, local = tmp_path / "store", tmp_path / "local"
    (local / "fs" / store.relative_to("/")).parent.mkdir(parents=True)
    (local / "fs" / store.relative_to("/")).symlink_to(fresh.folder)
    run = "results/digits/cosine+training.epochs=2/seed0"
    places = ["--default-storage-prefix", str(store), "--local-storage-prefix", str(local)]
    options = ["--default-storage-provider", "fs", *places, "--keep-storage-local-copies"]
    fresh.edit_smoke(methods=["cosine"])
    fresh.snakemake(*options)
    for name in ("model.safetensors", "embeddings/test.safetensors"):
        assert (fresh.folder / run / name).read_bytes() == (finished.folder / run / name).read_bytes()
    assert (store / run / "metrics.json").read_bytes() == (finished.folder / run / "metrics.json").read_bytes()
    assert (store / "reports/smoke/index.html").exists()
