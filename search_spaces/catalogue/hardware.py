"""Hardware profiles: the known cards (`hardware.yaml`), the user's own in a file, and the price of a GPU-hour."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from search_spaces.errors import SpaceError
from search_spaces.yaml_file import YamlError, read_yaml

_FILE = Path(__file__).with_name("hardware.yaml")


@dataclass(frozen=True)
class HardwareProfile:
    """One device; None for values that are unknown or do not apply. Only the simulator uses the last six.

    Attributes:
        name: the product's name.
        key: the short name, such as `t4`.
        vendor: the maker, or `cpu`.
        compute_capability: of an NVIDIA card, such as (8, 9).
        memory_gib: memory in GiB as the driver reports it.
        bandwidth_gbs: memory bandwidth in GB/s.
        tflops: dense tensor arithmetic in TFLOP/s by number format (`float16`, `bfloat16`, `int8`, `fp8`); a format
            that is missing has no tensor arithmetic.
        launch_us: the host's time in µs to launch one kernel without a graph.
        host_speed: single-thread speed of hosts that such cards are rented with, relative to that of
            benchmarks/reference/h200_a05.jsonl.
        link: what connects cards of one host.
        link_gbs: its bandwidth of one card in GB/s, over both directions.
        multiprocessors: that run blocks of a kernel side by side.
    """

    name: str
    key: str
    vendor: Literal["nvidia", "cpu"]
    compute_capability: tuple[int, int] | None
    memory_gib: float | None
    bandwidth_gbs: float | None
    tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    launch_us: float | None = None
    host_speed: float | None = None
    link: Literal["nvlink", "pcie"] | None = None
    link_gbs: float | None = None
    multiprocessors: int | None = None


@cache
def _profiles() -> dict[str, HardwareProfile]:
    raw = read_yaml(_FILE).data
    return {key: _profile(key, facts) for key, facts in raw.items()}


def _profile(key: str, facts: Mapping[str, Any]) -> HardwareProfile:
    capability = facts["compute_capability"]
    return HardwareProfile(**{**facts, "key": key, "compute_capability": capability and tuple(capability)})


def hardware_from_file(path: Path) -> HardwareProfile:
    """Return the card that a YAML file describes with the keys of `hardware.yaml`; the card's key is the file's stem.

    Raises:
        SpaceError: with the file and the reason, if it does not describe a card.
    """
    try:
        facts = read_yaml(path).data
    except OSError as error:
        raise SpaceError(f"{path}: the file cannot be read ({error.strerror}); give a YAML file") from None
    except YamlError as error:
        raise SpaceError(f"{error.place}: not valid YAML ({error.reason}); correct that line") from None
    if not isinstance(facts, dict):
        raise SpaceError(f"{path}: a card is a mapping with the keys {', '.join(_KEYS)}")
    return _profile(path.stem, {"vendor": "nvidia", **_checked(path, facts)})


_KEYS = ("name", "compute_capability", "memory_gib", "bandwidth_gbs", "tflops", "launch_us", "host_speed")
_LINKS = ("nvlink", "pcie")
_LINK_KEYS = ("link", "link_gbs")
_MULTIPROCESSORS = "multiprocessors"


def _checked(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    missing = [key for key in _KEYS if key not in facts]
    extra = [str(key) for key in facts if key not in (*_KEYS, *_LINK_KEYS, _MULTIPROCESSORS)]
    if missing or extra:
        reason = f"{missing[0]!r} is missing" if missing else f"{extra[0]!r} is not a key"
        optional = "link, link_gbs and multiprocessors"
        raise SpaceError(f"{path}: {reason}; a card has the keys {', '.join(_KEYS)}, and may have {optional}")
    capability, tflops = facts["compute_capability"], facts["tflops"]
    if not (isinstance(capability, list) and len(capability) == 2 and all(isinstance(n, int) for n in capability)):
        raise SpaceError(f"{path}: compute_capability {capability!r} is not two integers; give for example [8, 9]")
    if not isinstance(tflops, dict) or "float16" not in tflops:
        raise SpaceError(f"{path}: tflops {tflops!r} has no float16; give {{float16: 121, fp8: 242}}")
    given = [key for key in _LINK_KEYS if key in facts]
    if len(given) == 1 or facts.get("link", "pcie") not in _LINKS:
        reason = "link and link_gbs belong together, and link is nvlink or pcie"
        raise SpaceError(f"{path}: {reason}; give for example link: nvlink and link_gbs: 900")
    given_too = [key for key in ("link_gbs", _MULTIPROCESSORS) if key in facts]
    names = ("memory_gib", "bandwidth_gbs", "launch_us", "host_speed", *given_too)
    numbers = {key: facts[key] for key in names}
    for key, value in {**numbers, **{f"tflops.{key}": value for key, value in tflops.items()}}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SpaceError(f"{path}: {key} {value!r} is not a number above 0; correct it")
    return facts


def known_hardware() -> dict[str, HardwareProfile]:
    """Return the known devices by key."""
    return dict(_profiles())


def hardware_named(name: str) -> HardwareProfile:
    """Return the known device with a key (`t4`), a product name (`Tesla T4`) or a driver's name.

    A driver's name matches a key that it contains as a word or as words in a row: `NVIDIA A100-PCIE-40GB` gives `a100`,
    `NVIDIA GeForce RTX 4090` gives `rtx4090`. Values that differ between such models, such as memory, should then come
    from the driver.

    Raises:
        SpaceError: if no known device matches; the message lists the keys.
    """
    lower_name = name.strip().lower()
    profiles: Mapping[str, HardwareProfile] = _profiles()
    for key, profile in profiles.items():
        if lower_name in (key, profile.name.lower()):
            return profile
    words = re.split(r"[^a-z0-9]+", lower_name)
    spans = {"".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, len(words) + 1)}
    for key, profile in profiles.items():
        if key in spans:
            return profile
    raise SpaceError(f"no known hardware is called {name!r}; known: {', '.join(profiles)}")


_PRICES_FILE = Path(__file__).with_name("prices.yaml")
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
        origin = "as given" if self.list_price is None else f"list price: {self.list_price}"
        return f"{self.amount} per GPU-hour ({origin})"

    @property
    def amount(self) -> str:
        """The price as a number with its currency, if that is known: `0.526 USD`."""
        return f"{self.per_gpu_hour:.4g} {self.currency or ''}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, as the fact `price` of a study has it."""
        return {"per_gpu_hour": self.per_gpu_hour, "currency": self.currency, "list_price": self.list_price}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None) -> Price | None:
        """Return the price of a study's fact; None without one."""
        return None if fields is None else cls(fields["per_gpu_hour"], fields["currency"], fields["list_price"])


def shared_currency(prices: Iterable[Price | None]) -> str | None:
    """Return the currency of several prices; None if it is unknown or not the same in all that are known."""
    found = {price.currency for price in prices if price is not None}
    return found.pop() if len(found) == 1 else None


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
    table: Mapping[str, Any] = read_yaml(_PRICES_FILE).data
    return table


def _same_memory(card: HardwareProfile, memory_gib: float) -> bool:
    return card.memory_gib is not None and abs(card.memory_gib / memory_gib - 1) < _SAME_MEMORY
