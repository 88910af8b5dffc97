"""Studies in which no configuration meets the SLOs: the nearest one, its distance to each SLO, and the capacity."""

from __future__ import annotations

import math

import pytest

from records.trials import Failure, TrialKind, TrialRecord
from tests.unit.study.conftest import Bench
from tests.unit.study.test_conclusion import GOALS, record, rounds
from tuner.confidence import t_quantile
from tuner.specs import TrialSpec
from tuner.study.alternatives import distance_of, mean_interval, nearest_of, nearest_trials
from tuner.study.specification.spec import Enqueued


def missing(number: int, tpot: float, throughput: float = 100.0, score: float = 1.0) -> TrialRecord:
    return record(number, [throughput], tpot=tpot, score=score)


def test_the_distance_is_the_logarithm_of_what_each_missed_slo_exceeds() -> None:
    assert distance_of([1.0, -0.5, 0.0, 3.0]) == pytest.approx(math.log(2) + math.log(4))
    assert distance_of([-1.0]) == 0.0


def test_the_nearest_trials_come_first_and_of_those_that_are_alike_the_highest_score() -> None:
    # Bound 50: violations 1, 1.05 and 3; log(2.05) is within 10 % of log(2).
    trials = [missing(0, 60), missing(1, 200), missing(2, 100), missing(3, 102.5, score=1.5)]
    assert [each.number for each in nearest_trials(trials, 2)] == [3, 2]
    assert [each.number for each in nearest_trials(trials, 9)] == [3, 2, 1]  # the defaults are not nominated


def test_the_interval_pools_the_variance_of_all_configurations() -> None:
    mean, low, high = mean_interval({1: [0.0, 2.0], 2: [10.0, 14.0]}, 1)
    # Squares 2 and 8 with a degree of freedom each: variance 5, half-width t(0.975, 2) * sqrt(5 / 2).
    half = t_quantile(0.975, 2) * math.sqrt(2.5)
    assert [mean, low, high] == pytest.approx([1.0, 1.0 - half, 1.0 + half])
    assert mean_interval({1: [4.0]}, 1)[1:] == (None, None)


def test_the_nearest_of_the_rounds_has_its_distance_to_each_slo() -> None:
    searched = [missing(1, 100), missing(2, 200), missing(3, 45)]
    cells = [record(number, [100.0], round_, tpot) for number, tpot in ((1, 100.0), (2, 200.0)) for round_ in (1, 2)]
    found = nearest_of(GOALS, [*searched, *cells], "finals")
    assert found is not None
    assert found.number == 1
    [distance] = found.slos
    assert distance.slo == "p99_tpot_ms<50"
    assert [distance.value, distance.excess] == pytest.approx([100.0, 1.0])
    assert (distance.best, distance.best_trial, distance.best_meets) == (45, 3, True)
    assert nearest_of(GOALS, [*searched, *rounds()], "finals") is None


def slow(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """p99 TPOT 100 ms for the defaults and 60 at max_num_seqs 16; the SLO is 50."""
    tpot = 60.0 if spec.config.get("max_num_seqs") == 16 else 100.0
    return {"success_rate": 1.0, "p99_tpot_ms": tpot, "output_throughput": 500.0}


def test_the_nearest_is_measured_again_and_a_continued_study_measures_nothing_again(bench: Bench) -> None:
    known = tuple(Enqueued(f"n{seqs}", {"max_num_seqs": seqs}) for seqs in (8, 16))
    conclusion = bench.run(slow, trials=3, enqueue=known).conclusion
    assert conclusion is not None
    assert (conclusion.winner, conclusion.exported, conclusion.confirmed) == (None, 2, True)
    assert conclusion.nearest is not None
    assert {each.slo: each.excess for each in conclusion.nearest.slos} == {
        "p99_tpot_ms<50": pytest.approx(0.2),
        "success_rate>=1": 0.0,
    }
    assert conclusion.nearest.capacity is None  # a closed loop has no request rate
    records = bench.records()
    assert {each.kind for each in records if each.round} == {TrialKind.CONFIRM}
    assert bench.run(slow, trials=3, enqueue=known).conclusion == conclusion
    assert bench.records() == records


def test_one_that_meets_the_slos_in_every_round_wins_after_all(bench: Bench) -> None:
    def slow_in_the_search(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return {"success_rate": 1.0, "p99_tpot_ms": 10.0 if spec.round else 60.0, "output_throughput": 500.0}

    conclusion = bench.run(slow_in_the_search, trials=3).conclusion
    assert conclusion is not None
    assert (conclusion.winner, conclusion.keep_defaults, conclusion.nearest) == (0, True, None)
