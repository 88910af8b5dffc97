"""The vLLM engine: check configurations, start servers, and what a server of vLLM does beside those of others."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat
from search_spaces.render import INSTANCES, nodes_of, without_instances
from tuner import scratch
from tuner.cancellation import CancelToken
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.server.devices import wait_for_gpus, worker_devices
from tuner.engines.server.failures import redacted
from tuner.engines.server.program_engine import ProgramEngine, ServerStart
from tuner.engines.server.running_server import (
    HOST,
    STARTING_STOP_S,
    GeneratorServer,
    Readings,
    RunningServer,
    tokenizer_failures,
)
from tuner.engines.server.token_prompts import TokenTools, common_tokens, ordinary_tokens, tokenizer_of
from tuner.engines.server.traffic import Job, PlainJob, PromptTools, ResultError
from tuner.engines.vllm.bench_serve import bench_arguments, read_result
from tuner.engines.vllm.instances import find_haproxy
from tuner.engines.vllm.kind import LAUNCHER, PROGRAM, VLLM, VLLM_VARIABLE
from tuner.engines.vllm.nodes import Meeting, RankedProcess, RankNode, RankStart, headless, start_ranks
from tuner.engines.vllm.resident_client import RETRIED_AS_COMMAND, CommandStart, can_fork, start_forked
from tuner.engines.vllm.texts import COMPILES, METRICS, classify, facts_from_log
from tuner.engines.vllm.toolbox import (
    HOST_IP,
    Toolbox,
    find_executable,
    installation,
    own_environment,
    preserve_compiler_headers,
)
from tuner.errors import TrialFailed
from tuner.files import HOME
from tuner.processes.ports import PortLease, lease_port
from tuner.processes.readiness import StartedProcess
from tuner.processes.supervisor import ServerProcess
from tuner.specs import LaunchSpec, Limits, TrialSpec
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

CLIENT_API_KEY = "OPENAI_API_KEY"
"""The variable in which vLLM's benchmark client finds the key that it sends."""


class VllmServer(RunningServer):
    """See `Server`."""

    reads = Readings(classify, facts_from_log, METRICS, compiles=COMPILES)

    def __init__(
        self,
        *,
        tools: Toolbox,
        command: CommandStart | None = None,
        api_key: str | None = None,
        **started: Any,
    ) -> None:
        """Take over a started server.

        Args:
            tools: run vLLM's benchmark client.
            command: starts the server once more, if it is a fork.
            api_key: the key that clients must send; None: none.
            started: the other arguments of `RunningServer`.
        """
        super().__init__(api_key=api_key, **started)
        self._client_environment = {**tools.environment, **({CLIENT_API_KEY: api_key} if api_key else {})}
        self._tools = tools
        self._command = command

    def _wait_ready(self, cancelled: CancelToken) -> None:
        """Wait; a forked server that fails without a known cause is started once more, as the command."""
        try:
            super()._wait_ready(cancelled)
        except TrialFailed as failed:
            if self._command is None or failed.failure.kind not in RETRIED_AS_COMMAND:
                raise
            self._start_command(self._command)
            super()._wait_ready(cancelled)
            self._command.on_success()

    def _start_command(self, command: CommandStart) -> None:
        self._process.stop(STARTING_STOP_S)
        with contextlib.suppress(FileNotFoundError):
            self._log.rename(self._log.with_name("server-forked.log"))
        self._process = command.start()

    def _classify(self, phase: Phase, exit_code: int | None) -> Failure:
        own = super()._classify(phase, exit_code)
        return self._process.cause(phase, own) if isinstance(self._process, RankedProcess) else own

    def _metered(self) -> list[int]:
        return [] if isinstance(self._process, RankedProcess) else super()._metered()

    def _prompt_tools(self, traffic: Traffic) -> PromptTools:
        """Return what makes texts, and token ids for sessions: an answer's text may have other tokens than the answer.

        Raises:
            TrialFailed: if there are sessions, and the tokenizer cannot be read.
        """
        if not traffic.has_sessions:
            return self._tools
        with tokenizer_failures():
            return self._token_tools(ordinary_tokens(self._model.tokenizer))

    def _token_tools(self, tokens: Sequence[int]) -> TokenTools:
        """Return what makes prompts of these tokens."""
        tokenize = tokenizer_of(self.url, self._api_key, model=self._model.served_name)
        return TokenTools(tokens, self._tools.records, tokenize)

    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        if isinstance(workload, Traffic):
            return self._valid_traffic(workload, index, phase, cancelled)
        repeat = self._bench(workload, index, phase, cancelled)
        if repeat.failed:
            self._fail_if_dying(phase)
        return repeat

    def _bench(self, workload: ClosedLoop, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        """Run the benchmark client once and read its result."""
        name, seed = "warmup" if phase is Phase.WARMUP else f"bench-{index}", workload.repeat_seed(index)
        result, log = self._artifacts / f"{name}.json", self._artifacts / f"{name}.log"
        arguments = bench_arguments(self._model, workload, f"{self.url}/v1", seed, self._artifacts, result.name)
        result.unlink(missing_ok=True)
        job = self._tools.start(arguments, self._client_environment, log, self._artifacts)
        try:
            self._wait_for_job(job, phase, self._deadline_s(phase), cancelled)
        finally:
            job.cancel()
        try:
            return read_result(result, workload, index, seed)
        except ResultError as error:
            self._fail_if_dying(phase)
            raise TrialFailed(self._client_failure(error, log, phase, job.exit_code)) from None


class GeneratedVllmServer(GeneratorServer, VllmServer):
    """See `Server`. Prompts are token ids if the models of all engines have the same vocabulary, else texts."""

    def _make_tools(self) -> PromptTools:
        tokens = common_tokens(self._tokenizers)
        return self._token_tools(tokens) if tokens else self._tools


CHECK_PORT = 8000
"""A port for the check's command line; nothing listens on it."""

_log = logging.getLogger(__name__)


class VllmEngine(ProgramEngine[VllmServer]):
    """vLLM on one worker; see `Engine`. The constructor starts the resident helper, which imports vLLM meanwhile."""

    key_variable = PROGRAM.key_variable

    def __init__(self, settings: EngineSettings, nodes: Sequence[RankNode] = (), address: str = HOST) -> None:
        """Find vLLM and start the resident helper.

        Args:
            settings: of the engine; `gpus` are those of one node.
            nodes: other nodes of this worker.
            address: of this node, as they reach it.

        Raises:
            UserError: if there is no vLLM, or its version cannot be read.
        """
        found = installation(find_executable(settings.executable), settings.home)
        super().__init__(settings, worker_devices(settings.device_index, settings.gpus))
        self._tokenizers = settings.tokenizers
        self._nodes, self._address, self._each = tuple(nodes), address, settings.gpus
        self._scratch = scratch.new_folder("vllm")
        self._own = own_environment(settings.home, [each.index for each in self._devices], self._scratch)
        own, of_servers = {**self._inherited, **self._own}, self._expanded(settings.environment)
        self._tools = Toolbox(found, settings.home, own, self._records, of_servers)
        self._warm_start = settings.warm_start
        self._ports: tuple[PortLease, ...] = ()
        self._again: CommandStart | None = None

    def info(self) -> EngineInfo:
        """Return the installation. The first call for a version reads vLLM's parser, which takes 10–15 s."""
        found = self._tools.installation
        flags = self._tools.flags()
        return EngineInfo(
            name=VLLM.name,
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
        environment = {**self._tools.environment, **self._expanded(spec.launch.environment)}
        problem = self._tools.configuration_problem(arguments, environment, spec.artifacts / "check.log")
        return None if problem is None else redacted(problem, self._secrets)

    def _meeting(self, launch: LaunchSpec, port: int, data_port: int) -> Meeting | None:
        """Return where the ranks of a server meet; None if it runs on this node alone."""
        count = nodes_of((*launch.base_argv, *launch.argv), self._each, 1 + len(self._nodes))
        return None if count == 1 else Meeting(count, self._address, port, data_port)

    def launch(self, spec: TrialSpec, limits: Limits) -> VllmServer:
        """See `ProgramEngine`; a server over several nodes has two more ports, at which its ranks meet."""
        if not any(server for server in self._servers if not server.stopped):
            scratch.empty(self._scratch)
            preserve_compiler_headers(self._scratch, self._home)
        with ExitStack() as stack:
            self._ports = ()
            if self._meeting(spec.launch, CHECK_PORT, CHECK_PORT) is not None:
                ports = [stack.enter_context(lease_port(self._home / "ports", self._address)) for _ in range(2)]
                self._ports = tuple(ports)
            server = super().launch(spec, limits)
            stack.pop_all()
            return server

    def _present_meeting(self, launch: LaunchSpec) -> Meeting | None:
        """Return where the ranks of the server that is being started meet; None if it has one node."""
        return self._meeting(launch, *(each.port for each in self._ports)) if self._ports else None

    def _own_environment(self, launch: LaunchSpec) -> dict[str, str]:
        own = dict(self._own)
        if launch.instances > 1:
            own |= {VLLM_VARIABLE: str(self._tools.installation.executable), HOME: os.fspath(self._home)}
        if self._ports:
            own[HOST_IP] = self._address
        return own

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        executable = self._tools.installation.executable
        if launch.instances > 1:
            executable = Path(sys.executable).with_name(LAUNCHER)
        return (os.fspath(executable), *_serve_arguments(launch, port, self._present_meeting(launch)))

    def _process(self, spec: TrialSpec, start: ServerStart) -> StartedProcess:
        """Start the server: its ranks, or a fork of the helper where that equals the command."""
        self._again = None
        if self._ports:
            return self._start_ranks(spec, start)
        forked = None if spec.launch.instances > 1 else self._fork(start)
        if forked is None:
            return start()
        self._again = CommandStart(partial(self._start_on_free_gpu, spec.launch, start), self._disable_forks)
        return forked

    def _start_ranks(self, spec: TrialSpec, start: ServerStart) -> StartedProcess:
        """Start the server on its nodes; see `start_ranks`."""
        meeting = self._present_meeting(spec.launch)
        assert meeting is not None
        nodes = self._nodes[: meeting.nodes - 1]

        def rank(number: int) -> RankStart:
            arguments = headless(_serve_arguments(spec.launch, CHECK_PORT, meeting, number))
            return RankStart(number, arguments, spec.launch.environment, start.label)

        return RankedProcess(start_ranks(nodes, rank, start), nodes, start.log.parent, self._ports)

    def _server(self, spec: TrialSpec, **started: Any) -> VllmServer:
        """Return the server that was started, with the client of the study."""
        started |= {"tools": self._tools, "command": self._again}
        if not self._tokenizers:
            return VllmServer(**started)
        return GeneratedVllmServer(tokenizers=self._tokenizers, records=self._records, **started)

    def _fork(self, start: ServerStart) -> ServerProcess | None:
        resident = self._tools.resident if self._warm_start else None
        if resident is None or resident.device_touched or not can_fork(start.environment, resident.environment):
            return None
        return start_forked(resident, start)

    def _start_on_free_gpu(self, launch: LaunchSpec, start: ServerStart) -> ServerProcess:
        wait_for_gpus(self._used(launch))
        return start()

    def _disable_forks(self) -> None:
        self._warm_start = False
        _log.warning(
            "a server failed as a fork and runs as the command; this worker starts all further servers that way"
        )

    def start_program(self, argv: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> Job:
        """Start another program, recorded as servers are; the caller must wait for it or cancel it."""
        return PlainJob(argv, environment, log, cwd, self._records)

    def close(self) -> None:
        """Stop the running servers and the helper."""
        super().close()
        self._tools.close()
        scratch.remove(self._scratch)


def _programs() -> frozenset[str]:
    """Return the programs of this machine that a search space asks for, beside packages."""
    return frozenset({"haproxy"} if find_haproxy() else ())


def _serve_arguments(launch: LaunchSpec, port: int, meeting: Meeting | None = None, rank: int = 0) -> tuple[str, ...]:
    """Return the arguments of `vllm` for the server or one of its ranks: `serve MODEL …`."""
    own = (*launch.base_argv, *launch.argv)
    return (
        *("serve", launch.model.name, "--host", HOST, "--port", str(port)),
        *("--served-model-name", launch.model.served_name, *own),
        *(() if meeting is None else meeting.flags(rank, own)),
    )
