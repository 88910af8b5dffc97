"""The loop with workers that do not answer or have not started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, ServerFacts, TrialKind, TrialOutcome
from tests.fakes.stub_engine import StubEngine, StubServer
from tests.unit.study.conftest import Bench
from tuner.engines.base import EngineInfo
from tuner.executors.base import Finished, WorkerState
from tuner.specs import TrialSpec
from tuner.study.loop import CANCEL_S, Loop, warm_up_note
from tuner.study.protocols import RunEnding, WorkItem
from tuner.study.run import open_study
from tuner.study.specification.spec import Budget

TICK_S = 20.0
"""How far the clock moves with each wait."""


class SteppedClock:
    """A clock that the executor moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


class SilentExecutor:
    """An executor whose worker starts after some waits and never answers."""

    slots = 1

    def __init__(
        self,
        clock: SteppedClock,
        info: EngineInfo,
        waits_to_start: int = 0,
        on_submit: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock, self.info, self.waits_to_start, self.on_submit = clock, info, waits_to_start, on_submit
        self.submitted: list[str] = []
        self.cancelled_at: list[float] = []

    def engine_info(self) -> EngineInfo:
        return self.info

    def idle(self) -> list[int]:
        return [0] if self.waits_to_start <= 0 and not self.submitted else []

    def starting(self) -> list[int]:
        return [0] if self.waits_to_start > 0 else []

    def submit(self, spec: TrialSpec, slot: int) -> None:
        self.submitted.append(spec.uid)
        self.on_submit()

    def wait_any(self, timeout_s: float) -> list[Finished]:
        self.clock.seconds += TICK_S
        self.waits_to_start -= 1
        return []

    def cancel(self) -> None:
        self.cancelled_at.append(self.clock.seconds)

    def states(self) -> list[WorkerState]:
        return []

    def close(self) -> None:
        pass


class LateExecutor(SilentExecutor):
    """An executor whose trial ends with a failure once the clock has passed a time."""

    ends_at = 120.0

    def submit(self, spec: TrialSpec, slot: int) -> None:
        super().submit(spec, slot)
        self.spec = spec

    def wait_any(self, timeout_s: float) -> list[Finished]:
        super().wait_any(timeout_s)
        if self.clock.seconds < self.ends_at or len(self.submitted) != 1:
            return []
        self.submitted.append("ended")
        now = self.clock.now()
        failure = Failure(FailureKind.ENGINE_CRASH, Phase.READY, "it does not start")
        outcome = TrialOutcome(now, now, Provenance.SIMULATED, "w0", "cpu", {}, "", failure=failure)
        return [Finished(self.spec, outcome, 0)]


class OneTrial:
    def __init__(self) -> None:
        self.items = [WorkItem(0, 0, TrialKind.BASELINE, {}, None)]

    def next(self, slot: int) -> WorkItem | None:
        return self.items.pop() if self.items else None

    def exhausted(self) -> bool:
        return not self.items

    def give_back(self, item: WorkItem) -> None:
        self.items.append(item)


def run_loop(
    bench: Bench, executor: SilentExecutor, clock: SteppedClock, stop: threading.Event, limit: float
) -> RunEnding:
    store, spec = bench.store(), bench.spec()
    try:
        open_study(store, spec, executor.info, ["cpu"], clock)
        optuna_study: Any = SimpleNamespace(tell=lambda *_: None)
        loop = Loop(spec, Budget(1), store, optuna_study, executor, bench.listener, stop, clock)
        return loop.run(OneTrial(), lambda: clock.seconds >= limit)
    finally:
        store.close()


@pytest.fixture
def info() -> EngineInfo:
    return StubEngine(lambda *_: {}).info()


def test_an_interrupted_run_leaves_a_trial_whose_worker_does_not_answer(bench: Bench, info: EngineInfo) -> None:
    clock, stop = SteppedClock(), threading.Event()
    executor = SilentExecutor(clock, info, on_submit=stop.set)
    assert run_loop(bench, executor, clock, stop, 1e9) is RunEnding.INTERRUPTED
    assert executor.cancelled_at[0] == TICK_S
    assert clock.seconds == TICK_S + CANCEL_S
    assert bench.listener.notes == [f"#0 did not end {CANCEL_S:.0f} s after the cancellation; the next run repeats it"]
    assert bench.records()[0].outcome is None


def test_a_time_limit_ends_a_run_whose_worker_does_not_answer(bench: Bench, info: EngineInfo) -> None:
    clock = SteppedClock()
    executor = SilentExecutor(clock, info)
    assert run_loop(bench, executor, clock, threading.Event(), 100.0) is RunEnding.TIMEOUT
    # Without a finished trial, the running one may continue for a server's start.
    startup_s = bench.spec().limits.startup_s
    assert executor.cancelled_at[0] == 100.0 + startup_s
    assert clock.seconds == 100.0 + startup_s + CANCEL_S


def test_a_last_trial_that_ends_soon_after_the_time_limit_is_no_timeout(bench: Bench, info: EngineInfo) -> None:
    clock = SteppedClock()
    executor = LateExecutor(clock, info)
    assert run_loop(bench, executor, clock, threading.Event(), 100.0) is RunEnding.DONE
    assert clock.seconds == 120.0
    assert executor.cancelled_at == []


def test_a_worker_that_starts_late_gets_its_trial(bench: Bench, info: EngineInfo) -> None:
    clock = SteppedClock()
    executor = SilentExecutor(clock, info, waits_to_start=3)
    run_loop(bench, executor, clock, threading.Event(), 100.0)
    assert executor.submitted == ["0"]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (None, None),
        (ServerFacts(), None),  # a simulated server, or one without a warm-up
        (ServerFacts(warmup_windows=2, warmup_settled=True, benchmarks_again=0), None),
        (
            ServerFacts(warmup_windows=3, warmup_settled=True, benchmarks_again=2),
            "#0: kernels were compiled during a benchmark, which was measured again",
        ),
        (
            ServerFacts(warmup_windows=8, warmup_settled=False, benchmarks_again=2),
            "#0: the warm-up was not settled after 8 windows; its values may be worse than the server's",
        ),
    ],
)
def test_a_study_says_what_a_warm_up_did_to_a_trial(server: ServerFacts | None, expected: str | None) -> None:
    assert warm_up_note("#0", server) == expected


def test_a_study_says_once_that_kernels_are_not_tuned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubServer, "facts", lambda _: ServerFacts(untuned_kernels="E=8.json; N=4.json"))
    bench.run(lambda *_: {"output_throughput": 1.0, "p99_tpot_ms": 1.0}, trials=3, confirm_rounds=0)
    assert len(bench.listener.finished_trials) >= 3
    assert [note for note in bench.listener.notes if "tuned" in note] == [
        "#0: the engine has no tuned settings of its kernels for this card and model, and uses default ones "
        "(E=8.json and 1 more); docs/engines.md#tuned-kernels says how to make them"
    ]
