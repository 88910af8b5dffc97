"""Whose turn it is: fair share between owners, priority and age within one, and how many devices."""

from __future__ import annotations

import pytest

from tests.unit.service.queue.views import HOUR_S, NOW_S, devices, runs, used, view, waits
from tuner.service.queue.policy import decide
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
