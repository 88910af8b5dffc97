"""Six kills at random moments of one study: every trial is measured and logged once, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import psutil

from tests.faults.command import Command, Study, until
from tests.faults.conftest import MakeStudy

TRIALS = 10
VICTIMS = ("driver", "worker", "server", "server", "engine core", "engine core")
LATEST_S = 1.0
"""A kill comes at most this long after a server was seen; a trial takes about as long."""


def victim_of(study: Study, command: Command, kind: str) -> int | None:
    """Return the id of the process to kill; None while there is none of that kind."""
    servers = study.servers()
    if kind == "driver":
        return command.popen.pid
    if not servers:
        return None
    if kind == "worker":
        return servers[0].owners[0].pid
    if kind == "server":
        return servers[0].process.pid
    try:
        children = psutil.Process(servers[0].process.pid).children()
    except psutil.NoSuchProcess:
        return None
    return children[0].pid if children else None


def kill_one(study: Study, command: Command, kind: str) -> bool:
    """Kill one process of a kind; return whether there was one."""
    pid = victim_of(study, command, kind)
    if pid is None:
        return False
    command.note_descendants()
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def more_finished(study: Study, count: int) -> bool:
    """Return whether more than `count` trials are finished."""
    return len(study.finished()) > count


def test_six_random_kills(make_study: MakeStudy) -> None:
    rng = random.Random(2026)
    study = make_study(TRIALS, 0.4)
    command = study.start()
    finished_before: dict[tuple[int, int], object] = {}
    for kind in rng.sample(VICTIMS, len(VICTIMS)):
        until(study.servers, "a server", command)
        time.sleep(rng.uniform(0, LATEST_S))
        until(partial(kill_one, study, command, kind), f"a {kind}", command)
        if kind == "driver":
            command.popen.wait()
            finished_before |= study.finished()
            command = study.start()
        until(partial(more_finished, study, len(study.finished())), "one more trial", command)
    assert command.wait() == 0, command.output()

    records = study.finished()
    assert sorted(records) == [(number, 0) for number in range(TRIALS)]
    assert all(record.state in ("ok", "infeasible") for record in records.values())
    assert {key: records[key] for key in finished_before} == finished_before
    assert 0 < sum(record.attempts - 1 for record in records.values()) <= len(VICTIMS)
    assert study.mlflow_problems() == []
    assert study.leftovers() == []
