"""What runs below the command is killed; the command itself goes on."""

from __future__ import annotations

import os
import signal

import psutil

from storage.records import FailureKind
from tests.faults.conftest import MakeStudy


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_each_is_typed_and_its_trial_run_again(make_study: MakeStudy) -> None:
    study = make_study(5, 2.0)
    study.artifacts("4").mkdir(parents=True)
    (study.artifacts("4") / "command.txt").symlink_to("/dev/full")
    command = study.start()

    server = study.server("1", command)
    kill(server.owners[0].pid)
    server = study.server("2", command)
    kill(server.process.pid)
    server = study.server("3", command)
    [engine_core] = [child for child in psutil.Process(server.process.pid).children() if not child.children()]
    kill(engine_core.pid)
    assert command.end() == 0, command.output()

    failed = {(a.number, a.round, a.attempt): a.failure.kind for a in study.failed_attempts()}
    assert failed == {
        (1, 0, 1): FailureKind.WORKER_LOST,
        (2, 0, 1): FailureKind.SERVER_KILLED,
        (3, 0, 1): FailureKind.SERVER_KILLED,
        (4, 0, 1): FailureKind.DISK_FULL,
    }
    records = study.finished()
    assert sorted(records) == [(number, 0) for number in range(5)]
    assert [records[(number, 0)].attempts for number in range(5)] == [1, 2, 2, 2, 2]
    assert all(record.state in ("ok", "infeasible") for record in records.values())
    study.assert_logged_once()
    study.assert_nothing_left()
