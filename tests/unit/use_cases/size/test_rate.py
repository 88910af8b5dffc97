"""The rate that a server holds, on one whose service is known: M/D/1, a queue with Poisson arrivals and one server."""

import math

import pytest

from tests.some import some
from tuner.scoring.goals import parse_slo
from tuner.use_cases.size.rate import GROWS, MOST_GROWTH, RateSearch, Run, growth, timed
from tuner.workloads.results import RequestRecord, RequestStatus
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.schedule import due_times, make_schedule
from tuner.workloads.traffic import Traffic

SERVICE_S = 0.1
"""A request takes so long, so ten are served in a second."""
LOAD = Traffic.model_validate(
    {
        "arrivals": {"process": "poisson", "rate": 1},
        "requests": 10,
        "classes": {"a": {"input": 10, "output": 2}},
    }
)


def md1(load: Traffic, seed: int) -> Run:
    """Serve one request after another, each in `SERVICE_S`; its first token comes with its last."""
    free, records, waits = 0.0, [], []
    for offered in make_schedule(load, seed):
        assert offered.at_s is not None
        free = max(free, offered.at_s) + SERVICE_S
        waits.append((offered.at_s, free - offered.at_s))
        at, done = offered.at_s, RequestStatus.COMPLETED
        records.append(RequestRecord(offered.index, "a", done, 10, 2, at, at, first_token_s=free, end_s=free))
    return Run(repeat_of(load, records, 0).metrics, growth(waits))


def search(*slos: str) -> RateSearch:
    return RateSearch(md1, LOAD, tuple(parse_slo(text) for text in slos), SERVICE_S)


def test_without_a_bound_on_a_wait_the_rate_does_not_exceed_the_service_rate() -> None:
    found = search("success_rate>=1")
    for first in (0.02, 9.0, 400.0):
        rough = some(found.rough(first))
        held = some(found.held(rough))
        assert 8.5 < held.rate <= 10.0
        assert held.missed == (GROWS,)


def test_a_bound_on_the_mean_wait_gives_the_rate_of_the_formula() -> None:
    """M/D/1 waits ρ D / (2 (1 - ρ)) on average: 0.2 s at ρ = 0.8, and 0.3 s with the service."""
    found = search("mean_ttft_ms<300")
    rough = some(found.rough(1.0))
    held = some(found.held(rough))
    assert 6.4 < held.rate <= 8.2  # every one of five runs has to meet the bound, so it is rather below 8
    assert held.missed[0] == "mean_ttft_ms<300"


def test_no_rate_holds_a_bound_below_the_service_time() -> None:
    found = search("mean_ttft_ms<100")
    assert found.rough(5.0) is None
    assert found.held(5.0) is None


def test_the_growth_of_the_wait_tells_the_rate_that_is_served() -> None:
    """12.5 requests/s arrive and 10 are served: the wait grows by 12.5 / 10 - 1 seconds a second."""
    waits, free = [], 0.0
    for index in range(1000):
        due = index / 12.5
        free = max(free, due) + SERVICE_S
        waits.append((due, free - due))
    assert growth(waits) == pytest.approx(0.25)
    assert 12.5 / (1.0 + growth(waits)) == pytest.approx(10.0)
    steady = [(index / 5.0, SERVICE_S) for index in range(1000)]
    assert growth(steady) == pytest.approx(0.0, abs=1e-9)
    assert growth(steady[:3]) == 1.0 > MOST_GROWTH


def test_another_seed_that_misses_lowers_the_rate() -> None:
    """A server whose first seed holds 10 requests/s and whose others hold 8."""

    def run(load: Traffic, seed: int) -> Run:
        limit = 10.0 if seed == LOAD.seed else 8.0
        return Run({"mean_ttft_ms": 50.0 if some(load.rate) <= limit else 500.0}, 0.0)

    held = some(RateSearch(run, LOAD, (parse_slo("mean_ttft_ms<100"),), 1.0).held(8.0))
    assert 8.0 / 1.03 < held.rate <= 8.0


def test_a_server_that_misses_nothing_holds_the_highest_rate_that_was_tried() -> None:
    slos = (parse_slo("mean_ttft_ms<100"),)
    held = some(RateSearch(lambda load, seed: Run({"mean_ttft_ms": 1.0}, 0.0), LOAD, slos, 1.0).held(8.0))
    assert held.rate == pytest.approx(8.0 * 1.1**20)
    assert held.missed == ()


@pytest.mark.parametrize(
    ("rate", "residence", "seconds"),
    [
        (100.0, 0.5, 20.0),  # the least
        (100.0, 4.0, 60.0),  # 15 times as long as a request takes
        (2.0, 4.0, 200.0),  # 400 requests
    ],
)
def test_a_run_is_long_enough_for_its_requests(rate: float, residence: float, seconds: float) -> None:
    load = timed(LOAD, rate, residence)
    assert load.requests is None
    assert load.duration_s == pytest.approx(seconds)
    assert math.isclose(len(due_times(timed(LOAD, rate, residence))) / seconds, rate, rel_tol=0.2)


def test_a_run_is_as_long_as_sessions_with_their_pauses_need() -> None:
    session = {"turns": 5, "pause_ms": 4000, "fan_out": 2}
    kinds = {"a": {"input": 10, "output": 2, "session": session}}
    load = Traffic.model_validate({**LOAD.model_dump(), "classes": kinds})
    # five turns of 1 s and four pauses of 4 s: 4 times 21 s; 20 requests/s are two sessions/s
    run = timed(load, 20.0, 1.0)
    assert run.duration_s == pytest.approx(4 * 21)
    assert run.arrivals.model_dump()["rate"] == pytest.approx(2.0)
