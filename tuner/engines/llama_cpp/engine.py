"""The llama.cpp engine: check configurations and start servers."""

from __future__ import annotations

import os
from collections.abc import Mapping

from storage.records import Failure, FailureKind, Phase, Provenance
from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.command_line import LLAMA_CPP
from tuner.engines.llama_cpp.installation import find_server, installation
from tuner.engines.llama_cpp.server import LlamaCppServer
from tuner.engines.running_server import HOST
from tuner.engines.vllm.engine import command_text, wait_for_gpus, worker_devices
from tuner.engines.vllm.installation.environment import base_environment, visible_gpus
from tuner.processes.ports import PortLease, lease_port, refuse_taken_port
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import start_server
from tuner.specs import LaunchSpec, Limits, TrialSpec

API_KEY = "LLAMA_API_KEY"
"""The variable in which a server finds the key that its clients must send."""

DROPPED_PREFIXES = ("LLAMA_", "GGML_")
"""Inherited variables with these prefixes are dropped: `LLAMA_ARG_*` would set flags of the server."""


class LlamaCppEngine:
    """llama.cpp on one worker; see `Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        """Find the server.

        Raises:
            UserError: if there is none, or its version cannot be read.
        """
        self.clock: Clock = RealClock()
        self._home = settings.home
        self._secrets = settings.secrets
        self._found = installation(find_server(settings.executable))
        self._devices = worker_devices(settings.device_index) if self._found.gpus else ()
        self._inherited = {
            name: value for name, value in base_environment(os.environ).items() if not name.startswith(DROPPED_PREFIXES)
        }
        self._records = ProcessRecords(settings.home / "processes", settings.driver, settings.secrets.redact)
        self._servers: list[LlamaCppServer] = []

    def info(self) -> EngineInfo:
        """See `Engine`."""
        found, measured = self._found, Provenance.MEASURED
        return EngineInfo(LLAMA_CPP, found.version, str(found.executable), found.flags, measured, frozenset())

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return the first flag that the server lacks; None if it has all. It has no check of values but its start."""
        known = self._found.flags
        for word in (*spec.launch.base_argv, *spec.launch.argv):
            flag = word.partition("=")[0]
            if known is not None and flag.startswith("--") and flag not in known:
                message = f"{flag} is not a flag of {LLAMA_CPP} {self._found.version}"
                return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, message)
        return None

    def launch(self, spec: TrialSpec, limits: Limits) -> LlamaCppServer:
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

    def _start(self, spec: TrialSpec, limits: Limits, lease: PortLease) -> LlamaCppServer:
        own = {**self._own_environment(), **spec.launch.environment}
        argv = (str(self._found.executable), *server_arguments(spec.launch, lease.port))
        artifacts = spec.artifacts.absolute()
        artifacts.mkdir(parents=True, exist_ok=True)
        (artifacts / "command.txt").write_text(command_text(argv, own, self._secrets.values), encoding="utf-8")
        refuse_taken_port(HOST, lease.port)
        environment = {**self._inherited, **self._expanded(own)}
        process = start_server(
            self._secrets.expand_all(argv),
            environment,
            artifacts / "server.log",
            artifacts,
            self._records,
            lease.port,
            f"{spec.study} trial {spec.uid}",
        )
        server = LlamaCppServer(
            process=process,
            lease=lease,
            argv=argv,
            environment=own,
            model=spec.launch.model,
            limits=limits,
            artifacts=artifacts,
            secrets=self._secrets,
            api_key=environment.get(API_KEY),
            devices=self._devices,
            records=self._records,
        )
        self._servers = [each for each in self._servers if not each.stopped]
        self._servers.append(server)
        return server

    def _own_environment(self) -> dict[str, str]:
        """Return the variables that select the worker's GPU."""
        return visible_gpus([device.index for device in self._devices])

    def _expanded(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: self._secrets.expand(value) for name, value in variables.items()}

    def close(self) -> None:
        """See `Engine`."""
        for server in self._servers:
            server.stop()


def server_arguments(launch: LaunchSpec, port: int) -> tuple[str, ...]:
    """Return the arguments of the server: its model, the model's name in requests, its port, and the flags.

    `--metrics` opens `/metrics`; without it the server has no facts.
    """
    return (
        *("--model", launch.model.name, "--alias", launch.model.served_name),
        *("--host", HOST, "--port", str(port), "--metrics", *launch.base_argv, *launch.argv),
    )
