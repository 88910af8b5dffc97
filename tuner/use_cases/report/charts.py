"""The figures of a study by name: what the report and `study.plot` draw, and the section on cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dashboards import tradeoff
from dashboards.frames import latency_arrays, length_frame, server_frame
from dashboards.plots import pictures, results, search, traffic
from dashboards.plots.traffic import roofline_figure, time_shares
from dashboards.report.page import Figure, Table
from dashboards.tradeoff import has_class_slos
from records.tables import Grid, grid
from storage.errors import StorageError
from tuner.errors import UserError
from tuner.results import text
from tuner.results.conclusion import COST
from tuner.study.alternatives import front_of_study
from tuner.use_cases.other_cards import CardPrediction, own_card
from tuner.use_cases.report.reported import ReportedStudy

if TYPE_CHECKING:
    import plotly.graph_objects as go


MOST_POINTS = 150
"""Trials in the stored front at most; those on it come first."""


def progress(study: ReportedStudy) -> go.Figure | None:
    """Score of each trial, the best so far, and failures."""
    return search.progress(study.trials)


def pareto(study: ReportedStudy) -> go.Figure | None:
    """Front of the objectives, as ratios to the reference with intervals."""
    found = _front(study)
    return None if found is None else results.front(found)


def _front(study: ReportedStudy) -> dict[str, Any] | None:
    try:
        return front_of_study(study.record, study.trials).to_dict()
    except UserError:  # one metric, or no feasible trial
        return None


def plotted_facts(study: ReportedStudy) -> dict[str, Any]:
    """Return facts of which pictures and reports are drawn later: the importance of parameters, and the front."""
    shares = {name: list(share) for name, share in study.importance.items()}
    found = _front(study)
    if found is not None:
        first = sorted(found["points"], key=lambda point: not point["on_front"])
        found = {**found, "points": first[:MOST_POINTS]}
    counted = {pictures.IMPORTANCE: shares, pictures.IMPORTANCE_TRIALS: study.finished}
    facts = {**counted, pictures.FRONT: found}
    return {name: value for name, value in facts.items() if value}


def importance(study: ReportedStudy) -> go.Figure | None:
    """Share of the score's variance that each parameter explains."""
    return search.importance(study.importance)


def slices(study: ReportedStudy) -> go.Figure | None:
    """Score against the values of each of the most important parameters."""
    return search.slices(study.trials, list(study.importance), study.defaults)


def parallel(study: ReportedStudy) -> go.Figure | None:
    """Each trial as a line through its values, coloured by its score."""
    return search.parallel(study.trials, list(study.importance))


def failures(study: ReportedStudy) -> go.Figure | None:
    """Share of the trials with a value that failed, by kind of failure."""
    return search.failures(study.trials)


def noise(study: ReportedStudy) -> go.Figure | None:
    """Every benchmark of the reference and of the winner, by launch."""
    price = study.findings.price
    currency = None if price is None else price.currency
    return results.noise(study.trials, study.findings.objectives[0].metric, list(study.compared.values()), currency)


def percentiles(study: ReportedStudy) -> go.Figure | None:
    """Percentiles of TTFT, TPOT and ITL of the winner and the reference."""
    return results.percentiles(study.outcomes)


def distributions(study: ReportedStudy) -> go.Figure | None:
    """Cumulative distributions of TTFT, TPOT and ITL over all requests; None without records of single requests."""
    found = {
        name: latency_arrays(study.files(number, "requests-*.jsonl.gz")) for name, number in study.compared.items()
    }
    return traffic.distributions({name: each for name, each in found.items() if each})


def lengths(study: ReportedStudy) -> go.Figure | None:
    """Completed and failed requests of the winner by prompt length and answer length; None without their records."""
    numbers = [*study.compared.values()]
    files = study.files(numbers[-1], "requests-*.jsonl.gz") if numbers else []
    return traffic.lengths(length_frame(files)) if files else None


def classes(study: ReportedStudy) -> go.Figure | None:
    """Share of requests within the SLO of their class, by configuration; None without SLOs of classes."""
    if not tradeoff.has_tradeoff(study.record):
        return None
    return results.tradeoff(tradeoff.tradeoff_frame(study.record, study.trials, pictures.MATRIX_COLUMNS))


def rates(study: ReportedStudy) -> go.Figure | None:
    """Latency by request rate, with the capacity; None where no trial searched it."""
    frame = study.rate_frame()
    return None if frame is None else traffic.rates(frame)


def server(study: ReportedStudy) -> go.Figure | None:
    """State of the server over time: requests, KV cache and preemptions; None without its samples."""
    frames = {name: server_frame(study.files(number, "server-*.csv")[:1]) for name, number in study.compared.items()}
    return traffic.server(frames)


def roofline(study: ReportedStudy) -> go.Figure | None:
    """Predicted and measured places on the roofline of the card; None where the card is not known."""
    own, card = study.own_prediction, own_card(study.record)
    if own is None or card is None or not card.bandwidth_gbs:
        return None
    found = {"defaults": own.defaults, "winner": own.winner}
    predicted = {name: figures.roofline for name, figures in found.items() if figures is not None}
    measured = {name: point.roofline for name, point in study.measured_points.items()}
    points = (
        {name: (place.intensity, place.flops) for name, place in each.items() if place is not None}
        for each in (predicted, measured)
    )
    return roofline_figure(card.tflops["float16"] * 1e12, card.bandwidth_gbs * 1e9, *points)


def steps(study: ReportedStudy) -> go.Figure | None:
    """Predicted share of each part of an engine step; None where the card is not simulated."""
    own = study.own_prediction
    if own is None:
        return None
    found = {"defaults": own.defaults, "winner": own.winner}
    return time_shares({n: each.time_shares for n, each in found.items() if each is not None})


CHARTS: Mapping[str, Callable[[ReportedStudy], go.Figure | None]] = {
    each.__name__: each
    for each in (
        *(progress, pareto, importance, slices, parallel, failures, noise),
        *(percentiles, distributions, lengths, classes, rates, server, roofline, steps),
    )
}
"""Every figure by its name; a figure is None where a study has no numbers for it."""


def chart(study: ReportedStudy, name: str) -> go.Figure | None:
    """Return a figure of a study; None where it has no numbers for it, also where its files cannot be read."""
    try:
        return CHARTS[name](study)
    except StorageError:
        return None


def figures(study: ReportedStudy, captions: Mapping[str, tuple[str, str]], source: str) -> Iterator[Figure]:
    """Yield those of some figures that a study has numbers for.

    Args:
        study: the study.
        captions: title and note by name.
        source: where their numbers come from.
    """
    for name, (title, note) in captions.items():
        found = chart(study, name)
        if found is not None:
            yield Figure(title, found, note, f"{source}.")


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
            table.add(
                card.name + (" (the study's)" if card.is_own else ""),
                text.ABSENT if card.price is None else card.price.amount,
                name,
                *map(text.number, values),
                text.with_unit(COST, figures.cost_per_million_output_tokens, card.price),
                text.cut(figures.failure or ", ".join(figures.misses), 60),
                faint=figures.failure is not None,
            )
    return table
