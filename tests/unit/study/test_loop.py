"""The study's loop: its budget, the time limit, and wishes from outside."""

import math
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts, TrialKind, TrialOutcome
from search_spaces import Context, hardware_named, load_space
from tests.fakes.stub_engine import StubEngine, StubServer
from tests.some import some
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import FIGURES, peak_at_16
from tuner.cancellation import Wishes
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo
from tuner.executors.base import Finished, WorkerState
from tuner.settings.study import SearchSettings
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

    def fits(self, slot: int, gpus: int) -> bool:
        return True

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


class Items:
    """A source of given trials; without any, that of the defaults."""

    def __init__(self, *items: WorkItem) -> None:
        self.items = deque(items or [WorkItem(0, 0, TrialKind.BASELINE, {}, None)])

    def next(self, slot: int) -> WorkItem | None:
        return self.items.popleft() if self.items else None

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
        return loop.run(Items(), lambda: clock.seconds >= limit)
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


def test_what_is_proposed_while_the_study_is_stopped_does_not_start(
    bench: Bench, info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop may have kept predictions from it."""
    clock, stop = SteppedClock(), threading.Event()
    executor = SilentExecutor(clock, info)
    proposed = Items.next

    def stopped(source: Items, slot: int) -> WorkItem | None:
        stop.set()
        return proposed(source, slot)

    monkeypatch.setattr(Items, "next", stopped)
    assert run_loop(bench, executor, clock, stop, limit=math.inf) is RunEnding.INTERRUPTED
    assert executor.submitted == []
    assert bench.records() == []


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


def test_only_trials_of_the_search_are_cut_below_the_best_or_beyond_the_nearest(bench: Bench) -> None:
    def rules(cut_short: bool = True) -> dict[str, tuple[float | None, float] | None]:
        """Return the score that each trial must reach, and the largest distance to the SLOs."""
        wanted: dict[str, tuple[float | None, float] | None] = {}

        def landscape(trial: TrialSpec, _: int) -> dict[str, float | None]:
            wanted[f"{trial.uid} {trial.kind}"] = None if trial.cut is None else (trial.cut.score, trial.cut.distance)
            tpot = 60.0 if trial.number == 0 else 25.0
            return {"output_throughput": 100.0, "p99_tpot_ms": tpot, "success_rate": 1.0}

        search = SearchSettings(seed=3, cut_short=cut_short)
        bench.run(landscape, trials=3, search=search, name=f"s{cut_short}", finalists=1, confirm_rounds=1)
        return wanted

    found = rules()
    # the defaults miss the SLO of 50 ms by a fifth, and trial 1 has 60 / 25 of the score with 20 of 70 parts of weight
    nearest, best = found.pop("1 search"), found.pop("2 search")
    assert nearest is not None
    assert nearest[0] is None
    assert nearest[1] == pytest.approx(math.log(1.2 / 0.9))
    assert best is not None
    assert best[0] == pytest.approx(0.9 * (60 / 25) ** (20 / 70))
    assert len(found) >= 3
    assert set(found.values()) == {None}
    assert set(rules(cut_short=False).values()) == {None}


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
        "(E=8.json and 1 more); `tuner study kernels` makes those of experts"
    ]


class TwoGpuExecutor(SilentExecutor):
    """One worker of two GPUs, of which the second is slot 1; `lasts` has the seconds of each trial."""

    def __init__(self, clock: SteppedClock, info: EngineInfo, lasts: dict[int, float]) -> None:
        super().__init__(clock, info)
        self.lasts = lasts
        self.running: dict[int, tuple[TrialSpec, float]] = {}
        self.began: list[tuple[float, int, int]] = []
        """Seconds, trial and slot of each start."""

    def _gpus(self, slot: int) -> int:
        return self.running[slot][0].launch.gpus(2) if slot in self.running else 0

    def idle(self) -> list[int]:
        return [slot for slot in (0, 1) if slot not in self.running and (slot == 0 or self._gpus(0) < 2)]

    def fits(self, slot: int, gpus: int) -> bool:
        return gpus == 1 or (slot == 0 and 1 not in self.running)

    def submit(self, spec: TrialSpec, slot: int) -> None:
        assert slot in self.idle()
        assert self.fits(slot, spec.launch.gpus(2))
        self.began.append((self.clock.seconds, spec.number, slot))
        self.running[slot] = (spec, self.clock.seconds + self.lasts.get(spec.number, 100.0))

    def wait_any(self, timeout_s: float) -> list[Finished]:
        if not self.running:
            return []
        self.clock.seconds = min(end for _, end in self.running.values())
        ended = [slot for slot, (_, end) in self.running.items() if end <= self.clock.seconds]
        now = self.clock.now()
        found = [(slot, self.running.pop(slot)[0]) for slot in ended]
        repeat = Repeat(0, 0, 100, 100, 0, 1.0, {"output_throughput": 1.0, "p99_tpot_ms": 1.0, "success_rate": 1.0})
        outcome = TrialOutcome(now, now, Provenance.MEASURED, "w0", "cpu", {}, "", repeats=(repeat,))
        return [Finished(spec, outcome, slot) for slot, spec in found]


def loop_of_two_gpus(bench: Bench, clock: SteppedClock, lasts: dict[int, float]) -> tuple[Loop, TwoGpuExecutor]:
    info = EngineInfo("vllm", "0.25.1", None, None, Provenance.MEASURED)
    executor = TwoGpuExecutor(clock, info, lasts)
    spec = bench.spec(space=load_space("vllm").resolve(Context(hardware_named("h200"), "0.25.1", gpus=2)))
    store = bench.store()
    open_study(store, spec, info, ["2 × H"], clock)
    told = SimpleNamespace(tell=lambda *_: None)
    loop = Loop(spec, Budget(9), store, told, executor, bench.listener, threading.Event(), clock)  # type: ignore[arg-type]
    return loop, executor


def sized(*sizes: int) -> Items:
    """Return a source of trials that use so many GPUs, of which the first has the defaults."""
    kinds = [TrialKind.BASELINE, *[TrialKind.SEARCH] * len(sizes)]
    config = {1: {}, 2: {"tensor_parallel_size": 2}}
    return Items(*(WorkItem(number, 0, kinds[number], config[size], None) for number, size in enumerate(sizes)))


@pytest.mark.parametrize(
    ("sizes", "lasts", "began"),
    [
        # two small ones beside each other, and a large one alone
        ([1, 1, 2], {}, [(0, 0, 0), (0, 1, 1), (100, 2, 0)]),
        # trial 2 overtakes trial 1, and trial 3 does not
        ([1, 2, 1, 1], {}, [(0, 0, 0), (0, 2, 1), (100, 1, 0), (200, 3, 0)]),
        ([1, 2, 1, 1], {2: 150.0}, [(0, 0, 0), (0, 2, 1), (150, 1, 0), (250, 3, 0)]),
        # the second large one shows that no small one comes
        ([1, 2, 2, 1], {}, [(0, 0, 0), (100, 1, 0), (200, 2, 0), (300, 3, 0)]),
        # large ones alone leave no GPU idle
        ([2, 2, 1], {}, [(0, 0, 0), (100, 1, 0), (200, 2, 0)]),
        # a small one that ends first makes room for the next small one
        ([1, 1, 1, 1], {0: 50.0}, [(0, 0, 0), (0, 1, 1), (50, 2, 0), (100, 3, 1)]),
    ],
)
def test_trials_of_mixed_sizes_share_the_gpus(
    bench: Bench, sizes: list[int], lasts: dict[int, float], began: list[tuple[float, int, int]]
) -> None:
    loop, executor = loop_of_two_gpus(bench, SteppedClock(), lasts)
    assert loop.run(sized(*sizes), lambda: False) is RunEnding.DONE
    assert executor.began == began


def test_a_trial_that_still_waits_is_left_to_the_next_run(bench: Bench) -> None:
    clock = SteppedClock()
    loop, executor = loop_of_two_gpus(bench, clock, {})
    assert loop.run(sized(1, 2), lambda: clock.seconds > 0) is RunEnding.TIMEOUT
    assert executor.began == [(0, 0, 0)]
    waiting = some(bench.store().trial("s", 1, 0))
    assert (waiting.attempts, waiting.outcome) == (0, None)


class HandClock(SteppedClock):
    """A clock that only `wait` moves; its date is the real one."""

    def now(self) -> datetime:
        return RealClock().now()

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


def numbers(bench: Bench, kind: TrialKind | None = None) -> list[int]:
    every = [record for record in bench.records() if record.outcome is not None]
    return [record.number for record in every if (not record.round if kind is None else record.kind is kind)]


def test_one_slow_first_trial_does_not_end_the_search(bench: Bench) -> None:
    clock = HandClock()

    def slow_first(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(20 * 60 / 7 if not spec.config and not spec.round else 1)  # the stub calls this seven times
        return peak_at_16(spec, index)

    result = bench.run(slow_first, trials=6, timeout_s=3600, clock=clock, confirm_rounds=1, finalists=1)
    assert result.ending is RunEnding.DONE
    assert len(numbers(bench)) == 6
    reserved = [note for note in bench.listener.notes if note.startswith("time limit 60 min: ")]
    assert reserved[0] == (
        "time limit 60 min: the search ends 30 min before it, which are reserved for the confirmation; it may take "
        "40 min, and half of the limit is the most that is reserved"
    )
    assert reserved[-1].startswith("time limit 60 min: the search ends ")
    assert "half" not in reserved[-1]


def test_rounds_that_do_not_fit_end_with_the_limit_and_continue_later(bench: Bench) -> None:
    clock = HandClock()

    def slow_rounds(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(60 if spec.round else 1)
        return peak_at_16(spec, index)

    result = bench.run(slow_rounds, trials=4, timeout_s=600, clock=clock)
    assert result.ending is RunEnding.TIMEOUT
    assert not some(result.conclusion).confirmed
    assert some(result.conclusion).reason.endswith("no round confirmed it")
    assert clock.seconds < 900
    begun = len(numbers(bench, TrialKind.CONFIRM))
    assert 0 < begun < 12
    bench.listener.notes.clear()
    result = bench.run(slow_rounds, trials=4)
    assert not [note for note in bench.listener.notes if "time limit" in note]
    assert some(result.conclusion).confirmed
    assert len(numbers(bench, TrialKind.CONFIRM)) == 12


def test_a_limit_that_passes_during_the_last_measurement_changes_nothing(bench: Bench) -> None:
    clock = HandClock()

    def slow_last(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(1000 if spec.round == 3 and index == 2 and len(numbers(bench, TrialKind.CONFIRM)) == 11 else 1)
        return peak_at_16(spec, index)

    result = bench.run(slow_last, trials=4, timeout_s=600, clock=clock)
    assert some(result.conclusion).confirmed


def test_a_search_without_rounds_begins_no_trial_that_would_end_after_the_limit(bench: Bench) -> None:
    clock = HandClock()

    def steady(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(12)  # the stub calls this seven times for the defaults, and five times for another trial
        return peak_at_16(spec, index)

    result = bench.run(steady, trials=30, timeout_s=600, clock=clock, confirm_rounds=0)
    assert result.ending is RunEnding.TIMEOUT
    assert clock.seconds == 84 + 8 * 60


@pytest.mark.parametrize(
    ("timeout_s", "reduce", "singles", "rounds"),
    [(630, True, 0, 4), (730, True, 2, 4), (870, True, 2, 6), (730, False, 0, 6), (930, False, 0, 9)],
)
def test_the_finals_measure_what_fits_before_the_limit(
    bench: Bench, timeout_s: float, reduce: bool, singles: int, rounds: int
) -> None:
    """The search ends after 360 s, and each measurement takes 60 s; two rounds of two configurations give a result.

    With forms, the rounds are two at a time, else three.
    """
    clock = HandClock()

    def undecided(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(12)  # the stub calls this five times
        noise = (7 * spec.number + 5 * spec.round) % 3 - 1
        return {**FIGURES, "output_throughput": 1000.0 + 20.0 * bool(spec.config) + 30.0 * noise}

    result = bench.run(undecided, trials=6, timeout_s=timeout_s, clock=clock, reduce=reduce, baseline_repeats=1)
    assert some(result.conclusion).confirmed
    assert len(numbers(bench, TrialKind.REDUCED)) == singles
    assert len(numbers(bench, TrialKind.CONFIRM)) == rounds
    assert clock.seconds == 360 + 60 * (singles + rounds) < timeout_s


def test_a_limit_during_the_rounds_of_the_nearest_says_that_no_trial_met_the_slos(bench: Bench) -> None:
    clock = HandClock()

    def slow_and_late(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(60 if spec.round else 1)
        return {"success_rate": 1.0, "p99_tpot_ms": 100.0, "output_throughput": 500.0}

    result = bench.run(slow_and_late, trials=4, timeout_s=600, clock=clock)
    assert result.ending is RunEnding.TIMEOUT
    assert some(result.conclusion).reason == "no trial met the SLOs (p99_tpot_ms<50, success_rate>=1)"


def test_a_limit_before_the_first_rounds_does_not_replace_a_result_of_rounds(bench: Bench) -> None:
    clock = HandClock()

    def slow_later(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(60 if spec.round > 3 else 1)
        return peak_at_16(spec, index)

    assert some(bench.run(slow_later, trials=4, clock=clock).conclusion).confirmed
    stored = some(bench.store().study("s")).conclusion
    result = bench.run(slow_later, trials=12, timeout_s=60, clock=clock)
    assert (result.ending, result.conclusion) == (RunEnding.TIMEOUT, None)
    assert some(bench.store().study("s")).conclusion == stored


Metrics = dict[str, float | None] | Failure


def when(condition: Callable[[TrialSpec], bool], then: Callable[[], None]) -> Callable[[TrialSpec, int], Metrics]:
    """Return a landscape that calls `then` in each trial that fulfils a condition."""

    def landscape(spec: TrialSpec, index: int) -> Metrics:
        if condition(spec):
            then()
        return peak_at_16(spec, index)

    return landscape


def test_a_paused_search_keeps_its_running_trial_and_is_continued(bench: Bench) -> None:
    bench.wishes = wishes = Wishes()
    result = bench.run(when(lambda spec: spec.number == 2, wishes.pause.set), trials=6)
    assert result.ending is RunEnding.INTERRUPTED
    assert result.conclusion is None
    assert [record.number for record in bench.records() if record.outcome is not None] == [0, 1, 2]
    bench.wishes = None
    result = bench.run(peak_at_16, trials=6)
    assert result.conclusion is not None
    assert len([record for record in bench.records() if not record.round]) == 6


def test_a_search_asked_to_conclude_has_its_best_trial_without_rounds(bench: Bench) -> None:
    bench.wishes = wishes = Wishes()
    result = bench.run(when(lambda spec: spec.number == 3, wishes.conclude.set), trials=30)
    assert result.ending is RunEnding.TIMEOUT
    assert result.conclusion is not None
    assert not result.conclusion.confirmed
    assert [record.number for record in bench.records()] == [0, 1, 2, 3]
    scores = {r.number: r.verdict.score for r in bench.records() if r.verdict is not None and r.verdict.score}
    assert result.conclusion.winner == max(scores, key=lambda number: scores[number])


def test_rounds_asked_to_conclude_leave_the_conclusion_to_the_search(bench: Bench) -> None:
    bench.wishes = wishes = Wishes()
    result = bench.run(when(lambda spec: spec.round == 1, wishes.conclude.set), trials=4)
    assert result.conclusion is not None
    assert not result.conclusion.confirmed
    assert result.conclusion.rounds == 0


def test_rounds_that_are_paused_have_no_conclusion_and_are_continued(bench: Bench) -> None:
    bench.wishes = wishes = Wishes()
    result = bench.run(when(lambda spec: spec.round == 2, wishes.pause.set), trials=4)
    assert result.ending is RunEnding.INTERRUPTED
    assert result.conclusion is None
    begun = [record for record in bench.records() if record.kind is TrialKind.CONFIRM and record.outcome is not None]
    assert begun
    bench.wishes = None
    result = bench.run(peak_at_16, trials=4)
    assert some(result.conclusion).confirmed


def test_an_event_that_was_not_set_ends_nothing() -> None:
    wishes = Wishes()
    assert not wishes.ends_search()
    wishes.stop.set()
    assert not wishes.ends_search()
