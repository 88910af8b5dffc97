"""The MLflow follower: read the database and log the finished trials that MLflow lacks.

    TUNER_SYNC_STORAGE=URL MLFLOW_TRACKING_URI=URI python -m dashboards.mlflow.follower follow --study NAME

syncs whenever something is written to its standard input, and once more when its standard input ends. Each sync prints
one line of JSON: the fields of `SyncReport`, or `error`. A wait for another sync prints an `error` at its start.
"""

from __future__ import annotations

from dashboards.mlflow.with_parent import end_with_parent

if __name__ == "__main__":  # before the imports below, which take seconds
    end_with_parent()

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from dashboards.mlflow.log import MLFLOW_ERRORS, MlflowUnavailable, RunLog
from dashboards.mlflow.ui import embedded_uri, mask_passwords, one_at_a_time
from records.trials import TrialRecord
from storage.errors import StorageError, first_line
from storage.store import open_store
from storage.waiting import DatabaseWait

STORAGE_VARIABLE = "TUNER_SYNC_STORAGE"
"""The variable with the database's URL. It may contain a password, which arguments would show to every user."""

_BATCH = 100


@dataclass(frozen=True)
class SyncReport:
    """The result of one sync.

    Attributes:
        logged: trials whose run this sync created.
        already: trials whose run an interrupted sync had created, and which this one completed.
        failed: one line for each trial that MLflow refused.
    """

    logged: int = 0
    already: int = 0
    failed: tuple[str, ...] = ()


def sync_to_mlflow(
    store_url: str,
    study: str | None = None,
    tracking_uri: str | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
    cache: Path | None = None,
) -> SyncReport:
    """Log every finished trial that MLflow lacks, and bring the parent runs of studies up to date.

    Args:
        store_url: the tuner's database.
        study: one study; None syncs all studies of the database.
        tracking_uri: where MLflow is; None takes `MLFLOW_TRACKING_URI`, else an SQLite database in the current folder.
        on_wait: receives one line when another process syncs the database and is waited for.
        cache: the folder with empty databases of MLflow; see `new_database`.

    Raises:
        MlflowUnavailable: if MLflow cannot be used.
        StorageError: if the tuner's database cannot be used or has no such study, or another process syncs it for too
            long.
    """
    with closing(Follower(store_url, study, tracking_uri, on_wait, cache=cache)) as follower:
        return follower.sync(summary=True)


class Follower:
    """Keeps the tuner's database and MLflow open between syncs; arguments as for `sync_to_mlflow`.

    `wait` is for a database that stops answering later; None: it is not waited for.

    Raises:
        StorageError: if the tuner's database cannot be used.
    """

    def __init__(
        self,
        store_url: str,
        study: str | None = None,
        tracking_uri: str | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
        wait: DatabaseWait | None = None,
        cache: Path | None = None,
    ) -> None:
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or embedded_uri(Path.cwd())
        self._uri = uri
        self._study = study
        self._store_url = store_url
        self._on_wait = on_wait
        self._cache = cache
        self._store = open_store(store_url, wait)
        self._log: RunLog | None = None

    def close(self) -> None:
        self._store.close()

    def sync(self, summary: bool = False) -> SyncReport:
        """Log the finished trials that MLflow lacks; with `summary`, also bring the parent runs of studies up to date.

        Raises:
            MlflowUnavailable, StorageError: see `sync_to_mlflow`.
        """
        with one_at_a_time(self._store_url, self._on_wait, database_wait=self._store.wait):
            return self._sync(summary)

    def _sync(self, summary: bool) -> SyncReport:
        if self._log is None:
            self._log = RunLog(self._uri, self._store, self._cache)
        self._log.ping()
        logged, already, failed = 0, 0, dict[tuple[str, int, int], str]()
        while missing := [t for t in self._store.unsynced(self._study, _BATCH + len(failed)) if _key(t) not in failed]:
            for trial in missing:
                try:
                    existed = self._log.log_trial(trial)
                except MLFLOW_ERRORS as error:
                    self._log.ping()
                    failed[_key(trial)] = f"{trial.name} of {trial.study}: {first_line(error)}"
                    continue
                logged, already = logged + (not existed), already + existed
        if summary:
            self._log_studies(self._log)
        return SyncReport(logged, already, tuple(failed.values()))

    def _log_studies(self, log: RunLog) -> None:
        studies = self._store.studies() if self._study is None else [self._store.study(self._study)]
        for study in studies:
            if study is None:
                raise StorageError(f"no study is called {self._study!r}; `tuner study list` lists the studies")
            try:
                log.log_study(study)
            except MLFLOW_ERRORS as error:
                raise MlflowUnavailable(mask_passwords(first_line(error))) from error


def _key(trial: TrialRecord) -> tuple[str, int, int]:
    return trial.study, trial.number, trial.round


def _follow(follower: Follower) -> int:
    """Sync once for all that has arrived on standard input, and again when it ends; return the exit code."""
    while True:
        at_end = not os.read(sys.stdin.fileno(), 65536)
        try:
            report = asdict(follower.sync(summary=at_end))
        except (MlflowUnavailable, StorageError) as error:
            report = {"error": str(error)}
        print(json.dumps(report), flush=True)
        if at_end:
            return 1 if report.get("error") or report.get("failed") else 0


def _report_problem(text: str) -> None:
    print(json.dumps({"error": text}), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the follower and return its exit code.

    Ctrl-C is ignored: the study's process handles it, and then closes the follower's standard input.
    """
    parser = argparse.ArgumentParser(prog="python -m dashboards.mlflow.follower", description=__doc__)
    parser.add_argument("command", choices=["follow"])
    parser.add_argument("--study")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wait = DatabaseWait(_report_problem)
        follower = Follower(os.environ[STORAGE_VARIABLE], options.study, None, _report_problem, wait, options.cache)
    except StorageError as error:
        _report_problem(str(error))
        return 1
    with closing(follower):
        return _follow(follower)


if __name__ == "__main__":
    sys.exit(main())
