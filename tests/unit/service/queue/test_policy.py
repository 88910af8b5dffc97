"""The queue's policy: order, entitlement, shares, quotas, backfill and yields."""

from datetime import UTC, datetime, timedelta

import pytest

from storage.service.records import Owner, Use
from tests.unit.service.queue.views import HOUR_S, NOW_S, devices, runs, used, view, waits
from tuner.service.queue.policy import decide, fair_devices
from tuner.service.queue.rules import HALF_LIFE_S, MOST_PASSED_S, WEEK_S, YIELD_AFTER_S
from tuner.service.queue.shares import (
    Interval,
    decayed,
    decayed_use,
    intervals_of_running,
    intervals_of_uses,
    owner_shares,
    week_use,
)
from tuner.service.queue.view import Decisions, OwnerShare, QueueView, Start, Waiting


def started(decisions: Decisions) -> list[str]:
    return [start.id for start in decisions.starts]


def test_nothing_is_decided_about_nothing() -> None:
    assert decide(view([])) == Decisions((), (), {})


def test_the_first_device_goes_to_the_owner_who_used_least() -> None:
    owners = {"ann": used(3), "bob": used(2), "eve": used(4)}
    decisions = decide(view([waits("ann-1"), waits("bob-1"), waits("eve-1")], owners=owners, count=1))
    assert decisions.starts == (Start("bob-1", ("h200-0",)),)
    assert decisions.waits == {"ann-1": "0 of 1 h200 are free, 1 is asked", "eve-1": "behind 1 other"}


def test_use_is_divided_by_weight() -> None:
    owners = {"ann": used(3, weight=2), "bob": used(2)}
    assert started(decide(view([waits("ann-1"), waits("bob-1")], owners=owners, count=1))) == ["ann-1"]


def test_devices_of_one_decision_alternate_between_equal_owners() -> None:
    submissions = [waits(f"ann-{n}", age_s=600 - n) for n in range(4)] + [waits(f"bob-{n}") for n in range(4)]
    assert started(decide(view(submissions))) == ["ann-0", "bob-0", "ann-1", "bob-1"]


def test_devices_of_one_decision_are_shared_by_weight() -> None:
    submissions = [waits(f"ann-{n}") for n in range(4)] + [waits(f"bob-{n}") for n in range(4)]
    owners = {"ann": OwnerShare(1.0), "bob": OwnerShare(3.0)}
    assert sorted(started(decide(view(submissions, owners=owners)))) == ["ann-0", "bob-0", "bob-1", "bob-2"]


def test_running_devices_count_in_advance() -> None:
    # Each device counts 600 GPU-seconds in advance: ann has 1200, bob 600 and 500 used, so bob is next.
    owners = {"bob": OwnerShare(use={"h200": 500.0})}
    running = [runs("ann-0", (0, 1), for_s=0), runs("bob-0", (2,), for_s=0)]
    assert started(decide(view([waits("ann-1", age_s=99), waits("bob-1")], running, owners))) == ["bob-1"]


def test_within_an_owner_priority_is_before_age() -> None:
    submissions = [waits("ann-1", age_s=900), waits("ann-2", age_s=800, priority=1), waits("ann-3", age_s=999)]
    assert started(decide(view(submissions, count=3))) == ["ann-2", "ann-3", "ann-1"]


def test_priority_does_not_count_between_owners() -> None:
    owners = {"ann": used(1), "bob": used(2)}
    assert started(decide(view([waits("ann-1"), waits("bob-1", priority=9)], owners=owners, count=1))) == ["ann-1"]


def test_a_study_that_yielded_keeps_its_age() -> None:
    submissions = [waits("ann-new", age_s=500), waits("ann-old", age_s=9000, queued_for_s=1)]
    assert started(decide(view(submissions, count=1))) == ["ann-old"]


def test_equal_owners_are_served_by_the_wait_of_their_first_submission() -> None:
    assert started(decide(view([waits("ann-1", age_s=10), waits("bob-1", age_s=20)], count=1))) == ["bob-1"]
    assert started(decide(view([waits("bob-1", age_s=20), waits("ann-1", age_s=20)], count=1))) == ["ann-1"]


def test_a_study_alone_gets_all_it_asks() -> None:
    assert decide(view([waits("ann-1", gpus=3)])).starts == (Start("ann-1", devices(3)),)
    assert decide(view([waits("ann-1", gpus=9)])).starts == (Start("ann-1", devices(4)),)


def test_studies_of_two_owners_start_with_fewer_devices() -> None:
    decisions = decide(view([waits("ann-1", gpus=4), waits("bob-1", gpus=4)]))
    assert decisions.starts == (Start("ann-1", ("h200-0", "h200-2")), Start("bob-1", ("h200-1", "h200-3")))


def test_an_owners_first_study_is_served_before_the_second() -> None:
    decisions = decide(view([waits("ann-1", gpus=3, age_s=99), waits("ann-2", gpus=4)]))
    assert decisions.starts == (Start("ann-1", devices(3)), Start("ann-2", ("h200-3",)))


def test_kinds_are_separate_pools() -> None:
    owners = {"ann": OwnerShare(use={"h200": 9 * HOUR_S}), "bob": OwnerShare(use={"t4": 9 * HOUR_S})}
    submissions = [waits(f"{owner}-{kind}", kind=kind) for owner in ("ann", "bob") for kind in ("h200", "t4")]
    decisions = decide(view(submissions, owners=owners, count=1, others={"t4": devices(1, "t4")}))
    assert decisions.starts == (Start("bob-h200", ("h200-0",)), Start("ann-t4", ("t4-0",)))


def test_positions_alternate_between_owners() -> None:
    submissions = [waits(f"ann-{n}", age_s=600 - n) for n in range(3)] + [waits("bob-0")]
    decisions = decide(view(submissions, [runs("eve-1", range(4), for_s=0)]))
    assert decisions.waits == {
        "ann-0": "0 of 4 h200 are free, 1 is asked",
        "bob-0": "behind 1 other",
        "ann-1": "behind 2 others",
        "ann-2": "behind 3 others",
    }


def test_what_does_not_exist_is_said() -> None:
    decisions = decide(view([waits("ann-1", kind="b200"), waits("ann-2", gpus=8, least=8)]))
    assert decisions.waits == {"ann-1": "no device of kind b200", "ann-2": "8 h200 are asked, 4 exist"}


@pytest.mark.parametrize(("gpus", "least", "trial_s"), [(2, 3, 600.0), (1, 0, 600.0), (1, 1, 0.0)])
def test_a_submission_is_checked(gpus: int, least: int, trial_s: float) -> None:
    with pytest.raises(ValueError, match="ann-1"):
        Waiting("ann-1", "ann", "h200", gpus, NOW_S, NOW_S, least, trial_s=trial_s)


def test_a_weight_is_checked() -> None:
    with pytest.raises(ValueError, match="a weight of 0 is not larger than 0"):
        OwnerShare(weight=0)


def test_the_order_of_the_input_does_not_matter() -> None:
    submissions = [waits(f"{owner}-{n}", gpus=n) for owner in ("ann", "bob", "eve") for n in (1, 2)]
    first = view(submissions)
    again = QueueView(NOW_S, first.waiting[::-1], (), {}, first.devices)
    assert decide(again) == decide(first)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"ann": (1.0, 9), "bob": (1.0, 9)}, {"ann": 4.0, "bob": 4.0}),
        ({"ann": (1.0, 9), "bob": (3.0, 9)}, {"ann": 2.0, "bob": 6.0}),
        ({"ann": (1.0, 9), "bob": (3.0, 2)}, {"ann": 6.0, "bob": 2.0}),
        ({"ann": (1.0, 1), "bob": (1.0, 2), "eve": (2.0, 9)}, {"ann": 1.0, "bob": 2.0, "eve": 5.0}),
        ({"ann": (1.0, 2), "bob": (1.0, 1)}, {"ann": 2.0, "bob": 1.0}),
        ({}, {}),
    ],
    ids=["equal", "weights", "a small claim", "two small claims", "enough for all", "nobody"],
)
def test_eight_devices(claims: dict[str, tuple[float, int]], expected: dict[str, float]) -> None:
    assert fair_devices(8, claims) == pytest.approx(expected)


DAY_S = 86_400.0


def interval(began_s: float, ended_s: float, gpu_seconds: float, owner: str = "ann", kind: str = "h200") -> Interval:
    return Interval(owner, kind, began_s, ended_s, gpu_seconds)


def test_the_half_life_is_a_day_and_the_week_has_seven() -> None:
    assert (HALF_LIFE_S, WEEK_S) == (DAY_S, 7 * DAY_S)


@pytest.mark.parametrize(
    ("used", "now_s", "expected"),
    [
        (interval(0.0, DAY_S, 2 * DAY_S), DAY_S, 2 * 0.7213475 * DAY_S),
        (interval(0.0, DAY_S, DAY_S), 2 * DAY_S, 0.36067376 * DAY_S),
        (interval(-1e-3, 0.0, 1e-3), 0.0, 1e-3),
        (interval(5.0, 5.0, 12.0), 5.0 + DAY_S, 6.0),
        (interval(90.0, 110.0, 20.0), 100.0, 20.0),
    ],
    ids=["a day that ends now", "a day that ended a day ago", "a short one", "an instant", "a clock that is ahead"],
)
def test_an_interval_counts_its_integral(used: Interval, now_s: float, expected: float) -> None:
    """That of 2^(-t) from 0 to 1 day is (1 - 1/2) / ln 2 = 0.72135 days; two devices count twice."""
    assert decayed_use(used, now_s) == pytest.approx(expected, rel=1e-4)


def test_two_halves_of_an_interval_count_as_much_as_the_whole() -> None:
    whole = decayed_use(interval(0.0, 1000.0, 3000.0), 5000.0)
    halves = [decayed_use(interval(0.0, 400.0, 1200.0), 5000.0), decayed_use(interval(400.0, 1000.0, 1800.0), 5000.0)]
    assert sum(halves) == pytest.approx(whole, rel=1e-12)


def test_use_can_be_carried_from_one_time_to_the_next() -> None:
    then = decayed_use(interval(0.0, 1000.0, 3000.0), 1000.0)
    assert decayed(then, 4000.0) == pytest.approx(decayed_use(interval(0.0, 1000.0, 3000.0), 5000.0), rel=1e-12)


@pytest.mark.parametrize(
    ("began_days", "ended_days", "expected_days"),
    [(8, 9, 1.0), (2, 4, 1.0), (1, 3, 0.0), (0, 10, 7.0)],
    ids=["inside", "half inside", "outside", "longer than a week"],
)
def test_the_week_counts_what_lies_in_seven_days(began_days: int, ended_days: int, expected_days: float) -> None:
    length_s = (ended_days - began_days) * DAY_S
    assert week_use(interval(began_days * DAY_S, ended_days * DAY_S, length_s), 10 * DAY_S) == pytest.approx(
        expected_days * DAY_S
    )


def test_shares_are_summed_by_owner_and_kind() -> None:
    now = datetime(2026, 11, 25, 12, tzinfo=UTC)
    ended_at = now - timedelta(days=1)
    uses = [
        Use("ann", "ann-1", "h200", ended_at, ended_at, 3600.0),
        Use("ann", "ann-2", "t4", ended_at, ended_at, 1800.0),
        Use("ann", "ann-3", "cpu", ended_at, ended_at, 60.0),
        Use("bob", "bob-1", "t4", ended_at, ended_at, 100.0),
    ]
    owners = [Owner("ann", 2.0, 3, 40.0), Owner("eve")]
    intervals = intervals_of_uses(uses)
    shares = owner_shares(owners, intervals, now.timestamp())
    assert shares["ann"].use == {"h200": 1800.0, "t4": 900.0, "cpu": 30.0}
    assert (shares["ann"].week_s, shares["ann"].weight) == (5460.0, 2.0)
    assert (shares["ann"].most_gpus, shares["ann"].gpu_hours_a_week) == (3, 40.0)
    assert (shares["bob"].weight, shares["bob"].most_gpus, shares["bob"].use) == (1.0, None, {"t4": 50.0})
    assert (shares["eve"].use, shares["eve"].week_s) == ({}, 0.0)


def test_a_run_that_has_not_ended_counts_until_now() -> None:
    now_s = 1_000_000.0
    [running] = intervals_of_running([runs("ann-1", (0, 1), for_s=900.0)], now_s)
    assert running == Interval("ann", "h200", now_s - 900, now_s, 1800.0)


def week(used_hours: float, quota: float) -> dict[str, OwnerShare]:
    return {"ann": OwnerShare(week_s=used_hours * HOUR_S, gpu_hours_a_week=quota)}


def test_a_quota_of_devices_counts_running_ones_of_all_kinds() -> None:
    running = [runs("ann-0", (0,), kind="t4"), runs("ann-1", (0,), leaving=True)]
    owners = {"ann": OwnerShare(most_gpus=3)}
    decisions = decide(view([waits("ann-2", gpus=4, age_s=99), waits("ann-3")], running, owners))
    assert decisions.starts == (Start("ann-2", ("h200-1",)),)
    assert decisions.waits == {"ann-3": "quota of 3 GPUs"}


def test_a_quota_of_devices_holds_over_two_pools() -> None:
    owners = {"ann": OwnerShare(most_gpus=3)}
    submissions = [waits("ann-1", gpus=2), waits("ann-2", gpus=2, kind="t4")]
    decisions = decide(view(submissions, owners=owners, others={"t4": devices(2, "t4")}))
    assert decisions.starts == (Start("ann-1", devices(2)), Start("ann-2", ("t4-0",)))


def test_a_smaller_one_of_the_same_owner_passes_one_that_the_quota_holds_back() -> None:
    owners = {"ann": OwnerShare(most_gpus=2)}
    submissions = [waits("ann-2", 2, least=2, age_s=99), waits("ann-3")]
    decisions = decide(view(submissions, [runs("ann-1", (0,))], owners))
    assert decisions.starts == (Start("ann-3", ("h200-1",)),)
    assert decisions.waits == {"ann-2": "quota of 2 GPUs"}


def test_it_is_not_passed_any_more_after_two_hours() -> None:
    owners = {"ann": OwnerShare(most_gpus=2)}
    submissions = [waits("ann-2", 2, least=2, age_s=2 * HOUR_S), waits("ann-3"), waits("bob-1")]
    decisions = decide(view(submissions, [runs("ann-1", (0,))], owners))
    assert decisions.starts == (Start("bob-1", ("h200-1",)),)
    assert decisions.waits == {
        "ann-2": "quota of 2 GPUs",
        "ann-3": "behind another of the same owner that waits for the quota",
    }


def test_more_than_the_quota_never_starts() -> None:
    owners = {"ann": OwnerShare(most_gpus=2)}
    assert decide(view([waits("ann-1", 3, least=3)], owners=owners)).waits == {"ann-1": "quota of 2 GPUs, 3 are asked"}


def test_a_used_week_starts_nothing() -> None:
    decisions = decide(view([waits("ann-1")], owners=week(12.0, 12.0)))
    assert decisions.starts == ()
    assert decisions.waits == {"ann-1": "12.0 of 12 GPU-hours of this week are used"}


def test_a_start_needs_three_trials_of_the_week() -> None:
    assert [start.id for start in decide(view([waits("ann-1")], owners=week(11.5, 12.0))).starts] == ["ann-1"]
    decisions = decide(view([waits("ann-1")], owners=week(11.6, 12.0)))
    assert decisions.waits == {"ann-1": "11.6 of 12 GPU-hours of this week are used, trials and a start need 0.5"}


def test_the_rest_of_the_week_limits_the_devices() -> None:
    # 1.2 h are left: two devices need 1.0 h, three 1.5 h.
    assert decide(view([waits("ann-1", 4)], owners=week(10.8, 12.0))).starts == (Start("ann-1", devices(2)),)


def test_running_trials_are_set_aside() -> None:
    # 1.0 h is left; two running trials may use 0.33 h of it, so 0.67 h remain: one device.
    running = [runs("ann-0", (2, 3))]
    decisions = decide(view([waits("ann-1", 2)], running, week(11.0, 12.0)))
    assert decisions.starts == (Start("ann-1", ("h200-0",)),)


def test_a_week_that_cannot_hold_three_trials_is_said() -> None:
    assert decide(view([waits("ann-1", trial_s=3600.0)], owners=week(0.0, 2.0))).waits == {
        "ann-1": "quota of 2 GPU-hours a week, 3 trials need 3.0"
    }


def test_all_studies_yield_before_the_week_is_used_up() -> None:
    # Three devices use 3 * 600 s = 0.5 h until their trials end. Finals are asked, too.
    running = [runs("ann-1", (0, 1)), runs("ann-2", (2,), for_s=60, may_yield=False), runs("bob-1", (3,))]
    assert decide(view([], running, week(11.4, 12.0))).yields == ()
    assert decide(view([], running, week(11.5, 12.0))).yields == ("ann-2", "ann-1")


def test_one_that_was_asked_is_not_asked_again_and_still_counts() -> None:
    running = [runs("ann-1", (0, 1)), runs("ann-2", (2,), leaving=True)]
    assert decide(view([], running, week(11.5, 12.0))).yields == ("ann-1",)


def test_the_newest_yields_to_a_quota_that_was_lowered() -> None:
    owners = {"ann": OwnerShare(most_gpus=2)}
    running = [runs("ann-1", (0, 1), for_s=900), runs("ann-2", (2,), for_s=60), runs("ann-3", (3,), for_s=30)]
    assert decide(view([], running, owners)).yields == ("ann-3", "ann-2")
    running[1] = runs("ann-2", (2,), for_s=60, leaving=True)
    assert decide(view([], running, owners)).yields == ("ann-3",)


def test_devices_that_a_quota_frees_are_counted_as_coming() -> None:
    running = [runs("ann-1", (0,)), runs("bob-1", (1, 2, 3))]
    decisions = decide(view([waits("eve-1")], running, week(12.0, 12.0)))
    assert decisions.yields == ("ann-1",)
    assert decisions.waits == {"eve-1": "1 h200 comes free at the end of running trials"}


def test_quotas_count_no_simulated_device() -> None:
    """GPUs: 1 of 1 in use, and the week is used up; simulated studies start nevertheless."""
    owners = {"ann": OwnerShare(week_s=12 * HOUR_S, most_gpus=1, gpu_hours_a_week=12.0)}
    submissions = [waits("ann-2", gpus=2, kind="simulated"), waits("ann-3")]
    decisions = decide(view(submissions, owners=owners, others={"simulated": devices(2, "simulated")}))
    assert decisions.starts == (Start("ann-2", ("simulated-0", "simulated-1")),)
    assert decisions.waits == {"ann-3": "12.0 of 12 GPU-hours of this week are used"}
    running = [runs("ann-4", (0, 1), kind="simulated", for_s=9 * HOUR_S)]
    assert decide(view([], running, owners, others={"simulated": devices(2, "simulated")})).yields == ()


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


FULL = [runs(f"bob-{number}", (number,), for_s=HOUR_S + number) for number in range(4)]
"""All four devices are bob's; bob-0 is the newest."""


def test_the_newest_study_of_the_owner_with_more_than_a_share_yields() -> None:
    decisions = decide(view([waits("ann-1")], FULL, {"bob": used(4)}))
    assert decisions.yields == ("bob-0",)
    assert decisions.waits == {"ann-1": "1 h200 comes free at the end of running trials"}


def test_not_more_yield_than_are_needed() -> None:
    submissions = [waits(f"ann-{number}") for number in range(9)]
    assert decide(view(submissions, FULL, {"bob": used(4)})).yields == ("bob-0", "bob-1")


def test_weights_decide_how_many_are_a_fair_share() -> None:
    submissions = [waits(f"ann-{number}") for number in range(9)]
    owners = {"bob": used(4), "ann": OwnerShare(weight=3.0)}
    assert decide(view(submissions, FULL, owners)).yields == ("bob-0", "bob-1", "bob-2")


def test_one_that_was_asked_is_not_asked_again() -> None:
    running = [runs("bob-0", (0,), leaving=True), *FULL[1:]]
    assert decide(view([waits("ann-1")], running, {"bob": used(4)})).yields == ()
    assert decide(view([waits("ann-1"), waits("ann-2")], running, {"bob": used(4)})).yields == ("bob-1",)


def test_a_study_runs_for_a_while_before_it_yields() -> None:
    running = [runs(f"bob-{n}", (n,), for_s=YIELD_AFTER_S - 1) for n in range(3)]
    running.append(runs("bob-3", (3,), for_s=YIELD_AFTER_S))
    assert decide(view([waits("ann-1")], running[:3], {"bob": used(4)}, count=3)).yields == ()
    assert decide(view([waits("ann-1")], running, {"bob": used(4)})).yields == ("bob-3",)


def test_finals_do_not_yield_to_another_owner() -> None:
    running = [runs("bob-0", (0,), may_yield=False), *FULL[1:]]
    assert decide(view([waits("ann-1")], running, {"bob": used(4)})).yields == ("bob-1",)


def test_nobody_yields_to_an_owner_who_would_then_be_ahead() -> None:
    # After the change bob has one device and ann one. Both count 600 s in advance, so the used seconds decide.
    running = [runs("bob-0", (0,)), runs("bob-1", (1,), for_s=2 * HOUR_S)]
    behind = {"bob": OwnerShare(use={"h200": 7200.0}), "ann": OwnerShare(use={"h200": 7200.0})}
    ahead = {**behind, "ann": OwnerShare(use={"h200": 7201.0})}
    assert decide(view([waits("ann-1")], running, behind, count=2)).yields == ("bob-0",)
    assert decide(view([waits("ann-1")], running, ahead, count=2)).yields == ()


def test_two_owners_do_not_take_turns_at_every_decision() -> None:
    # ann got bob's device at the last decision; bob waits now and has used an hour more.
    running = [runs("ann-1", (0,), for_s=YIELD_AFTER_S)]
    owners = {"bob": used(4), "ann": used(3)}
    assert decide(view([waits("bob-0")], running, owners, count=1)).yields == ()


def test_nobody_yields_to_an_owner_with_a_fair_share() -> None:
    running = [runs("ann-0", (0, 1)), runs("bob-0", (2,)), runs("bob-1", (3,))]
    assert decide(view([waits("ann-1"), waits("bob-2")], running, {"bob": used(9)})).yields == ()


def test_nobody_yields_to_the_same_owner() -> None:
    assert decide(view([waits("bob-9", priority=9)], FULL, {"bob": used(4)})).yields == ()


def test_nobody_yields_while_a_device_is_free() -> None:
    decisions = decide(view([waits("ann-1")], FULL[:3], {"bob": used(4)}))
    assert ([start.id for start in decisions.starts], decisions.yields) == (["ann-1"], ())


def test_the_owner_furthest_above_a_share_yields() -> None:
    running = [runs("bob-0", (0, 1)), runs("eve-0", (2, 3))]
    assert decide(view([waits("ann-1")], running, {"bob": used(4), "eve": used(5)})).yields == ("eve-0",)
    assert decide(view([waits("ann-1")], running, {"bob": used(4), "eve": used(5, weight=2)})).yields == ("bob-0",)


def test_a_study_that_a_later_choice_makes_needless_does_not_yield() -> None:
    # ann needs three devices. bob's newest has one, the next one three, so the newest stays.
    running = [runs("bob-1", (0,), for_s=1300), runs("bob-2", (1, 2, 3), for_s=1400)]
    assert decide(view([waits("ann-1", 3, least=3)], running, {"bob": used(9)})).yields == ("bob-2",)


def test_nobody_yields_if_that_is_not_enough() -> None:
    running = [*FULL[:2], runs("eve-0", (2, 3), for_s=0)]
    decisions = decide(view([waits("ann-1", 3, least=3)], running, {"bob": used(9), "eve": used(9)}))
    assert decisions.yields == ()


def test_nobody_yields_to_what_an_earlier_one_would_take() -> None:
    # eve has used less than ann, so a device that ann asks for would go to eve, who has a fair share.
    running = [runs("eve-0", (0, 1)), *FULL[2:]]
    owners = {"bob": used(9), "ann": used(8)}
    decisions = decide(view([waits("eve-1"), waits("ann-1")], running, owners))
    assert decisions.yields == ()


def test_a_quota_limits_the_fair_share_that_is_asked_for() -> None:
    owners = {"bob": used(9), "ann": OwnerShare(most_gpus=1)}
    assert decide(view([waits("ann-1"), waits("ann-2")], FULL, owners)).yields == ("bob-0",)
