"""What a step or command reads is a folder, a dangling link, empty, cut short or of another kind: one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fault_helpers import ENCODER, PREPARED, RUN, Tiny

pytestmark = pytest.mark.slow

# step -> what it reads. YAML and CSV that were cut short are often still valid.
READ = {
    "train": [f"{PREPARED}/digest", f"{PREPARED}/manifest.parquet", f"{PREPARED}/images.bin"],
    "fit": [f"results/{ENCODER}/encoder.yaml", f"results/{ENCODER}/model.safetensors"],
    "embed": [f"results/{ENCODER}/model_last.safetensors", f"results/{RUN}/posterior.safetensors"],
    "evaluate": [
        f"results/{ENCODER}/encoder.yaml",
        *(f"results/{RUN}/embeddings/{split}.safetensors" for split in ("val", "test", "ood", "last")),
    ],
    "report": [
        *(f"results/{RUN}/metrics.json", f"results/{RUN}/embeddings/timing.json"),
        *(f"results/{ENCODER}/history.csv", f"results/{RUN}/curves.json", f"results/{RUN}/run.yaml"),
        f"{PREPARED}/summary.json",
    ],
    "figures": ["reports/tiny/runs.parquet", "reports/tiny/page.json"],
    "track": [f"results/{RUN}/metrics.json", f"results/{RUN}/run.yaml"],
}
# A run's process makes again what is lost of the run itself.
MADE_AGAIN = (
    f"results/{RUN}/posterior",
    *(f"results/{RUN}/embeddings/{split}.s" for split in ("val", "test", "ood", "last")),
)
CASES = [(step, name) for step, names in READ.items() for name in names]


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "dangling link":
        path.symlink_to("/nowhere/at/all")
    elif how == "another kind":
        path.write_text(json.dumps({name: ["x"] for name in json.loads(content)}))
    else:
        path.write_bytes(content[: len(content) // 2] if how == "cut short" else b"")


@pytest.mark.parametrize(("step", "name"), CASES, ids=lambda value: Path(value).name)
def test_a_step_names_what_it_cannot_read(step: str, name: str, tiny: Tiny):
    tiny.remove_outputs(step)
    for how in ("folder", "dangling link", "empty", "cut short", *["another kind"] * name.endswith(".json")):
        whole = (tiny.folder / name).read_bytes()
        spoil(tiny.folder / name, how)
        outcome = tiny.run(step)
        assert "Traceback" not in outcome.output, how
        if how == "dangling link" and name.startswith(MADE_AGAIN):
            assert outcome.status == 0, outcome.output[-1000:]
            assert (tiny.folder / name).read_bytes() == whole
            tiny.remove_outputs(step)
            continue
        assert outcome.status == 2, f"{how}: {outcome.output[-1000:]}"
        assert Path(name).name in outcome.output, how
        path = tiny.folder / name
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(whole)
