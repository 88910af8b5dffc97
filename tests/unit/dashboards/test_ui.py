import sys
from pathlib import Path

from dashboards.mlflow.ui import ui_command, ui_environment


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
    assert ui_environment({"HOME": "/h"}, "sqlite:///a.db") == {"HOME": "/h"} | database | off
    assert ui_environment(on, "sqlite:///a.db") == database | on
