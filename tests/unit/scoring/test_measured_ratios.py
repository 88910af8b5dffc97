"""The ratios of `tuner compare`, from records made by hand."""

from __future__ import annotations

import math

import pytest

from tests.unit.study.test_conclusion import record, rounds
from tuner.scoring.compare import measured_ratios, t_quantile

NAME = "output_throughput"


def test_rounds_with_both_are_compared_in_pairs() -> None:
    one = [record(0, [100.0]), *rounds((0, [100, 200]))]
    other = [record(3, [500.0]), *rounds((3, [110, 240]))]
    found = measured_ratios(one, other, [NAME], paired=True)[NAME]
    # Ratios 1.1 and 1.2 in the rounds, which themselves differ by a factor of two.
    assert found.ratio is not None
    assert found.ratio == pytest.approx(math.sqrt(1.1 * 1.2))
    assert (found.one, found.other) == pytest.approx((math.sqrt(100 * 200), math.sqrt(110 * 240)))
    half = t_quantile(0.975, 1) * math.log(1.2 / 1.1) / 2
    assert [found.low, found.high] == pytest.approx([found.ratio * math.exp(sign * half) for sign in (-1, 1)])
    assert found.basis == "2 rounds"


def test_trials_of_two_studies_are_compared_by_their_repeats() -> None:
    one, other = [record(0, [100.0, 100.0])], [record(1, [150.0, 150.0, 150.0])]
    found = measured_ratios(one, other, [NAME], paired=False)[NAME]
    assert (found.one, found.other) == pytest.approx((100, 150))
    assert found.basis == "2 and 3 repeats"
    assert [found.ratio, found.low, found.high] == pytest.approx([1.5, 1.5, 1.5])


def test_a_single_repeat_has_no_interval_and_an_absent_metric_no_ratio() -> None:
    found = measured_ratios([record(0, [100.0])], [record(1, [150.0])], [NAME, "goodput"], paired=True)
    assert found[NAME].ratio == pytest.approx(1.5)
    assert found[NAME].low is None
    assert (found["goodput"].one, found["goodput"].ratio) == (None, None)
