"""`logger: probmetric` of the workflow's profiles: a line per finished run in place of messages about single jobs.

Snakemake finds logger plugins by the name of their package; what this one says is in `probmetric.planning.console`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterable, Iterator

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter, get_event
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from probmetric.planning.console import Progress, linked

__all__ = ["LogHandler"]

_JOBS = (
    *(LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.GROUP_INFO, LogEvent.SHELLCMD),
    *(LogEvent.PROGRESS, LogEvent.RUN_INFO, LogEvent.RESOURCES_INFO),
)
_CHATTER = (
    *("Assuming unrestricted", "Building DAG", "Using shell", "Conda environments", "Select jobs", "Group jobs"),
    "Touching output file",
)
SECONDS_BETWEEN_LOOKS = 5.0
_MADE_BEFORE = "Warning: the following output files of rule prepare"  # a dataset whose variant made it first


class LogHandler(LogHandlerBase):
    """Writes to the terminal; Snakemake's own handler is kept for everything that is not about a single job."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Build Snakemake's own handler with the same settings."""
        settings = self.common_settings
        quiet = set(settings.quiet or ())
        self.progress = Progress()
        self._stream = sys.stdout if settings.stdout else sys.stderr
        self._terminal = self._stream.isatty() and not settings.nocolor
        self._silent = bool(quiet & {Quietness.ALL, Quietness.PROGRESS})
        self._all = settings.dryrun or settings.verbose or settings.printshellcmds or settings.debug_dag
        self._ended = threading.Event()
        if not (self._silent or self._all):
            threading.Thread(target=self._wait, daemon=True).start()
        self._snakemake = ColorizingTextHandler(
            nocolor=settings.nocolor,
            stream=self._stream,
            formatter=_Linking(quiet, settings.show_failed_logs, terminal=self._terminal),
            filter=DefaultFilter(quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Say what a message about jobs is worth; leave any other to Snakemake's handler."""
        try:
            lines = [] if self._all else list(self._worth(record))
            if self._all or not _of_a_job(record):
                self._snakemake.handle(record)
            elif lines and not self._silent:
                self._write(lines)
        except Exception:  # a message that cannot be written must not end those that follow
            self.handleError(record)

    def close(self) -> None:
        """End the thread that says what runs."""
        self._ended.set()
        super().close()

    def _write(self, lines: Iterable[str]) -> None:
        self._stream.write("".join(f"{linked(line, terminal=self._terminal)}\n" for line in lines))
        self._stream.flush()

    def _wait(self) -> None:
        """Say every minute without a line what runs; a log may go as it is read, a terminal be closed."""
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            with contextlib.suppress(OSError, ValueError), self.lock:
                if lines := list(self.progress.wait()):
                    self._write(lines)

    def _worth(self, record: logging.LogRecord) -> Iterator[str]:
        event, said = get_event(record), record.__dict__
        if event == LogEvent.RUN_INFO:
            yield self.progress.plan(said["stats"])
        elif event == LogEvent.JOB_INFO:
            self.progress.begin(said["jobid"], said["rule_name"], dict(said["wildcards"]))
        elif event == LogEvent.JOB_ERROR:
            self.progress.stop(said["jobid"])
        elif event == LogEvent.JOB_FINISHED:
            yield from self.progress.end(said["job_id"])


class _Linking(DefaultFormatter):
    """Snakemake's words, with paths as links where they go to a terminal."""

    def __init__(self, *settings: object, terminal: bool) -> None:
        super().__init__(*settings)
        self._terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        return linked(super().format(record), terminal=self._terminal)


def _of_a_job(record: logging.LogRecord) -> bool:
    """Say whether a message is about a single job, or about how Snakemake goes to work."""
    said = str(record.msg)
    chatter = record.levelno == logging.INFO and said.startswith(_CHATTER)
    return chatter or said.startswith(_MADE_BEFORE) or get_event(record) in _JOBS
