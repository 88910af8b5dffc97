"""MLflow beside the study: a process that reads the database and logs the trials that MLflow lacks.

The process runs the same code as `tuner study sync`. The study never waits for MLflow's import or its server's replies,
and an MLflow that is down or slow delays no trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from records.trials import TrialRecord
from storage.store import Store
from tuner.executors.base import WorkerState
from tuner.files import home
from tuner.http import HttpError, ReadLimits, fetch
from tuner.study.protocols import MlflowLacks, StudyObserver, SyncStatus

RESTARTS = 3
"""How often a follower that a signal ended is started again."""

STALL_S = 120.0
"""Seconds without a logged trial or processor time after which the follower is stopped."""

BUSY_CPU_S = 0.1
"""Processor seconds that count as progress: MLflow's import and the last plots log no trial."""

STORAGE_VARIABLE, TRACKING_VARIABLE = "TUNER_SYNC_STORAGE", "MLFLOW_TRACKING_URI"
"""Both URLs may contain a password, and every user of the machine can read the arguments of a process."""

PARENT_VARIABLE = "TUNER_SYNC_PARENT"
"""The follower ends with the process that has this id."""

_POLL_S = 0.25
REPORT_S = 1.0
REACH_S = 3.0


def mlflow_cache() -> Path:
    """Return the folder with empty databases of MLflow, which new ones are copied from."""
    return home() / "mlflow"


def unreachable(tracking_uri: str) -> str | None:
    """Return why an MLflow server does not answer; None if it does, or if the URI names no HTTP server."""
    if not tracking_uri.startswith(("http://", "https://")):
        return None
    try:
        fetch(f"{tracking_uri.rstrip('/')}/health", ReadLimits(REACH_S))
    except HttpError as error:
        return str(error).replace("SSL_CERT_FILE", "SSL_CERT_FILE and REQUESTS_CA_BUNDLE")  # MLflow's library reads it
    return None


class MlflowFollower(StudyObserver):
    """Wakes the follower process after every trial and waits for it at the end; see `StudyObserver`."""

    def __init__(
        self,
        store: Store,
        storage_url: str,
        study: str,
        tracking_uri: str,
        log: Path,
        report: Callable[[SyncStatus], None],
    ) -> None:
        """Start the follower.

        Args:
            store: the study's database, from which progress is read.
            storage_url: the same database, for the follower.
            study: name of the study.
            tracking_uri: MLflow's.
            log: file of the follower's messages, one JSON object a line after each sync.
            report: receives MLflow's progress.
        """
        options = ["--study", study, "--cache", os.fspath(mlflow_cache())]
        self._command = [sys.executable, "-m", "dashboards.mlflow.follower", "follow", *options]
        self._environment = {
            **os.environ,
            STORAGE_VARIABLE: storage_url,
            TRACKING_VARIABLE: tracking_uri,
            PARENT_VARIABLE: str(os.getpid()),
        }
        self._restarts_left = RESTARTS
        self._store = store
        self._study = study
        self._log: BinaryIO = log.open("ab")
        self._messages: BinaryIO = log.open("rb")
        self._messages.seek(0, 2)
        self._problem: str | None = None
        self._report = report
        self._reported = 0.0
        self._process = self._start()
        self._wake()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _runs(self) -> bool:
        """Return whether the follower runs; one that a signal ended, as for want of memory, is started again."""
        code = self._process.poll()
        if code is None:
            return True
        if code >= 0 or self._restarts_left == 0:
            return False
        self._restarts_left -= 1
        self._close_input()
        self._process = self._start()
        self._wake()
        return True

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _wake(self) -> None:
        assert self._process.stdin is not None
        # A follower that has ended cannot be woken; `wait` reports what is missing.
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"sync\n")
            self._process.stdin.flush()

    def finished(self, record: TrialRecord) -> None:
        """Wake the follower, which logs the trial."""
        self._wake()

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Report MLflow's progress, once a second at most; a follower that was killed is started again."""
        now = time.monotonic()
        if now - self._reported >= REPORT_S:
            self._reported = now
            self._runs()
            self._report(self.status())

    def status(self) -> SyncStatus:
        """Return the number of trials that MLflow has, and its last error."""
        for line in self._messages:
            if (report := _report_of(line)) is not None:
                self._problem = _problem(report)
        logged, finished = self._store.logged_counts(self._study)
        return SyncStatus(logged, finished, self._problem)

    def wait(self, skip: threading.Event) -> MlflowLacks:
        """Wait until the follower has logged every trial, report its progress, and end it.

        Args:
            skip: when set, the wait ends; a `KeyboardInterrupt` does the same.

        Returns:
            What MLflow lacks: something if it cannot be reached, if nothing progressed for `STALL_S`, or if the wait
            was skipped.
        """
        watch = _ProgressWatch(time.monotonic())
        try:
            while self._runs():
                self._close_input()
                status = replace(self.status(), waiting=True)
                self._report(status)
                if skip.is_set() or watch.stalled(time.monotonic(), status.logged, _cpu_s(self._process.pid)):
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()
        if self._process.returncode == 0:
            return MlflowLacks.NOTHING
        logged, finished = self._store.logged_counts(self._study)
        return MlflowLacks.TRIALS if logged < finished else MlflowLacks.CONCLUSION

    def close(self) -> None:
        """End the follower at once, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()
        self._messages.close()


class _ProgressWatch:
    """Detects a follower that makes no progress."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._logged = -1
        self._cpu_s = 0.0

    def stalled(self, now: float, logged: int, cpu_s: float) -> bool:
        """Return True if neither the logged trials nor the processor time grew for `STALL_S`."""
        if logged > self._logged or cpu_s > self._cpu_s + BUSY_CPU_S:
            self._since, self._logged, self._cpu_s = now, logged, cpu_s
        return now - self._since > STALL_S


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of a process; 0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _report_of(line: bytes) -> Mapping[str, Any] | None:
    """Return the sync report in a line of the follower's log; None for other output."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _problem(report: Mapping[str, Any]) -> str | None:
    """Return the error of a sync: MLflow's, else that of the first trial that could not be logged."""
    problem: str | None = report.get("error") or next(iter(report.get("failed") or ()), None)
    return problem
