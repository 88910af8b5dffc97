"""One trial from check to stop, and the search for a capacity."""

import csv
import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from records.trials import Cut, Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts, TrialOutcome
from tests.contracts.executor_contract import spec as make_spec
from tests.fakes.stub_engine import StubEngine, StubServer
from tests.some import some
from tuner.cancellation import CancelToken
from tuner.clock import RealClock
from tuner.engines.base import Watch
from tuner.errors import TrialCut
from tuner.scoring.goals import parse_slo
from tuner.specs import CutRule, Limits, TrialSpec
from tuner.trial.capacity import RATIO, CapacitySearch, RatePoint, find_capacity, write_points
from tuner.trial.pipeline import run_trial
from tuner.workloads.spec import Workload
from tuner.workloads.traffic import Traffic

Result = dict[str, float | None] | Failure


LOAD = Traffic.model_validate(
    {"arrivals": {"process": "poisson", "rate": 8}, "requests": 80, "classes": {"a": {"input": 1, "output": 1}}}
)


def figures(spec: TrialSpec, index: int) -> Result:
    return {"output_throughput": 10.0 + index, "success_rate": 1.0}


class Starts(StubEngine):
    """An engine of servers of a class."""

    def __init__(self, server: type[StubServer]) -> None:
        super().__init__(figures)
        self._server = server

    def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
        self.servers.append(self._server(spec, figures, None))
        return self.servers[-1]


def run(engine: StubEngine, spec: TrialSpec, clock: RealClock | None = None) -> TrialOutcome:
    return run_trial(engine, spec, threading.Event(), worker="w0", device="cpu", clock=clock or RealClock())


def test_phases_in_order_and_every_second_has_a_name(tmp_path: Path) -> None:
    engine = StubEngine(figures)
    phases: list[Phase] = []
    outcome = run_trial(
        engine, make_spec(tmp_path, 1), threading.Event(), worker="w0", device="cpu", report=phases.append
    )
    assert phases == [
        Phase.CHECK,
        Phase.LAUNCH,
        Phase.READY,
        Phase.WARMUP,
        Phase.BENCHMARK,
        Phase.BENCHMARK,
        Phase.STOP,
    ]
    assert set(outcome.timings) == {"check", "launch", "ready", "warmup", "benchmark", "collect", "stop", "own"}
    wall = (outcome.ended_at - outcome.started_at).total_seconds()
    assert sum(outcome.timings.values()) == pytest.approx(wall, abs=0.05)
    assert outcome.metric("output_throughput") == 10.5
    assert outcome.provenance is Provenance.SIMULATED
    assert engine.servers[0].stopped == 1


def test_each_repeat_has_the_cost_at_the_price_of_the_trial(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path, 1), price_per_hour=0.036)
    outcome = run(StubEngine(figures), spec)
    costs = [repeat.metrics["cost_per_million_output_tokens"] for repeat in outcome.repeats]
    # a second costs 0.00001; 10 and 11 tokens a second
    assert costs == [pytest.approx(1.0), pytest.approx(10 / 11)]
    assert outcome.metric("cost_per_million_total_tokens") is None
    free = run(StubEngine(figures), make_spec(tmp_path, 2))
    assert "cost_per_million_output_tokens" not in free.repeats[0].metrics


class SteppingClock(RealClock):
    """A clock whose date is set back by a day between any two looks at it, or forward."""

    def __init__(self, step: timedelta) -> None:
        self._step = step
        self._steps = 0

    def now(self) -> datetime:
        self._steps += 1
        return super().now() + self._steps * self._step


@pytest.mark.parametrize("days", [-1, 1])
def test_a_step_of_the_wall_clock_changes_no_duration(tmp_path: Path, days: int) -> None:
    clock = SteppingClock(timedelta(days=days))
    outcome = run(StubEngine(figures), make_spec(tmp_path, 1), clock)
    seconds = (outcome.ended_at - outcome.started_at).total_seconds()
    assert seconds == pytest.approx(sum(outcome.timings.values()), abs=0.5)


@pytest.mark.parametrize("phase", [Phase.CHECK, Phase.LAUNCH, Phase.READY, Phase.WARMUP, Phase.BENCHMARK])
def test_a_failure_keeps_its_phase_and_the_server_is_stopped(tmp_path: Path, phase: Phase) -> None:
    failure = Failure(FailureKind.ENGINE_CRASH, phase, "boom", "line", 1)
    engine = StubEngine(lambda spec, index: failure)
    outcome = run(engine, make_spec(tmp_path, 1))
    assert outcome.failure == failure
    assert outcome.repeats == ()
    assert all(server.stopped == 1 for server in engine.servers)
    assert len(engine.servers) == (0 if phase in (Phase.CHECK, Phase.LAUNCH) else 1)


def test_some_failed_requests_are_a_measurement(tmp_path: Path) -> None:
    engine = StubEngine(lambda spec, index: {"success_rate": 0.9, "output_throughput": 5.0})
    outcome = run(engine, make_spec(tmp_path, 1))
    assert outcome.succeeded
    assert [(r.completed, r.failed) for r in outcome.repeats] == [(9, 1), (9, 1)]


def test_a_cancelled_trial_launches_nothing(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    engine = StubEngine(figures)
    outcome = run_trial(engine, make_spec(tmp_path, 1), cancelled, worker="w0", device="cpu")
    assert some(outcome.failure).kind is FailureKind.CANCELLED
    assert engine.servers == []


class _Full(StubEngine):
    def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
        raise OSError(errno.ENOSPC, "No space left on device", "server.log")


class _StubbornServer(StubServer):
    def facts(self) -> ServerFacts:
        raise RuntimeError("no facts")

    def stop(self) -> Failure | None:
        self.stopped += 1
        return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.STOP, "processes 42 survived SIGKILL")


@pytest.mark.parametrize(
    ("engine", "kind", "phase", "message"),
    [
        (
            StubEngine(lambda *_: {"success_rate": 0.0}),
            "requests_failed",
            Phase.BENCHMARK,
            "none of 20 requests succeeded",
        ),
        (_Full(figures), "disk_full", Phase.LAUNCH, "no space left on disk: server.log"),
        (Starts(_StubbornServer), "tuner_error", Phase.COLLECT, "no facts"),
    ],
    ids=["no request succeeded", "a full disk", "an untyped exception and a survivor"],
)
def test_what_goes_wrong_fails_the_trial(
    tmp_path: Path, engine: StubEngine, kind: str, phase: Phase, message: str
) -> None:
    failure = some(run(engine, make_spec(tmp_path, 1)).failure)
    assert (failure.kind, failure.phase) == (kind, phase)
    assert message in failure.message
    assert [server.stopped for server in engine.servers] == ([] if phase is Phase.LAUNCH else [1])


class RatedServer(StubServer):
    """A server whose TTFT in ms is the request rate, and that records the workloads."""

    loads: ClassVar[list[tuple[float, int | None, int]]] = []

    def benchmark(self, workload: Workload, index: int, cancelled: CancelToken) -> Repeat:
        assert isinstance(workload, Traffic)
        assert workload.rate is not None
        self.loads.append((workload.rate, workload.requests, index))
        return Repeat(index, workload.repeat_seed(index), 10, 10, 0, 1.0, {"p95_ttft_ms": workload.rate})


class WatchedServer(StubServer):
    """A server that cuts its second benchmark short, and keeps what watches it."""

    watches: ClassVar[list[Watch]] = []

    def watch(self, watch: Watch) -> None:
        self.watches.append(watch)

    def benchmark(self, workload: Workload, index: int, cancelled: CancelToken) -> Repeat:
        if index:
            raise TrialCut(CUT)
        return Repeat(index, workload.seed, 10, 10, 0, 1.0, {"output_throughput": 3.0})


CUT = Cut("misses p99_ttft_ms<50", 2.0, 20, 100, violations={"p99_ttft_ms<50": 0.5})


def test_a_trial_that_is_cut_short_has_neither_repeats_nor_a_failure(tmp_path: Path) -> None:
    rule = CutRule((parse_slo("p99_ttft_ms<50"),), (), {}, 0.9)
    spec = replace(make_spec(tmp_path, 1), workload=LOAD, repeats=2, cut=rule)
    engine = Starts(WatchedServer)
    outcome = run(engine, spec)
    assert (outcome.cut, outcome.failure, outcome.repeats, outcome.succeeded) == (CUT, None, (), False)
    assert engine.servers[0].stopped == 1
    assert len(WatchedServer.watches) == 1
    run(Starts(WatchedServer), replace(spec, cut=None))
    assert len(WatchedServer.watches) == 1


def test_a_trial_with_capacity_slos_searches_the_capacity_once_per_repeat(tmp_path: Path) -> None:
    RatedServer.loads.clear()
    spec = replace(make_spec(tmp_path, 1), workload=LOAD, repeats=2, capacity_slos=(parse_slo("p95_ttft_ms<23"),))
    outcome = run(Starts(RatedServer), spec)
    # 8, 16, 32 (missed), then 22.6, 26.9 and 24.7 (missed); the second search begins at 22.6.
    assert [round(rate, 1) for rate, _, _ in RatedServer.loads][:6] == [8, 16, 32, 22.6, 26.9, 24.7]
    assert [requests for _, requests, _ in RatedServer.loads][:3] == [80, 160, 320]
    assert [index for _, _, index in RatedServer.loads] == list(range(len(RatedServer.loads)))
    assert outcome.succeeded
    assert outcome.metric("capacity") == pytest.approx(22.63, abs=0.01)
    assert outcome.metric("p95_ttft_ms") == pytest.approx(22.63, abs=0.01)
    rows = (spec.artifacts / "capacity.csv").read_text().splitlines()
    assert len(rows) == 1 + len(RatedServer.loads)


def test_where_no_rate_holds_there_is_no_capacity(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path, 1), workload=LOAD, repeats=1, capacity_slos=(parse_slo("p95_ttft_ms<0.01"),))
    outcome = run(Starts(RatedServer), spec)
    assert outcome.succeeded
    assert outcome.metric("capacity") is None
    assert outcome.metric("p95_ttft_ms") == 0.25


def test_rates_are_divided_by_the_gpus_of_the_server(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path, 1), gpus=4)
    spec = replace(spec, launch=replace(spec.launch, argv=("--tensor-parallel-size", "2")))
    outcome = run(StubEngine(figures), spec)
    assert outcome.metric("output_throughput") == 10.5
    assert outcome.metric("output_throughput_per_gpu") == 5.25
    assert outcome.metric("goodput_per_gpu") is None
    alone = run(StubEngine(figures), make_spec(tmp_path, 2))
    assert "output_throughput_per_gpu" not in alone.repeats[0].metrics


def point(rate: float, held: bool, ttft_ms: float | None = 10.0) -> RatePoint:
    repeat = Repeat(0, 0, 100, 99, 1, 10.0, {"p95_ttft_ms": ttft_ms, "goodput_share": 0.5})
    return RatePoint(rate, repeat, () if held else ("p95_ttft_ms<5", "success_rate>=1"))


def server(capacity: float) -> tuple[list[float], Callable[[float], RatePoint]]:
    tried: list[float] = []

    def measure(rate: float) -> RatePoint:
        tried.append(rate)
        return point(rate, rate <= capacity)

    return tried, measure


@pytest.mark.parametrize("capacity", [0.7, 4.0, 9.7, 33.0])
@pytest.mark.parametrize("first", [0.5, 8.0, 20.0])
def test_the_capacity_is_found_to_the_ratio_from_below(capacity: float, first: float) -> None:
    tried, measure = server(capacity)
    search = find_capacity(measure, first)
    assert search.best is not None
    if any(not tried.held for tried in search.points):
        assert capacity / RATIO <= search.best.rate <= capacity
    else:
        assert search.best.rate == max(tried) == first * 32
    assert len(tried) <= 10


def test_the_steps_are_doublings_then_halves_of_the_gap() -> None:
    # 4 and 8 hold, 16 does not; then 8 * sqrt(2) = 11.3 does not, 8 * 2 ** 0.25 = 9.5 does, 10.37 does not.
    tried, measure = server(10.0)
    search = find_capacity(measure, 4.0)
    assert tried == pytest.approx([4, 8, 16, 11.314, 9.514, 10.375], rel=1e-3)
    assert some(search.best).rate == pytest.approx(9.514, rel=1e-3)


def test_a_server_that_holds_no_rate_has_no_capacity() -> None:
    tried, measure = server(0.0)
    search = find_capacity(measure, 8.0)
    assert search.best is None
    assert tried == [8, 4, 2, 1, 0.5, 0.25]


def test_a_rate_that_held_above_one_that_missed_does_not_count() -> None:
    search = CapacitySearch((point(4, True), point(8, False), point(16, True)))
    assert some(search.best).rate == 4


def test_points_are_written_with_the_missed_slos(tmp_path: Path) -> None:
    write_points(tmp_path / "capacity.csv", [point(4, True), point(8, False, None)])
    rows = list(csv.DictReader((tmp_path / "capacity.csv").open()))
    assert [(row["rate"], row["held"], row["missed"]) for row in rows] == [
        ("4", "True", ""),
        ("8", "False", "p95_ttft_ms<5 success_rate>=1"),
    ]
    assert [row["p95_ttft_ms"] for row in rows] == ["10", ""]
