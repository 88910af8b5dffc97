"""MLflow beside the study: a process that reads the database and logs what is missing.

It is `tuner sync` kept running, so MLflow's import and its server's answers stay out of the study's way, and an MLflow
that is down or slow costs a study nothing.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from storage.records import Failure, TrialRecord
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import StudyStart

LAST_SYNC_S = 120.0


class MlflowFollower:
    """Wakes the follower after every trial; see `Listener`."""

    def __init__(self, storage_url: str, study: str, tracking_uri: str, log: Path) -> None:
        """Start the follower; its messages go to `log`."""
        module = "dashboards.mlflow.follower"
        command = [sys.executable, "-m", module, "follow", "--storage", storage_url, "--study", study]
        self._log: BinaryIO = log.open("ab")
        self._process = subprocess.Popen(
            [*command, "--tracking-uri", tracking_uri],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _wake(self) -> None:
        assert self._process.stdin is not None
        # If it has ended, what is missing is in the database and `close` tells.
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"sync\n")
            self._process.stdin.flush()

    def opened(self, start: StudyStart) -> None:
        """Nothing to log yet."""

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Nothing to log yet."""

    def finished(self, record: TrialRecord) -> None:
        """Log the trial."""
        self._wake()

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Nothing to log: the trial is not over."""

    def note(self, text: str) -> None:
        """Notes are for the screen."""

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Nothing to do."""

    def close(self) -> bool:
        """Let the follower log what is missing and end; return True if it says that nothing is."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(LAST_SYNC_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._log.close()
        return code == 0
