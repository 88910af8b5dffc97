"""The servers of a fleet and their cost: arithmetic on rates, which is the same for predicted and measured ones.

With a peak of p requests/s, a headroom h, and a server that holds r requests/s within the SLOs, a fleet that may lose s
servers has

    n = max( ceil(p (1 + h) / r), ceil(p / r) + s )

servers: all together have the headroom, and without the lost ones the others still hold the peak. A part of a server is
a whole one. A fleet by the hour has the same rule with the rate of each hour.

A month has 730 hours (8760 / 12). It costs n × GPUs of a server × price × 730, and serves the mean rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tuner.scoring.front import dominates
from tuner.settings.fleet import FleetSettings
from tuner.use_cases.size.demand import Demand

HOURS_PER_MONTH = 730.0
_SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600.0
_WHOLE = 1e-9
"""A quotient this close above a whole number is that number: 30 / 0.1 is not 301 servers."""


@dataclass(frozen=True)
class Fleet:
    """Equal servers of one shape behind a router that splits the requests evenly.

    Costs are None without a price.

    Attributes:
        servers: for the peak.
        gpus: of all servers.
        load: requests/s of one server at the peak, while all work.
        by_hour: servers in each hour; empty where the demand has no hours.
        cost_per_month: with the servers of the peak all the time.
        cost_per_month_by_hour: with those of each hour; None where the demand has no hours, too.
        cost_per_million_output_tokens, cost_per_million_total_tokens: of the first cost, over all tokens of a month.
    """

    servers: int
    gpus: int
    load: float
    by_hour: tuple[int, ...]
    cost_per_month: float | None
    cost_per_month_by_hour: float | None
    cost_per_million_output_tokens: float | None
    cost_per_million_total_tokens: float | None


def servers_for(rate: float, held: float, reserve: FleetSettings) -> int:
    """Return the servers for a rate, if one holds `held`; both in requests/s."""
    return max(_up(rate * (1.0 + reserve.headroom) / held), _up(rate / held) + reserve.spares)


def _up(quotient: float) -> int:
    return max(math.ceil(quotient - _WHOLE * max(1.0, quotient)), 1)


def fleet_of(demand: Demand, held: float, gpus: int, price: float | None, reserve: FleetSettings) -> Fleet:
    """Return the fleet for a demand.

    Args:
        demand: of all servers together.
        held: requests/s of one server within the SLOs.
        gpus: of one server.
        price: of one GPU for an hour; None: unknown.
        reserve: its headroom and spare servers, beyond the peak.
    """
    servers = servers_for(demand.peak, held, reserve)
    by_hour = tuple(servers_for(rate, held, reserve) for rate in demand.hours)
    monthly = cost_per_month([servers], gpus, price)
    tokens = demand.mean * _SECONDS_PER_MONTH / 1e6
    return Fleet(
        servers=servers,
        gpus=servers * gpus,
        load=demand.peak / servers,
        by_hour=by_hour,
        cost_per_month=monthly,
        cost_per_month_by_hour=cost_per_month(by_hour, gpus, price),
        cost_per_million_output_tokens=_per(monthly, tokens * demand.output_tokens),
        cost_per_million_total_tokens=_per(monthly, tokens * (demand.input_tokens + demand.output_tokens)),
    )


def cost_per_month(servers: Sequence[int], gpus: int, price: float | None) -> float | None:
    """Return the cost of a month whose hours have so many servers in turn; None without a price or an hour."""
    return None if price is None or not servers else fmean(servers) * gpus * price * HOURS_PER_MONTH


def _per(cost: float | None, amount: float) -> float | None:
    return None if cost is None or not amount else cost / amount


def front(points: Sequence[tuple[float | None, ...]]) -> list[bool]:
    """Return for each point whether no other one is at least as low in every value and lower in one.

    A point without one of its values is not on the front, and beats none.
    """
    known = [tuple(value for value in point if value is not None) for point in points]
    whole = [values for values, point in zip(known, points, strict=True) if len(values) == len(point)]
    return [
        len(mine) == len(point) and not any(dominates(other, mine) for other in whole)
        for mine, point in zip(known, points, strict=True)
    ]
