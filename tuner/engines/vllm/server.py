"""One running vLLM server of a trial: wait, load, read, stop."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from storage.records import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner import gpu
from tuner.cancellation import CancelToken
from tuner.engines.vllm.bench import ResultError, bench_words, read_result
from tuner.engines.vllm.failures import classify, read_log
from tuner.engines.vllm.logs import facts_from_log
from tuner.engines.vllm.metrics import MetricsSampler, scrape, with_load
from tuner.engines.vllm.resident_client import HelperJob
from tuner.engines.vllm.toolbox import Toolbox
from tuner.engines.vllm.traffic_load import GRACE_S, LoadFiles, read_load, start_load
from tuner.engines.vllm.warm_start import DOUBTFUL, PlainStart
from tuner.errors import TrialFailed, trial_failed
from tuner.processes.ports import PortLease
from tuner.processes.readiness import wait_ready
from tuner.processes.supervisor import ServerProcess
from tuner.specs import Limits, ModelRef
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

HOST = "127.0.0.1"
POLL_S = 0.1
DYING_S = 10.0
HEALTH_S = 2.0
SPARE_GIB = 0.5
STARTING_STOP_S = 3.0


@dataclass(frozen=True)
class WorkerDevice:
    """The worker's GPU: NVML's index, and what it held before the study's first server."""

    index: int
    baseline_gib: float | None

    @property
    def free_below_gib(self) -> float:
        """Memory in use at which it counts as free again."""
        return (self.baseline_gib or 0.0) + SPARE_GIB


class VllmServer:
    """See `Server`."""

    def __init__(
        self,
        *,
        process: ServerProcess,
        lease: PortLease,
        argv: tuple[str, ...],
        environment: dict[str, str],
        client_environment: dict[str, str],
        model: ModelRef,
        limits: Limits,
        artifacts: Path,
        tools: Toolbox,
        device: WorkerDevice | None,
        plain: PlainStart | None = None,
    ) -> None:
        self.argv = argv
        self.environment = environment
        self.stopped = False
        self._was_ready = False
        self._process = process
        self._lease = lease
        self._client_environment = client_environment
        self._model = model
        self._limits = limits
        self._artifacts = artifacts
        self._tools = tools
        self._device = device
        self._plain = plain
        self._before: dict[str, float] | None = None
        self._after: dict[str, float] | None = None
        self._usage: list[float] = []

    @property
    def pid(self) -> int:
        """The process id of the API server."""
        return self._process.pid

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._lease.port

    def wait_ready(self, cancelled: CancelToken) -> None:
        """See `Server`; a forked server that fails for no known reason is started again as the command, once."""
        try:
            self._wait_ready(cancelled)
        except TrialFailed as failed:
            if self._plain is None or failed.failure.kind not in DOUBTFUL:
                raise
            self._start_again(self._plain)
            self._wait_ready(cancelled)
            self._plain.worked()
        self._was_ready = True
        self._process.record_descendants()

    def _wait_ready(self, cancelled: CancelToken) -> None:
        name, deadline = self._model.served_name, self._limits.startup_s
        wait_ready(self._process, HOST, self.port, name, deadline, cancelled, self._classify)

    def _start_again(self, plain: PlainStart) -> None:
        self._process.stop(STARTING_STOP_S)
        with contextlib.suppress(FileNotFoundError):
            self._log.rename(self._log.with_name("server-forked.log"))
        self._process = plain.start()

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        """See `Server`."""
        short = workload.warmup()
        if short is None:
            return
        warmed = self._load(short, 0, Phase.WARMUP, cancelled)
        if warmed.completed == 0:
            message = f"none of {warmed.offered} warm-up requests succeeded"
            raise trial_failed(FailureKind.REQUESTS_FAILED, Phase.WARMUP, message)

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        """See `Server`."""
        if self._before is None:
            self._before = scrape(HOST, self.port)
        with MetricsSampler(HOST, self.port) as sampler:
            repeat = self._load(workload, index, Phase.BENCHMARK, cancelled)
        sampler.write(self._artifacts / f"server-{index}.csv")
        self._usage += sampler.kv_usage
        self._after = scrape(HOST, self.port)
        return repeat

    def facts(self) -> ServerFacts:
        """See `Server`."""
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_load(facts, self._before, self._after, self._usage)

    def stop(self) -> Failure | None:
        """See `Server`; on a GPU it waits until the memory is back."""
        # A server that is still starting has nothing to finish, and vLLM answers SIGTERM slowly while it compiles.
        grace = self._limits.stop_s if self._was_ready else min(STARTING_STOP_S, self._limits.stop_s)
        survivors = self._process.stop(grace)
        if survivors:
            pids = ", ".join(str(survivor.pid) for survivor in survivors)
            message = f"processes {pids} of the server survived SIGKILL"
            return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.STOP, message)
        if not self.stopped:
            self.stopped = True
            self._lease.release()
            if self._device is not None and self._device.baseline_gib is not None:
                gpu.wait_until_free(
                    self._device.index, self._device.free_below_gib, self._limits.stop_s, threading.Event()
                )
        return None

    @property
    def _log(self) -> Path:
        return self._artifacts / "server.log"

    def _classify(self, phase: Phase, exit_code: int | None) -> Failure:
        return classify(read_log(self._log), exit_code, phase)

    def _load(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        """Send a load once and read what came of it.

        Raises:
            TrialFailed: as `Server.benchmark`.
        """
        if isinstance(workload, Traffic):
            return self._traffic(workload, index, phase, cancelled)
        repeat = self._bench(workload, index, phase, cancelled)
        if repeat.failed:
            self._fail_if_dying(phase)
        return repeat

    def _deadline_s(self, phase: Phase) -> float:
        return self._limits.warmup_s if phase is Phase.WARMUP else self._limits.benchmark_s

    def _traffic(self, traffic: Traffic, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        """Have our own generator send traffic; it ends by itself at the deadline, its records written."""
        files = LoadFiles(self._artifacts, "warmup" if phase is Phase.WARMUP else f"requests-{index}")
        url, deadline = f"http://{HOST}:{self.port}/v1/completions", self._deadline_s(phase)
        model = self._model
        job = start_load(self._tools, traffic, index, files, url, model.served_name, model.tokenizer, deadline)
        try:
            self._watch(job, phase, deadline + GRACE_S, cancelled)
        finally:
            job.cancel()
        repeat, late = read_load(traffic, index, files)
        if repeat.failed:
            self._fail_if_dying(phase)  # a dying server's figures say nothing of the generator
        if late is not None and phase is Phase.BENCHMARK:
            raise trial_failed(FailureKind.LOAD_GENERATOR_LATE, phase, late)
        return repeat

    def _bench(self, workload: ClosedLoop, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        """Run the benchmark client once and read its result."""
        name, seed = "warmup" if phase is Phase.WARMUP else f"bench-{index}", workload.repeat_seed(index)
        result, log = self._artifacts / f"{name}.json", self._artifacts / f"{name}.log"
        url = f"http://{HOST}:{self.port}/v1"
        words = bench_words(self._model, workload, url, seed, self._artifacts, result.name)
        result.unlink(missing_ok=True)
        job = self._tools.start(words, self._client_environment, log, self._artifacts)
        try:
            self._watch(job, phase, self._deadline_s(phase), cancelled)
        finally:
            job.cancel()
        try:
            return read_result(result, workload, index, seed)
        except ResultError as error:
            self._fail_if_dying(phase)
            raise TrialFailed(_client_failure(str(error), log, phase, job.exit_code)) from None

    def _watch(self, job: HelperJob, phase: Phase, deadline_s: float, cancelled: CancelToken) -> None:
        deadline = time.monotonic() + deadline_s
        while not job.wait(POLL_S):
            if not self._process.alive():
                raise TrialFailed(self._classify(phase, self._process.exit_code()))
            if cancelled.is_set():
                raise trial_failed(FailureKind.CANCELLED, phase, "cancelled while requests were running")
            if time.monotonic() > deadline:
                message = f"the load was not done after {deadline_s:g} s"
                raise trial_failed(FailureKind.BENCHMARK_FAILED, phase, message)

    def _fail_if_dying(self, phase: Phase) -> None:
        """Raise what killed the server, if requests failed because it dies: its API outlives its engine by seconds."""
        if self._healthy():
            return
        deadline = time.monotonic() + DYING_S
        while self._process.alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        raise TrialFailed(self._classify(phase, self._process.exit_code()))

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=HEALTH_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _client_failure(message: str, log: Path, phase: Phase, exit_code: int | None) -> Failure:
    """Type a client that gave no figures while the server is well."""
    found = classify(read_log(log), exit_code, phase)
    if found.kind is FailureKind.DISK_FULL:
        return found
    reason = found.evidence.splitlines()[0] if found.evidence else "its log is empty"
    return Failure(FailureKind.BENCHMARK_FAILED, phase, f"{message}: {reason}", found.evidence, exit_code)
