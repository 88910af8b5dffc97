"""An engine whose server is one program with arguments: how it is started, recorded and stopped."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineSettings
from tuner.engines.running_server import HOST, RunningServer, WorkerDevice
from tuner.engines.vllm.engine import command_text, wait_for_gpus
from tuner.engines.vllm.installation.environment import base_environment, visible_gpus
from tuner.processes.ports import PortLease, lease_port, refuse_taken_port
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import start_server
from tuner.specs import LaunchSpec, Limits, TrialSpec

StartedServer = TypeVar("StartedServer", bound=RunningServer)


class ProgramEngine(ABC, Generic[StartedServer]):
    """The part of `Engine` that starts and stops servers.

    Args:
        settings: of the worker.
        devices: the worker's GPUs; empty on a CPU.
    """

    dropped_prefixes: tuple[str, ...] = ()
    """Inherited variables with these prefixes are dropped, because they would set flags of the server."""

    def __init__(self, settings: EngineSettings, devices: tuple[WorkerDevice, ...]) -> None:
        self.clock: Clock = RealClock()
        self._home = settings.home
        self._secrets = settings.secrets
        self._devices = devices
        self._inherited = {
            name: value
            for name, value in base_environment(os.environ).items()
            if not name.startswith(self.dropped_prefixes)
        }
        self._records = ProcessRecords(settings.home / "processes", settings.driver, settings.secrets.redact)
        self._servers: list[StartedServer] = []

    @abstractmethod
    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the program and its arguments; references to secrets are expanded later."""

    def _started(self, argv: tuple[str, ...], artifacts: Path) -> tuple[str, ...]:
        """Return the words that start the server, after files that they name are written to `artifacts`.

        The words of the command are recorded, not these.
        """
        return argv

    @abstractmethod
    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> StartedServer:
        """Return the server that was started.

        Args:
            spec: of the trial.
            words: the command with the values of secrets.
            started: the arguments of `RunningServer`, without the API key.
        """

    def launch(self, spec: TrialSpec, limits: Limits) -> StartedServer:
        """Start the server of the trial; see `Engine`.

        Raises:
            TrialFailed: `GPU_BUSY` if the GPU is not free, `PORT_TAKEN` if no port is, `DISK_FULL`.
        """
        wait_for_gpus(self._devices)
        lease = lease_port(self._home / "ports")
        try:
            return self._start(spec, limits, lease)
        except BaseException:
            lease.release()
            raise

    def _start(self, spec: TrialSpec, limits: Limits, lease: PortLease) -> StartedServer:
        own = {**self._own_environment(), **spec.launch.environment}
        argv = self._command(spec.launch, lease.port)
        artifacts = spec.artifacts.absolute()
        artifacts.mkdir(parents=True, exist_ok=True)
        started = self._started(argv, artifacts)
        (artifacts / "command.txt").write_text(command_text(started, own, self._secrets.values), encoding="utf-8")
        refuse_taken_port(HOST, lease.port)
        words = self._secrets.expand_all(started)
        environment = {**self._inherited, **self._expanded(own)}
        folder = artifacts if spec.launch.folder is None else Path(spec.launch.folder)
        label = f"{spec.study} trial {spec.uid}"
        process = start_server(words, environment, artifacts / "server.log", folder, self._records, lease.port, label)
        server = self._server(
            spec,
            words,
            process=process,
            lease=lease,
            argv=argv,
            environment=own,
            model=spec.launch.model,
            limits=limits,
            artifacts=artifacts,
            secrets=self._secrets,
            api_key=self._api_key(words, environment),
            devices=self._devices,
        )
        self._servers = [each for each in self._servers if not each.stopped]
        self._servers.append(server)
        return server

    @abstractmethod
    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        """Return the key that clients must send; None: none."""

    def _own_environment(self) -> dict[str, str]:
        """Return the variables that select the worker's GPUs."""
        return visible_gpus([device.index for device in self._devices])

    def _expanded(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: self._secrets.expand(value) for name, value in variables.items()}

    def close(self) -> None:
        """See `Engine`."""
        for server in self._servers:
            server.stop()
