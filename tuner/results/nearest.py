"""The configuration that is nearest to meeting the SLOs: how far it is from each, and the rate at which all hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.results import text
from tuner.results.grid import Grid, grid
from tuner.scoring.slo import parse_slo

HEADINGS = ("SLO", "mean", "95 % interval", "beyond", "met", "best trial's")


def rate_line(nearest: Mapping[str, Any]) -> str | None:
    """Return the rate at which all SLOs hold, in one line; None where no rate was searched."""
    if nearest["rate"] is None:
        return None
    if nearest["capacity"] is None:
        return f"no rate that was tried below {nearest['rate']:g} requests/s meets all SLOs with #{nearest['number']}"
    searched = f"searched by trial {nearest['capacity_trial']}"
    return (
        f"at {nearest['capacity']:.3g} requests/s all SLOs hold with #{nearest['number']} ({searched}); "
        f"the workload has {nearest['rate']:g}"
    )


def nearest_grid(nearest: Mapping[str, Any]) -> Grid:
    """Return each SLO, the farthest first."""
    table = grid(*HEADINGS, left=("SLO",))
    for each in nearest["slos"]:
        name = parse_slo(each["slo"]).metric
        best = text.ABSENT if each["best"] is None else f"{text.number(each['best'])}, #{each['best_trial']}"
        table.add(
            each["slo"],
            text.with_unit(name, each["value"]),
            "" if each["low"] is None else f"{text.number(each['low'])} to {text.number(each['high'])}",
            f"{each['excess']:+.0%}",
            met_text(each),
            f"{best}, {'met' if each['best_meets'] else 'missed'}",
        )
    return table


def met_text(distance: Mapping[str, Any]) -> str:
    """Return `yes` or `no` where the whole interval is on one side of the bound, else `perhaps`."""
    slo = parse_slo(distance["slo"])
    ends = [distance["low"], distance["high"]]
    if distance["low"] is None or distance["high"] is None:
        ends = [distance["value"]]
    met = {slo.met(end) for end in ends}
    return "perhaps" if len(met) > 1 else "yes" if met == {True} else "no"
