"""The price of a study's GPU-hour, and the metrics that need one."""

from __future__ import annotations

from search_spaces import HardwareProfile, Price, list_price
from storage.metrics import COSTS, ENERGY
from storage.records import Provenance
from tuner.errors import SettingError
from tuner.scoring.goals import Goals

LEAST_PRICE, MOST_PRICE = 1e-6, 1e6
"""Bounds of a price per GPU-hour; they keep costs and their ratios finite."""


def study_price(given: float | None, card: HardwareProfile, goals: Goals, provenance: Provenance) -> Price | None:
    """Return the price of a study, see `find_price`.

    Args:
        given: by the user, per GPU-hour; None: the list price.
        card: of the workers.
        goals: of the study.
        provenance: of its trials.

    Raises:
        SettingError: for a price out of range, or a goal on a cost without a price or on the energy without a counter.
    """
    price = find_price(given, card)
    _check_measurable(goals, price, card, provenance)
    return price


def find_price(given: float | None, card: HardwareProfile) -> Price | None:
    """Return the given price of a GPU-hour, else the card's list price; None for a card without one.

    Raises:
        SettingError: for a price that is no number from `LEAST_PRICE` to `MOST_PRICE`.
    """
    check_price(given)
    return list_price(card) if given is None else Price(given)


def check_price(given: float | None) -> None:
    """Refuse a price that is not a number from `LEAST_PRICE` to `MOST_PRICE`.

    Raises:
        SettingError: with the bounds.
    """
    if given is not None and not LEAST_PRICE <= given <= MOST_PRICE:
        rule = f"a price is from {LEAST_PRICE:f} to {MOST_PRICE:,.0f} per GPU-hour"
        raise SettingError("price", given, rule, "give for example 0.35, or leave it out for the card's list price")


def _check_measurable(goals: Goals, price: Price | None, card: HardwareProfile, provenance: Provenance) -> None:
    """Refuse an objective or SLO on a cost without a price, and on the energy without a counter."""
    named = [("objective", objective.metric) for objective in goals.objectives]
    for field, name in [*named, *(("slo", slo.metric) for slo in goals.slos)]:
        base = name.rpartition(".")[2]
        if base in COSTS and price is None:
            raise SettingError(field, name, f"no list price of {card.name} is known", "give {price}")
        if base == ENERGY and (provenance is Provenance.SIMULATED or card.vendor == "cpu"):
            device = "a simulation" if provenance is Provenance.SIMULATED else "a CPU"
            raise SettingError(field, name, f"{device} has no energy counter", "measure it on a GPU")
