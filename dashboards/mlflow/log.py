"""The runs of studies and trials in MLflow. This is the only module that imports MLflow.

A study is an experiment with one parent run. Each trial is a run nested in it, and each round of a finalist is a run
nested in its trial's. A trial's run gets the tag `tuner.trial` when it is created, and the database marks the trial as
synced after everything is logged. A sync that died in between therefore finds the run by its tag and completes it.
Metrics have the trial's own timestamps, so that logging one twice leaves a single value in MLflow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from dashboards.frames import to_csv
from dashboards.mlflow import run_layout, ui
from dashboards.mlflow.empty_database import create_database
from dashboards.mlflow.run_layout import RUN_NAME_LIMIT, MetricPoint, best_of
from dashboards.mlflow.ui import artifact_root, database_file, local_folder, mask_passwords, quiet
from dashboards.tradeoff import has_tradeoff, tradeoff_frame
from records.trials import StudyRecord, TrialRecord
from storage.errors import StorageError, first_line
from storage.store import Store

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}.items():
    os.environ.setdefault(_name, _value)

try:
    from dashboards.plots import pictures
except ModuleNotFoundError as error:  # Plotly comes with the extra `report`; without it, runs have no pictures
    if error.name != "plotly":
        raise
    pictures = None  # type: ignore[assignment]

import mlflow  # noqa: E402  (MLflow reads the settings above during its import)
from mlflow.entities import Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

TRIAL_TAG = "tuner.trial"
STUDY_TAG = "tuner.study"
MLFLOW_ERRORS = (MlflowException, SQLAlchemyError, OSError)
"""Errors of MLflow's stores: over HTTP, on a database, in a folder."""

_MAX_METRICS = 1000
_MAX_PARAMS = 100


class MlflowUnavailable(Exception):
    """MLflow cannot be used. The database keeps all trials, and the next sync logs those that MLflow lacks."""


def new_database(database: Path, cache: Path | None) -> None:
    """Create MLflow's database at a path, if there is none; see `create_database`.

    Args:
        database: the new file.
        cache: the folder with an empty database of each version of MLflow, which the new one is copied from.
    """
    kept = None if cache is None else cache / f"empty-{mlflow.__version__}.db"
    create_database(database, kept, _migrate)


def _migrate(database: Path) -> None:
    """Make a database with MLflow's tables."""
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments(max_results=1)


@dataclass(frozen=True)
class _Parent:
    """A study's experiment, its parent run, and the facts that the runs of its trials need."""

    experiment: str
    run: Run
    facts: Mapping[str, Any]


class RunLog:
    """Creates, finds and fills the runs of studies and trials."""

    def __init__(self, uri: str, store: Store, cache: Path | None = None) -> None:
        """Connect to the MLflow at a tracking URI, and create its database if it is a SQLite file.

        Args:
            uri: the tracking URI.
            store: the tuner's database.
            cache: see `new_database`.

        Raises:
            MlflowUnavailable: if it does not answer.
        """
        self._uri = uri
        self._store = store
        self._parents: dict[str, _Parent] = {}
        root, database = artifact_root(uri), database_file(uri)
        try:
            if root is not None:
                root.parent.mkdir(parents=True, exist_ok=True)
            with quiet():
                if database is not None:
                    new_database(database, cache)
                self._client = mlflow.MlflowClient(tracking_uri=uri)
                self._client.search_experiments(max_results=1)
        except MLFLOW_ERRORS as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> MlflowUnavailable:
        return MlflowUnavailable(mask_passwords(f"MLflow at {self._uri} cannot be used: {first_line(error)}"))

    def ping(self) -> None:
        """Check that MLflow answers.

        Raises:
            MlflowUnavailable: if it does not.
        """
        try:
            self._client.search_experiments(max_results=1)
        except MLFLOW_ERRORS as error:
            self._parents.clear()
            raise self._unavailable(error) from error

    def log_trial(self, trial: TrialRecord) -> bool:
        """Log a finished trial and mark it as synced; return True if an interrupted sync had created its run."""
        outcome = trial.outcome
        if outcome is None:
            raise StorageError(f"{trial.name} of {trial.study} is not finished")
        found = self._parent(trial.study)
        experiment, parent, facts = found.experiment, found.run, found.facts
        uid = f"{parent.data.tags[STUDY_TAG]}/{trial.number}r{trial.round}"
        run = self._find(experiment, TRIAL_TAG, uid)
        existed = run is not None
        if run is None:
            inherited = {name: value for name, value in parent.data.tags.items() if name in run_layout.INHERITED_TAGS}
            tags = {
                **inherited,
                **run_layout.trial_tags(trial, outcome),
                TRIAL_TAG: uid,
                "mlflow.parentRunId": self._owner(experiment, parent, trial).info.run_id,
            }
            start = run_layout.milliseconds(outcome.started_at)
            name = run_layout.run_name(trial)
            run = self._client.create_run(experiment, start_time=start, tags=tags, run_name=name)
        run_id = run.info.run_id
        params = run_layout.trial_params(trial, outcome, facts)
        self._write(run_id, run_layout.trial_points(trial, outcome, facts), params)
        for file in run_layout.artifact_files(Path(outcome.artifacts)):
            self._log_file(run, file)
        if pictures is not None:
            self._log_pictures(run_id, pictures.trial_pictures(trial, outcome))
        self._client.set_terminated(run_id, run_layout.status(outcome), run_layout.milliseconds(outcome.ended_at))
        self._write(parent.info.run_id, run_layout.history_points(trial, outcome))
        self._store.mark_synced(trial.study, trial.number, trial.round, run_id)
        return existed

    def _log_file(self, run: Run, file: Path) -> None:
        """Log a file; into a folder on the same disk as a second name of the same file, so that it is stored once."""
        folder = local_folder(run.info.artifact_uri)
        if folder is not None and not file.is_symlink():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / file.name).unlink(missing_ok=True)
                (folder / file.name).hardlink_to(file)
                return
        self._client.log_artifact(run.info.run_id, str(file))

    def _log_pictures(self, run_id: str, drawn: pictures.Pictures) -> None:
        """Log figures as HTML files, which load Plotly's script from its CDN, and why others could not be drawn."""
        for name, figure in drawn.figures.items():
            self._client.log_figure(run_id, figure, f"pictures/{name}.html")
        if drawn.undrawn:
            self._client.log_text(run_id, "\n".join([*drawn.undrawn, ""]), "pictures/undrawn.txt")

    def _owner(self, experiment: str, parent: Run, trial: TrialRecord) -> Run:
        """Return the run that a trial's run is nested in: the study's, or for a round its trial's."""
        if trial.round == 0:
            return parent
        return self._find(experiment, TRIAL_TAG, f"{parent.data.tags[STUDY_TAG]}/{trial.number}r0") or parent

    def log_study(self, study: StudyRecord) -> None:
        """Bring a study's parent run up to date: premise, facts, plots, best configuration, conclusion, files."""
        parent = self._parent(study.name)
        run_id = parent.run.info.run_id
        self._tag_experiment(parent.experiment, study, run_id)
        for name in ("premise", "facts", "conclusion"):
            content = getattr(study, name)
            if content is not None:
                self._client.log_dict(run_id, dict(content), f"{name}.json")
        trials = self._store.trials(study.name, finished=True)
        if pictures is not None:
            self._log_pictures(run_id, pictures.study_pictures(study, trials))
        if trials and has_tradeoff(study):
            self._client.log_text(run_id, to_csv(tradeoff_frame(study, trials)), "tradeoff.csv")
        best = best_of(study, trials)
        if best is not None:
            self._write(run_id, run_layout.best_points(best), tags={"best_trial": best.name})
        self._write(run_id, tags=run_layout.study_tags(study))
        for file in run_layout.study_files(study):
            self._client.log_artifact(run_id, str(file))
        if study.conclusion is not None:
            self._client.set_terminated(run_id, "FINISHED")

    def _parent(self, study: str) -> _Parent:
        """Return the study's parent run and its experiment, and create those that do not exist."""
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
            name = record.name[:RUN_NAME_LIMIT]
            run = self._client.create_run(experiment, start_time=start, tags=tags, run_name=name)
        self._write(run.info.run_id, params=run_layout.study_params(record))
        self._tag_experiment(experiment, record, run.info.run_id)
        self._parents[study] = _Parent(experiment, run, record.facts)
        return self._parents[study]

    def _tag_experiment(self, experiment: str, study: StudyRecord, run_id: str) -> None:
        """Write the tags that an experiment lacks, and a view that has changed."""
        present = self._client.get_experiment(experiment).tags
        for name, value in ui.experiment_tags(study, experiment, run_id).items():
            if name not in present or (name == ui.VIEW_TAG and present[name] != value):
                self._client.set_experiment_tag(experiment, name, value)

    def _experiment(self, study: str) -> str:
        """Return the id of the study's experiment; create it, or restore it if it was deleted."""
        name = run_layout.experiment_name(study)
        existing = self._client.get_experiment_by_name(name)
        if existing is None:
            root = artifact_root(self._uri)
            location = root.as_uri() if root else None
            return str(self._client.create_experiment(name, artifact_location=location))
        if existing.lifecycle_stage != "active":
            self._client.restore_experiment(existing.experiment_id)
        return str(existing.experiment_id)

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
        """Log in batches within MLflow's limits: 1,000 metrics, 100 params and 100 tags in one request."""
        metrics = [Metric(point.name, point.value, point.timestamp, point.step) for point in points]
        entries = [Param(name, value) for name, value in (params or {}).items()]
        labels = [RunTag(name, value) for name, value in (tags or {}).items()]
        while metrics or entries or labels:
            batch = (metrics[:_MAX_METRICS], entries[:_MAX_PARAMS], labels[:_MAX_PARAMS])
            self._client.log_batch(run_id, metrics=batch[0], params=batch[1], tags=batch[2])
            metrics, entries, labels = metrics[_MAX_METRICS:], entries[_MAX_PARAMS:], labels[_MAX_PARAMS:]
