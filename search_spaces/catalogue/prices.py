"""The price of a GPU-hour: one that the user gives, or the list price of a known card (`prices.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.catalogue.hardware import HardwareProfile
from search_spaces.yaml_file import read_yaml

_FILE = Path(__file__).with_name("prices.yaml")
_SAME_MEMORY = 0.1
"""The relative difference up to which two sizes of memory are those of one card."""


@dataclass(frozen=True)
class Price:
    """The price of one GPU for one hour.

    Attributes:
        per_gpu_hour: above 0, in units of the currency.
        currency: of a list price; None for a given price, whose currency is the user's.
        list_price: where a list price comes from, with its date; None for a given price.
    """

    per_gpu_hour: float
    currency: str | None = None
    list_price: str | None = None

    def __str__(self) -> str:
        """Return the price on one line; a list price is marked as such."""
        unit = f"{self.currency} per GPU-hour" if self.currency else "per GPU-hour"
        origin = "as given" if self.list_price is None else f"list price: {self.list_price}"
        return f"{self.per_gpu_hour:.4g} {unit} ({origin})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, as the fact `price` of a study has it."""
        return {"per_gpu_hour": self.per_gpu_hour, "currency": self.currency, "list_price": self.list_price}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None) -> Price | None:
        """Return the price of a study's fact; None without one."""
        return None if fields is None else cls(fields["per_gpu_hour"], fields["currency"], fields["list_price"])


def list_price(card: HardwareProfile) -> Price | None:
    """Return a card's list price: that of the instance divided by its GPUs; None for a card without one, as a CPU."""
    table = _table()
    for row in table["cards"]:
        if row["card"] == card.key and _same_memory(card, row["memory_gib"]):
            origin = f"{table['source']}, {row['instance']}, as of {table['as_of']}"
            return Price(row["instance_per_hour"] / row["gpus"], table["currency"], origin)
    return None


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = read_yaml(_FILE).data
    return table


def _same_memory(card: HardwareProfile, memory_gib: float) -> bool:
    return card.memory_gib is not None and abs(card.memory_gib / memory_gib - 1) < _SAME_MEMORY
