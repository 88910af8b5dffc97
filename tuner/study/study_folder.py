"""One process runs a study: the lock that keeps a second one out, and the outcomes that outlive a killed one.

The lock is the database's (`storage.locks`). An outcome is a file in the study's folder until the database has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from records.trials import TrialOutcome
from storage import locks
from tuner.cancellation import CancelToken
from tuner.errors import InfrastructureError, SettingError
from tuner.files import write_atomically

_PREFIX = "unstored-"
_MODE = 0o600  # an outcome contains the server's environment


@dataclass(frozen=True)
class KeptOutcome:
    """The outcome of a measurement.

    Attributes:
        study: when the study was created, which tells studies of one name apart.
        number: the trial's number.
        round: round of the finals, from 1; 0: the trial itself.
        outcome: what was measured.
    """

    study: str
    number: int
    round: int
    outcome: TrialOutcome


_KEPT = TypeAdapter(KeptOutcome)


class KeptOutcomes:
    """Keeps each outcome in a file from its arrival until the database has it."""

    def __init__(self, folder: Path, study: str) -> None:
        """Choose the folder of a study; `study` is as in `KeptOutcome`. Nothing is written yet."""
        self._folder = folder
        self._study = study

    def keep(self, number: int, round_: int, outcome: TrialOutcome) -> None:
        """Write an outcome to its file; a full disk is no reason not to store it in the database."""
        kept = KeptOutcome(self._study, number, round_, outcome)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(number, round_), _KEPT.dump_json(kept).decode(), mode=_MODE)

    def remove(self, number: int, round_: int) -> None:
        """Remove the file of an outcome that the database has."""
        with suppress(OSError):
            self._path(number, round_).unlink(missing_ok=True)

    def read(self) -> Iterator[KeptOutcome]:
        """Yield the kept outcomes of this study.

        Each file is removed, after the caller has handled its outcome; so is one that is damaged, or of another study.
        """
        for path in sorted(self._folder.glob(f"{_PREFIX}*.json")):
            kept = None
            with suppress(OSError, ValueError):
                kept = _KEPT.validate_json(path.read_bytes())
            if kept is not None and kept.study == self._study:
                yield kept
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, number: int, round_: int) -> Path:
        return self._folder / f"{_PREFIX}{number}-{round_}.json"


_POLL_S = 0.5


class StudyIsRunning(SettingError):
    """Another process runs the study."""

    def __init__(self, name: str, holder: locks.Holder) -> None:
        super().__init__("study", name, f"{holder} is running this study", "wait for it, or choose another name")


def refuse_running(url: str, name: str) -> None:
    """Refuse a study that another process runs; creates nothing.

    Args:
        url: of the database.
        name: of the study.

    Raises:
        StudyIsRunning: when another process runs the study.
    """
    holder = locks.study_lock(url, name).holder()
    if holder is not None:
        raise StudyIsRunning(name, holder)


def wait_until_free(url: str, name: str, seconds: float, stop: CancelToken) -> None:
    """Wait until no other process runs the study, at most so many seconds, or until `stop`; creates nothing.

    `url` and `name` are as for `refuse_running`.

    Raises:
        InfrastructureError: when another process still runs it at the end of the wait.
    """
    lock = locks.study_lock(url, name)
    until = time.monotonic() + seconds
    while (holder := lock.holder()) is not None and not stop.is_set():
        left = until - time.monotonic()
        if left <= 0:
            raise InfrastructureError(
                f"{holder} is running the study {name!r}, and did not end within {seconds:.0f} s; end it, and resume"
            )
        stop.wait(min(_POLL_S, left))


@contextmanager
def study_lock(url: str, name: str) -> Iterator[locks.Lock]:
    """Hold the lock of a study for this process; `url` and `name` are as for `refuse_running`.

    Raises:
        StudyIsRunning: when another process runs the study.
    """
    lock = locks.study_lock(url, name)
    try:
        lock.take()
    except locks.LockHeld as error:
        raise StudyIsRunning(name, error.holder) from None
    try:
        yield lock
    finally:
        lock.release()
