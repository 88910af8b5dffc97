"""Submissions that do not fit: smaller ones pass them for two hours, then devices are kept."""

from __future__ import annotations

from tests.unit.service.queue.views import HOUR_S, runs, used, view, waits
from tuner.service.queue.policy import decide
from tuner.service.queue.rules import MOST_PASSED_S
from tuner.service.queue.view import Start

OWNERS = {"ann": used(1), "bob": used(5), "eve": used(9)}
"""ann's turn is first, then bob's, then eve's."""


def test_a_smaller_one_passes_one_that_does_not_fit() -> None:
    submissions = [waits("ann-1", 3, least=3, age_s=MOST_PASSED_S - 1), waits("bob-1")]
    decisions = decide(view(submissions, [runs("eve-1", (0, 1), for_s=0)], OWNERS))
    assert decisions.starts == (Start("bob-1", ("h200-2",)),)
    assert decisions.waits == {"ann-1": "2 of 4 h200 are free, 3 are asked"}
    assert decisions.yields == ()


def test_after_two_hours_free_devices_are_kept_and_the_missing_ones_are_asked_for() -> None:
    submissions = [waits("ann-1", 3, least=3, age_s=MOST_PASSED_S), waits("bob-1")]
    decisions = decide(view(submissions, [runs("eve-1", (0, 1), for_s=600)], OWNERS))
    assert decisions.starts == (Start("bob-1", ("h200-2",)),)  # 2 come free and 1 is kept, so one is left
    assert decisions.yields == ("eve-1",)
    assert decisions.waits == {"ann-1": "2 h200 come free at the end of running trials"}


def test_a_study_has_time_for_a_trial_before_it_is_asked() -> None:
    submissions = [waits("ann-1", 3, least=3, age_s=MOST_PASSED_S), waits("bob-1")]
    decisions = decide(view(submissions, [runs("eve-1", (0, 1), for_s=599)], OWNERS))
    assert (decisions.starts, decisions.yields) == ((), ())


def test_devices_are_kept_where_a_study_cannot_be_asked() -> None:
    submissions = [waits("ann-1", 3, least=3, age_s=MOST_PASSED_S), waits("bob-1")]
    decisions = decide(view(submissions, [runs("eve-1", (0, 1), may_yield=False)], OWNERS))
    assert (decisions.starts, decisions.yields) == ((), ())
    assert decisions.waits == {
        "ann-1": "2 of 4 h200 are free, 3 are asked; the free ones are kept for it",
        "bob-1": "behind 1 other",
    }


def test_an_owner_whose_turn_is_before_takes_a_device_all_the_same() -> None:
    submissions = [waits("bob-1", 3, least=3, age_s=9 * HOUR_S), waits("ann-1")]
    decisions = decide(view(submissions, [runs("eve-1", (0, 1), may_yield=False)], OWNERS))
    assert decisions.starts == (Start("ann-1", ("h200-2",)),)


def test_nothing_is_kept_that_an_owner_before_would_not_free() -> None:
    # bob needs all four devices, and ann, whose turn comes before, has one of them for long.
    submissions = [waits("bob-1", 4, least=4, age_s=9 * HOUR_S), waits("bob-2"), waits("eve-1")]
    decisions = decide(view(submissions, [runs("ann-1", (0,))], OWNERS, count=4))
    assert [start.id for start in decisions.starts] == ["bob-2", "eve-1"]


def test_an_owners_own_studies_do_not_pass_one_that_their_like_would_block() -> None:
    # ann's running study blocks ann-1. ann-2 waits behind it, and others pass both.
    submissions = [waits("ann-1", 4, least=4, age_s=9 * HOUR_S), waits("ann-2"), waits("bob-1")]
    decisions = decide(view(submissions, [runs("ann-0", (0,))], OWNERS))
    assert decisions.starts == (Start("bob-1", ("h200-1",)),)
    assert decisions.waits == {
        "ann-1": "3 of 4 h200 are free, 4 are asked",
        "ann-2": "behind another of the same owner that needs more devices",
    }


def test_devices_that_come_free_soon_are_kept_at_once() -> None:
    running = [runs("eve-1", (0, 1), leaving=True), runs("eve-2", (2,), for_s=0)]
    submissions = [waits("ann-1", 3, least=3), waits("bob-1")]
    decisions = decide(view(submissions, running, OWNERS))
    assert decisions.starts == ()
    assert decisions.waits == {
        "ann-1": "2 h200 come free at the end of running trials",
        "bob-1": "behind 1 other",
    }


def test_free_devices_beyond_those_are_given_away() -> None:
    running = [runs("eve-1", (0, 1), leaving=True)]
    decisions = decide(view([waits("ann-1", 3, least=3), waits("bob-1")], running, OWNERS))
    assert decisions.starts == (Start("bob-1", ("h200-2",)),)


def test_it_starts_before_smaller_ones_as_soon_as_it_fits() -> None:
    submissions = [waits("ann-1", 3, least=3, age_s=9 * HOUR_S), waits("bob-1")]
    decisions = decide(view(submissions, [], OWNERS, count=3))
    assert [start.id for start in decisions.starts] == ["ann-1"]


def test_devices_that_come_free_count_in_advance() -> None:
    # The first device that comes free is for ann, who then counts 600 s; bob has 300, so the second one is for bob.
    running = [runs("eve-1", (0, 1), leaving=True), runs("eve-2", (2, 3), for_s=0)]
    owners = {"bob": used(300 / HOUR_S), "eve": used(9)}
    decisions = decide(view([waits("ann-1", age_s=99), waits("ann-2"), waits("bob-1")], running, owners))
    assert decisions.waits == {
        "ann-1": "1 h200 comes free at the end of running trials",
        "bob-1": "1 h200 comes free at the end of running trials",
        "ann-2": "behind 2 others",
    }
