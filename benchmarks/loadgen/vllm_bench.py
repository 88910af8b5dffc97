"""A real vLLM for benchmarks of its clients: the engine, the toolbox and the servers of one model folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from records.trials import TrialKind
from tuner.engines.base import EngineSettings
from tuner.engines.server.devices import base_environment
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.engines.vllm.toolbox import Toolbox, find_executable, installation, own_environment
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import SingleWorkload

CLIENT_LIMIT_S = 600.0
"""Time limit of one run of a client."""
NEVER_CANCELLED = threading.Event()
SERVER_ARGUMENTS = ("--load-format", "dummy", "--max-model-len", "1024")


class VllmBench:
    """The engine and the toolbox of a vLLM installation; leaving the context stops all running processes.

    Attributes:
        folder: for logs, results and caches.
        model: the served model.
        executable: the vllm executable.
        tools: starts vLLM's clients.
    """

    def __init__(self, vllm: str | None, model: Path, folder: Path) -> None:
        self.folder = folder
        self.model = ModelRef(*[str(model.resolve())] * 3)
        self.executable = find_executable(vllm)
        home = Path(os.environ.get("TUNER_HOME", folder / "home"))
        self._engine = VllmEngine(EngineSettings("vllm", str(self.executable), home))
        self.tools = Toolbox(installation(self.executable, home), home, base_environment(os.environ))

    def __enter__(self) -> VllmBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tools.close()
        self._engine.close()

    def server(
        self, name: str, workload: SingleWorkload, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> VllmServer:
        """Start a server and warm it up.

        Args:
            name: of the server's folder.
            workload: for the warm-up.
            arguments: flags of `vllm serve` besides `SERVER_ARGUMENTS`.
            variables: of the server's environment.
        """
        launch = LaunchSpec(self.model, tuple(arguments), SERVER_ARGUMENTS, dict(variables))
        spec = TrialSpec(name, 0, 0, 1, TrialKind.SEARCH, {}, launch, workload, 1, self.folder / name, Limits())
        server = self._engine.launch(spec, spec.limits)
        server.wait_ready(NEVER_CANCELLED)
        server.warm_up(workload, NEVER_CANCELLED)
        return server

    def client_environment(self) -> dict[str, str]:
        """Return the environment of a client."""
        return {**base_environment(os.environ), **own_environment(self.folder)}
