"""One running vLLM server of a trial: how it starts again as a command, runs vLLM's client, and states its facts."""

from __future__ import annotations

import contextlib
from pathlib import Path

from storage.records import Failure, Phase, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.engines.server.devices import WorkerDevice as WorkerDevice
from tuner.engines.server.failures.classify import classify, read_log
from tuner.engines.server.jobs import ResultError
from tuner.engines.server.metrics import with_benchmark_metrics
from tuner.engines.server.running_server import HOST as HOST
from tuner.engines.server.running_server import STARTING_STOP_S, RunningServer, StartedProcess
from tuner.engines.server.traffic import PromptTools
from tuner.engines.vllm.bench_serve import bench_arguments, read_result
from tuner.engines.vllm.logs import facts_from_log
from tuner.engines.vllm.nodes.process import RankedProcess
from tuner.engines.vllm.toolbox import Toolbox
from tuner.engines.vllm.warm_start import RETRIED_AS_COMMAND, CommandStart
from tuner.errors import TrialFailed
from tuner.processes.ports import PortLease
from tuner.processes.secrets import NO_SECRETS, Secrets
from tuner.specs import Limits, ModelRef
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

API_KEY = "VLLM_API_KEY"
"""The variable in which a server finds the key that its clients must send."""

CLIENT_API_KEY = "OPENAI_API_KEY"
"""The variable in which vLLM's benchmark client finds the key that it sends."""


class VllmServer(RunningServer):
    """See `Server`."""

    def __init__(
        self,
        *,
        process: StartedProcess,
        lease: PortLease,
        argv: tuple[str, ...],
        environment: dict[str, str],
        client_environment: dict[str, str],
        model: ModelRef,
        limits: Limits,
        artifacts: Path,
        tools: Toolbox,
        secrets: Secrets = NO_SECRETS,
        api_key: str | None = None,
        devices: tuple[WorkerDevice, ...],
        command: CommandStart | None = None,
    ) -> None:
        super().__init__(
            process=process,
            lease=lease,
            argv=argv,
            environment=environment,
            model=model,
            limits=limits,
            artifacts=artifacts,
            secrets=secrets,
            api_key=api_key,
            devices=devices,
        )
        self._client_environment = {**client_environment, **({CLIENT_API_KEY: api_key} if api_key else {})}
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

    def _facts(self) -> ServerFacts:
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_benchmark_metrics(facts, self._before, self._after, self._usage)

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _classify(self, phase: Phase, exit_code: int | None) -> Failure:
        own = super()._classify(phase, exit_code)
        return self._process.cause(phase, own) if isinstance(self._process, RankedProcess) else own

    def _metered(self) -> list[int]:
        return [] if isinstance(self._process, RankedProcess) else super()._metered()

    def _prompt_tools(self) -> PromptTools:
        return self._tools

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
        url = f"http://{HOST}:{self.port}/v1"
        arguments = bench_arguments(self._model, workload, url, seed, self._artifacts, result.name)
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
