"""MLflow's follower: it reads the database and logs what MLflow does not have yet, each trial once.

A study is an experiment with one parent run; each trial, and each finalist measured again, is a run nested in it. A
run carries the tag `tuner.trial` before anything else is logged to it and the database marks the trial after everything
is, so a follower that died in between finds the run again and completes it. Timestamps are the trial's own, which makes
logging the same thing twice one thing in MLflow.

    python -m dashboards.mlflow.log follow --storage URL --study NAME --tracking-uri URI

syncs whenever something is written to its standard input and once more at its end; each sync prints one JSON line.
This is the only module that imports MLflow.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from dashboards.mlflow import run_layout
from dashboards.mlflow.run_layout import MetricPoint
from dashboards.mlflow.tracking import artifact_root, embedded_uri, first_line, one_at_a_time, quiet
from dashboards.plots import plot_files
from storage.errors import StorageError
from storage.records import StudyRecord, TrialRecord
from storage.store import Store, open_store

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}.items():
    os.environ.setdefault(_name, _value)

import mlflow  # noqa: E402  (it reads the settings above while it is imported)
from mlflow.entities import Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

TRIAL_TAG = "tuner.trial"
STUDY_TAG = "tuner.study"

_BATCH = 100
_POINTS = 1000
_ERRORS = (MlflowException, SQLAlchemyError, OSError)
"""What MLflow's stores raise when they cannot be used: over HTTP, on a database, in a folder."""


class MlflowUnavailable(Exception):
    """MLflow cannot be reached; nothing is lost, the next sync logs what is missing."""


@dataclass(frozen=True)
class SyncReport:
    """What one sync did: trials logged anew, runs that an interrupted sync had left, and failures as one line each."""

    logged: int = 0
    already: int = 0
    failed: tuple[str, ...] = ()


def sync(store_url: str, study: str | None = None, tracking_uri: str | None = None) -> SyncReport:
    """Log every finished trial that MLflow does not have, of one study or of all, and bring the parent runs up to date.

    `tracking_uri` None takes `MLFLOW_TRACKING_URI`, else an SQLite database in the current folder.

    Raises:
        MlflowUnavailable: if MLflow cannot be reached.
        StorageError: if the tuner's database cannot be used or has no such study.
    """
    follower = Follower(store_url, study, tracking_uri)
    try:
        return follower.sync(summary=True)
    finally:
        follower.close()


class Follower:
    """Keeps the tuner's database and MLflow open between syncs."""

    def __init__(self, store_url: str, study: str | None = None, tracking_uri: str | None = None) -> None:
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or embedded_uri(Path.cwd())
        self._uri = uri
        self._study = study
        self._store_url = store_url
        self._store = open_store(store_url)
        self._journal: _Journal | None = None

    def close(self) -> None:
        """Close the tuner's database."""
        self._store.close()

    def sync(self, summary: bool = False) -> SyncReport:
        """Log what is missing; `summary` also brings the parent runs up to date.

        Raises:
            MlflowUnavailable, StorageError: see `sync`.
        """
        with one_at_a_time(self._store_url):
            return self._sync(summary)

    def _sync(self, summary: bool) -> SyncReport:
        if self._journal is None:
            self._journal = _Journal(self._uri, self._store)
        self._journal.ping()
        logged, already, failed = 0, 0, dict[tuple[str, int, int], str]()
        while missing := [t for t in self._store.unsynced(self._study, _BATCH + len(failed)) if _key(t) not in failed]:
            for trial in missing:
                try:
                    found = self._journal.log(trial)
                except _ERRORS as error:
                    self._journal.ping()
                    failed[_key(trial)] = f"{trial.name} of {trial.study}: {first_line(error)}"
                    continue
                logged, already = logged + (not found), already + found
        if summary:
            self._summarise(self._journal)
        return SyncReport(logged, already, tuple(failed.values()))

    def _summarise(self, journal: _Journal) -> None:
        studies = self._store.studies() if self._study is None else [self._store.study(self._study)]
        for study in studies:
            if study is None:
                raise StorageError(f"no study is called {self._study!r}; `tuner trials` lists what there is")
            try:
                journal.summarise(study)
            except _ERRORS as error:
                raise MlflowUnavailable(first_line(error)) from error


class _Journal:
    """The runs in MLflow: which experiment, parent run and nested run belong to what."""

    def __init__(self, uri: str, store: Store) -> None:
        self._uri = uri
        self._store = store
        self._parents: dict[str, tuple[str, Run]] = {}
        root = artifact_root(uri)
        try:
            if root is not None:
                root.parent.mkdir(parents=True, exist_ok=True)
            with quiet():
                self._client = mlflow.MlflowClient(tracking_uri=uri)
                self._client.search_experiments(max_results=1)
        except _ERRORS as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> MlflowUnavailable:
        return MlflowUnavailable(f"MLflow at {self._uri} cannot be used: {first_line(error)}")

    def ping(self) -> None:
        """Raise `MlflowUnavailable` if MLflow does not answer."""
        try:
            self._client.search_experiments(max_results=1)
        except _ERRORS as error:
            self._parents.clear()
            raise self._unavailable(error) from error

    def log(self, trial: TrialRecord) -> bool:
        """Log one finished trial and mark it; return True if an earlier sync had begun its run."""
        outcome = trial.outcome
        if outcome is None:
            raise StorageError(f"{trial.name} of {trial.study} is not finished")
        experiment, parent = self._parent(trial.study)
        uid = f"{parent.data.tags[STUDY_TAG]}/{trial.number}r{trial.round}"
        run = self._find(experiment, TRIAL_TAG, uid)
        found = run is not None
        if run is None:
            inherited = {name: value for name, value in parent.data.tags.items() if name in run_layout.INHERITED_TAGS}
            tags = {
                **inherited,
                **run_layout.trial_tags(trial, outcome),
                TRIAL_TAG: uid,
                "mlflow.parentRunId": self._owner(experiment, parent, trial).info.run_id,
            }
            start, name = run_layout.milliseconds(outcome.started_at), trial.name
            run = self._client.create_run(experiment, start_time=start, tags=tags, run_name=name)
        run_id = run.info.run_id
        self._write(run_id, run_layout.trial_points(trial, outcome), run_layout.trial_params(trial, outcome))
        for file in run_layout.artifact_files(Path(outcome.artifacts)):
            self._client.log_artifact(run_id, str(file))
        with plot_files.trial_plots(trial, outcome) as folder:
            self._client.log_artifacts(run_id, str(folder))
        self._client.set_terminated(run_id, run_layout.status(outcome), run_layout.milliseconds(outcome.ended_at))
        self._write(parent.info.run_id, run_layout.curve(trial, outcome))
        self._store.mark_synced(trial.study, trial.number, trial.round, run_id)
        return found

    def _owner(self, experiment: str, parent: Run, trial: TrialRecord) -> Run:
        """Return the run that a trial's run belongs under: the study's, or for a re-measurement its trial's."""
        if trial.round == 0:
            return parent
        return self._find(experiment, TRIAL_TAG, f"{parent.data.tags[STUDY_TAG]}/{trial.number}r0") or parent

    def summarise(self, study: StudyRecord) -> None:
        """Write what is known of the study by now to its parent run: facts, trade-offs, best trial, conclusion."""
        _, parent = self._parent(study.name)
        run_id = parent.info.run_id
        for name in ("premise", "facts", "conclusion"):
            content = getattr(study, name)
            if content is not None:
                self._client.log_dict(run_id, dict(content), f"{name}.json")
        trials = self._store.trials(study.name, finished=True)
        with plot_files.study_plots(study, trials) as folder:
            self._client.log_artifacts(run_id, str(folder))
        best = run_layout.best_trial(trials)
        if best is not None:
            self._write(run_id, run_layout.best_points(best), tags={"best_trial": best.name})
        self._write(run_id, tags=run_layout.study_tags(study))
        script = run_layout.script_file(study)
        if script is not None:
            self._client.log_artifact(run_id, str(script))
        if study.conclusion is not None:
            self._client.set_terminated(run_id, "FINISHED")

    def _parent(self, study: str) -> tuple[str, Run]:
        """Return the study's experiment and parent run; both are made if there are none."""
        if study in self._parents:
            return self._parents[study]
        record = self._store.study(study)
        if record is None:
            raise StorageError(f"no study is called {study!r}")
        uid = run_layout.study_uid(record)
        experiment = self._experiment(record.name)
        run = self._find(experiment, STUDY_TAG, uid)
        if run is None:
            tags = {**run_layout.study_tags(record), STUDY_TAG: uid}
            start = run_layout.milliseconds(record.created_at)
            run = self._client.create_run(experiment, start_time=start, tags=tags, run_name=record.name[:250])
        self._write(run.info.run_id, params=run_layout.study_params(record))
        self._store.set_study_run(study, run.info.run_id)
        self._parents[study] = (experiment, run)
        return experiment, run

    def _experiment(self, study: str) -> str:
        name = run_layout.experiment_name(study)
        known = self._client.get_experiment_by_name(name)
        if known is None:
            root = artifact_root(self._uri)
            location = root.as_uri() if root else None
            return str(
                self._client.create_experiment(name, artifact_location=location, tags=run_layout.EXPERIMENT_TAGS)
            )
        if known.lifecycle_stage != "active":
            self._client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)

    def _find(self, experiment: str, tag: str, value: str) -> Run | None:
        """Return the oldest run with a tag; `value` holds hexadecimal digits, `/` and `r` only."""
        runs = self._client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["start_time ASC"])
        return runs[0] if runs else None

    def _write(
        self,
        run_id: str,
        points: Sequence[MetricPoint] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log in batches within MLflow's limit of 1,000 metrics, 100 params and 100 tags."""
        metrics = [Metric(point.name, point.value, point.timestamp, point.step) for point in points]
        entries = [Param(name, value) for name, value in (params or {}).items()]
        labels = [RunTag(name, value) for name, value in (tags or {}).items()]
        while metrics or entries or labels:
            now = (metrics[:_POINTS], entries[:_BATCH], labels[:_BATCH])
            self._client.log_batch(run_id, metrics=now[0], params=now[1], tags=now[2])
            metrics, entries, labels = metrics[_POINTS:], entries[_BATCH:], labels[_BATCH:]


def _key(trial: TrialRecord) -> tuple[str, int, int]:
    return trial.study, trial.number, trial.round


def _follow(follower: Follower) -> int:
    """Sync for what arrives on standard input, all that is there at once, and again at its end."""
    while True:
        at_end = not os.read(sys.stdin.fileno(), 65536)
        try:
            report = asdict(follower.sync(summary=at_end))
        except (MlflowUnavailable, StorageError) as error:
            report = {"error": str(error)}
        print(json.dumps(report), flush=True)
        if at_end:
            return 1 if report.get("error") or report.get("failed") else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the follower; Ctrl-C is left to the driver, which closes the follower's standard input."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.mlflow.log", description=__doc__)
    parser.add_argument("command", choices=["follow"])
    for name in ("--storage", "--study", "--tracking-uri"):
        parser.add_argument(name, required=name == "--storage")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        follower = Follower(options.storage, options.study, options.tracking_uri)
    except StorageError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    try:
        return _follow(follower)
    finally:
        follower.close()


if __name__ == "__main__":
    sys.exit(main())
