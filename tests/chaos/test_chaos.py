"""Random faults on studies with SQLite, and with PostgreSQL and an MLflow server."""

from pathlib import Path

from tests.chaos.studies import Surroundings, run_chaos
from tests.postgres import postgres_server


def test_random_faults_with_sqlite(tmp_path: Path) -> None:
    report = run_chaos(tmp_path, faults=5, seed=22)
    assert report.total == 5
    assert report.problems == []


def test_random_faults_with_postgresql_and_an_mlflow_server(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        report = run_chaos(tmp_path, 5, 23, Surroundings(postgres, mlflow=True))
    assert report.total == 5
    assert report.problems == []
