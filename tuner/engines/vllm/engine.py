"""The vLLM engine: find the installation, check configurations and start servers."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from search_spaces.rendering.shape import INSTANCES, nodes_of, without_instances
from storage.records import Failure, FailureKind, Phase, Provenance
from tuner import gpu, scratch
from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.command_line import INSTANCES_LAUNCHER, VLLM_VARIABLE
from tuner.engines.running_server import StartedProcess
from tuner.engines.vllm.failures.classify import redacted
from tuner.engines.vllm.generated_server import GeneratedVllmServer
from tuner.engines.vllm.installation.environment import (
    HOST_IP,
    base_environment,
    own_environment,
    preserve_compiler_headers,
)
from tuner.engines.vllm.installation.executable import find_executable, installation
from tuner.engines.vllm.instances import find_haproxy
from tuner.engines.vllm.nodes.process import RankedProcess, start_ranks
from tuner.engines.vllm.nodes.rank import Meeting, RankNode, RankStart, headless
from tuner.engines.vllm.resident_client import HelperJob, PlainJob
from tuner.engines.vllm.server import API_KEY, HOST, VllmServer, WorkerDevice
from tuner.engines.vllm.toolbox import Toolbox
from tuner.engines.vllm.warm_start import CommandStart, can_fork, start_forked
from tuner.errors import trial_failed
from tuner.processes.ports import PortLease, lease_port, refuse_taken_port
from tuner.processes.records import ProcessRecords
from tuner.processes.secrets import shell_word
from tuner.processes.supervisor import ServerProcess, start_server
from tuner.specs import LaunchSpec, Limits, TrialSpec

CHECK_PORT = 8000
"""A port for the check's command line; nothing listens on it."""

GPU_FREE_S = 120.0
"""How long a launch waits for the memory of the last server to become free."""


_log = logging.getLogger(__name__)


class VllmEngine:
    """vLLM on one worker; see `Engine`. The constructor starts the resident helper, which imports vLLM meanwhile."""

    def __init__(self, settings: EngineSettings, nodes: Sequence[RankNode] = (), address: str = HOST) -> None:
        """Find vLLM and start the resident helper.

        Args:
            settings: of the engine; `gpus` are those of one node.
            nodes: other nodes of this worker.
            address: of this node, as they reach it.

        Raises:
            UserError: if there is no vLLM, or its version cannot be read.
        """
        self.clock: Clock = RealClock()
        self._home = settings.home
        self._secrets = settings.secrets
        self._tokenizers = settings.tokenizers
        found = installation(find_executable(settings.executable), settings.home)
        self._nodes, self._address, self._each = tuple(nodes), address, settings.gpus
        self._devices = worker_devices(settings.device_index, settings.gpus)
        self._scratch = scratch.new_folder("vllm")
        self._own = own_environment(settings.home, [each.index for each in self._devices], self._scratch)
        self._inherited = base_environment(os.environ)
        self._records = ProcessRecords(settings.home / "processes", settings.driver, settings.secrets.redact)
        self._tools = Toolbox(found, settings.home, {**self._inherited, **self._own}, self._records)
        self._servers: list[VllmServer] = []
        self._warm_start = settings.warm_start

    def info(self) -> EngineInfo:
        """Return the installation. The first call for a version reads vLLM's parser, which takes 10–15 s."""
        found = self._tools.installation
        flags = self._tools.flags()
        return EngineInfo(
            name="vllm",
            version=found.version,
            executable=str(found.executable),
            flags=flags.names | {INSTANCES} if flags else None,
            provenance=Provenance.MEASURED,
            packages=None if found.packages is None else found.packages | _programs(),
            parser=flags,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why vLLM's parser or its configuration check refuses the trial; None if they accept it."""
        flags = self._tools.flags()
        given = spec.launch
        base, argv = without_instances(given.base_argv), without_instances(given.argv)
        launch = replace(given, base_argv=base, argv=argv)
        refused = flags.problem(launch.argv) if flags else None
        if refused is not None:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)
        spec.artifacts.mkdir(parents=True, exist_ok=True)
        meeting = self._meeting(launch, CHECK_PORT, CHECK_PORT)
        arguments = self._secrets.expand_all(_serve_arguments(launch, CHECK_PORT, meeting))
        environment = {**self._inherited, **self._own, **self._expanded(spec.launch.environment)}
        problem = self._tools.configuration_problem(arguments, environment, spec.artifacts / "check.log")
        return None if problem is None else redacted(problem, self._secrets)

    def _meeting(self, launch: LaunchSpec, port: int, data_port: int) -> Meeting | None:
        """Return where the ranks of a server meet; None if it runs on this node alone."""
        count = nodes_of((*launch.base_argv, *launch.argv), self._each, 1 + len(self._nodes))
        return None if count == 1 else Meeting(count, self._address, port, data_port)

    def _expanded(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: self._secrets.expand(value) for name, value in variables.items()}

    def launch(self, spec: TrialSpec, limits: Limits) -> VllmServer:
        """Start `vllm serve` for the trial; see `Engine`.

        Raises:
            TrialFailed: `GPU_BUSY` if the GPU is not free, `PORT_TAKEN` if no port is, `DISK_FULL`.
        """
        wait_for_gpus(self._devices)
        with ExitStack() as stack:
            lease = stack.enter_context(lease_port(self._home / "ports"))
            meeting_leases: tuple[PortLease, ...] = ()
            if self._meeting(spec.launch, CHECK_PORT, CHECK_PORT) is not None:
                ports = (lease_port(self._home / "ports", self._address) for _ in range(2))
                meeting_leases = tuple(stack.enter_context(port) for port in ports)
            server = self._start(spec, limits, lease, meeting_leases)
            stack.pop_all()
            return server

    def _start(
        self, spec: TrialSpec, limits: Limits, lease: PortLease, meeting_leases: tuple[PortLease, ...]
    ) -> VllmServer:
        if not any(server for server in self._servers if not server.stopped):
            scratch.empty(self._scratch)
            preserve_compiler_headers(self._scratch, self._home)
        executable = str(self._tools.installation.executable)
        own = {**self._own, **spec.launch.environment}
        if spec.launch.instances > 1:
            own[VLLM_VARIABLE] = executable
            executable = os.fspath(Path(sys.executable).with_name(INSTANCES_LAUNCHER))
        meeting = self._meeting(spec.launch, *(each.port for each in meeting_leases)) if meeting_leases else None
        if meeting is not None:
            own[HOST_IP] = self._address
        argv = (executable, *_serve_arguments(spec.launch, lease.port, meeting))
        artifacts = spec.artifacts.absolute()
        artifacts.mkdir(parents=True, exist_ok=True)
        (artifacts / "command.txt").write_text(command_text(argv, own, self._secrets.values), encoding="utf-8")
        refuse_taken_port(HOST, lease.port)
        log, label = artifacts / "server.log", f"{spec.study} trial {spec.uid}"
        environment = {**self._inherited, **self._expanded(own)}
        expanded = self._secrets.expand_all(argv)
        start_command = partial(start_server, expanded, environment, log, artifacts, self._records, lease.port, label)
        plain = spec.launch.instances > 1 or meeting is not None
        forked = None if plain else self._fork(expanded, environment, log, artifacts, lease.port, label)
        server = self._server(
            process=forked or self._start_ranks(spec, meeting, start_command, meeting_leases),
            lease=lease,
            argv=argv,
            environment=own,
            api_key=environment.get(API_KEY),
            client_environment={**self._inherited, **self._own},
            model=spec.launch.model,
            limits=limits,
            artifacts=artifacts,
            tools=self._tools,
            secrets=self._secrets,
            devices=self._devices,
            command=self._command_start(start_command) if forked else None,
        )
        self._servers = [server for server in self._servers if not server.stopped]
        self._servers.append(server)
        return server

    def _start_ranks(
        self,
        spec: TrialSpec,
        meeting: Meeting | None,
        start_first: Callable[[], ServerProcess],
        leases: Sequence[PortLease],
    ) -> StartedProcess:
        """Start the server on its nodes; see `start_ranks`."""
        if meeting is None:
            return start_first()
        nodes, label = self._nodes[: meeting.nodes - 1], f"{spec.study} trial {spec.uid}"

        def rank(number: int) -> RankStart:
            arguments = headless(_serve_arguments(spec.launch, CHECK_PORT, meeting, number))
            return RankStart(number, arguments, spec.launch.environment, label)

        first = start_ranks(nodes, rank, start_first)
        return RankedProcess(first, nodes, spec.artifacts.absolute(), leases)

    def _server(self, **started: Any) -> VllmServer:
        """Return the server that was started, with the client of the study."""
        if not self._tokenizers:
            return VllmServer(**started)
        return GeneratedVllmServer(tokenizers=self._tokenizers, records=self._records, **started)

    def _fork(
        self, argv: tuple[str, ...], environment: dict[str, str], log: Path, cwd: Path, port: int, label: str
    ) -> ServerProcess | None:
        resident = self._tools.resident if self._warm_start else None
        if resident is None or resident.device_touched or not can_fork(environment, self._tools.environment):
            return None
        return start_forked(resident, argv, environment, log, cwd, self._records, port, label)

    def _command_start(self, start_command: Callable[[], ServerProcess]) -> CommandStart:
        return CommandStart(partial(self._start_on_free_gpu, start_command), self._disable_forks)

    def _start_on_free_gpu(self, start_command: Callable[[], ServerProcess]) -> ServerProcess:
        wait_for_gpus(self._devices)
        return start_command()

    def _disable_forks(self) -> None:
        self._warm_start = False
        _log.warning(
            "a server failed as a fork and runs as the command; this worker starts all further servers that way"
        )

    def start_program(self, argv: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> HelperJob:
        """Start another program, recorded as servers are; the caller must wait for it or cancel it."""
        return PlainJob(argv, environment, log, cwd, self._records)

    def close(self) -> None:
        """Stop the running servers and the helper."""
        for server in self._servers:
            server.stop()
        self._tools.close()
        scratch.remove(self._scratch)


def _programs() -> frozenset[str]:
    """Return the programs of this machine that a search space asks for, beside packages."""
    return frozenset({"haproxy"} if find_haproxy() else ())


def wait_for_gpus(devices: Sequence[WorkerDevice]) -> None:
    """Wait until the GPUs have as little memory in use as before the study.

    Raises:
        TrialFailed: `GPU_BUSY`, if one has more after `GPU_FREE_S` seconds.
    """
    deadline = time.monotonic() + GPU_FREE_S
    for device in devices:
        if device.baseline_gib is None:
            continue
        left = max(deadline - time.monotonic(), 0.0)
        wait = gpu.wait_until_free(device.index, device.free_below_gib, left, threading.Event())
        if not wait.free:
            used = "unknown" if wait.used_gib is None else f"{wait.used_gib:.1f} GiB"
            message = f"GPU {device.index} has {used} in use; before this study it was {device.baseline_gib:.1f} GiB"
            raise trial_failed(FailureKind.GPU_BUSY, Phase.LAUNCH, message)


def worker_devices(slot: int | None, gpus: int = 1) -> tuple[WorkerDevice, ...]:
    """Return the worker's GPUs: the `slot`-th group of the visible ones, or the first if only its own are visible.

    Args:
        slot: number of the worker; None: only its own GPUs are visible.
        gpus: of each worker.
    """
    visible = gpu.devices()
    first = (slot or 0) * gpus % max(len(visible), 1)
    chosen = [*visible[first:], *visible[:first]][:gpus]
    return tuple(WorkerDevice(each.index, gpu.used_memory_gib(each.index)) for each in chosen)


def _serve_arguments(launch: LaunchSpec, port: int, meeting: Meeting | None = None, rank: int = 0) -> tuple[str, ...]:
    """Return the arguments of `vllm` for the server or one of its ranks: `serve MODEL …`."""
    own = (*launch.base_argv, *launch.argv)
    return (
        *("serve", launch.model.name, "--host", HOST, "--port", str(port)),
        *("--served-model-name", launch.model.served_name, *own),
        *(() if meeting is None else meeting.flags(rank, own)),
    )


def command_text(argv: Sequence[str], environment: Mapping[str, str], references: Collection[str] = ()) -> str:
    """Return a server's exact command as one line of shell, with the variables that the tuner sets for it.

    The shell expands the references to the variables `references`.
    """
    assignments = [f"{name}={shell_word(value, references)}" for name, value in sorted(environment.items())]
    return " ".join(["env", *assignments, *(shell_word(word, references) for word in argv)]) + "\n"


__all__ = ["VllmEngine", "command_text", "wait_for_gpus", "worker_devices"]
