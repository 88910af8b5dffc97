"""Optuna's tables in a new database that several processes open at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPEN = """
import sys
from tuner.study.optuna_storage import open_storage
sys.stdin.readline()
print(open_storage(sys.argv[1], {}).get_current_version())
"""
PROCESSES = 3


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, f"sqlite:///{tmp_path}/t.db"]
    pipe = subprocess.PIPE
    opened = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(PROCESSES)]
    for each in opened:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    answers = [each.communicate() for each in opened]
    assert [each.returncode for each in opened] == [0] * PROCESSES, answers
    assert len({out for out, _ in answers}) == 1
