"""vLLM as an engine: what is installed, whether a configuration can work, and the start of a server."""

from __future__ import annotations

import logging
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from storage.records import Failure, FailureKind, Phase, Provenance
from tuner import gpu, scratch
from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.vllm.environment import base_environment, keep_compiler_headers, own_environment
from tuner.engines.vllm.executable import find_executable, installation
from tuner.engines.vllm.server import HOST, VllmServer, WorkerDevice
from tuner.engines.vllm.toolbox import Toolbox
from tuner.engines.vllm.warm_start import PlainStart, fits, start_forked
from tuner.errors import trial_failed
from tuner.processes.ports import PortLease, lease_port, refuse_taken_port
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import ServerProcess, start_server
from tuner.specs import LaunchSpec, Limits, TrialSpec

CHECK_PORT = 8000
GPU_FREE_S = 60.0

_log = logging.getLogger(__name__)


class VllmEngine:
    """The vLLM of one worker; see `Engine`. Its helper imports vLLM in the background from the start."""

    def __init__(self, settings: EngineSettings) -> None:
        """Find vLLM and start the helper.

        Raises:
            UserError: when there is no vLLM, or it does not tell its version.
        """
        self.clock: Clock = RealClock()
        self._home = settings.home
        self._records = ProcessRecords(settings.home / "processes", settings.driver)
        found = installation(find_executable(settings.executable), settings.home)
        self._device = _device(settings.device_index)
        self._scratch = scratch.new_folder("vllm")
        self._own = own_environment(settings.home, self._device.index if self._device else None, self._scratch)
        self._inherited = base_environment(os.environ)
        self._tools = Toolbox(found, settings.home, {**self._inherited, **self._own})
        self._servers: list[VllmServer] = []
        self._warm_start = settings.warm_start

    def info(self) -> EngineInfo:
        """Return what is installed; reads the installed parser at the first call of a version, some 10–15 s."""
        found = self._tools.found
        flags = self._tools.flags()
        return EngineInfo(
            name="vllm",
            version=found.version,
            executable=str(found.executable),
            flags=flags.names if flags else None,
            provenance=Provenance.MEASURED,
            packages=found.packages,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why vLLM's parser or its own configuration check refuses the trial; None if they accept it."""
        flags = self._tools.flags()
        refused = flags.problem(spec.launch.argv) if flags else None
        if refused is not None:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)
        spec.artifacts.mkdir(parents=True, exist_ok=True)
        words = _serve_words(spec.launch, CHECK_PORT)
        environment = {**self._inherited, **self._own, **spec.launch.environment}
        return self._tools.problem(words, environment, spec.artifacts / "check.log")

    def launch(self, spec: TrialSpec, limits: Limits) -> VllmServer:
        """Start `vllm serve` for the trial; see `Engine`.

        Raises:
            TrialFailed: `GPU_BUSY` if the GPU is not free, `PORT_TAKEN` if no port is, `DISK_FULL`.
        """
        self._wait_for_gpu()
        lease = lease_port(self._home / "ports")
        try:
            return self._start(spec, limits, lease)
        except BaseException:
            lease.release()
            raise

    def _start(self, spec: TrialSpec, limits: Limits, lease: PortLease) -> VllmServer:
        if not any(server for server in self._servers if not server.stopped):
            scratch.empty(self._scratch)
            keep_compiler_headers(self._scratch, self._home)
        own = {**self._own, **spec.launch.environment}
        argv = (str(self._tools.found.executable), *_serve_words(spec.launch, lease.port))
        artifacts = spec.artifacts.absolute()
        artifacts.mkdir(parents=True, exist_ok=True)
        (artifacts / "command.txt").write_text(command_text(argv, own), encoding="utf-8")
        log = artifacts / "server.log"
        refuse_taken_port(HOST, lease.port)
        label = f"{spec.study} trial {spec.uid}"
        environment = {**self._inherited, **own}
        plainly = partial(start_server, argv, environment, log, artifacts, self._records, lease.port, label)
        forked = self._fork(argv, environment, log, artifacts, lease.port, label)
        server = VllmServer(
            process=forked or plainly(),
            lease=lease,
            argv=argv,
            environment=own,
            client_environment={**self._inherited, **self._own},
            model=spec.launch.model,
            limits=limits,
            artifacts=artifacts,
            tools=self._tools,
            device=self._device,
            plain=PlainStart(partial(self._start_on_free_gpu, plainly), self._fork_no_more) if forked else None,
        )
        self._servers = [server for server in self._servers if not server.stopped]
        self._servers.append(server)
        return server

    def _fork(
        self, argv: tuple[str, ...], environment: dict[str, str], log: Path, cwd: Path, port: int, label: str
    ) -> ServerProcess | None:
        resident = self._tools.resident if self._warm_start else None
        if resident is None or resident.device_touched or not fits(environment, self._tools.environment):
            return None
        return start_forked(resident, argv, environment, log, cwd, self._records, port, label)

    def _start_on_free_gpu(self, plainly: Callable[[], ServerProcess]) -> ServerProcess:
        self._wait_for_gpu()
        return plainly()

    def _fork_no_more(self) -> None:
        self._warm_start = False
        _log.warning("a server that failed as a fork runs as a command of its own; servers are no longer forked here")

    def _wait_for_gpu(self) -> None:
        device = self._device
        if device is None or device.baseline_gib is None:
            return
        wait = gpu.wait_until_free(device.index, device.free_below_gib, GPU_FREE_S, threading.Event())
        if not wait.free:
            used = "unknown" if wait.used_gib is None else f"{wait.used_gib:.1f} GiB"
            message = f"GPU {device.index} still holds {used}, before this study it held {device.baseline_gib:.1f} GiB"
            raise trial_failed(FailureKind.GPU_BUSY, Phase.LAUNCH, message)

    def close(self) -> None:
        """Stop what still runs and end the helper."""
        for server in self._servers:
            server.stop()
        self._tools.close()
        scratch.remove(self._scratch)


def _device(slot: int | None) -> WorkerDevice | None:
    """Return the worker's GPU: the `slot`-th of those visible, the first if they are already this worker's own."""
    visible = gpu.devices()
    if not visible:
        return None
    chosen = visible[(slot or 0) % len(visible)]
    return WorkerDevice(chosen.index, gpu.used_memory_gib(chosen.index))


def _serve_words(launch: LaunchSpec, port: int) -> tuple[str, ...]:
    """Return the arguments of `vllm` for the server: `serve MODEL …`."""
    return (
        *("serve", launch.model.name, "--host", HOST, "--port", str(port)),
        *("--served-model-name", launch.model.served_name, *launch.base_argv, *launch.argv),
    )


def command_text(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a server's exact command as one line of shell, with the variables that were set for it."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    return " ".join(["env", *assignments, *map(shlex.quote, argv)]) + "\n"


__all__ = ["VllmEngine", "command_text"]
