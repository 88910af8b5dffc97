"""Shared memory of processes that were killed."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase
from tests.unit.processes.started import Starter, python, until
from tuner.errors import TrialFailed
from tuner.processes.family import SHARED_MEMORY_FOLDER, mapped_segments, remove_unused, send_signal
from tuner.processes.readiness import wait_ready
from tuner.processes.records import reap_orphans
from tuner.processes.supervisor import ServerProcess

_MAKES_A_SEGMENT = """
import time
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=4096)
print(segment.name, flush=True)
time.sleep(60)
"""


def _classify(phase: Phase, exit_code: int | None) -> Failure:
    return Failure(FailureKind.ENGINE_CRASH, phase, "it died", exit_code=exit_code)


def test_segments_of_a_killed_server_are_removed(starter: Starter) -> None:
    process = starter(*python(_MAKES_A_SEGMENT))
    until(lambda: starter.output().endswith("\n"))
    segment = SHARED_MEMORY_FOLDER / starter.output().strip()
    assert segment.exists()
    assert segment in mapped_segments([process.pid])

    assert process.stop(0) == []

    assert not segment.exists()


@pytest.fixture
def segment(starter: Starter) -> Iterator[tuple[ServerProcess, Path]]:
    process = starter(*python(_MAKES_A_SEGMENT))
    until(lambda: starter.output().endswith("\n"))
    path = SHARED_MEMORY_FOLDER / starter.output().strip()
    process.record_family()
    assert starter.records.all()[0].segments == (str(path),)
    yield process, path
    path.unlink(missing_ok=True)


def _kill_all(process: ServerProcess) -> None:
    """Kill a family at once: stopped first, so that Python's resource tracker cannot remove what its parent left."""
    family = {process.identity, *process.descendants()}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for member in family:
            send_signal(member, number)
    until(lambda: not process.alive() and not process.descendants())


def test_segments_of_a_server_that_was_found_dead_are_removed(segment: tuple[ServerProcess, Path]) -> None:
    process, path = segment
    _kill_all(process)
    assert path.exists()

    assert process.stop(0) == []

    assert not path.exists()


def test_segments_of_a_server_that_died_with_its_worker_are_removed(
    segment: tuple[ServerProcess, Path], starter: Starter
) -> None:
    process, path = segment
    _kill_all(process)
    (record,) = starter.records.all()
    dead = replace(record, owners=(process.identity,))
    (starter.records.folder / f"{record.mark}.json").write_text(json.dumps(asdict(dead)))

    reap_orphans(starter.records.folder, grace_s=0)

    assert not path.exists()
    assert starter.records.all() == []


def test_a_segment_of_a_dead_server_stays_while_another_process_has_it_mapped(
    segment: tuple[ServerProcess, Path],
) -> None:
    process, path = segment
    user = SharedMemory(name=path.name)
    try:
        _kill_all(process)
        assert process.stop(0) == []
        assert path.exists()
    finally:
        user.close()
        user.unlink()


def test_segments_of_a_starting_server_are_recorded(starter: Starter) -> None:
    process = starter(*python(_MAKES_A_SEGMENT))
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_ready, process, "127.0.0.1", 1, "m", 240, cancelled, _classify)
        until(lambda: starter.records.all()[0].segments)
        cancelled.set()
        assert isinstance(waiting.exception(), TrialFailed)


def test_segments_that_another_process_has_mapped_stay() -> None:
    segment = SharedMemory(create=True, size=4096)
    try:
        path = SHARED_MEMORY_FOLDER / segment.name
        assert path in mapped_segments([os.getpid()])
        remove_unused([path])
        assert path.exists()
    finally:
        segment.close()
        segment.unlink()


def test_other_files_and_processes_that_are_gone_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "psm_of_another_folder"
    file.write_bytes(b"x" * 4096)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0):
        assert str(file) in Path("/proc/self/maps").read_text()
        assert file not in mapped_segments([os.getpid()])
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    assert mapped_segments([gone.pid]) == set()
