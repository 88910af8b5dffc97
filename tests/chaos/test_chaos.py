"""Random faults on studies with SQLite and with PostgreSQL. `python -m tests.chaos` runs more of them."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.studies import run_chaos
from tests.postgres import postgres_server, require_programs


def test_random_faults_with_sqlite(tmp_path: Path) -> None:
    report = run_chaos(tmp_path, faults=8, seed=22)
    assert report.total == 8
    assert report.problems == []


def test_random_faults_with_postgresql(tmp_path: Path) -> None:
    with postgres_server(require_programs()) as postgres:
        report = run_chaos(tmp_path, faults=8, seed=23, postgres=postgres)
    assert report.total == 8
    assert report.problems == []
