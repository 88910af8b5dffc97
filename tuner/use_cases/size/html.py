"""The HTML page of a sizing. It needs the extra `report`, and nothing else of `tuner size` does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dashboards.plots.sizing import cost_against_latency, servers_by_hour
from dashboards.report.page import Command, Figure, Page, Section, Table, Tile, render
from search_spaces import shared_currency
from tuner.results import text
from tuner.use_cases.size.page import (
    command_of,
    currency,
    fleets_grid,
    money,
    rates_grid,
    reserve_line,
    shape_facts,
    verdict,
    why_lines,
)
from tuner.use_cases.size.sizing import Origin, Sizing


def html(sizing: Sizing) -> str:
    """Return the page as a file."""
    return render(page_of(sizing))


def page_of(sizing: Sizing) -> Page:
    """Return the page."""
    best = sizing.cheapest
    note = f"{text.sentence(reserve_line(sizing))}. Shapes that another one beats are pale."
    fleets = Table("Fleets by cost", fleets_grid(sizing), note)
    parts: list[Figure | Table | Command | str] = [*_figures(sizing), fleets]
    if best is not None:
        parts.append(Command("A server of the cheapest fleet", shlex.join(command_of(sizing, best))))
    return Page(
        title=f"Servers for {sizing.model.name}",
        subtitle=f"{', '.join(dict.fromkeys(each.card.name for each in sizing.shapes))}; SLOs: "
        f"{', '.join(str(slo) for slo in sizing.slos)}",
        verdict=f"{verdict(sizing)}.",
        simulated=all(each.origin is Origin.PREDICTED for each in sizing.shapes),
        tiles=[*_tiles(sizing)],
        sections=[
            Section("Servers and cost", parts),
            Section("What one server holds", [Table("Rates", rates_grid(sizing), _RATES)]),
            Section("What to know", [*map(text.sentence, why_lines(sizing))]),
        ],
    )


_RATES = (
    "The highest rate with every SLO met, the rate at the pessimistic end of the error band, what is missed above it, "
    "and the flags."
)


def _tiles(sizing: Sizing) -> Iterator[Tile]:
    best = sizing.cheapest
    if best is None or best.fleet is None:
        return
    fleet, worst = best.fleet, best.pessimistic
    yield Tile("servers", str(fleet.servers), "" if worst is None else f"{worst.servers} at the pessimistic end")
    yield Tile("GPUs", f"{fleet.gpus} × {best.card.key}", best.prediction.shape.name)
    yield Tile("one server holds", f"{text.number(best.rate)} req/s", best.origin.value)
    yield Tile("cost per month", f"{money(fleet.cost_per_month)}{currency(best)}", "all hours the same servers")
    if fleet.cost_per_month_by_hour is not None:
        yield Tile(
            "cost by the hour", f"{money(fleet.cost_per_month_by_hour)}{currency(best)}", "servers follow the hours"
        )


def _figures(sizing: Sizing) -> Iterator[Figure]:
    shapes = [shape_facts(each) for each in sizing.shapes]
    drawn = cost_against_latency(shapes, shared_currency(each.price for each in sizing.shapes))
    if drawn is not None:
        note = "A point is a fleet for the peak. Large: no other one has lower cost and latencies. Filled: measured."
        yield Figure("Cost against latency", drawn, note, "Latencies are predicted, at each server's part of the peak.")
    best = sizing.cheapest
    if best is not None and best.fleet is not None and best.fleet.by_hour:
        hours = servers_by_hour(sizing.demand.hours, best.fleet.by_hour, best.name)
        yield Figure("Servers by the hour", hours, "The cheapest shape: servers of each hour, and its peak rate.")
