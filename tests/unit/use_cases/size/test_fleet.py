"""Servers and costs, by hand: 730 hours a month, headroom, spares, parts of a server, and hours."""

import pytest

from tuner.settings.fleet import FleetSettings
from tuner.use_cases.size.demand import Demand
from tuner.use_cases.size.fleet import fleet_of, front, servers_for

RESERVE = FleetSettings(headroom=0.2, spares=1)


def demand(peak: float, mean: float | None = None, hours: tuple[float, ...] = ()) -> Demand:
    return Demand(peak, peak if mean is None else mean, hours, None, input_tokens=300.0, output_tokens=100.0)


@pytest.mark.parametrize(
    ("rate", "held", "headroom", "spares", "servers"),
    [
        (100.0, 10.0, 0.2, 0, 12),  # 120 / 10
        (100.0, 10.0, 0.2, 1, 12),  # eleven still hold 100
        (100.0, 10.0, 0.0, 1, 11),  # ten hold 100, and one may fail
        (100.0, 10.0, 0.0, 2, 12),
        (101.0, 10.0, 0.0, 0, 11),  # a part of a server is a whole one
        (30.0, 0.1, 0.0, 0, 300),  # 30 / 0.1 is 300.00000000000006 or less
        (1.0, 50.0, 0.2, 0, 1),  # no fleet has no server
        (1.0, 50.0, 0.2, 1, 2),  # one that holds all, and one that may fail
        (0.0, 50.0, 0.2, 1, 2),  # an hour without requests keeps the servers that answer the first one
        (10.0, 10.0, 0.05, 1, 2),  # the headroom and the spare are not added up
    ],
)
def test_servers_have_the_headroom_together_and_hold_the_peak_without_the_lost_ones(
    rate: float, held: float, headroom: float, spares: int, servers: int
) -> None:
    assert servers_for(rate, held, FleetSettings(headroom=headroom, spares=spares)) == servers


def test_a_month_costs_servers_times_gpus_times_price_times_730_hours() -> None:
    fleet = fleet_of(demand(100.0), held=10.0, gpus=2, price=1.5, reserve=RESERVE)
    assert (fleet.servers, fleet.gpus) == (12, 24)
    assert fleet.load == pytest.approx(100 / 12)
    assert fleet.cost_per_month == pytest.approx(24 * 1.5 * 730)  # 26,280
    # 100 requests/s × 730 × 3600 s × 100 tokens = 26,280 million tokens
    assert fleet.cost_per_million_output_tokens == pytest.approx(1.0)
    assert fleet.cost_per_million_total_tokens == pytest.approx(0.25)
    assert (fleet.by_hour, fleet.cost_per_month_by_hour) == ((), None)


def test_tokens_are_those_of_the_mean_rate_and_servers_those_of_the_peak() -> None:
    fleet = fleet_of(demand(100.0, mean=50.0), held=10.0, gpus=1, price=1.0, reserve=RESERVE)
    assert fleet.cost_per_month == pytest.approx(12 * 730)
    assert fleet.cost_per_million_output_tokens == pytest.approx(12 * 730 / (50 * 730 * 3600 * 100 / 1e6))


def test_servers_follow_the_hours() -> None:
    fleet = fleet_of(demand(100.0, 60.0, (20.0, 100.0)), held=10.0, gpus=1, price=2.0, reserve=RESERVE)
    assert fleet.by_hour == (3, 12)  # 24 / 10 in the first: 3, and two of them hold 20
    assert fleet.cost_per_month_by_hour == pytest.approx(7.5 * 2 * 730)


def test_without_a_price_there_is_no_cost() -> None:
    fleet = fleet_of(demand(100.0, 60.0, (20.0, 100.0)), held=10.0, gpus=1, price=None, reserve=FleetSettings())
    costs = (fleet.cost_per_month, fleet.cost_per_month_by_hour, fleet.cost_per_million_output_tokens)
    assert (fleet.servers, *costs) == (12, None, None, None)


def test_the_front_has_the_points_that_no_other_one_beats() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 5.0), (4.0, 1.0), (0.5, None)]
    assert front(points) == [True, True, False, False, True, False]
    assert front([(1.0, 1.0), (1.0, 1.0)]) == [True, True]
