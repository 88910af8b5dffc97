"""The report's section on cards: the roofline, the time of a step, and what other cards are predicted to give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.analysis.tradeoff import has_class_slos
from dashboards.report.page import Figure, Table
from tuner.results import text
from tuner.results.grid import Grid, grid
from tuner.use_cases.other_cards import CardPrediction
from tuner.use_cases.report.charts import chart
from tuner.use_cases.report.reported import ReportedStudy

PREDICTED = "Predicted by the simulator, also in the report of a measured study, unless a point is called measured."
ROOFLINE = (
    "Memory bounds a run below the slope, arithmetic one below the flat part. The distance to the line is lost to "
    "launches, small batches and the host."
)
FORMULA = (
    "A measured point follows from measured tokens per second, mean batch and mean context, with the arithmetic and "
    "the memory traffic of a token as in the predictions"
)
STEPS = "Shares of the time in which the engine is busy."
SIMULATOR = "Predicted by the simulator for {card}"


def cards_parts(study: ReportedStudy, where: str) -> Iterator[Figure | Table | str]:
    """Yield the figures, the sentences and the table of the section; `where` is the origin of measured points."""
    predicted = SIMULATOR.format(card=study.device)
    figure = chart(study, "roofline")
    if figure is not None:
        bases = [*_bases(study)]
        note = f"{ROOFLINE} {FORMULA}: {'; '.join(bases)}." if bases else ROOFLINE
        yield Figure("Roofline of the card", figure, note, f"{predicted}. {where}." if bases else f"{predicted}.")
    yield from _lacking(study)
    if (figure := chart(study, "steps")) is not None:
        yield Figure("Where the time of a step goes", figure, STEPS, f"{predicted}.")
    yield from _other_cards(study)


def _bases(study: ReportedStudy) -> Iterator[str]:
    """Yield the measured batch and context of each point."""
    for name, point in study.measured_points.items():
        if point.batch is not None and point.context is not None:
            yield f"{name} decodes {text.number(point.batch)} requests of {text.number(point.context)} tokens"


def _lacking(study: ReportedStudy) -> Iterator[str]:
    """Yield why a configuration has no measured point."""
    for name, point in study.measured_points.items():
        if point.lacking is not None:
            yield f"No measured point on the roofline for {name}: {text.cut(text.one_line(point.lacking), 160)}."


def _other_cards(study: ReportedStudy) -> Iterator[Table]:
    """Yield the table of other cards; none where they are not simulated."""
    if not study.cards:
        return
    listed = [card.price.list_price.rsplit(", ", 2) for card in study.cards if card.price and card.price.list_price]
    sources = dict.fromkeys(f"{source}, {moment}" for source, _, moment in listed)
    note = "Prices are per GPU-hour" + "".join(f"; list prices: {source}" for source in sources)
    within = " within the SLOs of their class; none where no request meets them" * has_class_slos(study.record)
    note += f". Costs are per million output tokens{within}. The winner was chosen for the study's own card."
    yield Table("The same load on other cards", cards_grid(study.cards), note)


def cards_grid(cards: Sequence[CardPrediction]) -> Grid:
    """Return a row for each card and configuration: price, throughput, latencies, cost, and what it misses."""
    last = "misses, or fails"
    headings = ("card", "price", "configuration", "tok/s", "p99 TPOT ms", "p99 TTFT ms", "cost", last)
    table = grid(*headings, left=("card", "configuration", last))
    for card in cards:
        for name, figures in (("defaults", card.defaults), ("winner", card.winner)):
            if figures is None:
                continue
            values = (figures.output_throughput, figures.p99_tpot_ms, figures.p99_ttft_ms)
            cost = figures.cost_per_million_output_tokens
            table.add(
                card.name + (" (the study's)" if card.is_own else ""),
                text.ABSENT if card.price is None else f"{card.price.per_gpu_hour:.4g}",
                name,
                *map(text.number, values),
                text.ABSENT if cost is None else f"{cost:.3f}",
                text.cut(figures.failure or ", ".join(figures.misses), 60),
                faint=figures.failure is not None,
            )
    return table
