"""A temporary MLflow server, which can be killed and started again."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dashboards.mlflow.ui import ui_command, ui_environment
from tuner.http import HttpError, ReadLimits, fetch
from tuner.processes.ports import lease_port

READY_S = 180.0


@dataclass
class MlflowServer:
    """A server whose database and artifacts are in a folder."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """The SQLite file with the runs."""
        return self.folder / "mlflow.db"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        environment = ui_environment(os.environ, f"sqlite:///{self.database}")
        environment.pop("MLFLOW_TRACKING_URI", None)
        with (self.folder / "log").open("ab") as log:
            command = ui_command(self.folder / "artifacts", self.port)
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            fetch(f"{self.url}/health", ReadLimits(2.0))
        except HttpError:
            return False
        return True

    def kill(self) -> None:
        """Kill the server and its workers."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """Run a server until the block ends."""
    folder.mkdir(parents=True)
    with lease_port(folder) as lease:
        server = MlflowServer(folder, lease.port)
        try:
            server.start()
            yield server
        finally:
            server.kill()
