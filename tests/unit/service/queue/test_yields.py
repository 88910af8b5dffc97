"""Which studies are asked for their devices. A device counts 600 GPU-seconds in advance."""

from __future__ import annotations

from tests.unit.service.queue.views import HOUR_S, runs, used, view, waits
from tuner.service.queue.policy import decide
from tuner.service.queue.rules import YIELD_AFTER_S
from tuner.service.queue.view import OwnerShare

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
