"""A cancelled process ends in time, with everything that it started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.processes.started import ROOT, until
from tuner.processes.family import descendants_of, is_alive, read_process

PROGRAM = """
import subprocess, sys, threading
from pathlib import Path
from tuner.processes.last_resort import ends_in_time

folder, way = Path(sys.argv[1]), sys.argv[2]
at_once = threading.Event()

def say():
    (folder / "said").touch()
    threading.Event().wait()

with ends_in_time(at_once, 7, say):
    if way == "hangs":
        subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; setsid sleep 600 & wait"])
        (folder / "begun").touch()
    if way != "ends":
        at_once.set()
    if way == "hangs":
        threading.Event().wait()
if way == "lingers":
    threading.Event().wait()
"""


def started(folder: Path, way: str) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), way], env=variables)


def test_a_process_that_hangs_ends_with_its_descendants_and_says_so(tmp_path: Path) -> None:
    process = started(tmp_path, "hangs")
    state = read_process(process.pid)
    assert state is not None
    until(lambda: (tmp_path / "begun").exists() and len(descendants_of(state.identity)) == 2)
    below = descendants_of(state.identity)
    assert process.wait(60) == 7
    assert (tmp_path / "said").exists()
    assert not any(map(is_alive, below))


@pytest.mark.parametrize(("way", "code"), [("lingers", 7), ("ends", 0)])
def test_a_process_whose_work_has_ended_says_nothing(tmp_path: Path, way: str, code: int) -> None:
    """One that was cancelled may hang in the threads of a library, and is ended, too."""
    assert started(tmp_path, way).wait(60) == code
    assert not (tmp_path / "said").exists()
