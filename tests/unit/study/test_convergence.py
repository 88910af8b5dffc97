"""When a search ends early, in scores that a person worked out."""

import pytest

from tuner.study.convergence import LEAST_TRIALS, PATIENCE, converged


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0] * 18, True),
        ([1.0] * 17, False),  # too few trials
        ([1.0, 1.1, 1.2] + [1.25] * 15, True),  # 1.25 is 4.2 % above 1.2
        ([1.0, 1.1, 1.2] + [1.27] * 15, False),  # 5.8 % above 1.2
        ([1.0] * 3 + [1.27] + [1.0] * 14, False),  # the fifteenth trial from the end gained
        ([1.0] * 3 + [1.27] + [1.0] * 15, True),  # the sixteenth did
        ([1.0] * 3 + [None] * 15, True),  # failures bring nothing
        ([None] * 40, False),  # nothing meets the SLOs yet
        ([None] * 39 + [1.0], False),  # the first that does
        ([], False),
    ],
)
def test_a_search_ends_once_fifteen_trials_in_a_row_have_brought_less_than_the_least_gain(
    scores: list[float | None], expected: bool
) -> None:
    assert (PATIENCE, LEAST_TRIALS) == (15, 18)
    assert converged(scores, 0.05) is expected


def test_a_least_gain_of_zero_never_ends_a_search() -> None:
    assert not converged([1.0] * 100, 0.0)
