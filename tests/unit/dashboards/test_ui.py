import sys
from pathlib import Path

import pytest

from dashboards.mlflow.ui import base_url, is_loopback, ui_command, ui_environment, with_password


def test_the_ui_listens_on_loopback_only(tmp_path: Path) -> None:
    command = ui_command(tmp_path, 5001)
    assert not any("sqlite" in word for word in command)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "5001"
    assert command[command.index("--default-artifact-root") + 1] == tmp_path.as_uri()


def test_a_server_chooses_its_own_artifacts() -> None:
    assert "--default-artifact-root" not in ui_command(None, 5001)


def test_no_workers_of_mlflows_own_jobs_start_unless_the_user_asks_for_them() -> None:
    database = {"MLFLOW_BACKEND_STORE_URI": "sqlite:///a.db"}
    off, on = ({"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": value} for value in ("false", "true"))
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    assert ui_environment({"HOME": "/h"}, "sqlite:///a.db") == {"HOME": "/h"} | database | off | quiet
    assert ui_environment(on, "sqlite:///a.db") == database | on | quiet


@pytest.mark.parametrize(
    ("host", "loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:5000"),
        ("127.8.8.8", True, "http://127.8.8.8:5000"),
        ("localhost", True, "http://localhost:5000"),
        ("::1", True, "http://[::1]:5000"),
        ("0.0.0.0", False, "http://127.0.0.1:5000"),
        ("::", False, "http://127.0.0.1:5000"),
        ("10.0.0.7", False, "http://10.0.0.7:5000"),
        ("box.example.org", False, "http://box.example.org:5000"),
    ],
)
def test_an_address_that_others_reach_asks_for_a_password(host: str, loopback: bool, url: str) -> None:
    assert is_loopback(host) is loopback
    assert base_url(host, 5000) == url
    assert ("basic-auth" in ui_command(None, 5000, host)) is not loopback


def test_the_password_is_in_the_environment_only(tmp_path: Path) -> None:
    environment = with_password({"MLFLOW_AUTH_ADMIN_PASSWORD": "a secret password"}, tmp_path)
    file = Path(environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert file == tmp_path / "mlflow_auth.ini"
    assert f"database_uri = sqlite:///{tmp_path / 'mlflow_auth.db'}\n" in file.read_text()
    assert "a secret password" not in file.read_text()
    assert len(environment["MLFLOW_FLASK_SERVER_SECRET_KEY"]) == 64


def test_own_settings_of_mlflows_authentication_stay(tmp_path: Path) -> None:
    given = {"MLFLOW_AUTH_CONFIG_PATH": "/etc/mlflow.ini", "MLFLOW_FLASK_SERVER_SECRET_KEY": "k"}
    assert with_password(given, tmp_path) == given
    assert list(tmp_path.iterdir()) == []
