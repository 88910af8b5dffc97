"""What tokens cost, in money and energy, as lines; a cost never stands without the price that it follows from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from search_spaces import Price
from storage.metrics import COSTS, ENERGY
from storage.records import Provenance
from tuner.results import text
from tuner.results.findings import Findings

COST = "cost_per_million_output_tokens"


def price_lines(names: Iterable[str], prices: Sequence[Price | None]) -> list[str]:
    """Return the prices that shown costs follow from, one a line; none if no cost is shown.

    Args:
        names: the metrics that are shown.
        prices: of the studies that they come from.
    """
    if not any(name.rpartition(".")[2] in COSTS for name in names):
        return []
    return list(dict.fromkeys(f"price: {price}" for price in prices if price is not None))


def cost_lines(findings: Findings) -> list[str]:
    """Return the cost and the energy of a token with the reference and with what is compared with it."""
    numbers = {findings.baseline_name: findings.baseline, f"#{findings.challenger}": findings.challenger}
    outcomes = {name: findings.measured(number) for name, number in numbers.items()}
    lines: list[str] = []
    for name in (COST, ENERGY):
        shown = [
            f"{text.with_unit(name, value)} with {who}"
            for who, outcome in outcomes.items()
            if outcome is not None and (value := outcome.metric(name)) is not None
        ]
        if shown:
            simulated = any(each is not None and each.provenance is Provenance.SIMULATED for each in outcomes.values())
            price = f"; price: {findings.price}" if name == COST and findings.price is not None else ""
            lines.append(f"{'predicted ' if simulated else ''}{name}: {', '.join(shown)}{price}")
    if not any(line.endswith(f"price: {findings.price}") for line in lines):  # as with several workloads
        goals = [*(each.metric for each in findings.objectives), *(each.metric for each in findings.slos)]
        lines += price_lines(goals, [findings.price])
    return lines
