"""One study that is interrupted in every way: each command continues it, and no trial is lost or repeated in vain.

Starting a command with Ray and MLflow costs half a minute of CPU time, so that all events share one study. The fixture
runs it and records what it sees; each test checks one kind of event.
"""

import os
import signal
import socket
import time
from dataclasses import dataclass, field

import psutil
import pytest

from records.trials import FailureKind, TrialRecord
from tests.faults.command import Command, Study, until
from tests.faults.conftest import MakeStudy
from tuner.processes.family import find_family

TRIALS = 7
WORKER, SERVER, ENGINE_CORE, DISK, INTERRUPTED = 1, 2, 3, 4, 5
"""The trials at which the events happen."""

WATCHDOG_S = 10.0
"""How long a server and its children may take to end after kill -9 of the driver."""

INTERRUPTIONS = (signal.SIGINT, signal.SIGHUP)
"""SIGTERM ends commands in every stage in test_cancelled.py."""


@dataclass
class Interruption:
    """A command that was interrupted in the middle of a trial, and the study after its end."""

    exit_code: int
    output: str
    finished: list[tuple[int, int]]
    leftovers: list[str]


@dataclass
class History:
    """What happened to the study, in this order."""

    study: Study
    first_pid: int = 0
    refused_code: int = 0
    refused_output: str = ""
    interruptions: dict[signal.Signals, Interruption] = field(default_factory=dict)
    mlflow_problems: list[str] = field(default_factory=list)
    before_kill: dict[tuple[int, int], TrialRecord] = field(default_factory=dict)
    state_after_kill: str = ""
    seconds_to_end_after_kill: float = 0.0
    exit_code: int = -1
    output: str = ""


def start_two(history: History) -> Command:
    """Start the command twice at once; return the one that is not refused."""
    both = [history.study.start(), history.study.start()]
    [refused] = until(lambda: [each for each in both if each.popen.poll() is not None], "one command to be refused")
    [first] = [each for each in both if each is not refused]
    history.first_pid = first.popen.pid
    history.refused_code, history.refused_output = refused.wait(), refused.output()
    return first


def kill_below(study: Study, command: Command) -> None:
    """Kill a worker, a server and an engine, each in the benchmark of its own trial."""
    os.kill(study.benchmarked_server(str(WORKER), command).owners[0].pid, signal.SIGKILL)
    os.kill(study.benchmarked_server(str(SERVER), command).process.pid, signal.SIGKILL)
    server = study.benchmarked_server(str(ENGINE_CORE), command)
    [engine_core] = [child for child in psutil.Process(server.process.pid).children() if not child.children()]
    engine_core.kill()


@pytest.fixture(scope="module")
def history(make_study: MakeStudy) -> History:
    study = make_study(TRIALS, bench_s=0.05)
    history = History(study)
    interrupted = [str(INTERRUPTED), *(f"{INTERRUPTED}-a{attempt}" for attempt in (2, 3))]
    for uid in (str(WORKER), str(SERVER), str(ENGINE_CORE), *interrupted):
        study.hold(uid)
    study.artifacts(str(DISK)).mkdir(parents=True)
    (study.artifacts(str(DISK)) / "command.txt").symlink_to("/dev/full")

    command = start_two(history)
    kill_below(study, command)
    for uid, number in zip(interrupted, INTERRUPTIONS, strict=False):
        study.benchmarked_server(uid, command)
        code = command.send(number)
        leftovers = study.leftovers()
        history.interruptions[number] = Interruption(code, command.output(), sorted(study.finished()), leftovers)
        if number is INTERRUPTIONS[-1]:
            history.mlflow_problems = study.mlflow_problems()
        command = study.start()

    server = study.benchmarked_server(interrupted[-1], command)
    command.kill()
    killed = time.monotonic()
    history.before_kill = study.finished()
    history.state_after_kill = study.records()[(INTERRUPTED, 0)].state
    until(lambda: not find_family(server.process, server.mark, server.members), "the end of the server and its child")
    history.seconds_to_end_after_kill = time.monotonic() - killed
    command = study.start()
    history.exit_code, history.output = command.wait(), command.output()
    return history


def test_a_second_command_on_a_running_study_is_refused(history: History) -> None:
    rule = f"process {history.first_pid} on host {socket.gethostname()} is running this study"
    message = f"tuner: --study 'faults': {rule}; wait for it, or choose another name"
    assert (history.refused_code, history.refused_output.splitlines()[-1]) == (2, message)


def test_a_failure_below_the_command_is_typed_and_its_trial_repeated(history: History) -> None:
    attempts = history.study.failed_attempts()
    assert {(a.number, a.round, a.attempt): a.failure.kind for a in attempts} == {
        (WORKER, 0, 1): FailureKind.WORKER_LOST,
        (SERVER, 0, 1): FailureKind.SERVER_KILLED,
        (ENGINE_CORE, 0, 1): FailureKind.SERVER_KILLED,
        (DISK, 0, 1): FailureKind.DISK_FULL,
    }
    records = history.study.finished()
    assert [records[(number, 0)].attempts for number in (WORKER, SERVER, ENGINE_CORE, DISK)] == [2] * 4


@pytest.mark.parametrize("number", INTERRUPTIONS)
def test_an_interrupted_command_stops_its_server_and_shows_how_to_continue(
    history: History, number: signal.Signals
) -> None:
    interruption = history.interruptions[number]
    assert interruption.exit_code == 130, interruption.output
    assert [line for line in interruption.output.splitlines() if line.startswith("continue with: ")]
    assert interruption.finished == [(number, 0) for number in range(INTERRUPTED)]
    assert interruption.leftovers == []


def test_mlflow_has_each_trial_once_after_interruptions(history: History) -> None:
    assert history.mlflow_problems == []


def test_after_kill_9_of_the_driver_only_the_running_trial_is_repeated(history: History) -> None:
    assert sorted(history.before_kill) == [(number, 0) for number in range(INTERRUPTED)]
    assert history.state_after_kill == "pending"
    assert history.seconds_to_end_after_kill < WATCHDOG_S
    records = history.study.records()
    assert {key: records[key] for key in history.before_kill} == history.before_kill
    assert records[(INTERRUPTED, 0)].attempts == 4
    assert records[(INTERRUPTED + 1, 0)].attempts == 1


def test_the_study_ends_with_every_trial_measured_and_logged_once(history: History) -> None:
    assert history.exit_code == 0, history.output
    records = history.study.finished()
    assert sorted(records) == [(number, 0) for number in range(TRIALS)]
    assert all(record.state in ("ok", "infeasible") for record in records.values())
    assert history.study.mlflow_problems() == []
    assert history.study.leftovers() == []
