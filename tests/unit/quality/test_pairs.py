"""Flips, the exact interval and the verdict, against values worked out by hand."""

from __future__ import annotations

import pytest

from tuner.quality.compare import AnswersVerdict, Pairs, clopper_pearson, pair


def test_questions_are_counted_by_who_is_right() -> None:
    pairs = pair([True, True, True, False, False], [True, False, False, True, False])
    assert pairs == Pairs(both=1, lost=2, gained=1, neither=1)
    assert (pairs.questions, pairs.flips) == (5, 3)
    assert (pairs.reference, pairs.candidate) == (0.6, 0.4)
    assert pairs.quality == pytest.approx(2 / 3)


def test_answers_of_different_questions_are_not_paired() -> None:
    with pytest.raises(ValueError, match="2 and 1 answers cannot be paired"):
        pair([True, False], [True])


def test_clopper_pearson_without_a_success_has_a_closed_form() -> None:
    assert clopper_pearson(0, 10, 0.05) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert clopper_pearson(10, 10, 0.05) == pytest.approx((0.025**0.1, 1.0))
    assert clopper_pearson(0, 0, 0.05) == (0.0, 1.0)


def test_without_a_flip_the_interval_is_that_of_no_flip() -> None:
    """P(no flip in 400) = 0.0125 at the share of flips 1 - 0.0125**(1/400) = 0.01090; all of them may be losses."""
    low, high = Pairs(both=400, lost=0, gained=0, neither=0).interval
    assert low == pytest.approx(1 - 0.010895, abs=1e-6)
    assert high == pytest.approx(1 + 0.010895, abs=1e-6)


def test_the_interval_is_relative_to_the_reference() -> None:
    low, _ = Pairs(both=200, lost=0, gained=0, neither=200).interval
    assert low == pytest.approx(1 - 2 * 0.010895, abs=1e-6)


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (Pairs(both=400, lost=0, gained=0, neither=0), AnswersVerdict.UNDECIDED),
        (Pairs(both=500, lost=0, gained=0, neither=0), AnswersVerdict.KEPT),
        (Pairs(both=490, lost=10, gained=0, neither=0), AnswersVerdict.UNDECIDED),
        (Pairs(both=450, lost=50, gained=0, neither=0), AnswersVerdict.LOST),
        (Pairs(both=10, lost=490, gained=0, neither=0), AnswersVerdict.LOST),
        (Pairs(both=440, lost=30, gained=30, neither=0), AnswersVerdict.UNDECIDED),
    ],
)
def test_the_verdict_follows_from_the_interval(pairs: Pairs, verdict: AnswersVerdict) -> None:
    assert pairs.verdict(0.99) is verdict


def test_as_many_gains_as_losses_are_no_loss() -> None:
    low, high = Pairs(both=440, lost=30, gained=30, neither=0).interval
    assert low < 1 < high
