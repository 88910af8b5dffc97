"""Costs and energies stand beside their price and their provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from records.trials import Provenance
from search_spaces import Price
from tests.unit.cli.studies import GOALS, study_start, trial
from tuner.cli.output.progress.lines import opening_lines
from tuner.results.conclusion import cost_lines, price_lines
from tuner.results.findings import Findings
from tuner.study.specification.resolve_workload import make_goals

COST, ENERGY = "cost_per_million_output_tokens", "joules_per_output_token"
LISTED = Price(0.526, "USD", "a cloud, as of 2026-07")
CONCLUSION: dict[str, Any] = {"winner": 1, "contenders": []}


def findings(price: Price | None, metric: str = COST, objective: str = COST, **more: Any) -> Findings:
    first: dict[str, Any] = {metric: 0.04, **more}
    records = [trial(0, 1000.0, **first), trial(1, 2000.0, **{**first, metric: 0.02})]
    goals = make_goals([objective], [])
    return Findings(CONCLUSION, records, goals, {}, price)


def test_costs_of_both_and_the_price() -> None:
    line = f"{COST}: 0.04 per Mtok with the defaults, 0.02 per Mtok with #1; price: 0.35 per GPU-hour (as given)"
    assert cost_lines(findings(Price(0.35))) == [line]


def test_a_prediction_and_a_list_price_are_marked() -> None:
    (line,) = cost_lines(findings(LISTED, provenance=Provenance.SIMULATED))
    assert line.startswith(f"predicted {COST}: ")
    assert line.endswith("price: 0.526 USD per GPU-hour (list price: a cloud, as of 2026-07)")


def test_energy_needs_no_price() -> None:
    found = findings(None, ENERGY, "output_throughput")
    assert cost_lines(found) == [f"{ENERGY}: 0.04 J/tok with the defaults, 0.02 J/tok with #1"]


def test_the_cost_of_one_workload_has_its_price() -> None:
    assert cost_lines(findings(LISTED, f"day.{COST}", f"day.{COST}")) == [f"price: {LISTED}"]


def test_a_study_without_costs_has_no_line() -> None:
    found = Findings(CONCLUSION, [trial(0), trial(1)], GOALS, {}, LISTED)
    assert cost_lines(found) == []


def test_each_price_is_shown_once_and_only_beside_a_cost() -> None:
    assert price_lines([f"day.{COST}"], [LISTED, LISTED, None]) == [f"price: {LISTED}"]
    assert price_lines(["p99_ttft_ms", ENERGY], [LISTED]) == []


def test_a_study_of_the_cost_opens_with_its_price(tmp_path: Path) -> None:
    line = f"price: {LISTED}"
    assert line in opening_lines(study_start(tmp_path, goals=make_goals([COST], []), price=LISTED), 0)
    assert line not in opening_lines(study_start(tmp_path, price=LISTED), 0)
