"""`python -m tuner.loadgen` as a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.loadgen.loads import Fake, due, plan, statuses
from tuner.loadgen.plan import PlannedRequest, RequestPlan, write_plan
from tuner.loadgen.result import read_delays, read_records
from tuner.workloads.results import RequestRecord, RequestStatus

StartFake = Callable[..., Fake]

ROOT = Path(__file__).parents[3]

COMPLETED = RequestStatus.COMPLETED


class Program:
    """The program on a plan, with its results in a folder."""

    def __init__(self, folder: Path, known: RequestPlan, requests: list[PlannedRequest], *before: str) -> None:
        self.result = folder / "result"
        write_plan(folder / "plan.jsonl", known, requests)
        argv = [*before, sys.executable, "-m", "tuner.loadgen", str(folder / "plan.jsonl"), str(self.result)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def records(self) -> list[RequestRecord]:
        """Wait until it ends with exit code 0 and no output, and return its records."""
        printed = self.process.communicate(timeout=60)
        assert (self.process.returncode, *printed) == (0, "", "")
        return read_records(self.result.with_suffix(".parquet"))


StartProgram = Callable[..., Program]


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartProgram]:
    """Start the program on a plan and its requests, with words before the command."""
    started: list[Program] = []

    def start(known: RequestPlan, requests: list[PlannedRequest], *before: str) -> Program:
        started.append(Program(tmp_path, known, requests, *before))
        return started[-1]

    yield start
    for program in started:
        program.process.kill()
        program.process.communicate()


def wait_for_arrivals(fake: Fake, count: int, program: Program) -> None:
    """Wait until the server has had so many requests."""
    while len(fake.arrivals()) < count:
        assert program.process.poll() is None
        time.sleep(0.005)


def test_it_writes_records_and_delays(start_fake: StartFake, start_program: StartProgram) -> None:
    fake = start_fake(faults={"1": "429"})
    program = start_program(plan(fake.url), due(0.0, 0.2, 0.4))
    records = program.records()
    assert [record.status for record in records] == [COMPLETED, RequestStatus.REFUSED, COMPLETED]
    assert [record.due_s for record in records] == [0.0, 0.2, 0.4]
    delays = read_delays(program.result.with_suffix(".json"))
    assert delays.late_max_s is not None
    assert delays.lag_p99_s is not None
    assert 0.4 < delays.wall_s < 10.0
    assert delays.cpu_s > 0.0
    assert {path.name for path in program.result.parent.glob("result*")} == {"result.parquet", "result.json"}


def test_each_request_in_flight_has_a_connection_whatever_the_shell_allows(
    start_fake: StartFake, start_program: StartProgram
) -> None:
    fake = start_fake(first_ms=500)
    few = ("sh", "-c", 'ulimit -S -n 48 && exec "$@"', "sh")
    program = start_program(plan(fake.url), due(*[0.0] * 80), *few)
    assert statuses(program.records()) == {COMPLETED: 80}


def test_a_server_that_dies_in_the_middle(start_fake: StartFake, start_program: StartProgram) -> None:
    # Two requests of 20 s each are running when it dies; the others find no listener.
    fake = start_fake(token_ms=100)
    program = start_program(plan(fake.url, users=2), due(*[None] * 6, tokens=200))
    wait_for_arrivals(fake, 2, program)
    os.kill(fake.process.pid, signal.SIGKILL)
    records = program.records()
    assert [record.index for record in records] == list(range(6))
    assert statuses(records) == {RequestStatus.CONNECTION_LOST: 6}
    assert len(fake.arrivals()) == 2
    for record in records:
        assert record.end_s is not None
        assert record.end_s < 15.0


def test_it_ends_with_the_process_that_started_it(start_fake: StartFake, start_program: StartProgram) -> None:
    fake = start_fake(faults={"0": "stall"})
    shell = ("sh", "-c", '"$@" & wait', "sh")
    program = start_program(plan(fake.url), due(0.0), *shell)
    wait_for_arrivals(fake, 1, program)
    program.process.kill()
    # Its end of the pipe is closed when it has ended, long before the request's deadline.
    assert program.process.communicate(timeout=20) == ("", "")
    assert not list(program.result.parent.glob("result*"))
