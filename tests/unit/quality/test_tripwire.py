"""Agreement and KL divergence, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from tuner.quality.compare import Tripwire, compare_positions, kl_divergence

LN2 = math.log(2)


def top(**shares: float) -> list[tuple[int, float]]:
    """Return a position: shares of the tokens 1, 2, …, named t1, t2, …, the largest first."""
    tokens = [(int(name[1:]), math.log(share)) for name, share in shares.items()]
    return sorted(tokens, key=lambda token: -token[1])


def test_the_same_distribution_has_no_divergence() -> None:
    assert kl_divergence(top(t1=0.5, t2=0.25), top(t1=0.5, t2=0.25)) == pytest.approx(0, abs=1e-12)


def test_shared_tokens_and_one_class_for_the_rest() -> None:
    """P = 1/2, 1/4, rest 1/4 and Q = 1/4, 1/4, rest 1/2: ln 2 / 2 + 0 - ln 2 / 4."""
    assert kl_divergence(top(t1=0.5, t2=0.25), top(t1=0.25, t2=0.25)) == pytest.approx(LN2 / 4)


def test_an_unreported_token_has_no_more_than_the_least_reported_one() -> None:
    """P = 3/4 on token 1, rest 1/4. Q = 3/4 on 2, 1/8 on 3, so at most 1/8 on token 1: (3/4) ln 6 + (1/4) ln (2/7)."""
    expected = 0.75 * math.log(6) + 0.25 * math.log(2 / 7)
    assert kl_divergence(top(t1=0.75), top(t2=0.75, t3=0.125)) == pytest.approx(expected)


def test_an_unreported_token_that_fits_into_the_rest_adds_nothing() -> None:
    """P = 0.9, 0.1 and Q = 0.9 with a rest of 0.1, which may be token 2."""
    assert kl_divergence(top(t1=0.9, t2=0.1), top(t1=0.9)) == pytest.approx(0, abs=1e-9)


def test_positions_are_averaged() -> None:
    one, other = top(t1=0.5, t2=0.25), top(t2=0.5, t1=0.25)
    result = compare_positions([one, one], [one, other])
    assert result.agreement == 0.5
    assert result.kl == pytest.approx((0.5 * LN2 - 0.25 * LN2) / 2)


def test_other_numbers_of_positions_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="1 and 2 positions"):
        compare_positions([top(t1=1.0)], [top(t1=1.0), top(t1=1.0)])


@pytest.mark.parametrize(
    ("agreement", "kl", "broken"), [(0.98, 0.01, False), (0.71, 0.49, False), (0.69, 0.1, True), (0.9, 0.51, True)]
)
def test_only_another_distribution_is_broken(agreement: float, kl: float, broken: bool) -> None:
    assert Tripwire(100, agreement, kl).broken is broken
