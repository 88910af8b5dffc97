"""Finalists against the defaults, against numbers worked out by hand."""

import math

import pytest

from tuner.scoring.compare import compare, residual_squares


def test_a_constant_gain_has_no_noise() -> None:
    logs = {0: [0.0, 0.1, -0.1], 7: [0.2, 0.3, 0.1]}
    result = compare(logs, 0)[7]
    assert result.ratio == pytest.approx(math.exp(0.2))
    assert result.low == pytest.approx(math.exp(0.2))
    assert result.beyond_noise


def test_interval_by_hand_for_two_configurations() -> None:
    # Differences 0.1, 0.2, 0.3: mean 0.2. For two rows the residuals are +-(d - mean)/2, so their squares add up to
    # 2 * 2 * 0.05**2 = 0.01 over (2-1)(3-1) = 2 degrees: s2 = 0.005. t(0.975, 2) = 4.302653.
    # Half-width = 4.302653 * sqrt(2 * 0.005 / 3) = 0.248414: the classical paired t interval.
    result = compare({0: [0.0, 0.0, 0.0], 1: [0.1, 0.2, 0.3]}, 0)[1]
    assert result.ratio == pytest.approx(math.exp(0.2))
    assert math.log(result.low or 0) == pytest.approx(0.2 - 0.248414, abs=1e-5)
    assert math.log(result.high or 0) == pytest.approx(0.2 + 0.248414, abs=1e-5)
    assert not result.beyond_noise


def test_more_finalists_widen_the_interval_for_the_choice_and_share_the_variance() -> None:
    # Three rows, two comparisons: alpha is halved, t(1 - 0.05/4, (3-1)(2-1) = 2) = 6.205347.
    # Columns differ by a shift only for rows 0 and 2; row 1 is off by +-0.1.
    logs = {0: [0.0, 1.0], 1: [0.3, 1.1], 2: [0.0, 1.0]}
    # Row means .5 .7 .5, column means .1 and 31/30, grand 17/30: residuals row 1: +-1/15, rows 0 and 2: -+1/30.
    residual = 2 * (1 / 15) ** 2 + 4 * (1 / 30) ** 2
    half = 6.205347 * math.sqrt(2 * (residual / 2) / 2)
    result = compare(logs, 0)
    assert math.log(result[1].high or 0) == pytest.approx(0.2 + half, abs=1e-5)
    assert result[2].ratio == pytest.approx(1.0)


def test_one_round_gives_a_ratio_and_no_interval() -> None:
    result = compare({0: [0.0], 1: [math.log(1.5)]}, 0)[1]
    assert result.ratio == pytest.approx(1.5)
    assert result.low is None
    assert not result.beyond_noise


def test_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="one value in each round"):
        compare({0: [0.0, 1.0], 1: [0.0]}, 0)
    with pytest.raises(ValueError, match="reference 5"):
        compare({0: [0.0]}, 5)


def test_ratios_are_finite_whatever_the_rounds() -> None:
    ratio = compare({0: [-700.0, 700.0], 1: [700.0, -700.0]}, 0)[1]
    assert ratio.low is not None
    assert ratio.high is not None
    assert 0 < ratio.low <= ratio.ratio <= ratio.high < math.inf


def test_without_two_configurations_and_rounds_there_are_no_degrees_of_freedom() -> None:
    for logs in ({}, {1: [0.0, 1.0]}, {1: [0.0], 2: [1.0]}):
        assert residual_squares(logs) == (0.0, 0)
