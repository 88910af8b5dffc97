"""Shared memory of processes that were killed."""

from __future__ import annotations

import mmap
import os
import subprocess
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from tests.unit.processes.started import Starter, python, until
from tuner.processes import shared_memory

_MAKES_A_SEGMENT = """
import time
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=4096)
print(segment.name, flush=True)
time.sleep(60)
"""


def test_segments_of_a_killed_server_are_removed(starter: Starter) -> None:
    process = starter(*python(_MAKES_A_SEGMENT))
    until(lambda: starter.output().endswith("\n"))
    segment = shared_memory.SHARED_MEMORY_FOLDER / starter.output().strip()
    assert segment.exists()
    assert segment in shared_memory.mapped_segments([process.pid])

    assert process.stop(0) == []

    assert not segment.exists()


def test_segments_that_another_process_has_mapped_stay() -> None:
    segment = SharedMemory(create=True, size=4096)
    try:
        path = shared_memory.SHARED_MEMORY_FOLDER / segment.name
        assert path in shared_memory.mapped_segments([os.getpid()])
        shared_memory.remove_unused([path])
        assert path.exists()
    finally:
        segment.close()
        segment.unlink()


def test_other_files_and_processes_that_are_gone_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "psm_of_another_folder"
    file.write_bytes(b"x" * 4096)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0):
        assert str(file) in Path("/proc/self/maps").read_text()
        assert file not in shared_memory.mapped_segments([os.getpid()])
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    assert shared_memory.mapped_segments([gone.pid]) == set()
