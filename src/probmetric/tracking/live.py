"""Curves on a tracking server while a run is still training.

Rows of the history are handed to a thread that speaks MLflow's REST interface; training imports no MLflow and never
waits. A server that is slow, lost or wrong costs the live view, nothing else: the first failure is logged once and
the rest is dropped. When the run is finished, `track` writes the real run from its files and removes the live one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LIVE_TAG = "probmetric.live"
_SECONDS_PER_REQUEST, _SECONDS_TO_FINISH, _MOST_ROWS_WAITING = 5.0, 3.0, 1000
_log = logging.getLogger(__name__)

OnEpoch = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def live_curves(store_uri: str, run: str) -> Iterator[OnEpoch | None]:
    """Show the curves of a run while it trains.

        with live_curves(uri, run) as on_epoch:
            train_run(..., on_epoch=on_epoch)

    Args:
        store_uri: address of a tracking server; with any other store nothing is shown and None is yielded.
        run: the run's name, `<dataset>[+noise<rate>]/<method>[+key=value]/seed<k>`.
    """
    if not store_uri.startswith(("http://", "https://")):
        yield None
        return
    sender = _Sender(store_uri.rstrip("/"), run)
    try:
        yield sender.put
    except BaseException:
        sender.finish("FAILED")
        raise
    sender.finish("FINISHED")


class _Sender:
    """One thread that creates the live run with the first row and sends every row that follows."""

    def __init__(self, server: str, run: str) -> None:
        self.server, self.run = server, run
        self._rows: queue.Queue[Mapping[str, Any] | str] = queue.Queue(_MOST_ROWS_WAITING)
        self._thread = threading.Thread(target=self._work, name="live-curves", daemon=True)
        self._thread.start()

    def put(self, row: Mapping[str, Any]) -> None:
        """Hand over a row of the history; returns at once."""
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait(dict(row))

    def finish(self, status: str) -> None:
        """Let the thread send what is waiting, for a few seconds at most."""
        if self._rows.full():
            with contextlib.suppress(queue.Empty):
                self._rows.get_nowait()
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait(status)
        self._thread.join(_SECONDS_TO_FINISH)

    def _work(self) -> None:
        try:
            run_id = self._create()
            while True:
                item = self._rows.get()
                if isinstance(item, str):
                    self._post("runs/update", run_id=run_id, status=item, end_time=_now())
                    return
                self._post("runs/log-batch", run_id=run_id, metrics=_metrics(item))
        except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
            _log.warning("no live curves on %s: %s; training goes on.", self.server, error)

    def _create(self) -> str:
        dataset = self.run.partition("/")[0].partition("+")[0]
        tags = [{"key": LIVE_TAG, "value": self.run}]
        body = {"experiment_id": self._experiment(dataset), "start_time": _now(), "tags": tags}
        return str(self._post("runs/create", run_name=f"{self.run} (live)", **body)["run"]["info"]["run_id"])

    def _experiment(self, name: str) -> str:
        question = urllib.parse.urlencode({"experiment_name": name})
        with contextlib.suppress(urllib.error.HTTPError):
            return str(self._request(f"experiments/get-by-name?{question}")["experiment"]["experiment_id"])
        with contextlib.suppress(urllib.error.HTTPError):
            return str(self._post("experiments/create", name=name)["experiment_id"])
        return str(self._request(f"experiments/get-by-name?{question}")["experiment"]["experiment_id"])

    def _post(self, path: str, **body: Any) -> Any:
        return self._request(path, json.dumps(body).encode())

    def _request(self, path: str, body: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json", **_credentials()}
        request = urllib.request.Request(f"{self.server}/api/2.0/mlflow/{path}", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=_SECONDS_PER_REQUEST) as answer:
            return json.loads(answer.read() or b"{}")


def _metrics(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    now, epoch = _now(), int(row.get("epoch") or 0)
    values = {name: value for name, value in row.items() if name != "epoch" and isinstance(value, int | float)}
    return [
        {"key": f"by_epoch/{name}", "value": value, "timestamp": now, "step": epoch}
        for name, value in values.items()
        if math.isfinite(value)
    ]


def _credentials() -> dict[str, str]:
    """The header MLflow's own clients send, from the environment variables they use."""
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
    if user:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    return {}


def _now() -> int:
    return int(time.time() * 1000)
