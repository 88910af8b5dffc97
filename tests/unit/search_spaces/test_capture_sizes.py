"""Capture sizes, written out by hand."""

from __future__ import annotations

import pytest

from search_spaces.render import reachable_sizes


@pytest.mark.parametrize(
    ("sequences", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (10, (1, 2, 4, 8, 10)),
        (12, (1, 2, 4, 8, 12)),
        (18, (1, 2, 4, 8, 18)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
        (50, (1, 2, 4, 8, 16, 24, 32, 40, 50)),
        (52, (1, 2, 4, 8, 16, 24, 32, 40, 48, 52)),
    ],
)
def test_decoding(sequences: int, sizes: tuple[int, ...]) -> None:
    assert reachable_sizes(sequences) == sizes


def test_speculation_adds_multiples() -> None:
    assert reachable_sizes(8, tokens_per_sequence=5) == (1, 2, 4, 5, 8, 10, 20, 40)


def test_sizes_stop_at_the_largest() -> None:
    assert reachable_sizes(50, tokens_per_sequence=17, largest=128) == (1, 2, 4, 8, 16, 17, 24, 32, 34, 40, 50, 68)


@pytest.mark.parametrize(("sequences", "tokens"), [(0, 1), (1, 0)])
def test_numbers_start_at_one(sequences: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        reachable_sizes(sequences, tokens)
