"""Run one trial through its phases: check, launch, ready, warm-up, benchmark, collect, stop.

`run_trial` always returns an outcome and always stops the server. It has a broad `except`: an untyped exception of an
engine is an error of the tuner and ends this trial only.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace

from records.trials import RATES_FILE, Cut, Failure, FailureKind, Phase, Repeat, ServerFacts, TrialOutcome
from tuner.cancellation import CancelToken
from tuner.clock import Clock, Stopwatch, moment_after
from tuner.engines.base import Engine, Server, Watchable
from tuner.errors import FREE_SPACE, TrialCut, TrialFailed
from tuner.scoring.cost import per_gpu_metrics, token_costs
from tuner.scoring.goals import Slo
from tuner.specs import TrialSpec
from tuner.trial.capacity import RatePoint, find_capacity, write_points
from tuner.trial.cut import TrialWatch
from tuner.workloads.spec import SingleWorkload, Suite, Workload, merge_repeats
from tuner.workloads.traffic import Traffic

Report = Callable[[Phase], None]
"""Called at the start of each phase, for a progress display."""


def _ignore(_: Phase) -> None:
    """Report nothing."""


def _parts(workload: Workload) -> Mapping[str, SingleWorkload]:
    return workload.parts() if isinstance(workload, Suite) else {"": workload}


class _Attempt:
    """The state of one attempt at a trial."""

    def __init__(self, engine: Engine, spec: TrialSpec, cancelled: CancelToken, report: Report, clock: Clock) -> None:
        self.engine = engine
        self.spec = spec
        self.cancelled = cancelled
        self.report = report
        self.watch = Stopwatch(clock)
        self.phase = Phase.CHECK
        self.server: Server | None = None
        self.repeats: list[Repeat] = []
        self.facts: ServerFacts | None = None
        self.cut: Cut | None = None

    def enter(self, phase: Phase) -> None:
        """Start `phase`.

        Raises:
            TrialFailed: `CANCELLED`, if the trial is cancelled and the phase is not `STOP`.
        """
        self.phase = phase
        self.report(phase)
        if phase is not Phase.STOP and self.cancelled.is_set():
            raise TrialFailed(Failure(FailureKind.CANCELLED, phase, "cancelled"))

    def measure(self) -> None:
        """Run the phases from check to benchmark.

        Raises:
            TrialFailed: typed, at the first failure.
        """
        spec = self.spec
        spec.artifacts.mkdir(parents=True, exist_ok=True)
        self.enter(Phase.CHECK)
        with self.watch.measure(Phase.CHECK):
            reason = self.engine.check(spec)
        if reason is not None:
            raise TrialFailed(reason)
        self.enter(Phase.LAUNCH)
        with self.watch.measure(Phase.LAUNCH):
            server = self.server = self.engine.launch(spec, spec.limits)
        self.enter(Phase.READY)
        with self.watch.measure(Phase.READY):
            server.wait_ready(self.cancelled)
        self.enter(Phase.WARMUP)
        with self.watch.measure(Phase.WARMUP):
            for workload in _parts(spec.workload).values():
                server.warm_up(workload, self.cancelled)
        if spec.capacity_slos is not None:
            self.search_capacity(server, spec.workload, spec.capacity_slos)
        else:
            self.run_benchmarks(server)
        if self.cut is None and not any(repeat.completed for repeat in self.repeats):
            offered = sum(repeat.offered for repeat in self.repeats)
            message = f"none of {offered} requests succeeded"
            raise TrialFailed(Failure(FailureKind.REQUESTS_FAILED, Phase.BENCHMARK, message))

    def run_benchmarks(self, server: Server) -> None:
        """Run the workload once per repeat, or until the trial is cut short."""
        spec = self.spec
        load = spec.workload
        # A cut compares a run with the requests that are due. When later turns of a session are due is not known.
        is_known = isinstance(load, Traffic) and not load.has_sessions
        if spec.cut is not None and isinstance(load, Traffic) and is_known and isinstance(server, Watchable):
            server.watch(TrialWatch(spec.cut, load, spec.launch.gpus(spec.gpus)))
        try:
            for index in range(spec.repeats):
                self.repeats.append(self.repeat(server, spec.workload, index))
        except TrialCut as error:
            self.cut, self.repeats = error.cut, []

    def repeat(self, server: Server, workload: Workload, index: int) -> Repeat:
        """Run the workload once, or each workload of a suite once."""
        if not isinstance(workload, Suite):
            return self.benchmark(server, workload, index)
        parts = enumerate(workload.parts().items())
        return merge_repeats(
            index,
            [(name, self.benchmark(server, part, workload.run_index(index, place))) for place, (name, part) in parts],
        )

    def benchmark(self, server: Server, workload: SingleWorkload, index: int) -> Repeat:
        """Run one workload once; add the rates for each of several GPUs, and the costs that follow from their price."""
        self.enter(Phase.BENCHMARK)
        with self.watch.measure(Phase.BENCHMARK):
            repeat = server.benchmark(workload, index, self.cancelled)
        spec, metrics = self.spec, repeat.metrics
        shared = per_gpu_metrics(metrics, spec.launch.gpus(spec.gpus)) if spec.gpus > 1 else {}
        return replace(repeat, metrics={**metrics, **shared, **token_costs(metrics, spec.price_per_hour)})

    def search_capacity(self, server: Server, workload: Workload, capacity_slos: tuple[Slo, ...]) -> None:
        """Search the capacity once per repeat; each search starts at the rate that the last one returned.

        A repeat has the metrics measured at the capacity or, if the SLOs held at no rate, at the lowest rate tried.
        """
        assert isinstance(workload, Traffic)
        first = workload.mean_rate
        assert first is not None  # checked by `find_goals`
        indices = itertools.count()
        points: list[RatePoint] = []

        def measure(rate: float) -> RatePoint:
            repeat = self.benchmark(server, workload.at_rate_for_same_duration(rate), next(indices))
            missed = tuple(str(slo) for slo in capacity_slos if not slo.met(repeat.metrics.get(slo.metric)))
            points.append(RatePoint(rate, repeat, missed))
            write_points(self.spec.artifacts / RATES_FILE, points)
            return points[-1]

        for _ in range(self.spec.repeats):
            search = find_capacity(measure, first)
            best = search.best
            chosen = best or min(search.points, key=lambda point: point.rate)
            first = chosen.rate
            metrics = {**chosen.repeat.metrics, "capacity": best.rate if best else None}
            self.repeats.append(replace(chosen.repeat, metrics=metrics))

    def collect(self) -> None:
        """Read the server's own facts; the log of a failed server may have some, too."""
        if self.server is None:
            return
        self.phase = Phase.COLLECT
        with self.watch.measure(Phase.COLLECT):
            self.facts = self.server.facts()

    def stop(self) -> Failure | None:
        """Stop the server; return a failure if a process survived."""
        if self.server is None:
            return None
        self.phase = Phase.STOP
        self.report(Phase.STOP)
        with self.watch.measure(Phase.STOP):
            return self.server.stop()


def _typed(error: Exception, phase: Phase) -> Failure:
    """Return the typed failure of an exception."""
    if isinstance(error, TrialFailed):
        return error.failure
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"no space left on disk: {error.filename or 'unknown file'}; {FREE_SPACE}"
        return Failure(FailureKind.DISK_FULL, phase, message)
    last = "".join(traceback.format_exception(error)[-3:])
    return Failure(FailureKind.TUNER_ERROR, phase, f"{type(error).__name__}: {error}", evidence=last)


def run_trial(
    engine: Engine,
    spec: TrialSpec,
    cancelled: CancelToken,
    *,
    worker: str,
    device: str,
    report: Report = _ignore,
    clock: Clock | None = None,
) -> TrialOutcome:
    """Run one attempt at a trial and return its outcome; failures of the trial raise no exception.

    Args:
        engine: the engine of this worker.
        spec: the trial.
        cancelled: once set, the trial ends as soon as possible, with failure kind `cancelled`.
        worker: name of the worker, for the record.
        device: name of the device, for the record.
        report: called with each phase as it starts.
        clock: the clock; by default the engine's.
    """
    clock = clock or engine.clock
    started, begun = clock.now(), time.monotonic()
    attempt = _Attempt(engine, spec, cancelled, report, clock)
    failure: Failure | None = None
    for step in (attempt.measure, attempt.collect, attempt.stop):
        try:
            problem = step()
        except Exception as error:  # noqa: BLE001  the trial's boundary
            problem = _typed(error, attempt.phase)
        failure = failure or problem
    server = attempt.server
    return TrialOutcome(
        started_at=started,
        ended_at=moment_after(started, begun),
        provenance=engine.info().provenance,
        worker=worker,
        device=device,
        timings=attempt.watch.seconds(),
        artifacts=os.fspath(spec.artifacts),
        argv=server.argv if server else (*spec.launch.base_argv, *spec.launch.argv),
        environment=server.environment if server else dict(spec.launch.environment),
        repeats=tuple(attempt.repeats),
        server=attempt.facts,
        failure=failure,
        cut=None if failure else attempt.cut,
    )
