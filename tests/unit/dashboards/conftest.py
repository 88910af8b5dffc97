"""A new MLflow database for each test."""

from pathlib import Path

import mlflow
import pytest

from dashboards.mlflow.ui import embedded_uri


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: its migrations take seconds, so they run once."""
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.MlflowClient(tracking_uri=embedded_uri(folder)).search_experiments(max_results=1)
    return folder / "mlflow.db"


@pytest.fixture
def uri(tmp_path: Path, migrated: Path) -> str:
    (tmp_path / "mlflow.db").write_bytes(migrated.read_bytes())
    return embedded_uri(tmp_path)
