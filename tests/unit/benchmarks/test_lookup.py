"""The share of a text that a prompt lookup predicts, on texts whose share is counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.loadgen.lookup import Lookup, look_up


@pytest.mark.parametrize(
    ("tokens", "predicted", "right"),
    [
        ((1, 2, 3, 4, 5, 6), 0, 0),
        ((1, 2, 3, 1, 2, 3), 1, 1),  # after the second 1 2, the third token is known
        ((1, 2, 3, 1, 2, 4), 1, 0),  # a wrong prediction
        ((1, 2, 3, 1, 2, 4, 1, 2, 3), 2, 1),  # the earliest place counts: 3 both times
        ((9, 1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 4), 3, 2),  # 1 2 gives 3; then 8 1 gives 2, and 8 1 2 gives 4
    ],
)
def test_predictions_are_of_the_longest_match_at_its_earliest_place(
    tokens: tuple[int, ...], predicted: int, right: int
) -> None:
    assert look_up(tokens) == Lookup(predicted / len(tokens), right / len(tokens))


def test_single_tokens_are_not_looked_up() -> None:
    assert look_up((1, 2, 1, 3, 1, 2)) == Lookup(0.0, 0.0)
