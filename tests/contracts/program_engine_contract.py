"""The contract of engines whose server is one program, and how their tests start it."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from records.trials import FailureKind, TrialKind
from tuner.engines.server import program_engine
from tuner.errors import TrialFailed
from tuner.loadgen.result import read_records
from tuner.processes.family import is_alive
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, TrialSpec
from tuner.testing.engine import EngineContract
from tuner.workloads.spec import ClosedLoop

NEVER = threading.Event()
LOAD = ClosedLoop(max_concurrency=4, num_prompts=12, input_len=24, output_len=8)


def trial_of(launch: LaunchSpec, folder: Path) -> TrialSpec:
    """Return the trial of the tests, whose artifacts are in a folder."""
    return TrialSpec("study", 0, 0, 1, TrialKind.SEARCH, {}, launch, LOAD, 1, folder / "artifacts")


def with_flags(spec: TrialSpec, *argv: str) -> TrialSpec:
    return replace(spec, launch=replace(spec.launch, argv=argv))


@contextlib.contextmanager
def started(engine: Any, spec: TrialSpec) -> Iterator[Any]:
    """Start a server, wait until it is ready, and stop it at the end."""
    server = engine.launch(spec, spec.limits)
    try:
        server.wait_ready(NEVER)
        yield server
    finally:
        server.stop()


class ProgramEngineContract(EngineContract):
    """A subclass sets `dropped`; the home of its engine is `tmp_path / "home"`, and `good_spec` sets `MADE=1`."""

    dropped: tuple[str, ...] = ()
    """Variables that would set flags of the server."""

    def test_every_request_has_exactly_the_planned_tokens(self, engine: Any, good_spec: TrialSpec) -> None:
        with started(engine, good_spec) as server:
            server.benchmark(LOAD, 0, NEVER)
        records = read_records(good_spec.artifacts / "requests-0.jsonl.gz")
        assert [(each.input_tokens, each.output_tokens) for each in records] == [(24, 8)] * 12

    def test_a_server_that_is_killed_under_load_is_typed(self, engine: Any, good_spec: TrialSpec) -> None:
        with started(engine, good_spec) as server:
            killer = threading.Timer(0.5, os.kill, (server.pid, signal.SIGKILL))
            killer.start()
            with pytest.raises(TrialFailed) as caught:
                server.benchmark(LOAD.model_copy(update={"num_prompts": 4000}), 0, NEVER)
            killer.join()
        assert caught.value.failure.kind is FailureKind.SERVER_KILLED

    def test_variables_of_the_caller_set_no_flag_and_stop_leaves_nothing(
        self, request: pytest.FixtureRequest, good_spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in self.dropped:
            monkeypatch.setenv(name, "7")
        with started(request.getfixturevalue("engine"), good_spec) as server:
            environment = psutil.Process(server.pid).environ()
            members = {server._process.identity, *server._process.descendants()}
        assert not {*self.dropped} & {*environment}
        assert environment["MADE"] == "1"
        assert not [member for member in members if is_alive(member)]
        assert ProcessRecords(tmp_path / "home" / "processes").all() == []

    @pytest.mark.slow
    def test_a_port_that_another_program_takes_meanwhile_is_named(
        self, engine: Any, good_spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as taken:

            def take(host: str, port: int) -> None:
                taken.bind((host, port))
                taken.listen()

            monkeypatch.setattr(program_engine, "refuse_taken_port", take)
            with pytest.raises(TrialFailed) as caught, started(engine, good_spec):
                pass
        assert caught.value.failure.kind is FailureKind.PORT_TAKEN
