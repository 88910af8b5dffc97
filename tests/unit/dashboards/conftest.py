"""A new MLflow database for each test."""

from pathlib import Path

import pytest

from dashboards.mlflow.log import new_database
from dashboards.mlflow.ui import embedded_uri


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the empty MLflow database that each test gets a copy of."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def uri(tmp_path: Path, cache: Path) -> str:
    new_database(tmp_path / "mlflow.db", cache)
    return embedded_uri(tmp_path)
