"""An engine that measures nothing: its outcomes are a function of the configuration, for tests of other parts."""

from __future__ import annotations

import threading
from collections.abc import Callable

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineInfo
from tuner.errors import TrialFailed
from tuner.specs import Limits, TrialSpec
from tuner.workloads.spec import ClosedLoop, SingleWorkload

Landscape = Callable[[TrialSpec, int], dict[str, float | None] | Failure]
"""Returns the metrics of a trial's repeat by its index, or its failure (in the failure's own phase)."""


class StubServer:
    """A server whose benchmark is a function call; see `Server`."""

    def __init__(self, spec: TrialSpec, landscape: Landscape, hold: threading.Event | None) -> None:
        launch = spec.launch
        self.argv: tuple[str, ...] = ("stub", "serve", launch.model.name, *launch.base_argv, *launch.argv)
        self.environment = dict(spec.launch.environment)
        self.stopped = 0
        self._spec = spec
        self._landscape = landscape
        self._hold = hold

    def _fail_in(self, phase: Phase) -> None:
        result = self._landscape(self._spec, 0)
        if isinstance(result, Failure) and result.phase is phase:
            raise TrialFailed(result)

    def wait_ready(self, cancelled: CancelToken) -> None:
        """Return at once, or fail as the landscape says."""
        self._fail_in(Phase.READY)

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        """Return at once, or fail as the landscape says."""
        self._fail_in(Phase.WARMUP)

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        """Return the landscape's metrics; with `hold`, wait until it is set or the trial is cancelled."""
        while self._hold is not None and not self._hold.is_set():
            if cancelled.wait(0.01):
                raise TrialFailed(Failure(FailureKind.CANCELLED, Phase.BENCHMARK, "cancelled"))
        result = self._landscape(self._spec, index)
        if isinstance(result, Failure):
            raise TrialFailed(result)
        assert isinstance(workload, ClosedLoop)
        rate = result.get("success_rate")
        completed = round(workload.num_prompts * (1.0 if rate is None else rate))
        failed = workload.num_prompts - completed
        return Repeat(index, workload.repeat_seed(index), workload.num_prompts, completed, failed, 1.0, result)

    def facts(self) -> ServerFacts:
        """Return facts with one recognisable number."""
        return ServerFacts(kv_cache_tokens=1234)

    def stop(self) -> Failure | None:
        """Count the calls."""
        self.stopped += 1
        return None


class StubEngine:
    """See `Engine`. `launched` lists the trials that reached a launch."""

    def __init__(self, landscape: Landscape, hold: threading.Event | None = None) -> None:
        self.clock: Clock = RealClock()
        self._landscape = landscape
        self._hold = hold
        self.launched: list[TrialSpec] = []
        self.servers: list[StubServer] = []
        self.closed = False

    def info(self) -> EngineInfo:
        """Return a version that marks the stub."""
        return EngineInfo("vllm", "0.0+stub", None, None, Provenance.SIMULATED)

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return the landscape's failure if it is of the check."""
        result = self._landscape(spec, 0)
        return result if isinstance(result, Failure) and result.phase is Phase.CHECK else None

    def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
        """Return a server, or fail as the landscape says."""
        result = self._landscape(spec, 0)
        if isinstance(result, Failure) and result.phase is Phase.LAUNCH:
            raise TrialFailed(result)
        (spec.artifacts / "server.log").write_text("started\n", encoding="utf-8")
        server = StubServer(spec, self._landscape, self._hold)
        self.launched.append(spec)
        self.servers.append(server)
        return server

    def close(self) -> None:
        """Note it."""
        self.closed = True
