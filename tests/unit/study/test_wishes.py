"""A run that is asked from outside to pause or to conclude."""

from __future__ import annotations

from collections.abc import Callable

from records.trials import Failure, TrialKind
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import peak_at_16
from tuner.cancellation import Wishes
from tuner.specs import TrialSpec
from tuner.study.protocols import RunEnding

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
    assert result.conclusion is not None
    assert result.conclusion.confirmed


def test_an_event_that_was_not_set_ends_nothing() -> None:
    wishes = Wishes()
    assert not wishes.ends_search()
    wishes.stop.set()
    assert not wishes.ends_search()
