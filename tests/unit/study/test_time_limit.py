"""The time limit of a run: one clock, a capped reserve for the confirmation, and rounds that do not fit."""

from __future__ import annotations

from datetime import datetime

from records.trials import Failure, TrialKind
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import peak_at_16
from tuner.clock import RealClock
from tuner.specs import TrialSpec
from tuner.study.protocols import RunEnding


class HandClock:
    """A clock that only `wait` moves; its date is the real one."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

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
        "time limit 60 min: the search ends 30 min before it, which are reserved for the confirmation; it is expected "
        "to take 2.0 h, and half of the limit is the most that is reserved"
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
    assert result.conclusion is None
    assert clock.seconds < 900
    begun = len(numbers(bench, TrialKind.CONFIRM))
    assert 0 < begun < 12
    bench.listener.notes.clear()
    result = bench.run(slow_rounds, trials=4)
    assert not [note for note in bench.listener.notes if "time limit" in note]
    assert result.conclusion is not None
    assert result.conclusion.confirmed
    assert len(numbers(bench, TrialKind.CONFIRM)) == 12


def test_a_limit_that_passes_during_the_last_measurement_changes_nothing(bench: Bench) -> None:
    clock = HandClock()

    def slow_last(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        clock.wait(1000 if spec.round == 3 and index == 2 and len(numbers(bench, TrialKind.CONFIRM)) == 11 else 1)
        return peak_at_16(spec, index)

    result = bench.run(slow_last, trials=4, timeout_s=600, clock=clock)
    assert result.conclusion is not None
    assert result.conclusion.confirmed
