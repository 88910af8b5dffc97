"""The answer of `tuner size` as a JSON document, as tables and as lines; `html` makes the page of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from records.tables import Grid, grid
from search_spaces import shared_currency
from tuner.results import text
from tuner.use_cases.size.fleet import HOURS_PER_MONTH
from tuner.use_cases.size.sizing import Origin, Sized, Sizing


def document(sizing: Sizing) -> dict[str, Any]:
    """Return the answer as plain JSON."""
    settings, demand = sizing.settings, sizing.demand
    return {
        "model": sizing.model.name,
        "slos": [str(slo) for slo in sizing.slos],
        "demand": asdict(demand),
        "headroom": settings.headroom,
        "spares": settings.spares,
        "hours_per_month": HOURS_PER_MONTH,
        "notes": list(sizing.notes),
        "seconds": round(sizing.seconds, 2),
        "measured_by_predicted": sizing.ratio,
        "shapes": [shape_facts(each) for each in sizing.shapes],
    }


def shape_facts(each: Sized) -> dict[str, Any]:
    """Return a shape as plain JSON."""
    found = each.prediction
    return {
        "card": each.card.key,
        "gpu": each.card.name,
        "shape": found.shape.name,
        "gpus": found.shape.gpus,
        "vllm": ".".join(map(str, found.platform.version)),
        "arguments": list(found.arguments),
        "environment": dict(found.environment),
        "recipes": list(found.recipes),
        "changes_answers": list(found.changes_answers),
        "rate": each.rate,
        "origin": each.origin.value,
        "predicted_rate": None if found.held is None else found.held.rate,
        "pessimistic_rate": found.pessimistic,
        "band": dict(found.band or {}),
        "band_assumed": found.band_assumed,
        "limited_by": [] if found.held is None else list(found.held.missed),
        "predicted_latencies": {name: _finite(value) for name, value in each.latencies.items()},
        "price": None if each.price is None else each.price.to_dict(),
        "fleet": None if each.fleet is None else asdict(each.fleet),
        "pessimistic_servers": None if each.pessimistic is None else each.pessimistic.servers,
        "on_front": each.on_front,
        "note": each.note,
        "failure": found.failure,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def fleets_grid(sizing: Sizing) -> Grid:
    """Return a row for each shape: servers, cost and latencies; shapes that another one beats are faint."""
    by_hour = ("by hour",) if sizing.demand.hours else ()
    month = f"{shared_currency(each.price for each in sizing.shapes) or ''} a month".lstrip()
    headings = ("card", "shape", "req/s", "rate is", "servers", "at worst", "GPUs", month, *by_hour, "per M tokens")
    table = grid(*headings, "p95 TTFT ms", "p95 TPOT ms", left=("card", "shape", "rate is"))
    for each in sizing.shapes:
        fleet = each.fleet
        if fleet is None:
            reason = each.prediction.failure or each.note or "no rate meets the SLOs"
            cells = ["", text.cut(reason, 60), *[""] * (len(table.columns) - 4)]
            table.add(each.card.key, each.prediction.shape.name, *cells, faint=True)
            continue
        table.add(
            each.card.key,
            each.prediction.shape.name,
            text.number(each.rate),
            each.origin.value,
            str(fleet.servers),
            _worst(each),
            str(fleet.gpus),
            money(fleet.cost_per_month),
            *((money(fleet.cost_per_month_by_hour),) if by_hour else ()),
            _cents(fleet.cost_per_million_total_tokens),
            *(_ms(each.latencies.get(name)) for name in ("p95_ttft_ms", "p95_tpot_ms")),
            faint=not each.on_front,
        )
    return table


def _worst(each: Sized) -> str:
    """Return the servers at the pessimistic end, which a measured rate lacks; a predicted one may hold none there."""
    if each.origin is Origin.MEASURED:
        return text.ABSENT
    return "none hold" if each.pessimistic is None else str(each.pessimistic.servers)


def money(value: float | None) -> str:
    """Return an amount in whole units of its currency."""
    return text.ABSENT if value is None else f"{value:,.0f}"


def _cents(value: float | None) -> str:
    return text.ABSENT if value is None else f"{value:.3f}"


def _ms(value: float | None) -> str:
    return text.ABSENT if value is None else f"{value:,.0f}"


def verdict(sizing: Sizing) -> str:
    """Return the answer in a sentence."""
    best = sizing.cheapest
    if best is None or best.fleet is None:
        return "No shape of these cards holds a rate within the SLOs"
    fleet, worst = best.fleet, best.pessimistic
    cost = "" if fleet.cost_per_month is None else f", {money(fleet.cost_per_month)}{currency(best)} a month"
    rest = "" if worst is None else f"; {worst.servers} at the pessimistic end of the error band"
    return (
        f"{text.count(fleet.servers, 'server')} of {best.card.name}, {best.prediction.shape.name}{cost}: each holds "
        f"{text.number(best.rate)} requests/s ({best.origin}){rest}"
    )


def currency(each: Sized) -> str:
    """Return a space and the currency of a shape's price; empty without one."""
    return f" {each.price.currency}" if each.price is not None and each.price.currency else ""


def reserve_line(sizing: Sizing) -> str:
    """Return the demand and the rule for servers, in a line."""
    demand, settings = sizing.demand, sizing.settings
    return (
        f"peak {text.number(demand.peak)} requests/s and mean {text.number(demand.mean)}, "
        f"{settings.headroom:.0%} headroom, {text.count(settings.spares, 'server')} may fail; "
        f"a month has {HOURS_PER_MONTH:.0f} hours"
    )


def command_of(sizing: Sizing, each: Sized) -> tuple[str, ...]:
    """Return the command of a server."""
    variables = [f"{name}={value}" for name, value in each.prediction.environment.items()]
    prefix = ("env", *variables) if variables else ()
    return (*prefix, "vllm", "serve", sizing.model.name, *sizing.asked.arguments, *each.prediction.arguments)


def memory_lines(sizing: Sizing) -> Iterator[str]:
    """Yield for each card that one GPU of does not hold the model how many do."""
    for card in dict.fromkeys(each.card.key for each in sizing.shapes):
        own = [each.prediction for each in sizing.shapes if each.card.key == card]
        too_small = [each.shape.gpus for each in own if each.lacks_memory]
        if not too_small:
            continue
        enough = [each.shape for each in own if each.failure is None]
        least = min(enough, key=lambda shape: shape.gpus, default=None)
        holds = "no shape that was tried does" if least is None else f"{least.gpus} do, {least.name}"
        yield f"{card}: {text.count(min(too_small), 'GPU')} does not hold the model; {holds}"


def why_lines(sizing: Sizing) -> Iterator[str]:
    """Yield what to know about the numbers: notes, flags that change answers, bands, prices, measurements."""
    yield from sizing.notes
    yield from memory_lines(sizing)
    shown = [each for each in sizing.shapes if each.fleet is not None]
    changing = dict.fromkeys(name for each in shown for name in each.prediction.changes_answers)
    if changing:
        yield f"{', '.join(changing)} may change the model's answers: `tuner quality` checks it"
    predicted = [each.prediction for each in shown if each.origin is not Origin.MEASURED]
    if len(predicted) < len(shown):
        yield "latencies are predicted, at each server's part of the peak"
    if predicted:
        yield "at worst: servers at the pessimistic end of the error band, on a slow host"
    reasons = dict.fromkeys(why.partition(":")[0] for each in predicted if (why := each.band_assumed))
    if reasons:
        yield f"the widest documented band is assumed: {'; '.join(reasons)}"
    for price in dict.fromkeys(str(each.price) for each in shown if each.price is not None):
        yield f"price {price}"
    if lacking := dict.fromkeys(each.card.key for each in shown if each.price is None):
        yield f"no list price of {', '.join(lacking)} is known, so its cost is not either"
    yield from (f"{each.name}: {each.note}" for each in sizing.shapes if each.note)
    if sizing.ratio is not None and predicted:
        yield f"corrected: predicted rates times {sizing.ratio:.3f}, the measured rates relative to their predictions"


def rates_grid(sizing: Sizing) -> Grid:
    """Return a row for each shape: rates of one server, what limits it, and its flags."""
    left = ("card", "shape", "rate is", "missed above", "flags")
    numbers = ("req/s", "rate is", "predicted", "at worst")
    table = grid("card", "shape", "vLLM", *numbers, "missed above", "flags", left=left)
    for each in sizing.shapes:
        found = each.prediction
        predicted = None if found.held is None else found.held.rate
        missed = found.failure or (", ".join(found.held.missed) if found.held else "no rate meets the SLOs")
        version = ".".join(map(str, found.platform.version))
        rates = (text.number(each.rate), each.origin.value, text.number(predicted), text.number(found.pessimistic))
        flags = shlex.join(found.arguments) or "the defaults"
        table.add(each.card.key, found.shape.name, version, *rates, missed, flags, faint=not each.on_front)
    return table
