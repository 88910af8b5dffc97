"""Ratios with intervals, against numbers worked out by hand."""

import math

import pytest

from tuner.scoring.compare import (
    LEAST_DEVIATION,
    Noise,
    Ratio,
    logarithms,
    paired_ratio,
    pooled_noise,
    residual_noise,
    unpaired_ratio,
)


def test_interval_by_hand_for_two_configurations() -> None:
    # Differences 0.1, 0.2, 0.3: mean 0.2. For two rows the residuals are +-(d - mean)/2, so their squares add up to
    # 2 * 2 * 0.05**2 = 0.01 over (2-1)(3-1) = 2 degrees: s2 = 0.005. t(0.975, 2) = 4.302653.
    # Half-width = 4.302653 * sqrt(2 * 0.005 / 3) = 0.248414: the classical paired t interval.
    noise = residual_noise([[[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]]])
    assert noise is not None
    assert noise.degrees == 2
    assert noise.deviation**2 == pytest.approx(0.005)
    result = paired_ratio([0.1, 0.2, 0.3], noise, 1)
    assert result.ratio == pytest.approx(math.exp(0.2))
    assert math.log(result.low or 0) == pytest.approx(0.2 - 0.248414, abs=1e-5)
    assert math.log(result.high or 0) == pytest.approx(0.2 + 0.248414, abs=1e-5)
    assert not result.beyond_noise


def test_more_finalists_widen_the_interval_for_the_choice_and_share_the_variance() -> None:
    # Three rows, two comparisons: alpha is halved, t(1 - 0.05/4, (3-1)(2-1) = 2) = 6.205347.
    # Columns differ by a shift only for rows 0 and 2; row 1 is off by +-0.1.
    # Row means .5 .7 .5, column means .1 and 31/30, grand 17/30: residuals row 1: +-1/15, rows 0 and 2: -+1/30.
    residual = 2 * (1 / 15) ** 2 + 4 * (1 / 30) ** 2
    half = 6.205347 * math.sqrt(2 * (residual / 2) / 2)
    result = paired_ratio([0.3, 0.1], residual_noise([[[0.0, 1.0], [0.3, 1.1], [0.0, 1.0]]]), 2)
    assert math.log(result.high or 0) == pytest.approx(0.2 + half, abs=1e-5)


def test_the_noise_of_several_groups_is_pooled() -> None:
    # 0.01 with 2 degrees, as above, and no residual with 2 more: s2 = 0.0025.
    noise = residual_noise([[[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]], [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]])
    assert noise is not None
    assert noise.degrees == 4
    assert noise.deviation == pytest.approx(0.05)


def test_three_rounds_that_happen_to_agree_give_no_interval_of_a_tenth_of_a_per_cent() -> None:
    # s counts as 0.005: half-width 4.302653 * 0.005 * sqrt(2 / 3) = 0.017565.
    result = paired_ratio([-0.045, -0.0451, -0.0449], Noise(0.0001, 2), 1)
    assert LEAST_DEVIATION == 0.005
    assert math.log(result.high or 0) == pytest.approx(-0.045 + 0.017565, abs=1e-5)


def test_values_that_never_vary_have_no_interval() -> None:
    assert paired_ratio([0.0, 0.0], Noise(0.0, 1), 1) == Ratio(1.0, None, None, 2)


def test_one_round_gives_a_ratio_and_no_interval() -> None:
    result = paired_ratio([math.log(1.5)], None, 1)
    assert result.ratio == pytest.approx(1.5)
    assert result.low is None
    assert not result.beyond_noise


def test_ratios_are_finite_whatever_the_rounds() -> None:
    ratio = paired_ratio([1400.0, -1400.0], Noise(1000.0, 1), 1)
    assert ratio.low is not None
    assert ratio.high is not None
    assert 0 < ratio.low <= ratio.ratio <= ratio.high < math.inf


def test_without_two_configurations_and_rounds_there_is_no_noise() -> None:
    assert [residual_noise([rows]) for rows in ([], [[0.0, 1.0]], [[0.0], [1.0]])] == [None, None, None]
    assert pooled_noise([[1.0], [2.0], []]) is None


def test_benchmarks_of_two_servers_are_compared_by_the_noise_within_servers() -> None:
    # Squares 0.0002 and 0.0002 with one degree each: s = 0.0141421. t(0.975, 2) = 4.302653; 1 / 2 + 1 / 1 = 1.5.
    noise = pooled_noise([[0.0, 0.02], [1.0, 1.02]])
    result = unpaired_ratio([0.0, 0.02], [0.1], noise)
    assert result.rounds == 0
    assert result.ratio == pytest.approx(math.exp(0.09))
    assert math.log(result.high or 0) == pytest.approx(0.09 + 4.302653 * 0.0141421 * math.sqrt(1.5), abs=1e-5)


def test_a_ratio_the_other_way_round() -> None:
    assert Ratio(2.0, 1.6, 2.5, 3).inverse() == Ratio(0.5, 0.4, 0.625, 3)


def test_an_absent_value_or_one_that_is_not_positive_has_no_logarithm() -> None:
    assert [logarithms(values) for values in ([], [1.0, None], [1.0, 0.0], [1.0])] == [None, None, None, [0.0]]
