"""The ratio of any two trials of a study, from records made by hand."""

import math
from dataclasses import replace

import pytest

from tests.unit.study.test_conclusion import GOALS, record, rounds
from tuner.confidence import t_quantile
from tuner.scoring.rounds import StudyRounds

NAME = "output_throughput"


def test_rounds_with_both_are_compared_in_pairs() -> None:
    records = [record(0, [100.0]), record(3, [500.0]), *rounds((0, [100, 200]), (3, [110, 240]))]
    found = StudyRounds(GOALS, records).beside(NAME, 3, 0)
    # Ratios 1.1 and 1.2 in the rounds, which themselves differ by a factor of two; the values are medians.
    assert (found.one, found.other) == (150, 175)
    assert found.ratio is not None
    assert found.ratio == pytest.approx(math.sqrt(1.1 * 1.2))
    half = t_quantile(0.975, 1) * math.log(1.2 / 1.1) / 2
    assert [found.low, found.high] == pytest.approx([found.ratio * math.exp(sign * half) for sign in (-1, 1)])
    assert found.basis == "2 rounds"


def test_a_pair_that_agrees_by_luck_has_the_noise_of_all_rounds_of_the_study() -> None:
    # 3 is 10 % faster in each round; 4 varies: differences to the others of 0, 0.3 and 0.
    other = [100.0, 100.0 * math.exp(0.3), 100.0]
    both = StudyRounds(GOALS, rounds((0, [100, 100, 100]), (3, [110, 110, 110]), (4, other)))
    alone = StudyRounds(GOALS, rounds((0, [100, 100, 100]), (3, [110, 110, 110])))
    wide, narrow = both.metric(NAME, 3, 0), alone.metric(NAME, 3, 0)
    assert wide is not None
    assert narrow is not None
    # Residuals of row 4: -0.2/3, 0.4/3, -0.2/3; of the others half of that with the other sign: squares 0.04 over 4.
    assert math.log(wide.high or 0) - math.log(wide.ratio) == pytest.approx(
        t_quantile(0.975, 4) * 0.1 * math.sqrt(2 / 3), abs=1e-9
    )
    assert (narrow.low or 0) > (wide.low or 0)


def test_a_trial_relative_to_another_is_the_inverse_of_the_other_way_round() -> None:
    every = StudyRounds(GOALS, rounds((0, [100, 104, 99]), (3, [110, 109, 112])), comparisons=3)
    forth, back = every.score(3, 0), every.score(0, 3)
    assert forth is not None
    assert back is not None
    assert [back.ratio, back.low] == pytest.approx([1 / forth.ratio, 1 / (forth.high or 0)])


def test_the_search_is_compared_where_only_one_trial_has_rounds() -> None:
    records = [record(0, [100.0, 110.0]), record(5, [120.0]), *rounds((0, [300]), (3, [330]))]
    found = StudyRounds(GOALS, records).beside(NAME, 5, 0)
    assert (found.one, found.other, found.basis) == (105, 120, "2 and 1 repeats")


def low(every: StudyRounds) -> float | None:
    found = every.metric(NAME, 3, 0)
    return None if found is None else found.low


def test_an_overloaded_server_does_not_hide_what_the_others_differ_in() -> None:
    late = [record(4, [value], index + 1, tpot=60.0) for index, value in enumerate((10.0, 90.0, 10.0))]
    measured = [*rounds((0, [100, 101, 99]), (3, [120, 121, 119])), *late]
    assert low(StudyRounds(GOALS, measured)) == pytest.approx(1.18, abs=0.005)
    # Where each misses an SLO, all count.
    values = [(each, each.outcome.metric(NAME)) for each in measured if each.outcome is not None]
    missed = [record(each.number, [value or 0.0], each.round, tpot=60.0) for each, value in values]
    assert (low(StudyRounds(GOALS, missed)) or 1) < 0.5


def test_a_single_benchmark_has_no_interval_and_an_absent_metric_no_ratio() -> None:
    every = StudyRounds(GOALS, [record(0, [100.0]), record(1, [150.0])])
    found = every.beside(NAME, 1, 0)
    assert found.ratio == pytest.approx(1.5)
    assert (found.low, found.basis) == (None, "1 and 1 repeats")
    assert every.beside("goodput", 1, 0).ratio is None


def test_the_values_are_of_the_rounds_that_the_conclusion_compares() -> None:
    earlier = [replace(each, round=each.round + 5, label="earlier") for each in rounds((0, [50]))]
    records = [record(0, [80.0]), record(3, [90.0]), *rounds((0, [100, 102]), (3, [110, 112])), *earlier]
    conclusion = {"winner": 3, "reference": 0, "contenders": []}
    every = StudyRounds.concluded(GOALS, records, conclusion)
    assert [each.other for each in (every.beside(NAME, 0, 3), every.beside(NAME, 3, 0))] == [101, 111]
