"""The capacity: the highest rate that held below every rate that missed."""

from __future__ import annotations

import pytest

from records.measured import capacity_of


@pytest.mark.parametrize(
    ("rates", "capacity"),
    [
        ([], None),
        ([(4, True), (8, True)], 8),
        ([(4, True), (8, False), (6, True)], 6),
        ([(4, False), (2, False)], None),
        # a rate that held above one that missed does not count
        ([(4, True), (8, False), (16, True)], 4),
        ([(8, True), (4, False)], None),
    ],
)
def test_capacity(rates: list[tuple[float, bool]], capacity: float | None) -> None:
    assert capacity_of(rates) == capacity
