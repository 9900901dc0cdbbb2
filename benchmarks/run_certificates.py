"""Do certificates hold, also for classes that calibration did not show, and what do they answer?

Every finished run of a dataset: its test gallery is the deployed one, each image asked among the others. The risk asked
for is half of the run's error rate, the confidence 90 %. Half of the queries calibrate, the other half is answered:

    class     calibration shows half of the classes, which are what is taken for drawn: the answers to the other half
    query     the same, but queries are taken for drawn, as if those of one class were independent: a mistake
    shown     calibration shows every class and half of the queries, which are what is taken for drawn
    val       calibration is the validation split, with its other classes and smaller gallery: no calibration set here

    all       share of splits in which more than the risk of the answers to all queries are wrong: what is promised,
              calibration being a sample of them
    rest      the same of the answers to the other half alone, which moves by its own sampling error too
    coverage  share of the other half that is answered

    python benchmarks/run_certificates.py --splits 1000 --output benchmarks/results/run_certificates.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.io import write_json
from probmetric.runs.folder import RunFolder
from probmetric.trust.certificates import CertificateError, certify
from probmetric.trust.deployed import decided_by
from probmetric.trust.p_right import PRight

CONFIDENCE = 0.9


def main() -> None:
    """Judge every finished run and write what was found."""
    options = _options()
    found = {}
    for folder in sorted(Path("results", options.data).glob("*/seed*")):
        run = RunFolder(folder)
        if run.finished and run.matches_file.exists():
            found[run.key.run] = judged(run, options.splits, options.scores)
            print(run.key.run, json.dumps(found[run.key.run]), flush=True)
    facts = {"data": options.data, "splits": options.splits, "confidence": CONFIDENCE}
    write_json(options.output, rounded(facts | {"summary": summary(found), "runs": found}))


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Score -> way of calibrating -> largest shares of violated certificates of any run, median coverage over runs."""
    scores = sorted({score for run in runs.values() for score in run if score != "error_rate"})
    found: dict[str, Any] = {}
    for score in scores:
        for way in ("class", "query", "shown"):
            rows = [run[score][way] for run in runs.values() if score in run]
            largest = {f"largest_{name}": max(row[name] for row in rows) for name in ("all", "rest")}
            coverage = float(np.median([row["coverage"] for row in rows]))
            found.setdefault(score, {})[way] = largest | {"median_coverage": coverage}
        above = [run[score]["val"]["risk"] > run[score]["val"]["asked"] for run in runs.values() if score in run]
        found[score]["val"] = {"runs": len(above), "above_the_risk": int(sum(above))}
    return found


def rounded(found: Any) -> Any:
    """The same with shares to four digits."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    return round(found, 4) if isinstance(found, float) else found


def judged(run: RunFolder, splits: int, scores: list[str]) -> dict[str, Any]:
    """Score -> unit -> shares of violated certificates and what they answer."""
    matches, metadata = run.matches()
    fitted = PRight.of(json.loads(metadata["p_right"])) if "p_right" in metadata else None
    test, val = (asked(matches[split]) for split in ("test", "val"))
    risk = (1 - test["right"].mean()) / 2
    found: dict[str, Any] = {"error_rate": 2 * risk}
    for score in scores:
        if score == "p_right" and fitted is None:
            continue
        doubt, before = (doubt_of(each, score, fitted) for each in (test, val))
        found[score] = {
            "class": over_splits(doubt, test, risk, list(halves(test["label"], splits)), by_class=True),
            "query": over_splits(doubt, test, risk, list(halves(test["label"], splits)), by_class=False),
            "shown": over_splits(doubt, test, risk, list(halves(np.arange(len(doubt)), splits)), by_class=False),
            "val": from_validation(before, val["right"], doubt, test["right"], risk),
        }
    return found


def asked(record: dict[str, Any]) -> dict[str, Any]:
    """The record of the queries that have a positive."""
    return {name: values[record["asked"]] for name, values in record.items()}


def doubt_of(record: dict[str, Any], score: str, fitted: PRight | None) -> np.ndarray:
    """The doubt that a certificate for this score decides by."""
    doubts = {name.removeprefix("doubt."): values for name, values in record.items() if name.startswith("doubt.")}
    return decided_by(fitted if fitted and score == "p_right" else score, {"own": record["own"], **doubts})


def over_splits(
    doubt: np.ndarray, test: dict[str, Any], risk: float, splits: list[np.ndarray], *, by_class: bool
) -> dict[str, float]:
    """Shares of violated certificates, and what they answer of the other half, over splits: who calibrates (Q,)."""
    right, label = test["right"], test["label"]
    rows = []
    for number, calibration in enumerate(splits):
        groups = label[calibration] if by_class else None
        made = certify(
            doubt[calibration], right[calibration], risk=risk, confidence=CONFIDENCE, groups=groups, seed=number
        )
        answered = made.answers(doubt)
        rest = answered & ~calibration
        rows.append((wrong(right, rest) > risk, wrong(right, answered) > risk, rest.sum() / (~calibration).sum()))
    violated_rest, violated_all, coverage = np.mean(rows, axis=0)
    return {"rest": float(violated_rest), "all": float(violated_all), "coverage": float(coverage)}


def halves(label: np.ndarray, splits: int) -> Iterator[np.ndarray]:
    """Which queries calibrate: those of half of the labels (Q,), drawn."""
    classes = np.unique(label)
    for number in range(splits):
        drawn = np.random.default_rng([17, number]).permutation(classes)[: len(classes) // 2]
        yield np.isin(label, drawn)


def wrong(right: np.ndarray, answered: np.ndarray) -> float:
    """Share of wrong answers among those given; 0 where none is."""
    return float((~right[answered]).mean()) if answered.any() else 0.0


def from_validation(
    before: np.ndarray, right_before: np.ndarray, doubt: np.ndarray, right: np.ndarray, risk: float
) -> dict[str, float]:
    """What a threshold certified on the validation split lets through in the test gallery."""
    try:
        made = certify(before, right_before, risk=risk, confidence=CONFIDENCE)
    except CertificateError:
        return {"asked": risk, "risk": 0.0, "coverage": 0.0}
    answered = made.answers(doubt)
    return {"asked": risk, "risk": wrong(right, answered), "coverage": float(answered.mean())}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--scores", nargs="+", default=["own", "disagreement", "p_right"])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/run_certificates.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
