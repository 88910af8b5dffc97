"""A cancelled study ends within seconds in every stage, each of which would otherwise hang for ten minutes.

The report of `--junit-xml` has the seconds of each stage.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from storage import normalise_url, open_store
from storage.service.records import Request, Submission, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests.empty_database import write_empty_database
from tests.faults.command import DEADLINE_S, Study, described, until
from tests.faults.conftest import MakeStudy
from tests.faults.held import COMMANDS, PLACES
from tests.some import some
from tuner.cancellation import LIMIT_S
from tuner.processes.family import Identity, descendants_of, is_alive, read_process, send_signal
from tuner.service.driver.job import Job
from tuner.study.study_folder import refuse_running

ROOT = Path(__file__).parents[2]
Record = Callable[[str, object], None]

ID = "s"
BUSY = 4.0
"""A machine with other work may take so many times the limit."""

TRAFFIC = """
arrivals: {process: poisson, rate: 8}
requests: 40
classes: {a: {input: 500, output: 100}}
slo: {a: {p95_ttft_ms: 2000, p95_tpot_ms: 100}}
"""
SIZED = {"size": True, "card": ["l4"], "model": "Qwen/Qwen2.5-7B-Instruct", "workload": [TRAFFIC]}
SMALL: dict[str, Any] = {"engine": "simulated", "trials": 3, "num_prompts": 8, "confirm_rounds": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "predicts fleets": SIZED,
    "confirms a fleet": {**SIZED, "confirm": 1},
    "searches a capacity": {**SMALL, "workload": [TRAFFIC], "objective": ["capacity"]},
    "measures finalists": {**SMALL, "reduce": False},
}


def submitted(folder: Path, settings: dict[str, Any]) -> ServiceStore:
    """Return a database with a submission that has a device and waits for its driver."""
    write_empty_database(folder / "t.db")
    store = open_service_store(normalise_url(str(folder / "t.db")))
    now = datetime.now(UTC)
    store.submit(Submission(ID, "ada", settings, "simulated", 1, 0, now, now))
    lease = some(store.take_lease("scheduler", "test", 600.0, now))
    assert store.start(ID, ["simulated:0"], lease, now)
    return store


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    state = some(read_process(process.pid))
    return state.identity


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The address of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


RELEASE = {
    *("waits for a worker", "checks the answers", "checks a configuration", "launches a server", "warms up"),
    *("searches a capacity", "plans smaller forms", "predicts fleets"),
}
"""Stages in which a driver hangs in the way of a stage beside them, in the same process and thread."""
STAGES = [pytest.param(stage, marks=pytest.mark.release) if stage in RELEASE else stage for stage in PLACES]


@pytest.mark.parametrize("stage", STAGES)
def test_a_cancelled_submission_ends_in_every_stage(
    stage: str, tmp_path: Path, silent_url: str, record_testsuite_property: Record
) -> None:
    job, held, log = Job(normalise_url(str(tmp_path / "t.db")), ID, 1, tmp_path), tmp_path / "held", tmp_path / "log"
    variables = {"TUNER_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", **job.environment()}
    if stage == "logs to MLflow":
        variables["MLFLOW_TRACKING_URI"] = silent_url
    program = [sys.executable, "-m", "tests.faults.held", stage, str(held)]
    with closing(submitted(tmp_path, SETTINGS.get(stage, SMALL))) as store, log.open("wb") as output:
        driver = subprocess.Popen(program, env={**os.environ, **variables}, cwd=ROOT, stdout=output, stderr=output)
        own = identity_of(driver)
        started: set[Identity] = set()
        try:
            until(lambda: held.exists() or driver.poll() is not None, stage)
            assert driver.poll() is None, log.read_text()
            started, measured = descendants_of(own), finished(job)
            began = time.monotonic()
            store.request(ID, Request.CANCEL, datetime.now(UTC))
            until(lambda: _said(store) and not any(map(is_alive, started)), stage)
            seconds = time.monotonic() - began
        finally:
            for each in (*started, own):
                send_signal(each, signal.SIGKILL)
            driver.wait()
        record_testsuite_property(stage, round(seconds, 1))
        submission = store.submission(ID)
    assert submission is not None
    assert (submission.granted, submission.driver) == ((), None)
    assert submission.state is (SubmissionState.DONE if stage == "logs to MLflow" else SubmissionState.CANCELLED)
    assert finished(job) >= measured
    refuse_running(job.storage, ID)
    assert seconds < BUSY * LIMIT_S


def finished(job: Job) -> set[tuple[int, int]]:
    """Return the trials of the study that have an outcome, by number and round."""
    with closing(open_store(job.storage)) as store:
        trials = store.trials(ID, finished=True) if store.study(ID) is not None else []
    return {(record.number, record.round) for record in trials}


def _said(store: ServiceStore) -> bool:
    submission = some(store.submission(ID))
    return submission.state in (SubmissionState.CANCELLED, SubmissionState.DONE)


IGNORED = {"sigterm": "ignore", "child_sigterm": "ignore"}
TRIALS: dict[str, tuple[dict[str, Any], str | None]] = {
    "Ray starts": ({}, None),
    "launch": ({"fail": "hang", **IGNORED}, "server.log"),
    "warm-up": ({"bench": "hang", **IGNORED}, "warmup.log"),
    "benchmark": ({**IGNORED}, "bench-0.log"),
}
"""The behaviour of vLLM in each stage of a command, and the file that shows the stage; None: Ray's first process."""


def shows(study: Study, file: str | None) -> bool:
    return (study.artifacts("0") / file).exists() if file else "gcs_server" in described(study.running())


BESIDE = {("launch", True), ("warm-up", False)}
"""Each signal comes in both stages beside these, and each stage gets the other signal; a Ray's start takes seconds."""
WAYS = [
    pytest.param(
        stage,
        twice,
        id=f"{stage}-{'Ctrl-C twice' if twice else 'SIGTERM'}",
        marks=pytest.mark.release if (stage, twice) in BESIDE else (),
    )
    for stage in TRIALS
    for twice in (False, True)
]


@pytest.mark.parametrize(("stage", "twice"), WAYS)
def test_a_cancelled_command_kills_a_server_that_ignores_sigterm(
    stage: str, twice: bool, make_study: MakeStudy, record_testsuite_property: Record
) -> None:
    behaviour, file = TRIALS[stage]
    study = make_study(1, **behaviour)
    study.hold("0")
    command = study.start()
    until(lambda: shows(study, file), stage, command)
    command.note_descendants()
    if twice:
        command.popen.send_signal(signal.SIGINT)
        until(lambda: "Ctrl-C again ends at once" in command.output(), "the answer to Ctrl-C", command)
    began = time.monotonic()
    command.popen.send_signal(signal.SIGINT if twice else signal.SIGTERM)
    until(lambda: not study.running(), "the end of servers, Ray and MLflow's follower")
    code, seconds = command.wait(), time.monotonic() - began
    record_testsuite_property(f"{stage}, {'Ctrl-C twice' if twice else 'SIGTERM'}", round(seconds, 1))
    assert code == 130, command.output()
    assert "continue with: tuner optimize " in command.output()
    assert seconds < BUSY * LIMIT_S
    assert (study.finished(), study.leftovers()) == ({}, [])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_measures_ends_at_sigterm(
    command: str, tmp_path: Path, record_testsuite_property: Record
) -> None:
    held, log = tmp_path / "held", tmp_path / "log"
    program = [sys.executable, "-m", "tests.faults.held", command, str(held), command]
    with log.open("wb") as output:
        run = subprocess.Popen(
            program, env={**os.environ, "TUNER_HOME": str(tmp_path)}, cwd=ROOT, stdout=output, stderr=output
        )
    own = identity_of(run)
    started: set[Identity] = set()
    try:
        until(lambda: held.exists() or run.poll() is not None, command)
        assert run.poll() is None, log.read_text()
        started = descendants_of(own)
        began = time.monotonic()
        run.terminate()
        code, seconds = run.wait(DEADLINE_S), time.monotonic() - began
        record_testsuite_property(f"tuner {command}", round(seconds, 1))
        assert code == 130, log.read_text()
        assert not any(map(is_alive, started))
        assert seconds < BUSY * LIMIT_S
    finally:
        for each in (*started, own):
            send_signal(each, signal.SIGKILL)
        run.wait()
