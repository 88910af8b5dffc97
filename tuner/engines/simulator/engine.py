"""The simulated engine: starts simulated servers and runs workloads against them on a virtual clock."""

from __future__ import annotations

import csv
import json
import math
import shlex
from datetime import datetime
from typing import Any

from records.trials import Cut, Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts
from search_spaces import HardwareProfile, version_tuple
from search_spaces.render import INSTANCES
from search_spaces.schema import VLLM
from tuner.cancellation import CancelToken
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo, Watch
from tuner.engines.command_line import program_of
from tuner.engines.simulator.client import workload_client
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, flag_names
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.metrics import SimulatedRun, summed
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import MARLIN_INPUT, Platform, configuration
from tuner.engines.simulator.serve_config import ServeConfig, find_shape
from tuner.engines.simulator.startup import CompileCache, processes_s, startup_s
from tuner.errors import TrialCut, trial_failed
from tuner.loadgen.result import write_records
from tuner.specs import Limits, TrialSpec
from tuner.workloads.progress import RunProgress
from tuner.workloads.results import RequestRecord
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.spec import ClosedLoop, SingleWorkload

LOG_BANNER = "SIMULATED: predicted, not measured"
STOP_S = 0.5
"""Seconds from SIGTERM until the GPU's memory is free (0.3 to 0.8 s in docs/reports/2026-11-21-h200-qwen-0.5b.md)."""


class VirtualClock:
    """A clock that only `advance` moves; its date is the real one."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._real = RealClock()

    def monotonic(self) -> float:
        """Return the virtual seconds that have passed."""
        return self._seconds

    def now(self) -> datetime:
        """Return the real date and time, UTC."""
        return self._real.now()

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._seconds += seconds


class SimulatedServer:
    """One simulated server; see `Server`. Every workload starts with an empty prefix cache."""

    def __init__(
        self,
        config: ServeConfig,
        spec: TrialSpec,
        limits: Limits,
        clock: VirtualClock,
        compile_cache: CompileCache,
        forked: bool,
    ) -> None:
        launch = spec.launch
        words = (*launch.base_argv, *launch.argv)
        program = program_of(VLLM, argv=words)
        self.argv: tuple[str, ...] = (program.name, *program.subcommand, launch.model.name, *words)
        self.environment = dict(launch.environment)
        self._config = config
        self._spec = spec
        self._limits = limits
        self._clock = clock
        self._compile_cache = compile_cache
        self._forked = forked
        self._server: ConfiguredServer | None = None
        self._runs: list[SimulatedRun] = []
        self._watch: Watch | None = None
        self._log = spec.artifacts / "server.log"

    def wait_ready(self, cancelled: CancelToken) -> None:
        """Advance the clock by the start-up, or fail where vLLM would; see `Server`."""
        self._check_cancelled(cancelled, Phase.READY)
        config = self._config
        parameters = parameters_of(config.card.key)
        try:
            marlin, count = self.environment.get(MARLIN_INPUT), self._spec.launch.instances
            server = ConfiguredServer(config, parameters, marlin, count)
        except StartFailed as error:
            self._clock.advance(processes_s(parameters, self._forked) / (config.card.host_speed or 1.0))
            self._write_log(f"ERROR EngineCore failed to start.\n{error}")
            raise trial_failed(error.kind, Phase.READY, str(error)) from None
        compile_s = self._compile_cache.seconds(config, parameters)
        seconds = startup_s(config, server.budget, parameters, compile_s, self._forked)
        if seconds > self._limits.startup_s:
            self._clock.advance(self._limits.startup_s)
            message = f"not ready after {self._limits.startup_s:g} s"
            raise trial_failed(FailureKind.STARTUP_TIMEOUT, Phase.READY, message)
        self._clock.advance(seconds)
        self._compile_cache.add(config)
        budget = server.budget
        self._write_log(
            f"INFO Model loading took {budget.weights_gib:.2f} GiB memory\n"
            f"INFO Using {config.backend} attention backend\n"
            f"INFO Available KV cache memory: {budget.kv_gib:.2f} GiB\n"
            f"INFO GPU KV cache size: {budget.tokens:,} tokens\n"
            f"INFO Application startup complete after {seconds:.0f} s (simulated)"
        )
        self._server = server

    def _write_log(self, text: str) -> None:
        self._log.write_text(f"{LOG_BANNER}\n{shlex.join(self.argv)}\n{text}\n", encoding="utf-8")

    def _check_cancelled(self, cancelled: CancelToken, phase: Phase) -> None:
        if cancelled.is_set():
            raise trial_failed(FailureKind.CANCELLED, phase, "cancelled")

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        self._check_cancelled(cancelled, Phase.WARMUP)
        warmup = workload.warmup()
        if warmup is not None:
            run = self._run(warmup, 0, self._limits.warmup_s)
            self._clock.advance(run.duration_s)

    def watch(self, watch: Watch) -> None:
        """See `Watchable`."""
        self._watch = watch

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        self._check_cancelled(cancelled, Phase.BENCHMARK)
        run = self._run(workload, index, self._limits.benchmark_s)
        self._runs.append(run)
        self._write_states(run, index)
        if not isinstance(workload, ClosedLoop):
            records = run.records()
            self._raise_if_cut(records)
            self._clock.advance(run.duration_s)
            write_records(self._spec.artifacts / f"requests-{index}.jsonl.gz", records)
            return repeat_of(workload, records, index)
        self._clock.advance(run.duration_s)
        if not run.all_ended:
            message = f"the benchmark did not end within {self._limits.benchmark_s:g} s"
            raise trial_failed(FailureKind.BENCHMARK_FAILED, Phase.BENCHMARK, message)
        return self._repeat(workload, index, run)

    def _repeat(self, workload: ClosedLoop, index: int, run: SimulatedRun) -> Repeat:
        """Return the repeat of a closed loop and write its result file."""
        metrics, offered, completed = run.bench_metrics(workload.percentiles), len(run.requests), run.completed
        counts = {"completed": completed, "failed": offered - completed, "duration": run.duration_s}
        text = json.dumps({"simulated": True, **counts, **metrics})
        (self._spec.artifacts / f"bench-{index}.json").write_text(text, encoding="utf-8")
        seed = workload.repeat_seed(index)
        return Repeat(index, seed, offered, completed, offered - completed, run.duration_s, metrics)

    def _run(self, workload: SingleWorkload, index: int, limit_s: float) -> SimulatedRun:
        server = self._ready_server()
        seed = workload.repeat_seed(index)
        client = workload_client(workload, seed, self._config.prefix_caching, server.parameters.client_us * 1e-6)
        # trials and rounds of one configuration differ by the noise, and each of them is reproducible
        noise_seed = seed + 7919 * self._spec.number + 104729 * self._spec.round
        return server.run(client, noise_seed, limit_s=limit_s)

    def _raise_if_cut(self, records: list[RequestRecord]) -> None:
        """Advance the clock to the moment at which the benchmark is cut short, if it is.

        Raises:
            TrialCut: then.
        """
        if self._watch is None:
            return
        found = first_cut(self._watch, RunProgress(records, self._watch.slos, self._watch.users))
        if found is not None:
            self._clock.advance(found.after_s)
            raise TrialCut(found)

    def _ready_server(self) -> ConfiguredServer:
        assert self._server is not None, "the server is not ready"
        return self._server

    def _write_states(self, run: SimulatedRun, index: int) -> None:
        with (self._spec.artifacts / f"server-{index}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["at_s", "running", "waiting", "kv_usage", "preemptions"])
            writer.writerows(run.trace.states)

    def facts(self) -> ServerFacts:
        server = self._server
        if server is None:
            return ServerFacts()
        budget, counts = server.budget, summed([run.counts for run in self._runs])
        usage = [state[3] for run in self._runs for state in run.trace.states]
        return ServerFacts(
            kv_cache_tokens=budget.tokens,
            kv_cache_gib=budget.kv_gib,
            max_concurrency=budget.tokens / server.config.max_model_len,
            weights_gib=budget.weights_gib,
            graph_gib=budget.graphs_gib,
            attention_backend=self._config.backend,
            preemptions=float(counts.preemptions) if self._runs else None,
            prefix_hit_rate=counts.prefix_hit_rate,
            queue_time_mean_s=sum(counts.queued_s) / len(counts.queued_s) if counts.queued_s else None,
            kv_usage_max=max(usage, default=None),
            kv_usage_mean=sum(usage) / len(usage) if usage else None,
            spec_acceptance_rate=counts.accepted_tokens / counts.drafted_tokens if counts.drafted_tokens else None,
            spec_tokens_per_draft=counts.accepted_tokens / counts.drafts if counts.drafts else None,
        )

    def stop(self) -> Failure | None:
        if self._server is not None:
            self._clock.advance(STOP_S)
        self._server = None
        return None


def first_cut(watch: Watch, progress: RunProgress) -> Cut | None:
    """Return the first whole second at which a finished run is cut short; None if it never is.

    A trial that is lost stays lost, so the second is found by bisection.
    """
    latest = progress.latest_cut_s
    low, high = 0, math.ceil(latest) - 1 if math.isfinite(latest) else 0
    found = None if high < 1 else watch.look(progress, high)
    if found is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        cut = watch.look(progress, middle)
        low, high, found = (middle, high, found) if cut is None else (low, middle, cut)
    return found


class SimulatedEngine:
    """vLLM on a simulated card; see `Engine`.

    `warm_start` simulates servers that are forked from a process that has vLLM imported. `gpus` are the GPUs of a
    worker's machine.
    """

    def __init__(
        self,
        card: HardwareProfile,
        version: str,
        packages: frozenset[str] = SIMULATED_PACKAGES,
        warm_start: bool = True,
        gpus: int = 1,
    ) -> None:
        self.clock = VirtualClock()
        self._version = version
        self._platform = Platform(card, parameters_of(card.key), version_tuple(version), packages, gpus)
        self._compile_cache = CompileCache()
        self._warm_start = warm_start

    def info(self) -> EngineInfo:
        """Return the simulated version; there is no executable."""
        return EngineInfo(
            "simulated vllm",
            self._version,
            None,
            flag_names(self._platform.version) | {INSTANCES},
            Provenance.SIMULATED,
            self._platform.packages,
        )

    def facts(self) -> dict[str, Any]:
        """Return what a search space's context has of the engine, by field."""
        info = self.info()
        return {
            "hardware": self._platform.card,
            "engine_version": info.version,
            "flags": info.flags,
            "packages": info.packages,
            "simulated": True,
        }

    def check(self, spec: TrialSpec) -> Failure | None:
        try:
            self._config(spec)
        except ConfigRefused as error:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, str(error))
        return None

    def launch(self, spec: TrialSpec, limits: Limits) -> SimulatedServer:
        try:
            config = self._config(spec)
        except ConfigRefused as error:
            raise trial_failed(FailureKind.INVALID_CONFIGURATION, Phase.LAUNCH, str(error)) from None
        spec.artifacts.mkdir(parents=True, exist_ok=True)
        return SimulatedServer(config, spec, limits, self.clock, self._compile_cache, self._warm_start)

    def _config(self, spec: TrialSpec) -> ServeConfig:
        launch = spec.launch
        shape, arguments = find_shape(launch.model.name), (*launch.base_argv, *launch.argv)
        return configuration(self._platform, arguments, launch.environment, shape, launch.instances)

    def close(self) -> None:
        """Do nothing: the engine holds no resources."""
