"""One trial, step by step: check, launch, ready, warm up, benchmark, collect, stop.

`run_trial` always returns an outcome and always stops the server. It holds the project's one broad `except`: whatever
an engine raises that has no type is the tuner's own error, and ends this trial only.
"""

from __future__ import annotations

import errno
import itertools
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace

from storage.records import Failure, FailureKind, Phase, Repeat, ServerFacts, TrialOutcome
from tuner.cancellation import CancelToken
from tuner.clock import Clock, Stopwatch
from tuner.engines.base import Engine, Server
from tuner.errors import TrialFailed
from tuner.scoring.slo import Slo
from tuner.specs import TrialSpec
from tuner.trial.capacity import RatePoint, find_capacity, write_points
from tuner.workloads.spec import SingleWorkload, Workload
from tuner.workloads.suite import Suite, merge_repeats
from tuner.workloads.traffic import Traffic

Report = Callable[[Phase], None]
"""Called at the start of each phase, for a progress display."""


def _ignore(_: Phase) -> None:
    """Report to nobody."""


def _parts(workload: Workload) -> Mapping[str, SingleWorkload]:
    return workload.parts() if isinstance(workload, Suite) else {"": workload}


class _Run:
    """The state of one attempt while it goes through its phases."""

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

    def enter(self, phase: Phase) -> None:
        """Start `phase`; a cancelled trial goes no further."""
        self.phase = phase
        self.report(phase)
        if phase is not Phase.STOP and self.cancelled.is_set():
            raise TrialFailed(Failure(FailureKind.CANCELLED, phase, "cancelled"))

    def measure(self) -> None:
        """Go through the phases up to the server's own numbers.

        Raises:
            TrialFailed: typed, at the first thing that goes wrong.
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
            for load in _parts(spec.workload).values():
                server.warm_up(load, self.cancelled)
        if spec.promises is not None:
            self.search_capacity(server, spec.workload, spec.promises)
        else:
            for index in range(spec.repeats):
                self.repeats.append(self.repeat(server, spec.workload, index))
        if not any(repeat.completed for repeat in self.repeats):
            offered = sum(repeat.offered for repeat in self.repeats)
            message = f"none of {offered} requests succeeded"
            raise TrialFailed(Failure(FailureKind.REQUESTS_FAILED, Phase.BENCHMARK, message))

    def repeat(self, server: Server, workload: Workload, index: int) -> Repeat:
        """Send the load once, or each of several once."""
        if not isinstance(workload, Suite):
            return self.load(server, workload, index)
        parts = enumerate(workload.parts().items())
        return merge_repeats(
            index, [(name, self.load(server, load, workload.run_index(index, place))) for place, (name, load) in parts]
        )

    def load(self, server: Server, workload: SingleWorkload, index: int) -> Repeat:
        """Send the load once."""
        self.enter(Phase.BENCHMARK)
        with self.watch.measure(Phase.BENCHMARK):
            return server.benchmark(workload, index, self.cancelled)

    def search_capacity(self, server: Server, workload: Workload, promises: tuple[Slo, ...]) -> None:
        """Search the capacity once for each repeat, the later ones from what the earlier found.

        A repeat is what was measured at the capacity; where no rate held, at the lowest that was tried.
        """
        assert isinstance(workload, Traffic)
        assert workload.rate is not None  # checked where the study is made
        indices, first = itertools.count(), workload.rate
        points: list[RatePoint] = []

        def measure(rate: float) -> RatePoint:
            repeat = self.load(server, workload.at_rate_for_same_duration(rate), next(indices))
            missed = tuple(str(slo) for slo in promises if not slo.met(repeat.metrics.get(slo.metric)))
            points.append(RatePoint(rate, repeat, missed))
            write_points(self.spec.artifacts / "capacity.csv", points)
            return points[-1]

        for _ in range(self.spec.repeats):
            search = find_capacity(measure, first)
            best = search.best
            chosen = best or min(search.points, key=lambda point: point.rate)
            first = chosen.rate
            metrics = {**chosen.repeat.metrics, "capacity": best.rate if best else None}
            self.repeats.append(replace(chosen.repeat, metrics=metrics))

    def collect(self) -> None:
        """Read the server's own numbers; a server that failed may still have some in its log."""
        if self.server is None:
            return
        self.phase = Phase.COLLECT
        with self.watch.measure(Phase.COLLECT):
            self.facts = self.server.facts()

    def stop(self) -> Failure | None:
        """Stop the server; return what survived, if anything did."""
        if self.server is None:
            return None
        self.phase = Phase.STOP
        self.report(Phase.STOP)
        with self.watch.measure(Phase.STOP):
            return self.server.stop()


def _typed(error: Exception, phase: Phase) -> Failure:
    """Return the failure that an untyped exception amounts to."""
    if isinstance(error, TrialFailed):
        return error.failure
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(FailureKind.DISK_FULL, phase, f"no space left on disk: {error.filename or 'unknown file'}")
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
    """Run one attempt at a trial and return what came of it; never raises for a trial's own trouble.

    Args:
        engine: the engine of this worker.
        spec: what to run.
        cancelled: set it, and the trial ends as soon as it can, with failure kind `cancelled`.
        worker: name of the worker, for the record.
        device: name of the device, for the record.
        report: told each phase as it starts.
        clock: the time; by default the engine's.
    """
    clock = clock or engine.clock
    started = clock.now()
    run = _Run(engine, spec, cancelled, report, clock)
    failure: Failure | None = None
    for step in (run.measure, run.collect, run.stop):
        try:
            problem = step()
        except Exception as error:  # noqa: BLE001  the trial's boundary
            problem = _typed(error, run.phase)
        failure = failure or problem
    server = run.server
    return TrialOutcome(
        started_at=started,
        ended_at=clock.now(),
        provenance=engine.info().provenance,
        worker=worker,
        device=device,
        timings=run.watch.seconds(),
        artifacts=os.fspath(spec.artifacts),
        argv=server.argv if server else (*spec.launch.base_argv, *spec.launch.argv),
        environment=server.environment if server else dict(spec.launch.environment),
        repeats=tuple(run.repeats),
        server=run.facts,
        failure=failure,
    )
