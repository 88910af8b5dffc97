"""The gallery: its page is what its data give, and its intervals are those of the tuner."""

import pytest

from benchmarks.gallery import PAGE, best_finalist, page


def rows(*scores: tuple[int, int, str]) -> list[dict[str, str]]:
    return [{"number": str(n), "round": str(place), "kind": "confirm", "score": score} for n, place, score in scores]


def test_the_page_is_made_of_the_data() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks.gallery`"


def test_the_best_finalist_has_the_interval_of_its_common_rounds() -> None:
    """Nothing varies, so the least deviation counts: exp(ln 2 ± 12.706 · 0.005 · sqrt(2 / 2))."""
    best = best_finalist(rows((0, 1, "1"), (0, 2, "1.5"), (4, 1, "2"), (4, 2, "3")))
    assert best is not None
    assert (best.number, best.ratio.rounds) == (4, 2)
    assert best.ratio.ratio == pytest.approx(2.0)
    assert best.ratio.low == pytest.approx(1.8769, abs=1e-3)
    assert best.ratio.high == pytest.approx(2.1312, abs=1e-3)
    assert best.shown == "**×2.00 [1.88, 2.13]**"


def test_one_round_has_a_ratio_without_an_interval_and_no_common_round_none() -> None:
    best = best_finalist(rows((0, 1, "0.5"), (3, 1, "0.4")))
    assert best is not None
    assert best.shown == "×0.80"
    assert best_finalist(rows((0, 1, "0.5"), (0, 2, ""), (3, 2, "0.4"))) is None
