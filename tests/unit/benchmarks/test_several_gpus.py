"""The comparison of predictions for several GPUs with published runs."""

from __future__ import annotations

import pytest

from benchmarks.simulator.several_gpus import Compared, compare

CARD_BOUND = frozenset({"tt143", "pr2192"})
"""Sources of large models on few GPUs, whose steps the card bounds with any engine."""


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return compare(CARD_BOUND | {"i16300"})


def test_large_models_on_two_and_four_gpus_are_within_20_percent_of_the_published(compared: list[Compared]) -> None:
    errors = [each.error for each in compared if each.run["source"] in CARD_BOUND]
    assert len(errors) == 6
    assert max(map(abs, errors)) < 0.2


def test_factors_are_those_from_the_fewest_gpus_of_a_group(compared: list[Compared]) -> None:
    single = [each for each in compared if each.run["source"] == "i16300" and each.run["batch"] == 1]
    assert [each.run["gpus"] for each in single] == [2, 4, 8]
    assert single[0].published_factor is None
    assert [each.published_factor for each in single[1:]] == pytest.approx([3.91 / 5.50, 3.15 / 5.50])
    assert single[1].predicted_factor == pytest.approx(single[1].predicted / single[0].predicted)


def test_communication_grows_with_the_gpus(compared: list[Compared]) -> None:
    shares = [each.communication for each in compared if each.run["source"] == "i16300" and each.run["batch"] == 16]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 0.5
