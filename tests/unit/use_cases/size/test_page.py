"""The answer as table, document and page, from a sizing that is made by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from search_spaces import Price, known_hardware, known_model
from tuner.engines.simulator.flags import SIMULATED_PACKAGES
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform
from tuner.scoring.goals import Goals, parse_slo
from tuner.settings.fleet import FleetSettings, SizeSettings
from tuner.specs import ModelRef
from tuner.use_cases.size.demand import Demand
from tuner.use_cases.size.fleet import fleet_of
from tuner.use_cases.size.html import html
from tuner.use_cases.size.page import document, fleets_grid, memory_lines, verdict, why_lines
from tuner.use_cases.size.predict import Asked, Prediction
from tuner.use_cases.size.rate import HeldRate, Run
from tuner.use_cases.size.shapes import ONE_GPU, Shape
from tuner.use_cases.size.sizing import Origin, Sized, Sizing, ordered
from tuner.workloads.traffic import Traffic

DEMAND = Demand(100.0, 60.0, (20.0, 100.0), 7200.0, 300.0, 100.0)
TWO = Shape("tensor parallel 2", 2, ("--tensor-parallel-size", "2"))


def shape(card: str, form: Shape, held: float | None, price: float | None, ttft: float, **more: Any) -> Sized:
    platform = Platform(known_hardware()[card], parameters_of(card), (0, 32, 0), SIMULATED_PACKAGES, form.gpus)
    rate = None if held is None else HeldRate(held, ("a.p95_ttft_ms<1000",), Run({}, 0.0))
    found = Prediction(
        platform, form, form.arguments, held=rate, pessimistic=None if held is None else held / 2, **more
    )
    cost = None if price is None else Price(price)
    if held is None:
        return Sized(found, cost)
    fleets = [fleet_of(DEMAND, each, form.gpus, price, FleetSettings()) for each in (held, held / 2)]
    latencies = {"p95_ttft_ms": ttft, "p95_tpot_ms": ttft / 10}
    return Sized(found, cost, held, Origin.PREDICTED, fleets[0], fleets[1], latencies)


def sizing(*shapes: Sized) -> Sizing:
    model = known_model("Qwen/Qwen2.5-7B-Instruct")
    assert model is not None
    load = Traffic.model_validate(
        {"arrivals": {"process": "poisson", "rate": 1}, "requests": 9, "classes": {"a": {"input": 9, "output": 9}}}
    )
    asked = Asked(model, load, Goals((), (parse_slo("a.p95_ttft_ms<1000"),), ()), (), {}, False)
    settings = SizeSettings(preset="chat", card=("l4", "h100"))
    return Sizing(settings, asked, ModelRef("M", "M", "M"), DEMAND, ordered(shapes), ("a note",), 12.0)


SIZING = sizing(
    shape("h100", ONE_GPU, 60.0, 4.0, 50.0),
    shape("l4", ONE_GPU, None, 0.5, 0.0, failure="No available memory", lacks_memory=True),
    shape("l4", TWO, 10.0, 0.5, 200.0),
)


def in_euro() -> Sizing:
    priced = (replace(each, price=each.price and replace(each.price, currency="EUR")) for each in SIZING.shapes)
    return replace(SIZING, shapes=tuple(priced))


def test_the_cheapest_fleet_comes_first_and_the_failed_one_last() -> None:
    # l4: 12 servers × 2 GPUs × 0.5 × 730 = 8,760; h100: 3 servers hold 120 or, one lost, 100: 3 × 4 × 730 = 8,760
    names = [each.name for each in SIZING.shapes]
    assert names[-1] == "l4 one GPU"
    first = SIZING.shapes[0].fleet
    assert first is not None
    assert first.cost_per_month == pytest.approx(8760.0)
    assert SIZING.shapes[0].name == "h100 one GPU"
    assert [each.on_front for each in SIZING.shapes] == [True, False, False]


def test_the_table_has_servers_at_both_ends_and_by_hour() -> None:
    table = fleets_grid(SIZING)
    row = dict(zip([column.heading for column in table.columns], table.rows[0], strict=True))
    assert (row["servers"], row["at worst"], row["GPUs"]) == ("3", "5", "3")  # 100 / 30 and one more
    assert row["a month"] == "8,760"
    assert row["by hour"] == "7,300"  # two servers for 20 requests/s, three for 100: 2.5 × 4 × 730
    assert table.rows[-1][3].startswith("No available memory")
    assert "EUR a month" in [column.heading for column in fleets_grid(in_euro()).columns]
    assert "cost per month (EUR)" in html(in_euro())


def test_a_card_that_does_not_hold_the_model_says_how_many_do() -> None:
    assert [*memory_lines(SIZING)] == ["l4: 1 GPU does not hold the model; 2 do, tensor parallel 2"]
    alone = sizing(shape("l4", ONE_GPU, None, 0.5, 0.0, failure="No available memory", lacks_memory=True))
    assert [*memory_lines(alone)] == ["l4: 1 GPU does not hold the model; no shape that was tried does"]
    assert alone.cheapest is None
    assert verdict(alone) == "No shape of these cards holds a rate within the SLOs"


def test_every_number_says_where_it_comes_from() -> None:
    first, *others = SIZING.shapes
    measured = replace(first, origin=Origin.MEASURED, pessimistic=None, note="measured 60 requests/s")
    mixed = replace(SIZING, shapes=(measured, *others), ratio=0.9)
    assert [row[3] for row in fleets_grid(mixed).rows[:2]] == ["measured", "predicted"]
    assert fleets_grid(mixed).rows[0][5] == "–"
    said = list(why_lines(mixed))
    assert "corrected: predicted rates times 0.900, the measured rates relative to their predictions" in said
    latencies = "latencies are predicted, at each server's part of the peak"
    assert latencies in said
    assert latencies not in why_lines(SIZING)
    assert "Simulated, not measured" in html(SIZING)
    assert "Simulated, not measured" not in html(mixed)


def test_the_document_is_plain_json_with_the_flags() -> None:
    found = json.loads(json.dumps(document(SIZING), allow_nan=False))
    assert found["shapes"][1]["arguments"] == ["--tensor-parallel-size", "2"]
    assert found["shapes"][0]["fleet"]["by_hour"] == [2, 3]
    assert found["shapes"][2]["fleet"] is None
    assert found["demand"]["hours"] == [20.0, 100.0]


def test_a_card_without_a_price_has_no_cost_and_comes_after_those_with_one() -> None:
    found = sizing(shape("h100", ONE_GPU, 60.0, None, 50.0), shape("l4", TWO, 10.0, 0.5, 200.0))
    assert [each.name for each in found.shapes] == ["l4 tensor parallel 2", "h100 one GPU"]
    assert "no list price of h100 is known, so its cost is not either" in why_lines(found)
    assert html(sizing(shape("h100", ONE_GPU, 60.0, None, 50.0)))
