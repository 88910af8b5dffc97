"""The front of a study and its best trials under other weights, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from records.trials import Repeat, TrialRecord
from tests.unit.cli.studies import GOALS, out_of_memory, trial
from tuner.scoring import front as fronts
from tuner.scoring.front import Point, Weighed
from tuner.scoring.goals import Objective, parse_objective
from tuner.scoring.rounds import StudyRounds

BOTH = ("output_throughput", "p99_tpot_ms")


def front(records: Sequence[TrialRecord], reference: int, names: Sequence[str]) -> list[Point]:
    return fronts.front(StudyRounds(GOALS, records), reference, names)


def weighed(records: Sequence[TrialRecord], reference: int, scored: Sequence[Objective]) -> list[Weighed]:
    return fronts.weighed(StudyRounds(replace(GOALS, scored=tuple(scored)), records), reference)


def on_front(*records: TrialRecord) -> list[int]:
    return [point.number for point in front(records, 0, BOTH) if point.on_front]


def test_a_trial_that_another_one_beats_in_every_metric_is_not_on_the_front() -> None:
    fast, quick = trial(1, 1200.0, tpot=12.0), trial(2, 900.0, tpot=8.0)
    assert on_front(trial(0), fast, quick) == [0, 1, 2]
    assert on_front(trial(0), fast, quick, trial(3, 1200.0, tpot=9.0)) == [2, 3]  # as fast as 1, better than 0


def test_equal_trials_are_both_on_the_front() -> None:
    assert on_front(trial(0), trial(1)) == [0, 1]


def test_what_failed_or_missed_an_slo_in_the_search_or_in_a_round_is_not_on_the_front() -> None:
    missed = trial(1, 2000.0, tpot=60.0)  # p99_tpot_ms<50
    failed = trial(2, failure=out_of_memory())
    lucky = [trial(3, 2000.0), trial(3, 2000.0, tpot=60.0, round_=1)]
    crashed = [trial(4, 2000.0), trial(4, failure=out_of_memory(), round_=1)]
    assert on_front(trial(0), missed, failed, *lucky, *crashed) == [0]


def test_rounds_replace_the_search_and_are_relative_to_the_reference_in_the_same_rounds() -> None:
    # The rounds send more requests, so that their values are not those of the search.
    rounds = [
        trial(0, 500.0, round_=1),
        trial(0, 600.0, round_=2),
        trial(1, 550.0, round_=1),
        trial(1, 660.0, round_=2),
    ]
    points = {point.number: point for point in front([trial(0), trial(1, 2000.0), trial(2, 1200.0), *rounds], 0, BOTH)}
    assert (points[1].rounds, points[2].rounds) == (2, 0)
    assert points[1].metrics["output_throughput"].ratio == pytest.approx(1.1)
    # No noise, which counts as 0.5 %: t(0.975, 1) * 0.005 * sqrt(2 / 2) = 0.063531.
    assert math.log(points[1].metrics["output_throughput"].low or 0) == pytest.approx(
        math.log(1.1) - 0.063531, abs=1e-5
    )
    assert points[2].metrics["output_throughput"].ratio == pytest.approx(1.2)
    assert points[2].metrics["output_throughput"].low is None  # nothing has repeats


def test_the_noise_of_repeats_is_the_interval_of_a_single_measurement() -> None:
    one = trial(0)
    assert one.outcome is not None
    repeats = tuple(
        Repeat(index, index, 100, 100, 0, 40.0, {"output_throughput": value, "p99_tpot_ms": 10.0})
        for index, value in enumerate((1000.0, 1000.0 * math.e**0.02))
    )
    reference = replace(one, outcome=replace(one.outcome, repeats=repeats))
    point = front([reference, trial(1, 1200.0)], 0, BOTH)[1].metrics["output_throughput"]
    # s = 0.02 / sqrt(2), one degree: t(0.975, 1) = 12.7062, so the half-width is 12.7062 * 0.0141421 * sqrt(1 + 1/2).
    half = 12.7062 * 0.0141421 * math.sqrt(1.5)
    assert point.ratio == pytest.approx(1.2 / math.e**0.01)
    assert point.high is not None
    assert math.log(point.high / (point.ratio or 1)) == pytest.approx(half, abs=1e-4)


def test_other_weights_choose_another_trial() -> None:
    records = [trial(0), trial(1, 2000.0, tpot=20.0), trial(2, 800.0, tpot=5.0), trial(3, 4000.0, tpot=60.0)]
    throughput = [parse_objective("output_throughput:3"), parse_objective("p99_tpot_ms:1")]
    found = weighed(records, 0, throughput)
    assert [each.number for each in found] == [1, 2, 0]  # 3 misses its SLO
    assert found[0].score.ratio == pytest.approx(2.0 ** (3 / 4) * 0.5 ** (1 / 4))
    latency = weighed(records, 0, [parse_objective("p99_tpot_ms:1")])
    assert [(each.number, each.score.ratio) for each in latency] == [(2, 2.0), (0, 1.0), (1, 0.5)]
    assert found[0].score.rounds == 0


def test_a_score_of_rounds_has_their_interval() -> None:
    rounds = [trial(0, 1000.0, round_=n) for n in (1, 2, 3)]
    rounds += [trial(1, 1000.0 * math.exp(d), round_=n) for n, d in ((1, 0.1), (2, 0.2), (3, 0.3))]
    found = weighed([trial(0), trial(1, 3000.0), *rounds], 0, [parse_objective("output_throughput")])[0]
    assert (found.number, found.score.rounds) == (1, 3)
    assert found.score.ratio == pytest.approx(math.exp(0.2))
    # As in test_compare: t(0.975, 2) * 0.1 / sqrt(3).
    assert math.log(found.score.low or 0) == pytest.approx(0.2 - 0.248414, abs=1e-5)
