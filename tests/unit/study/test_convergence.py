"""When a search ends early, in scores that a person worked out."""

import pytest

from tuner.study.convergence import converged


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0] * 18, 15),
        ([1.0] * 17, None),  # too few trials
        ([1.0, 1.02, 1.04] + [1.09] * 15, 15),  # 1.09 is 4.8 % above 1.04, and no gain yet
        ([1.0, 1.02, 1.03] + [1.09] * 15, None),  # 5.8 % above 1.03
        ([1.0] * 3 + [1.27] + [1.0] * 15, None),  # a gain has been found: 25 trials are needed
        ([1.0] * 3 + [1.27] + [1.0] * 24, None),  # the 25th trial from the end gained
        ([1.0] * 3 + [1.27] + [1.0] * 25, 25),  # the 26th did
        ([1.0, 1.1, 1.2] + [1.25] * 25, 25),  # 1.25 is 4.2 % above 1.2
        ([1.0, 1.1, 1.2] + [1.27] * 25, None),  # 5.8 % above 1.2
        ([1.0] * 3 + [None] * 15, 15),  # failures bring nothing
        ([None] * 40, None),  # nothing meets the SLOs yet
        ([None] * 39 + [1.0], None),  # the first that does
        ([], None),
    ],
)
def test_a_search_ends_once_trials_in_a_row_have_brought_less_than_the_least_gain(
    scores: list[float | None], expected: int | None
) -> None:
    assert converged(scores, 0.05) == expected


def test_where_the_reference_misses_an_slo_a_search_ends_25_trials_after_one_that_meets_all() -> None:
    assert converged([None] * 5 + [4.0] * 25, 0.05, reference_meets=False) is None
    assert converged([None] * 5 + [4.0] * 26, 0.05, reference_meets=False) == 25
    assert converged([None] * 5 + [4.0] * 10 + [4.3] * 16, 0.05, reference_meets=False) is None  # 7.5 % more
    assert converged([None] * 5 + [0.9] * 16, 0.05, reference_meets=False) is None  # 15 are too few below 1, too


def test_a_least_gain_of_zero_never_ends_a_search() -> None:
    assert converged([1.0] * 100, 0.0) is None
