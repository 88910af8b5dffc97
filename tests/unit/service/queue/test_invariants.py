"""What holds for every view."""

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.service.queue.views import HOUR_S, NOW_S, devices, runs, used, view, waits
from tuner.service.queue.policy import decide
from tuner.service.queue.rules import MOST_PASSED_S, TRIALS_A_START, YIELD_AFTER_S
from tuner.service.queue.view import Decisions, OwnerShare, QueueView, Running, Start, Waiting

ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=200)
OWNERS = ("ann", "bob", "eve", "max")
KINDS = {"h200": 4, "t4": 3}
ROUNDING_S = 1e-6

SHARES = st.builds(
    OwnerShare,
    weight=st.sampled_from((0.5, 1.0, 2.0, 4.0)),
    use=st.dictionaries(st.sampled_from(sorted(KINDS)), st.floats(0, 50 * HOUR_S)),
    week_s=st.floats(0, 50 * HOUR_S),
    most_gpus=st.none() | st.integers(1, 6),
    gpu_hours_a_week=st.none() | st.floats(0.1, 60),
)
TRIALS_S = st.sampled_from((60.0, 600.0, 3600.0))


@st.composite
def submissions(draw: st.DrawFn, number: int) -> Waiting:
    gpus = draw(st.integers(1, 5))
    age_s = draw(st.floats(0, 5 * HOUR_S))
    queued_for_s = draw(st.floats(0, age_s))
    return Waiting(
        f"w{number}",
        draw(st.sampled_from(OWNERS)),
        draw(st.sampled_from((*KINDS, "b200"))),
        gpus,
        NOW_S - age_s,
        NOW_S - queued_for_s,
        draw(st.integers(1, gpus)),
        draw(st.integers(0, 2)),
        draw(TRIALS_S),
    )


@st.composite
def runs_of(draw: st.DrawFn, kind: str) -> list[Running]:
    found: list[Running] = []
    names = devices(KINDS[kind], kind)
    while names:
        if draw(st.integers(0, 4)) == 0:
            break
        count = draw(st.integers(1, min(3, len(names))))
        mine, names = names[:count], names[count:]
        found.append(
            Running(
                f"{kind}-run{len(found)}",
                draw(st.sampled_from(OWNERS)),
                kind,
                mine,
                NOW_S - draw(st.floats(0, 3 * HOUR_S)),
                draw(st.booleans()),
                draw(st.booleans()),
                draw(TRIALS_S),
            )
        )
    return found


@st.composite
def views(draw: st.DrawFn) -> QueueView:
    count = draw(st.integers(0, 12))
    waiting = tuple(draw(submissions(number)) for number in range(count))
    running = tuple(run for kind in KINDS for run in draw(runs_of(kind)))
    owners = draw(st.dictionaries(st.sampled_from(OWNERS), SHARES))
    return QueueView(NOW_S, waiting, running, owners, {kind: devices(n, kind) for kind, n in KINDS.items()})


def by_id(view: QueueView) -> dict[str, Waiting]:
    return {submission.id: submission for submission in view.waiting}


def held(view: QueueView, decisions: Decisions) -> Counter[str]:
    """Return the devices of each owner after the decisions."""
    counts = Counter({run.owner: 0 for run in view.running})
    for run in view.running:
        counts[run.owner] += len(run.devices)
    for start in decisions.starts:
        counts[by_id(view)[start.id].owner] += len(start.devices)
    return counts


def set_aside_s(view: QueueView, decisions: Decisions) -> dict[str, float]:
    """Return the GPU-seconds that running trials, and three trials of each start, may still use, by owner."""
    seconds: dict[str, float] = defaultdict(float)
    for run in view.running:
        seconds[run.owner] += len(run.devices) * run.trial_s
    for start in decisions.starts:
        submission = by_id(view)[start.id]
        seconds[submission.owner] += len(start.devices) * submission.trial_s * TRIALS_A_START
    return seconds


def within_quotas(view: QueueView, decisions: Decisions, submission: Waiting, more: int) -> bool:
    """Return whether the owner's quotas allow a submission `more` devices beside the decisions."""
    share = view.owners.get(submission.owner, OwnerShare())
    if share.most_gpus is not None and held(view, decisions)[submission.owner] + more > share.most_gpus:
        return False
    need_s = share.week_s + set_aside_s(view, decisions)[submission.owner]
    need_s += more * submission.trial_s * TRIALS_A_START
    return share.gpu_hours_a_week is None or need_s <= share.gpu_hours_a_week * HOUR_S - ROUNDING_S


def each_submission_starts_or_has_a_reason(view: QueueView, decisions: Decisions) -> None:
    started = [start.id for start in decisions.starts]
    assert sorted([*started, *decisions.waits]) == sorted(submission.id for submission in view.waiting)
    assert all(decisions.waits.values())


def a_start_gets_free_devices_of_its_kind_as_many_as_it_asks(view: QueueView, decisions: Decisions) -> None:
    given_away = [device for start in decisions.starts for device in start.devices]
    busy = [device for run in view.running for device in run.devices]
    assert len({*given_away, *busy}) == len(given_away) + len(busy)
    for start in decisions.starts:
        submission = by_id(view)[start.id]
        assert submission.least_gpus <= len(start.devices) <= submission.gpus
        assert set(start.devices) <= set(view.devices[submission.kind])


def quotas_hold_after_the_starts(view: QueueView, decisions: Decisions) -> None:
    for owner in {by_id(view)[start.id].owner for start in decisions.starts}:
        share = view.owners.get(owner, OwnerShare())
        assert share.most_gpus is None or held(view, decisions)[owner] <= share.most_gpus
        end_s = share.week_s + set_aside_s(view, decisions)[owner]
        assert share.gpu_hours_a_week is None or end_s <= share.gpu_hours_a_week * HOUR_S + ROUNDING_S


def the_week_is_not_exceeded_by_studies_that_are_not_asked(view: QueueView, decisions: Decisions) -> None:
    for run in view.running:
        share = view.owners.get(run.owner, OwnerShare())
        end_s = share.week_s + sum(len(r.devices) * r.trial_s for r in view.running if r.owner == run.owner)
        if share.gpu_hours_a_week is not None and end_s >= share.gpu_hours_a_week * HOUR_S:
            assert run.leaving or run.id in decisions.yields


def no_device_stays_free_that_a_waiting_submission_could_use(view: QueueView) -> None:
    """Nothing is kept here: no submission is overdue, and no device is about to come free."""
    waiting = tuple(replace(each, queued_s=NOW_S - MOST_PASSED_S + 1) for each in view.waiting)
    running = tuple(replace(run, leaving=False) for run in view.running)
    view = replace(view, waiting=waiting, running=running)
    decisions = decide(view)
    if decisions.yields:
        return
    busy = {device for run in view.running for device in run.devices}
    busy |= {device for start in decisions.starts for device in start.devices}
    for kind, names in view.devices.items():
        free = len(set(names) - busy)
        for submission in view.waiting:
            if submission.kind == kind and submission.id in decisions.waits:
                least = submission.least_gpus
                assert least > free or not within_quotas(view, decisions, submission, least)
        for start in decisions.starts:
            submission = by_id(view)[start.id]
            if submission.kind == kind and free and len(start.devices) < submission.gpus:
                assert not within_quotas(view, decisions, submission, 1)


def only_studies_that_may_be_asked_yield(view: QueueView, decisions: Decisions) -> None:
    running = {run.id: run for run in view.running}
    assert len(set(decisions.yields)) == len(decisions.yields)
    limited = {name for name, share in view.owners.items() if share.gpu_hours_a_week or share.most_gpus}
    overdue = any(NOW_S - each.queued_s >= MOST_PASSED_S and each.least_gpus > 1 for each in view.waiting)
    for name in decisions.yields:
        run = running[name]
        assert not run.leaving
        if run.owner not in limited:
            assert run.may_yield
            assert overdue or NOW_S - run.started_s >= YIELD_AFTER_S
            assert any(each.kind == run.kind and each.owner != run.owner for each in view.waiting)


def order_of_the_input_does_not_matter(view: QueueView, decisions: Decisions, random: Random) -> None:
    waiting, running = list(view.waiting), list(view.running)
    random.shuffle(waiting)
    random.shuffle(running)
    owners = dict(reversed(list(view.owners.items())))
    again = replace(view, waiting=tuple(waiting), running=tuple(running), owners=owners)
    assert decide(again) == decisions


@ANY_PACE
@given(views(), st.randoms(use_true_random=False))
def test_what_holds_for_every_view(view: QueueView, random: Random) -> None:
    decisions = decide(view)
    each_submission_starts_or_has_a_reason(view, decisions)
    a_start_gets_free_devices_of_its_kind_as_many_as_it_asks(view, decisions)
    quotas_hold_after_the_starts(view, decisions)
    the_week_is_not_exceeded_by_studies_that_are_not_asked(view, decisions)
    no_device_stays_free_that_a_waiting_submission_could_use(view)
    only_studies_that_may_be_asked_yield(view, decisions)
    order_of_the_input_does_not_matter(view, decisions, random)


def after(view: QueueView, decisions: Decisions) -> QueueView:
    """Return the view at the same time with the decisions carried out."""
    started = [
        Running(name, each.owner, each.kind, start.devices, NOW_S, trial_s=each.trial_s)
        for start in decisions.starts
        for name, each in [(start.id, by_id(view)[start.id])]
    ]
    running = [replace(run, leaving=run.leaving or run.id in decisions.yields) for run in view.running]
    waiting = tuple(each for each in view.waiting if each.id in decisions.waits)
    return replace(view, waiting=waiting, running=(*running, *started))


@ANY_PACE
@given(views())
def test_decisions_at_the_same_time_settle(view: QueueView) -> None:
    """A start raises its owner's score, so the next decision may ask another study of that owner, but not this one.

    A start sets three trials of the week's quota aside and a run one, so there is no such quota here.
    """
    owners = {name: replace(share, gpu_hours_a_week=None) for name, share in view.owners.items()}
    view = replace(view, owners=owners)
    started: set[str] = set()
    for _ in range(3):
        decisions = decide(view)
        started |= {start.id for start in decisions.starts}
        assert not started & set(decisions.yields)
        view = after(view, decisions)
    last = decide(view)
    assert (last.starts, last.yields) == ((), ())


def test_a_start_lets_the_next_decision_ask_an_older_study_of_its_owner() -> None:
    """Bob needs two devices, and his score with them is 1200.

    Before the start, Ann without her three devices has 0 and would be next. With the fourth device, 600 by the weight
    0.5 make 1200 of hers, and the older study yields.
    """
    first = view([waits("ann-new"), waits("bob-two", 2, 2)], [runs("ann-old", (0, 1, 2))], {"ann": used(0, 0.5)})
    decisions = decide(first)
    assert (decisions.starts, decisions.yields) == ((Start("ann-new", ("h200-3",)),), ())
    second = after(first, decisions)
    assert (decide(second).starts, decide(second).yields) == ((), ("ann-old",))
    third = after(second, decide(second))
    assert (decide(third).starts, decide(third).yields) == ((), ())
