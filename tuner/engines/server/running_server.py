"""One running server of a trial, whatever its engine: what every engine does from its readiness to its end.

A subclass adds how the engine's log and metrics are read (`Readings`), and how a closed loop is sent: by the load
generator (`GeneratorServer`), or by a client of the engine's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from records.metrics import METRICS, TRAFFIC_ONLY
from records.trials import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.engines.base import Watch
from tuner.engines.server.devices import WorkerDevice
from tuner.engines.server.early_end import BenchmarkLook, WarmupLook
from tuner.engines.server.failures import read_log, redacted, signal_name
from tuner.engines.server.metrics import (
    CompileCaches,
    EnergyMeter,
    MetricNames,
    MetricsSampler,
    scrape,
    with_benchmark_metrics,
    with_energy,
)
from tuner.engines.server.token_prompts import with_common_tokens
from tuner.engines.server.traffic import (
    GRACE_S,
    Job,
    PromptTools,
    ResultError,
    TrafficFiles,
    read_traffic,
    start_traffic,
)
from tuner.errors import SettingError, TrialCut, TrialFailed, trial_failed
from tuner.http import get_local
from tuner.loadgen.progress import ProgressReader
from tuner.loadgen.result import RecordsError, read_records
from tuner.processes.ports import PortLease
from tuner.processes.readiness import StartedProcess, wait_ready
from tuner.processes.records import ProcessRecords
from tuner.processes.secrets import Secrets
from tuner.processes.supervisor import free_middle, shorten_log
from tuner.specs import Limits, ModelRef
from tuner.workloads.results import RequestRecord
from tuner.workloads.spec import SingleWorkload, as_traffic
from tuner.workloads.traffic import Traffic
from tuner.workloads.windows import are_settled, window_of

HOST = "127.0.0.1"

_POLL_S = 0.1
_FREE_LOG_S = 5.0
"""The period in which the log of a server under load is kept small."""

DYING_S = 20.0
"""How long a server whose requests failed may take to end or to answer as healthy."""

HEALTH_S = 5.0
STARTING_STOP_S = 3.0
"""The grace of a server that is still starting."""

SETTLE_S = 120.0
"""No window of a warm-up starts later than this after its beginning."""

OTHER_PROMPTS = 10_000
"""Between the seeds of a benchmark and of the one that replaces it; the seeds of a study's rounds are below it."""


@dataclass(frozen=True)
class Readings:
    """How the log and the metrics of an engine's servers are read.

    Attributes:
        failure: returns the typed failure of a server that ended, from its log, its exit code (-N for signal N; None:
            unknown) and the phase.
        facts: returns the facts of a log; None for each that it lacks.
        metrics: the names of metrics.
        too_long: what a server answers to a request that is too long for it.
        compiles: what the log says of a kernel that is compiled while requests run; None: nothing.
    """

    failure: Callable[[str, int | None, Phase], Failure]
    facts: Callable[[str], ServerFacts]
    metrics: MetricNames
    too_long: re.Pattern[str] | None = None
    compiles: re.Pattern[str] | None = None


class RunningServer(ABC):
    """See `Server`."""

    reads: Readings

    reuse_connections = True
    """Whether the server keeps a connection open after a streamed answer."""

    health_required = True
    """Whether a server without `/health` is never ready."""

    most_windows = 8
    """Runs of the load in a warm-up, at most."""

    most_again = 2
    """How often a benchmark is measured again because kernels were compiled during it, at most."""

    def __init__(
        self,
        *,
        process: StartedProcess,
        lease: PortLease,
        argv: tuple[str, ...],
        environment: dict[str, str],
        model: ModelRef,
        limits: Limits,
        artifacts: Path,
        secrets: Secrets,
        api_key: str | None,
        devices: tuple[WorkerDevice, ...],
    ) -> None:
        self.argv = argv
        self.environment = environment
        self.stopped = False
        self._was_ready = False
        self._process = process
        self._lease = lease
        self._secrets = secrets
        self._api_key = api_key
        self._model = model
        self._limits = limits
        self._artifacts = artifacts
        self._devices = devices
        self._before: dict[str, float] | None = None
        self._after: dict[str, float] | None = None
        self._usage: list[float] = []
        self._caches = CompileCaches({**os.environ, **environment})
        self._windows = 0
        self._settled: bool | None = None
        self._again = 0
        self._watch: Watch | None = None
        self._cancelled: CancelToken = threading.Event()

    def facts(self) -> ServerFacts:
        """See `Server`. Facts of the metrics are those of the benchmarks."""
        facts = self.reads.facts(read_log(self._log))
        if self._before is not None and self._after is not None:
            facts = self._with_metrics(facts, self._before, self._after)
        return replace(
            facts,
            warmup_windows=self._windows or None,
            warmup_settled=self._settled,
            benchmarks_again=self._again if self._after is not None else None,
        )

    def _with_metrics(self, facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float]) -> ServerFacts:
        """Return `facts` with what two scrapes say of the benchmarks between them."""
        return with_benchmark_metrics(facts, before, after, self._usage, self.reads.metrics)

    @abstractmethod
    def _prompt_tools(self, traffic: Traffic) -> PromptTools:
        """Return what makes the prompts of traffic."""

    @abstractmethod
    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        """Send the workload once and return the result.

        Raises:
            TrialFailed: as `Server.benchmark`.
        """

    @property
    def pid(self) -> int:
        """The process id of the API server."""
        return self._process.pid

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._lease.port

    @property
    def listed_name(self) -> str:
        """The name under which `/v1/models` lists the model."""
        return self._model.served_name

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://{HOST}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that its API requires."""
        return {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def wait_ready(self, cancelled: CancelToken) -> None:
        self._cancelled = cancelled
        self._wait_ready(cancelled)
        self._was_ready = True
        self._process.record_family()

    def _wait_ready(self, cancelled: CancelToken) -> None:
        wait_ready(
            self._process,
            HOST,
            self.port,
            self.listed_name,
            self._limits.startup_s,
            cancelled,
            self._classify,
            self.headers,
            health_required=self.health_required,
        )

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        warmup, window = workload.warmup(), window_of(workload)
        if warmup is None or window is None:
            return
        began, settled = time.monotonic(), False
        first, compiled = self._window(warmup, 0, cancelled)
        if first.completed == 0:
            message = f"none of {first.offered} warm-up requests succeeded"
            raise trial_failed(FailureKind.REQUESTS_FAILED, Phase.WARMUP, message)
        self._process.record_family()
        windows = [(first, compiled)] if window == warmup else []
        for index in range(1, self.most_windows):
            if time.monotonic() - began > SETTLE_S or settled:
                break
            windows.append(self._window(window, index, cancelled))
            settled = are_settled(windows)
        self._settled = settled and self._settled is not False

    def _window(self, window: SingleWorkload, index: int, cancelled: CancelToken) -> tuple[Repeat, bool]:
        """Send one window; return its result and whether kernels were compiled during it.

        The caches show each new kernel; the log shows a kernel's first compilation, also of one that is in the caches.
        """
        self._windows += 1
        self._caches.mark()
        logged = self._log.stat().st_size if self._log.exists() else 0
        result = self._run_workload(window, index, Phase.WARMUP, cancelled)
        return result, self._caches.grew() or self._compiled_since(logged)

    def _compiled_since(self, size: int) -> bool:
        """Return whether the log says of a compilation after its first `size` bytes."""
        if self.reads.compiles is None or not self._log.exists():
            return False
        with self._log.open("rb") as log:
            log.seek(size)
            return self.reads.compiles.search(log.read().decode("utf-8", "replace")) is not None

    def watch(self, watch: Watch) -> None:
        """See `Watchable`."""
        self._watch = watch

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        """See `Server`. A benchmark during which kernels were compiled is measured again, with other prompts.

        A trial is not cut for such a benchmark: the compilation may have lost it.
        """
        before, used = self._before, len(self._usage)
        for again in range(self.most_again + 1):
            self._before = before
            del self._usage[used:]
            seed = workload.seed + again * OTHER_PROMPTS
            self._caches.mark()
            repeat: Repeat | TrialCut
            try:
                repeat = self._benchmark(workload.model_copy(update={"seed": seed}), index, cancelled)
            except TrialCut as cut:
                repeat = cut
            if not self._caches.grew():
                break
            self._again += again < self.most_again
        else:
            self._settled = False
        if isinstance(repeat, TrialCut):
            raise repeat
        return repeat

    def _benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        names = self.reads.metrics
        if self._before is None:
            self._before = scrape(HOST, self.port, names)
        with MetricsSampler(HOST, self.port, names) as sampler, EnergyMeter(self._metered()) as meter:
            repeat = self._run_workload(workload, index, Phase.BENCHMARK, cancelled)
        sampler.write(self._artifacts / f"server-{index}.csv")
        self._usage += sampler.kv_usage
        self._after = scrape(HOST, self.port, names)
        return with_energy(repeat, meter.readings)

    def _metered(self) -> list[int]:
        """Return the GPUs whose energy is read; none if the server has others, too."""
        return [device.index for device in self._devices]

    def stop(self) -> Failure | None:
        """See `Server`; it waits until the memory of the worker's GPUs is free, unless the trial is cancelled."""
        # A server that is still starting has no requests to finish, and vLLM reacts to SIGTERM slowly while it
        # compiles.
        grace = self._limits.stop_s if self._was_ready else min(STARTING_STOP_S, self._limits.stop_s)
        survivors = self._process.stop(grace, self._cancelled)
        if survivors:
            pids = ", ".join(str(survivor.pid) for survivor in survivors)
            message = f"processes {pids} of the server survived SIGKILL; they block the device until they end"
            return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.STOP, message)
        if not self.stopped:
            self.stopped = True
            for log in sorted(self._artifacts.glob("*.log")):
                shorten_log(log, self._secrets.redact_bytes)
            self._lease.release()
            for device in self._devices:
                device.wait_until_free(self._limits.stop_s, self._cancelled)
        return None

    @property
    def _log(self) -> Path:
        return self._artifacts / "server.log"

    def _classify(self, phase: Phase, exit_code: int | None) -> Failure:
        return redacted(self.reads.failure(read_log(self._log), exit_code, phase), self._secrets)

    def _traffic_files(self, index: int, phase: Phase) -> TrafficFiles:
        return TrafficFiles(self._artifacts, "warmup" if phase is Phase.WARMUP else f"requests-{index}")

    def _deadline_s(self, phase: Phase) -> float:
        return self._limits.warmup_s if phase is Phase.WARMUP else self._limits.benchmark_s

    def _traffic(self, traffic: Traffic, index: int, phase: Phase, cancelled: CancelToken) -> tuple[Repeat, str | None]:
        """Send traffic by the load generator, which writes its records and ends by itself at the deadline.

        Returns:
            The repeat, and why the generator's delays make it invalid; None if they do not.

        Raises:
            TrialFailed: as `Server.benchmark`.
        """
        files = self._traffic_files(index, phase)
        url, deadline = f"{self.url}/v1/completions", self._deadline_s(phase)
        model, tools = self._model, self._prompt_tools(traffic)
        look = self._look(traffic, phase, ProgressReader(files.progress))
        job = start_traffic(
            tools,
            traffic,
            index,
            files,
            url,
            model.served_name,
            model.tokenizer,
            deadline,
            self._api_key,
            reuse_connections=self.reuse_connections,
            same_schedule=phase is Phase.WARMUP,
            watched=look is not None,
        )
        try:
            self._wait_for_job(job, phase, deadline + GRACE_S, cancelled, look)
        finally:
            job.cancel()
            files.plan.unlink(missing_ok=True)
        try:
            repeat, late = read_traffic(traffic, index, files)
        except TrialFailed as failed:
            self._fail_if_dying(phase)
            error = ResultError(failed.failure.message)
            raise TrialFailed(self._client_failure(error, files.log, phase, job.exit_code)) from None
        if repeat.failed:
            self._fail_if_dying(phase)  # a dying server delays the generator, too
        return repeat, late

    def _look(self, traffic: Traffic, phase: Phase, reader: ProgressReader) -> BenchmarkLook | WarmupLook | None:
        """Return what may end a run early; None: nothing."""
        if phase is Phase.WARMUP:
            is_first = self._windows == 1 and traffic.users is not None
            return WarmupLook(reader, traffic.users or 1, self._refuse) if is_first else None
        return None if self._watch is None else BenchmarkLook(self._watch, reader)

    def _refuse(self, failed: Sequence[RequestRecord]) -> None:
        """Fail a warm-up whose first requests have all failed.

        Raises:
            TrialFailed: as `_fail_if_dying`; `KV_CACHE_TOO_SMALL`, if they are too long; else `REQUESTS_FAILED`.
        """
        self._fail_if_dying(Phase.WARMUP)
        too_long, last = self._length_problem(failed), failed[-1]
        kind = FailureKind.REQUESTS_FAILED if too_long is None else FailureKind.KV_CACHE_TOO_SMALL
        reason = too_long or " ".join(filter(None, [last.status.value, last.error]))
        message = f"none of the first {len(failed)} warm-up requests succeeded: {reason}"
        raise TrialFailed(redacted(Failure(kind, Phase.WARMUP, message), self._secrets))

    def _length_problem(self, records: Sequence[RequestRecord]) -> str | None:
        """Return what the server says of requests that are too long for it; None if it says nothing of it."""
        pattern = self.reads.too_long
        errors = (record.error or "" for record in records)
        matches = (pattern.search(error) for error in errors) if pattern is not None else ()
        return next((found[0] for found in matches if found is not None), None)

    def _valid_traffic(self, traffic: Traffic, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        """Send traffic; fail if the generator was too late for the benchmark to be valid.

        Raises:
            TrialFailed: as `Server.benchmark`, and `LOAD_GENERATOR_LATE`.
        """
        repeat, late = self._traffic(traffic, index, phase, cancelled)
        if late is not None and phase is Phase.BENCHMARK:
            raise trial_failed(FailureKind.LOAD_GENERATOR_LATE, phase, late)
        return repeat

    def _wait_for_job(
        self,
        job: Job,
        phase: Phase,
        deadline_s: float,
        cancelled: CancelToken,
        look: BenchmarkLook | WarmupLook | None = None,
    ) -> None:
        deadline = time.monotonic() + deadline_s
        freed = time.monotonic()
        _raise_if_cancelled(cancelled, phase)  # a short job can end before the first look
        while not job.wait(_POLL_S):
            if time.monotonic() - freed > _FREE_LOG_S:
                free_middle(self._log)
                freed = time.monotonic()
            if not self._process.alive():
                raise TrialFailed(self._classify(phase, self._process.exit_code()))
            _raise_if_cancelled(cancelled, phase)
            if look is not None:
                look.raise_if_lost()
            if time.monotonic() > deadline:
                message = f"the benchmark was not done after {deadline_s:g} s"
                raise trial_failed(FailureKind.BENCHMARK_FAILED, phase, message)

    def _fail_if_dying(self, phase: Phase) -> None:
        """Return if the server is healthy; otherwise raise the failure that made its requests fail.

        The API of a server answers for some seconds after its engine has died, as unhealthy. A server on a busy machine
        may need several attempts until it answers as healthy.

        Raises:
            TrialFailed: if the process ends or the server does not become healthy within `DYING_S` seconds.
        """
        deadline = time.monotonic() + DYING_S
        while self._process.alive() and time.monotonic() < deadline:
            if self._healthy():
                return
            time.sleep(_POLL_S)
        raise TrialFailed(self._classify(phase, self._process.exit_code()))

    def _healthy(self) -> bool:
        reply = get_local(HOST, self.port, "/health", HEALTH_S)
        return reply is not None and reply.status == 200

    def _client_failure(self, error: ResultError, log: Path, phase: Phase, exit_code: int | None) -> Failure:
        """Return the failure of a client that ended without a valid result while the server is healthy.

        Args:
            error: what is wrong with its result.
            log: its output.
            phase: the trial's phase.
            exit_code: its exit code; None if the helper that ran it was killed.
        """
        failure = self.reads.failure(read_log(log), exit_code, phase)
        if failure.kind is not FailureKind.DISK_FULL:
            failure = _failure_of_client(failure.evidence, error, phase, exit_code)
        return redacted(failure, self._secrets)


def _raise_if_cancelled(cancelled: CancelToken, phase: Phase) -> None:
    if cancelled.is_set():
        raise trial_failed(FailureKind.CANCELLED, phase, "cancelled while requests were running")


def _failure_of_client(evidence: str | None, error: ResultError, phase: Phase, exit_code: int | None) -> Failure:
    if exit_code is None or exit_code < 0:
        by = "with the process that runs it" if exit_code is None else f"by {signal_name(-exit_code)}"
        message = f"the benchmark client was killed {by}; the kernel sends SIGKILL when the machine lacks memory"
        return Failure(FailureKind.CLIENT_KILLED, phase, message, evidence, exit_code)
    if error.written:
        return Failure(FailureKind.BENCHMARK_FAILED, phase, str(error), None, exit_code)
    reason = evidence.splitlines()[0] if evidence else "its log is empty"
    return Failure(FailureKind.BENCHMARK_FAILED, phase, f"{error}: {reason}", evidence, exit_code)


CLOSED_LOOP_METRICS = frozenset(METRICS) - TRAFFIC_ONLY
"""The metrics of a closed loop; its requests are one class without an SLO."""


class GeneratorServer(RunningServer):
    """A server to which the load generator sends closed loops, too; see `Server`."""

    reuse_connections = False

    def __init__(self, *, records: ProcessRecords, tokenizers: tuple[str, ...] = (), **started: Any) -> None:
        """Take over a started server.

        Args:
            records: where the load generator is recorded.
            tokenizers: of all engines of a study of several; see `EngineSettings`. Each request of such a study has its
                own connection, whichever the engine.
            started: the arguments of `RunningServer`.
        """
        super().__init__(**started)
        self._records = records
        self._tokenizers = tokenizers
        self._prompts: PromptTools | None = None
        if tokenizers:
            self.reuse_connections = False

    @abstractmethod
    def _make_tools(self) -> PromptTools:
        """Return what makes the prompts.

        Raises:
            SettingError: if the tokenizer cannot be read.
        """

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        """Refuse a server that cannot be measured, as the requests that were sent show.

        Raises:
            TrialFailed: with the reason.
        """
        problem = None if repeat.completed else self._length_problem(self._sent(index, phase))
        if problem is not None:
            message = f"none of {repeat.offered} requests succeeded: {problem}"
            raise trial_failed(FailureKind.KV_CACHE_TOO_SMALL, phase, message)

    def _sent(self, index: int, phase: Phase) -> Sequence[RequestRecord]:
        """Return the records of a run; empty if they cannot be read, with which the benchmark has failed already."""
        try:
            return read_records(self._traffic_files(index, phase).records)
        except RecordsError:
            return ()

    def _prompt_tools(self, traffic: Traffic) -> PromptTools:
        if self._prompts is None:
            with tokenizer_failures():
                self._prompts = with_common_tokens(self._make_tools(), self._tokenizers)
        return self._prompts

    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        if isinstance(workload, Traffic):
            repeat = self._valid_traffic(workload, index, phase, cancelled)
        else:
            # As with vLLM's client, a late generator slows a closed loop down and does not make it invalid.
            repeat, _ = self._traffic(as_traffic(workload), index, phase, cancelled)
        self._check_sent(repeat, index, phase)
        if isinstance(workload, Traffic):
            return repeat
        return replace(repeat, metrics=closed_loop_metrics(repeat.metrics))


@contextlib.contextmanager
def tokenizer_failures() -> Iterator[None]:
    """Make a tokenizer that cannot be read a failure of the trial's environment."""
    try:
        yield
    except SettingError as error:
        raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, str(error)) from None


def closed_loop_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the metrics of a closed loop that was sent as traffic: those over all requests."""
    return {name: value for name, value in metrics.items() if name in CLOSED_LOOP_METRICS}
