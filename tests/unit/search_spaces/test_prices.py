"""The prices of a GPU-hour: the table of list prices, and how a price is stored and shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces import Price, hardware_named, known_hardware, list_price

A_GPU = {
    "t4": 0.526,
    "l4": 0.8048,
    "rtx6000ada": None,
    "a10g": 1.006,
    "a100": 27.44705 / 8,
    "l40s": 1.861,
    "h100": 6.88,
    "h200": 63.296 / 8,
    "cpu": None,
}


@pytest.mark.parametrize("key", known_hardware())
def test_a_list_price_is_the_share_of_a_gpu_in_its_instance(key: str) -> None:
    found, expected = list_price(hardware_named(key)), A_GPU[key]
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.per_gpu_hour == pytest.approx(expected)
        assert found.currency == "USD"


def test_the_memory_tells_two_cards_of_a_name_apart() -> None:
    smaller = list_price(replace(hardware_named("a100"), memory_gib=39.5))
    assert smaller is not None
    assert smaller.per_gpu_hour == pytest.approx(21.957642 / 8)
    assert list_price(replace(hardware_named("h100"), memory_gib=93.1)) is None  # an H100 NVL
    assert list_price(replace(hardware_named("h100"), memory_gib=None)) is None


def test_a_list_price_is_marked_with_its_source_and_date() -> None:
    assert str(list_price(hardware_named("t4"))) == (
        "0.526 USD per GPU-hour (list price: Amazon EC2 on-demand, Linux, us-east-1, g4dn.xlarge, as of 2026-07)"
    )
    assert str(Price(0.35)) == "0.35 per GPU-hour (as given)"


@pytest.mark.parametrize("price", [Price(0.35), Price(1.5, "USD", "a cloud, as of 2026-07")])
def test_a_price_is_read_as_it_was_stored(price: Price) -> None:
    assert Price.from_dict(price.to_dict()) == price
    assert Price.from_dict(None) is None
