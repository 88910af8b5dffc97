"""The variables that a driver gets."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage.service.records import Submission
from tuner.service.asked.rules import ServerRules
from tuner.service.scheduler.launcher import Launcher, without_webhooks

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def variables(kind: str, granted: tuple[str, ...], storage: str = "postgresql://h/d", ray: str | None = None) -> object:
    launcher = Launcher(storage, Path("/srv/tuner"), None, ray, ServerRules())
    return launcher.device_variables(Submission("s", "ada", {}, kind, len(granted), 0, NOW, NOW, granted=granted))


@pytest.fixture(autouse=True)
def _no_server_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_a_driver_sees_its_own_gpus() -> None:
    assert variables("t4", ("t4:3", "t4:1")) == {
        "MLFLOW_TRACKING_URI": "sqlite:////srv/tuner/mlflow.db",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3,1",
    }


@pytest.mark.parametrize(("kind", "ray"), [("cpu", None), ("simulated", None), ("t4", "auto")])
def test_devices_without_a_gpu_and_those_of_a_cluster_are_not_named(kind: str, ray: str | None) -> None:
    found = variables(kind, (f"{kind}:0",), ray=ray)
    assert found == {"MLFLOW_TRACKING_URI": "sqlite:////srv/tuner/mlflow.db"}


def test_all_studies_log_to_one_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = {"MLFLOW_TRACKING_URI": "sqlite:////data/mlflow.db"}
    assert variables("cpu", ("cpu:0",), "sqlite:////data/tuner.db") == beside
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert variables("cpu", ("cpu:0",)) == {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}


def test_a_driver_does_not_know_the_webhooks() -> None:
    variables = {"PATH": "/bin", "TUNER_WEBHOOK_TEAM": "https://hooks.example/T0", "TUNER_WEBHOOK_TEAM_SECRET": "k"}
    assert without_webhooks(variables) == {"PATH": "/bin"}
