"""The real MLflow UI on a store that `track` wrote: over HTTP, and as a person sees it in Chromium."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest
from browsing import open_browser, save
from fabricated_runs import study_metrics, write_run
from mlflow import MlflowClient

from probmetric.tracking import live_curves, track, ui_addresses
from probmetric.tracking.store import RUNS_VIEW, VIEW, view_address

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def test_the_ui_shows_runs_curves_and_figures_after_the_repository_moved(tracked, serve, tmp_path, monkeypatch):
    track("study", tracked.folders, "reports/study", store_uri="sqlite:///mlflow.db", artifact_root="mlartifacts")
    moved = tmp_path / "moved"
    monkeypatch.chdir(tmp_path)
    tracked.root.rename(moved)
    monkeypatch.chdir(moved)
    (warning,) = [line for line in ui_addresses("sqlite:///mlflow.db", 5000) if "was it moved?" in line]
    assert str(tracked.root) in warning
    folders = [moved / folder.relative_to(tracked.root) for folder in tracked.folders]
    track("study", folders, "reports/study", store_uri="sqlite:///mlflow.db", artifact_root="mlartifacts")
    with serve(moved) as address:
        report = check_artifacts(address, moved)
        check_live_curves(address)
        check_writing_through_the_server(address, moved, tracked.runs)
        with open_browser() as driver:
            check_pages(driver, address, report, moved)


def check_artifacts(address: str, moved: Path) -> tuple[str, str]:
    """Artifacts come through the server; the folder has another path now, where `track` wrote them again."""
    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("reports")
    (run,) = client.search_runs([experiment.experiment_id])
    names = {item.path for item in client.list_artifacts(run.info.run_id, "figures")}
    assert "figures/sparsification.png" in names
    url = f"{address}/get-artifact?path=table.md&run_uuid={run.info.run_id}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.read() == (moved / "reports/study/table.md").read_bytes()
    return experiment.experiment_id, run.info.run_id


def check_live_curves(address: str) -> None:
    """While digits/proxy_nca/seed9 trains, its curves are on the server."""
    client = MlflowClient(tracking_uri=address)
    digits = client.get_experiment_by_name("digits").experiment_id
    live = "tags.`probmetric.live` = 'digits/proxy_nca/seed9'"
    with live_curves(address, "digits/proxy_nca/seed9") as on_epoch:
        on_epoch({"epoch": 0, "train_loss": 2.0, "val_metric": None})
        end = time.monotonic() + 30
        while not client.search_runs([digits], f"{live} and metrics.`by_epoch/train_loss` = 2"):
            assert time.monotonic() < end, "the first epoch did not arrive while the run was training"
            time.sleep(0.2)
        on_epoch({"epoch": 1, "train_loss": 1.5, "val_metric": 0.4, "grad_norm": float("nan")})
    (run,) = client.search_runs([digits], live)
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "by_epoch/train_loss")
    assert [(point.step, point.value) for point in history] == [(0, 2.0), (1, 1.5)]
    assert set(run.data.metrics) == {"by_epoch/train_loss", "by_epoch/val_metric"}


def check_writing_through_the_server(address: str, moved: Path, runs: tuple[str, ...]) -> None:
    """The server is the same store: what is there stays, what is new is written, artifacts go through it."""
    added = moved / "results" / "digits" / "proxy_nca" / "seed9"
    write_run(moved, "digits/proxy_nca/seed9", study_metrics("digits", 0.0, "proxy_nca", 9))
    folders = [*(moved / "results" / run for run in runs), added]
    options = {"store_uri": address, "artifact_root": moved / "unused"}
    first = track("study", folders, moved / "reports/study", **options)
    assert first == {"written": ["digits/proxy_nca/seed9"], "unchanged": len(runs) + 1}
    assert track("study", folders, moved / "reports/study", **options)["written"] == []
    client = MlflowClient(tracking_uri=address)
    digits = client.get_experiment_by_name("digits").experiment_id
    (run,) = client.search_runs([digits], "tags.`probmetric.run` = 'digits/proxy_nca/seed9'")
    assert client.search_runs([digits], "tags.`probmetric.live` = 'digits/proxy_nca/seed9'") == []
    (parent,) = client.search_runs([digits], "tags.`probmetric.parent` = 'digits/proxy_nca'")
    children = client.search_runs([digits], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(child.info.run_name for child in children) == [f"proxy_nca seed{seed}" for seed in (0, 1, 9)]
    recalls = [child.data.metrics["retrieval/recall_at_1"] for child in children]
    assert parent.data.metrics["retrieval/recall_at_1"] == pytest.approx(sum(recalls) / 3)
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert names == {"run.yaml", "metrics.json", "curves.json", "history.csv"}
    assert not (moved / "unused").exists()


def check_pages(driver, address: str, report: tuple[str, str], moved: Path) -> None:
    client = MlflowClient(tracking_uri=address)
    glyphs = client.get_experiment_by_name("glyphs").experiment_id
    runs = client.search_runs([glyphs], "tags.`probmetric.run` LIKE '%'")
    assert len(runs) == 12
    check_views(driver, address, glyphs)
    run = next(run for run in runs if run.info.run_name == "laplace seed0")
    driver.get(f"{address}/#/experiments/{glyphs}/runs/{run.info.run_id}?workflowType=machine_learning")
    wait_for_text(driver, ["retrieval/recall_at_1", "loss.options.scale", "Finished"])
    save(driver, "mlflow_run")
    driver.get(f"{address}/#/experiments/{glyphs}/runs/{run.info.run_id}/model-metrics")
    wait_for_text(driver, ["by_epoch", "train_loss", "val_metric"])
    save(driver, "mlflow_curves")
    driver.get(f"{address}/#/experiments/{report[0]}/runs/{report[1]}/artifacts/figures/sparsification.png")
    wait_for_text(driver, ["sparsification.png"])
    save(driver, "mlflow_figure")
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in errors if address in entry["message"] and "get-artifact" in entry["message"]], errors


def check_views(driver, address: str, experiment: str) -> None:
    """Methods by their means, runs by their own numbers, in the columns that matter; runs folded below their method."""
    columns = ("map_at_r", "recall_at_1", "noise")
    for view, shown, hidden in (
        (VIEW, "proxy_nca noise0.2 (2 seeds)", "laplace seed0"),
        (RUNS_VIEW, "laplace seed0", "(2 seeds)"),
    ):
        driver.get("about:blank")  # an address that differs behind its # alone is not loaded again
        driver.get(f"{address}/{view_address(experiment, view)}")
        text = wait_for_text(driver, ["Sort: retrieval/recall_at_1", "Best methods", shown])
        heads = [cell.text for cell in driver.find_elements("css selector", "[role=columnheader]")]
        assert all(any(name in head for head in heads) for name in columns), heads
        assert hidden not in text
        save(driver, f"mlflow_{view}")
    driver.get("about:blank")
    driver.get(f"{address}/#/experiments/{experiment}/runs?workflowType=machine_learning")
    assert "laplace seed0" not in wait_for_text(driver, ["glyphs", "laplace (2 seeds)"])
    for button in driver.find_elements("css selector", "button[data-component-id*=runnamecell]"):
        driver.execute_script("arguments[0].click()", button)
    wait_for_text(driver, ["laplace seed0", "proxy_nca seed1 noise0.2"])
    save(driver, "mlflow_folded")


def wait_for_text(driver, words: list[str], seconds: int = 90) -> str:
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(_driver: object) -> str | bool:
        text = driver.execute_script("return document.body.innerText")
        return text if all(word in text for word in words) else False

    return WebDriverWait(driver, seconds, poll_frequency=0.5).until(shown, f"not all shown: {json.dumps(words)}")
