"""The pessimistic end of an error band, by hand, and the shapes of models."""

import pytest

from search_spaces import known_model
from tuner.engines.simulator.parameters import ErrorBands
from tuner.scoring.goals import parse_slo
from tuner.use_cases.size.predict import band_of, pessimistic, tighter_load, tighter_slo, widest_band
from tuner.use_cases.size.rate import HeldRate, RateSearch, Run
from tuner.use_cases.size.shapes import shapes_of
from tuner.workloads.traffic import Traffic

BAND = {"output_throughput": 0.25, "p99_ttft_ms": 1.0, "p99_tpot_ms": 0.5}
LOAD = Traffic.model_validate(
    {
        "arrivals": {"process": "poisson", "rate": 1},
        "requests": 10,
        "classes": {"a": {"input": 10, "output": 2}},
        "slo": {"a": {"p95_ttft_ms": 1000, "tpot_ms": 60, "goodput_share": 0.95}},
    }
)


@pytest.mark.parametrize(
    ("given", "tighter"),
    [
        ("a.p95_ttft_ms<1000", 500.0),
        ("p99_tpot_ms<=60", 40.0),
        ("mean_itl_ms<60", 40.0),
        ("p95_e2el_ms<1000", 500.0),  # the larger error of its parts
        ("success_rate>=1", 1.0),
        ("a.goodput_share>=0.95", 0.95),
    ],
)
def test_a_latency_is_bounded_so_that_its_error_stays_within_the_slo(given: str, tighter: float) -> None:
    assert tighter_slo(parse_slo(given), BAND).threshold == pytest.approx(tighter)


def test_bounds_on_single_requests_are_tightened_too() -> None:
    assert tighter_load(LOAD, BAND).slo == {
        "a": {"p95_ttft_ms": pytest.approx(500.0), "tpot_ms": pytest.approx(40.0), "goodput_share": 0.95}
    }


def linear(load: Traffic, seed: int) -> Run:
    """A server whose time to first token is 100 ms for each request/s."""
    assert load.rate is not None
    return Run({"mean_ttft_ms": 100.0 * load.rate}, 0.0)


def test_the_pessimistic_rate_meets_the_slo_with_the_bands_error() -> None:
    search = RateSearch(linear, LOAD, (parse_slo("mean_ttft_ms<1000"),), 0.01)
    held = HeldRate(9.9, (), linear(LOAD, 0))
    found = pessimistic(search, held, BAND)
    assert found is not None
    assert 5.0 / 1.05 <= found <= 5.0  # 500 ms are allowed
    # without an error of the latency, that of the throughput counts
    assert pessimistic(search, held, {"output_throughput": 0.25}) == pytest.approx(9.9 / 1.25)


def test_an_unmeasured_regime_has_the_widest_documented_band() -> None:
    assert band_of(ErrorBands({"output_throughput": 0.1})) == ({"output_throughput": 0.1}, None)
    assert band_of(ErrorBands({}, "no rows")) == (widest_band(), "no rows")
    assert widest_band()["output_throughput"] >= 0.2


def test_dense_models_have_two_copies_at_most_and_experts_have_each_number() -> None:
    dense, experts = known_model("Qwen/Qwen2.5-7B-Instruct"), known_model("Qwen/Qwen3-30B-A3B")
    assert dense is not None
    assert experts is not None
    assert [shape.name for shape in shapes_of(dense, 4)] == [
        *("one GPU", "tensor parallel 2", "data parallel 2", "tensor parallel 4")
    ]
    of_experts = [shape for shape in shapes_of(experts, 2) if shape.gpus == 2]
    assert [shape.arguments for shape in of_experts] == [
        ("--tensor-parallel-size", "2"),
        ("--tensor-parallel-size", "2", "--enable-expert-parallel"),
        ("--data-parallel-size", "2", "--enable-expert-parallel"),
    ]
    assert [shape.gpus for shape in shapes_of(dense, 1)] == [1]
