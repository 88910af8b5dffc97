"""The simulation of the queue: its mechanics by hand, and the figures' bounds over some hours of made traffic."""

from benchmarks.service.fairness import made_view
from benchmarks.service.simulation import DRIVER_START_S, Run, Simulation
from benchmarks.service.traffic import DEVICES, HOUR_S, Study, backlogged, big_among_small, usual, weighted_owners
from storage.service.records import Owner
from tuner.service.queue.policy import decide


def study(name: str, work_s: float, gpus: int = 1, least: int = 1, at_s: float = 0.0) -> Study:
    return Study(name, name.split("-")[0], "h200", gpus, least, 0, at_s, work_s, 300.0)


def test_a_run_that_yields_ends_with_its_trial() -> None:
    # The first trial begins after 30 s; trials end at 330 s, 630 s and so on.
    for asked_s, ended_s in ((10.0, 330.0), (331.0, 630.0), (630.0, 630.0)):
        run = Run(study("ann-1", 9000.0), ("h200-0",), 0.0, 9030.0)
        run.yield_at(asked_s)
        assert run.ends_s == ended_s


def test_two_studies_on_one_device_run_one_after_the_other() -> None:
    studies = [study("ann-1", 600.0), study("bob-1", 900.0, at_s=60.0)]
    outcome = Simulation(studies, [Owner("ann"), Owner("bob")], {"h200": ("h200-0",)}).run(HOUR_S)
    assert outcome.waits_s == {"ann-1": 0.0, "bob-1": DRIVER_START_S + 600 - 60}
    assert dict(outcome.use_s) == {"ann": 630.0, "bob": 930.0}
    assert (outcome.finished, outcome.yields, outcome.busy_s, outcome.start_s) == (2, 0, 1560.0, 60.0)
    assert outcome.longest_without_s == 570.0


def test_a_study_that_yields_goes_on_later() -> None:
    # ann's study yields after 20 minutes, at the end of the trial that ends at 1230 s. bob's ends 330 s later.
    studies = [study("ann-1", 3000.0), study("bob-1", 300.0, at_s=60.0)]
    outcome = Simulation(studies, [Owner("ann"), Owner("bob")], {"h200": ("h200-0",)}).run(2 * HOUR_S)
    assert (outcome.waits_s["bob-1"], outcome.yields, outcome.finished) == (1170.0, 1, 2)
    assert dict(outcome.use_s) == {"ann": 3060.0, "bob": 330.0}


def test_the_same_seed_gives_the_same_traffic() -> None:
    assert usual(3, 9 * HOUR_S, 0.9) == usual(3, 9 * HOUR_S, 0.9) != usual(4, 9 * HOUR_S, 0.9)


def test_quotas_hold_in_an_hour_of_traffic() -> None:
    owners = weighted_owners({"ben": 1, "dora": 2}, {"anna": 0.6, "carla": 1.1})
    outcome = Simulation(backlogged(1, HOUR_S), owners, DEVICES).run(HOUR_S)
    assert outcome.violations == 0
    assert 0.3 < outcome.most_week_hours["anna"] <= 0.6
    assert 0.7 < outcome.most_week_hours["carla"] <= 1.1


def test_a_big_study_starts_in_a_stream_of_small_ones() -> None:
    until_s = 12 * HOUR_S
    studies = big_among_small(2, until_s)
    outcome = Simulation(studies, weighted_owners({}, {}), DEVICES).run(until_s)
    big = [each for each in studies if each.least_gpus == 4 and each.submitted_s < until_s - 3 * HOUR_S]
    assert len(big) == 4
    assert max(outcome.waits_s[each.id] for each in big) < 3 * HOUR_S


def test_a_view_with_many_waiting_submissions_is_decided() -> None:
    view = made_view(10_000, 0)
    decisions = decide(view)
    assert len(decisions.starts) + len(decisions.waits) == 10_000
