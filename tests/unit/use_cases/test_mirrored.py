"""Two servers under the same requests."""

import math

import pytest

from tuner.scoring.change import Change
from tuner.use_cases.mirrored import Mirrored, Pair
from tuner.workloads.results import RequestRecord, RequestStatus


def answered(index: int, seconds: float, tokens: int = 5) -> RequestRecord:
    """Return a request that was due at 10 s; a fifth of its time is that of the first token."""
    return RequestRecord(
        index, "c", RequestStatus.COMPLETED, 8, tokens, 10.0, 10.0, 10 + seconds / 5, 10 + seconds, 8, tokens
    )


def failed(index: int) -> RequestRecord:
    return RequestRecord(index, "c", RequestStatus.TIMED_OUT, 8, 5, 10.0, 10.0)


def test_a_run_counts_as_the_mean_logarithm_of_what_both_completed() -> None:
    pair = Pair([answered(0, 1.0), answered(1, 4.0), answered(2, 9.0)], [answered(0, 2.0), answered(1, 2.0), failed(2)])
    assert pair.levels("e2el") == pytest.approx((math.log(2000), math.log(2000)))  # ms
    assert pair.discordant == (0, 1)
    assert Pair([failed(0)], [failed(0)]).levels("e2el") is None


def pairs(ratio: float, spread: float, count: int) -> list[Pair]:
    """Return pairs in which B takes `ratio` times as long, in turn `spread` more and less."""
    factors = [ratio * math.exp(spread * (-1) ** place) for place in range(count)]
    return [Pair([answered(0, 1.0)], [answered(0, each)]) for each in factors]


def test_the_speed_is_the_inverse_of_the_latency_with_an_interval() -> None:
    # differences of -ln 1.1 ± 0.01 in 4 pairs: residuals ± 0.005 in 8 cells, f = 3, s = sqrt(8 * 25e-6 / 3) = 0.00816;
    # t(1 - 0.025 / 2, 3) = 4.1765 for two looks; half = 4.1765 * 0.00816 * sqrt(2 / 4) = 0.02411
    speed = Mirrored(pairs(1.1, 0.01, 4), 2, 0.03).speed("e2el")
    assert speed is not None
    assert speed.ratio == pytest.approx(1 / 1.1)
    assert speed.low == pytest.approx(math.exp(-0.02411) / 1.1, rel=1e-4)
    assert speed.high == pytest.approx(math.exp(0.02411) / 1.1, rel=1e-4)


@pytest.mark.parametrize(
    ("ratio", "count", "verdict"),
    [
        (1.0, 8, Change.HOLDS),
        (1.1, 8, Change.WORSE),
        (1 / 1.1, 8, Change.BETTER),
        (1.0, 2, Change.INCONCLUSIVE),
        (1.0, 1, Change.INCONCLUSIVE),
    ],
)
def test_verdicts(ratio: float, count: int, verdict: Change) -> None:
    assert Mirrored(pairs(ratio, 0.01, count), 4, 0.03).verdict is verdict


@pytest.mark.parametrize(
    ("only_a", "only_b", "verdict"),
    # 1 / 2^6 = 0.0156 and 1 / 2^7 = 0.0078; with three looks the bound is 0.0083
    [(0, 6, Change.HOLDS), (0, 7, Change.WORSE), (7, 0, Change.BETTER), (7, 7, Change.HOLDS)],
)
def test_failures_decide_beyond_chance(only_a: int, only_b: int, verdict: Change) -> None:
    fine, broken = answered(0, 1.0), failed(0)
    sides = [(fine, fine)] * 50 + [(broken, fine)] * only_a + [(fine, broken)] * only_b
    found = Mirrored([Pair([a for a, _ in sides], [b for _, b in sides])], 3, 0.03)
    assert found.failures is verdict
    assert found.discordant == (only_a, only_b)
    assert found.requests == 2 * len(sides)


def test_a_few_failures_among_many_requests_do_not_matter() -> None:
    fine, broken = answered(0, 1.0), failed(0)
    assert Mirrored([Pair([fine] * 1000, [broken] * 20 + [fine] * 980)], 3, 0.03).failures is Change.HOLDS
