"""The watchdog of a worker: what a killed worker or driver started ends without any later command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fakes import install_fake_vllm
from tests.unit.processes.started import ROOT, Starter, until, watchdogs
from tuner.processes.family import Identity, is_alive, read_process, send_signal
from tuner.processes.records import ProcessRecords, reap_orphans

END_S = 10.0
"""How long a family may take to end after its owner."""

MEMORY_MIB = 15

_OWNER = """
import json, os, sys, time
from pathlib import Path
from tuner.processes.family import Identity
from tuner.processes.supervisor import start_server
from tuner.processes.records import ProcessRecords

here, program, driver = Path(sys.argv[1]), sys.argv[2], Identity(*json.loads(sys.argv[3]))
argv = [program, "serve", "m", "--port", "0"]
records = ProcessRecords(here / "processes", driver)
process = start_server(argv, dict(os.environ), here / "log", here, records, 0, "study/7")
while "startup complete" not in (here / "log").read_text():
    time.sleep(0.01)
print(json.dumps([process.identity, *process.descendants()]), flush=True)
time.sleep(600)
"""

_CLIENT_OWNER = """
import json, os, sys, time
from pathlib import Path
from tuner.engines.server.traffic import PlainJob
from tuner.processes.records import ProcessRecords

here = Path(sys.argv[1])
records = ProcessRecords(here / "processes")
job = PlainJob(["/bin/sleep", "600"], dict(os.environ), here / "log", here, records)
print(json.dumps([record.process for record in records.all()]), flush=True)
time.sleep(600)
"""


@contextmanager
def owner(code: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], set[Identity]]]:
    """Run a worker; yield it and the processes that it has started."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        started = {Identity(*pair) for pair in json.loads(popen.stdout.readline())}
        try:
            yield popen, started
        finally:
            popen.kill()
            for identity in started:
                send_signal(identity, signal.SIGKILL)


@contextmanager
def driver() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"]) as popen:
        yield popen
        popen.kill()


def identity_of(pid: int) -> Identity:
    state = read_process(pid)
    assert state is not None
    return state.identity


def ignores(watchdog: Identity) -> bool:
    """Return whether the watchdog ignores the signals that end a terminal's or a service's processes: it has begun."""
    mask = sum(1 << number - 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    status = Path(f"/proc/{watchdog.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("SigIgn:")]
    return int(line.split()[1], 16) & mask == mask


@pytest.mark.parametrize("killed", ["worker", "driver"])
def test_a_family_ends_with_a_killed_owner(tmp_path: Path, killed: str) -> None:
    program = str(install_fake_vllm(tmp_path / "bin", sigterm="ignore", child_setsid=True, child_sigterm="ignore"))
    with driver() as above, owner(_OWNER, tmp_path, program, json.dumps(identity_of(above.pid))) as (worker, started):
        assert len(started) == 2
        assert all(map(is_alive, started))
        begun = time.monotonic()
        (worker if killed == "worker" else above).kill()

        until(lambda: not any(map(is_alive, started)))

        assert time.monotonic() - begun < END_S
        until(lambda: ProcessRecords(tmp_path / "processes").all() == [])
        worker.kill()
        worker.wait()
        until(lambda: not watchdogs(tmp_path / "processes"))


def test_a_benchmark_client_ends_with_its_killed_worker(tmp_path: Path) -> None:
    with owner(_CLIENT_OWNER, tmp_path) as (worker, started):
        assert len(started) == 1
        worker.kill()
        until(lambda: not any(map(is_alive, started)), END_S)


def test_without_its_watchdog_the_next_start_cleans_up(tmp_path: Path) -> None:
    program = str(install_fake_vllm(tmp_path / "bin"))
    with driver() as above, owner(_OWNER, tmp_path, program, json.dumps(identity_of(above.pid))) as (worker, started):
        until(lambda: len(watchdogs(tmp_path / "processes")) == 1)
        for watchdog in watchdogs(tmp_path / "processes"):
            send_signal(watchdog, signal.SIGKILL)
        until(lambda: not watchdogs(tmp_path / "processes"))
        worker.kill()
        worker.wait()
        assert all(map(is_alive, started))

        (reaped,) = reap_orphans(tmp_path / "processes", grace_s=2)

        assert set(reaped.ended) == started
        assert not any(map(is_alive, started))


def test_a_killed_watchdog_is_started_again_with_the_next_process(starter: Starter) -> None:
    starter("/bin/sleep", "60")
    until(lambda: len(watchdogs(starter.records.folder)) == 1)
    (first,) = watchdogs(starter.records.folder)
    send_signal(first, signal.SIGKILL)
    until(lambda: not is_alive(first))

    starter("/bin/sleep", "60")

    until(lambda: len(watchdogs(starter.records.folder)) == 1)
    starter("/bin/sleep", "60")
    assert len(watchdogs(starter.records.folder)) == 1


def test_signals_of_terminals_and_services_do_not_end_a_watchdog(starter: Starter) -> None:
    starter("/bin/sleep", "60")
    until(lambda: len(watchdogs(starter.records.folder)) == 1)
    (watchdog,) = watchdogs(starter.records.folder)
    until(lambda: ignores(watchdog))
    assert os.getsid(watchdog.pid) != os.getsid(0)
    assert psutil.Process(watchdog.pid).ppid() != os.getpid()


def test_a_watchdog_is_small_and_ends_with_its_records(tmp_path: Path) -> None:
    def run_and_stop() -> Identity:
        starter = Starter(tmp_path)
        starter("/bin/sleep", "60")
        until(lambda: len(watchdogs(tmp_path / "processes")) == 1)
        (watchdog,) = watchdogs(tmp_path / "processes")
        until(lambda: ignores(watchdog))
        assert psutil.Process(watchdog.pid).memory_info().rss < MEMORY_MIB * 2**20
        starter.close()
        return watchdog

    watchdog = run_and_stop()

    until(lambda: not is_alive(watchdog))
