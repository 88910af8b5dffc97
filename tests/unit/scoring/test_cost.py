"""Costs of tokens, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.scoring.cost import throughput_behind, token_costs

OUTPUT, TOTAL = "cost_per_million_output_tokens", "cost_per_million_total_tokens"


def test_the_cost_is_the_price_of_the_time_of_a_million_tokens() -> None:
    # 1,000 tokens a second: a million take 1,000 s, at 3.6 per hour
    costs = token_costs({"output_throughput": 1000.0, "total_token_throughput": 4000.0}, 3.6)
    assert costs == {OUTPUT: pytest.approx(1.0), TOTAL: pytest.approx(0.25)}


def test_with_slos_only_tokens_within_them_count() -> None:
    metrics = {
        "output_throughput": 1000.0,
        "output_goodput": 500.0,
        "total_token_throughput": 4000.0,
        "total_token_goodput": 2000.0,
    }
    assert token_costs(metrics, 3.6) == {OUTPUT: pytest.approx(2.0), TOTAL: pytest.approx(0.5)}


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"output_throughput": None},
        {"output_throughput": 0.0},
        {"output_throughput": 1000.0, "output_goodput": 0.0},
    ],
)
def test_no_token_has_no_cost(metrics: dict[str, float | None]) -> None:
    assert token_costs(metrics, 3.6)[OUTPUT] is None


def test_without_a_price_there_is_no_cost_at_all() -> None:
    assert token_costs({"output_throughput": 1000.0}, None) == {}


@given(st.floats(1e-6, 1e6), st.floats(1e-9, 1e15))
def test_a_cost_is_finite_and_falls_with_the_throughput(price: float, rate: float) -> None:
    one, other = (token_costs({"output_throughput": each}, price)[OUTPUT] for each in (rate, 2 * rate))
    assert one is not None
    assert one == pytest.approx(2 * other if other is not None else None)
    assert 0 < one < float("inf")


def test_the_throughput_behind_a_cost_keeps_its_prefix() -> None:
    assert throughput_behind("day.cost_per_million_total_tokens") == "day.total_token_throughput"
    assert throughput_behind(OUTPUT) == "output_throughput"
    assert throughput_behind("p99_ttft_ms") == "p99_ttft_ms"
