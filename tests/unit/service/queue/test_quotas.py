"""Quotas: devices at once, and GPU-hours in seven days. A trial has 600 s, so a start needs 0.5 h on each device."""

from __future__ import annotations

from tests.unit.service.queue.views import HOUR_S, devices, runs, view, waits
from tuner.service.queue.policy import decide
from tuner.service.queue.view import OwnerShare, Start


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
