"""The configuration that is nearest to meeting the SLOs: how far it is from each, and the rate at which all hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli.output.parts.console import new_table
from tuner.results import text
from tuner.scoring.slo import parse_slo

HEADINGS = ("SLO", "mean", "95 % interval", "beyond", "met", "best trial's")


def nearest_parts(nearest: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return what is shown of the nearest configuration; nothing if the SLOs are met.

    Args:
        nearest: as plain JSON, see `Nearest`.
    """
    if not nearest:
        return []
    title = Text(f"the SLOs with #{nearest['number']}, the nearest to meeting them", style="bold")
    rate = _rate_line(nearest)
    return [*([] if rate is None else [Text(rate)]), Text(""), title, _table(nearest)]


def _rate_line(nearest: Mapping[str, Any]) -> str | None:
    if nearest["rate"] is None:
        return None
    if nearest["capacity"] is None:
        return f"no rate that was tried below {nearest['rate']:g} requests/s meets all SLOs with #{nearest['number']}"
    searched = f"searched by trial {nearest['capacity_trial']}"
    return (
        f"at {nearest['capacity']:.3g} requests/s all SLOs hold with #{nearest['number']} ({searched}); "
        f"the workload has {nearest['rate']:g}"
    )


def _table(nearest: Mapping[str, Any]) -> Table:
    table = new_table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "SLO" else "right", no_wrap=True)
    for each in nearest["slos"]:
        name = parse_slo(each["slo"]).metric
        best = text.ABSENT if each["best"] is None else f"{text.number(each['best'])}, #{each['best_trial']}"
        table.add_row(
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
