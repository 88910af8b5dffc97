"""MLflow's UI: the command that starts it, the view in which it opens a study, and where its data is.

MLflow keeps a shared view as a tag of the experiment, which `viewStateShareKey` in a link names. The view therefore
needs nothing in the browser's storage.

This module does not import MLflow.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

from dashboards.mlflow.run_layout import FLAGS_METRIC, NOTE_TAG, escaped, mlflow_name, total_seconds_metric
from records.trials import Provenance, StudyRecord, TrialKind
from storage.errors import StorageError
from storage.locks import Holder, LockHeld, sync_lock
from storage.waiting import NO_WAIT, DatabaseWait

SYNC_WAIT_S = 300.0
"""How long a sync waits for another one of the same database."""

_POLL_S = 0.1
_URL_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")


def embedded_uri(folder: Path) -> str:
    """Return the tracking URI of the MLflow database in a folder, `mlflow.db`."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def mask_passwords(text: str) -> str:
    """Return the text with `***` for the passwords of its URLs."""
    return _URL_PASSWORD.sub(r"\1***@", text)


def artifact_root(tracking_uri: str) -> Path | None:
    """Return the folder of artifacts beside an SQLite tracking database; None if a server chooses it."""
    database = database_file(tracking_uri)
    return None if database is None else database.resolve().parent / "mlartifacts"


def database_file(tracking_uri: str) -> Path | None:
    """Return the file of an SQLite tracking database; None for any other."""
    path = tracking_uri.removeprefix("sqlite:///")
    return None if path == tracking_uri else Path(path)


def local_folder(artifact_uri: str) -> Path | None:
    """Return the folder of a run's artifacts; None if it is not one of this machine."""
    parts = urlsplit(artifact_uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


@contextmanager
def one_at_a_time(
    store_url: str,
    on_wait: Callable[[str], None] = lambda _: None,
    wait_s: float = SYNC_WAIT_S,
    database_wait: DatabaseWait = NO_WAIT,
) -> Iterator[None]:
    """Run the block while no other process syncs the database.

    MLflow would accept a second run for a trial that two processes log at once. `on_wait` receives one line at the
    start of a wait, which names the other process.

    Raises:
        StorageError: if another process still syncs after `wait_s`, or the lock cannot be used.
    """
    lock = sync_lock(store_url)
    deadline = time.monotonic() + wait_s
    waiting_for: Holder | None = None
    while True:
        try:
            database_wait.run(lambda _: lock.take())
            break
        except LockHeld as error:
            if time.monotonic() >= deadline:
                rule = f"{error.holder} has been logging this database to MLflow for {wait_s:.0f} s"
                raise StorageError(f"{rule}; end it, or run `tuner study sync` later") from None
            if waiting_for != error.holder:
                waiting_for = error.holder
                on_wait(f"waiting at most {wait_s:.0f} s for {error.holder}, which logs this database to MLflow")
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress informational log messages, such as those of a new tracking database's migrations."""
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(level)


LOOPBACK = "127.0.0.1"

PASSWORD_VARIABLE = "MLFLOW_AUTH_ADMIN_PASSWORD"
"""The environment variable with the password of MLflow's user `admin`."""

LEAST_PASSWORD = 12
"""Characters of a password that MLflow accepts."""

_CONFIG_VARIABLE, _KEY_VARIABLE = "MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_FLASK_SERVER_SECRET_KEY"

_CONFIG = """\
[mlflow]
default_permission = READ
database_uri = {database}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""

BACKEND_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""The environment variable in which MLflow's server finds the tracking database, whose URL may have a password."""

JOBS_VARIABLE = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"
"""The environment variable that starts the workers of MLflow's jobs (evaluations of traces): eight processes, 1.5 GB.
No study has such jobs."""

TELEMETRY_VARIABLE = "MLFLOW_DISABLE_TELEMETRY"


def ui_command(artifacts: Path | None, port: int, host: str = LOOPBACK, *, asks: bool = False) -> list[str]:
    """Return the command that starts MLflow's server, with this process's interpreter.

    The command needs the environment of `ui_environment`. A server that asks for a password, as one must that other
    machines reach, needs the environment of `with_password` as well.

    `artifacts` is the folder of artifacts of new experiments; None leaves it to MLflow.
    """
    command = [sys.executable, "-m", "mlflow", "server"]
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts.resolve().as_uri()]
    if asks:
        command += ["--app-name", "basic-auth"]
    return [*command, "--host", host, "--port", str(port), "--workers", "1"]


def ui_environment(inherited: Mapping[str, str], database: str) -> dict[str, str]:
    """Return the environment of `ui_command`: the inherited one, with the tracking database.

    MLflow starts no job workers, and sends no telemetry, unless the inherited environment asks for them.
    """
    return {JOBS_VARIABLE: "false", TELEMETRY_VARIABLE: "true", **inherited, BACKEND_VARIABLE: database}


def with_password(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return an environment in which MLflow asks for a password, and write MLflow's settings for it to a folder.

    Args:
        environment: it has the password; a file of settings and a key that it names stay.
        folder: it receives the settings, `mlflow_auth.ini`, and MLflow's database of users.
    """
    file = folder.resolve() / "mlflow_auth.ini"
    if _CONFIG_VARIABLE not in environment:
        database = f"sqlite:///{folder.resolve() / 'mlflow_auth.db'}"
        file.write_text(_CONFIG.format(database=database.replace("%", "%%")), encoding="utf-8")
    return {_CONFIG_VARIABLE: str(file), _KEY_VARIABLE: secrets.token_hex(32), **environment}


def link_command(port: int, study: str, host: str = LOOPBACK) -> list[str]:
    """Return the command that waits for the server, prints the link to a study's runs, and ends with its parent."""
    return [sys.executable, "-m", "dashboards.mlflow.link", base_url(host, port), study]


def base_url(host: str, port: int) -> str:
    """Return the URL of the server for a browser on this machine, also where the server listens on all addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://{LOOPBACK}:{port}"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


COLUMNS = 10
"""Columns beside those that MLflow always shows: the run's name, its time and its duration."""

_KEY = "tuner"
VIEW_TAG = f"mlflow.sharedViewState.{_KEY}"
"""The tag of the experiment that has the view."""

_KIND = "custom_model_development"
"""The kind of experiment for which MLflow shows metrics and charts first, instead of traces and prompts."""

_MODE = {"workflowType": "machine_learning"}
"""MLflow's training mode; its GenAI mode has no metrics."""

_ORDER = {"orderByKey": "metrics.`score`", "orderByAsc": "false", "startTime": "ALL", "lifecycleFilter": "Active"}
_WITHOUT_ROUNDS = f"tags.kind != '{TrialKind.CONFIRM.value}'"
_COMMON = ("output_throughput", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms", "request_throughput")
_COST = "cost_per_million_output_tokens"

_NAME_PX, _TIME_PX, _DURATION_PX = 150, 150, 90
_LEAST_PX, _MOST_PX, _LETTER_PX, _MARGIN_PX = 80, 210, 7, 24
_RUN_NAME = "attributes.`Run Name`"


def experiment_tags(study: StudyRecord, experiment: str, run_id: str) -> dict[str, str]:
    """Return the tags of a study's experiment: its kind, the view, and a description with a link to the parent run."""
    link = f"[{escaped(study.name)}](#/experiments/{experiment}/runs/{run_id}?{urlencode(_MODE)})"
    note = f"The run {link} has the study's result, its report and its plots. #0 is the engine's defaults."
    return {"mlflow.experimentKind": _KIND, VIEW_TAG: view_of(study), NOTE_TAG: note}


def runs_query(tags: Mapping[str, str]) -> str:
    """Return the query of the link to an experiment's runs: its view, and without one the order by score."""
    return urlencode({**({"viewStateShareKey": _KEY} if VIEW_TAG in tags else _ORDER), **_MODE})


def view_of(study: StudyRecord) -> str:
    """Return the view of a study as MLflow's UI reads it, in JSON."""
    columns = columns_of(study)
    widths = {column: _width(column) for column in columns}
    order = [_RUN_NAME, *columns, "runDateAndNestInfo", "duration"]
    state = {
        **_ORDER,
        "orderByAsc": False,
        "searchFilter": _WITHOUT_ROUNDS,
        "selectedColumns": columns,
        "columnOrder": order,
        "columnWidths": {_RUN_NAME: _NAME_PX, **widths, "runDateAndNestInfo": _TIME_PX, "duration": _DURATION_PX},
    }
    return json.dumps(state)


def columns_of(study: StudyRecord) -> list[str]:
    """Return the columns of a study by MLflow's names, `COLUMNS` of them, the most important one first.

    They are the score and the state, metrics, the cost where the study has a price, the number of flags, the failure,
    and for a simulated study the simulated duration. The study's objectives come first among the metrics.
    """
    last = [_metric(FLAGS_METRIC), "tags.`failure`"]
    if study.facts.get("price"):
        last.insert(0, _metric(_COST))
    if study.provenance is Provenance.SIMULATED:
        last.append(_metric(total_seconds_metric(study.provenance)))
    first = [_metric("score"), "tags.`state`"]
    metrics = list(dict.fromkeys(map(_metric, _metrics(study))))
    return [*first, *metrics[: COLUMNS - len(first) - len(last)], *last]


def _metrics(study: StudyRecord) -> list[str]:
    from dashboards.tradeoff import has_class_slos  # imports pandas, which the link does not need

    goodput = ["goodput"] if has_class_slos(study) else []
    return [*_names(study.premise.get("objectives", ())), *goodput, *_COMMON, *_names(study.premise.get("slos", ()))]


def _names(texts: Sequence[object]) -> list[str]:
    """Return the metrics of objectives (`NAME:WEIGHT`) and of SLOs (`NAME<LIMIT`)."""
    names = (re.split(r"[:<>=]", text)[0].strip() for text in texts if isinstance(text, str))
    return [name for name in names if name]


def _metric(name: str) -> str:
    return f"metrics.`{mlflow_name(name)}`"


def _width(column: str) -> int:
    name = column.partition("`")[2].rstrip("`")
    return min(_MOST_PX, max(_LEAST_PX, _MARGIN_PX + _LETTER_PX * len(name)))
