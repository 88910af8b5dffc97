"""The verdict on a promised ratio."""

import math
import random
import statistics

import pytest

from tuner.scoring.change import EQUAL, ERROR, Change, Promise, change_of, gravest
from tuner.scoring.compare import Ratio, paired_ratio, residual_noise
from tuner.scoring.sequential import looks

GAIN = Promise(1.2, 1.1, 1.3)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.10, 1.25, Change.HOLDS),
        (1.07, 1.09, Change.HOLDS),  # below the interval, by less than 3 % of it: 1.1 * 0.97 = 1.067
        (1.06, 1.12, Change.INCONCLUSIVE),  # may be lower than that, and may not
        (1.00, 1.09, Change.WORSE),
        (1.28, 1.50, Change.HOLDS),  # may be as promised
        (1.31, 1.33, Change.HOLDS),  # above, by less than 3 %: 1.3 * 1.03 = 1.339
        (1.31, 1.40, Change.BETTER),
    ],
)
def test_todays_interval_is_compared_with_the_promised_one(low: float, high: float, verdict: Change) -> None:
    assert change_of(Ratio(math.sqrt(low * high), low, high, 4), GAIN, 0.03) is verdict


def test_two_servers_should_be_equal() -> None:
    assert change_of(Ratio(0.99, 0.971, 1.01, 4), EQUAL, 0.03) is Change.HOLDS
    assert change_of(Ratio(0.95, 0.92, 0.98, 4), EQUAL, 0.03) is Change.WORSE
    assert change_of(Ratio(0.95, 0.92, 0.98, 4), EQUAL, 0.10) is Change.HOLDS


@pytest.mark.parametrize("today", [None, Ratio(0.5, None, None, 1)])
def test_nothing_follows_without_an_interval(today: Ratio | None) -> None:
    assert change_of(today, EQUAL) is Change.INCONCLUSIVE


def test_measurements_that_are_the_same_in_every_round_are_equal() -> None:
    assert change_of(Ratio(1.0, None, None, 2), EQUAL) is Change.HOLDS
    assert change_of(Ratio(1.0, None, None, 1), EQUAL) is Change.INCONCLUSIVE
    assert change_of(Ratio(1.0, None, None, 2), GAIN) is Change.WORSE


def test_a_promise_without_an_interval_is_the_ratio() -> None:
    assert Promise.of({"ratio": 1.2, "low": None, "high": None}) == Promise(1.2, 1.2, 1.2)
    with pytest.raises(ValueError, match="low <= ratio <= high"):
        Promise(1.0, 1.1, 1.2)


def test_the_gravest_verdict_counts() -> None:
    assert gravest([Change.BETTER, Change.HOLDS]) is Change.HOLDS
    assert gravest([Change.HOLDS, Change.INCONCLUSIVE]) is Change.INCONCLUSIVE
    assert gravest([Change.INCONCLUSIVE, Change.WORSE]) is Change.WORSE
    assert gravest([]) is Change.INCONCLUSIVE


def verdict_of(truth: float, noise: float, rounds: int, draw: random.Random) -> Change:
    """Return the verdict of a sequential test of two servers whose true ratio is `truth`, with normal noise."""
    cells: dict[tuple[int, int], float] = {}
    for round_ in range(looks(rounds)[-1]):
        level = draw.gauss(0, 0.2)
        cells |= {(arm, round_): level + arm * math.log(truth) + draw.gauss(0, noise) for arm in (0, 1)}
        if round_ + 1 in looks(rounds):
            differences = [cells[1, each] - cells[0, each] for each in range(round_ + 1)]
            found = change_of(paired_ratio(differences, residual_noise(cells), len(looks(rounds))), EQUAL)
            if found.is_known:
                return found
    return Change.INCONCLUSIVE


@pytest.mark.parametrize(
    ("truth", "wrong"), [(1.0, (Change.WORSE,)), (0.97 - 1e-9, (Change.HOLDS, Change.BETTER)), (0.9, (Change.HOLDS,))]
)
def test_the_share_of_wrong_verdicts_is_within_the_stated_error(truth: float, wrong: tuple[Change, ...]) -> None:
    draw = random.Random(7)
    found = [verdict_of(truth, 0.02, 3, draw) for _ in range(400)]
    share = statistics.fmean(each in wrong for each in found)
    assert share <= ERROR + 2 * math.sqrt(ERROR * (1 - ERROR) / 400)
