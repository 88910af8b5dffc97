"""What a configuration runs on: `HardwareProfile` and the profiles of known cards (`hardware.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from search_spaces.errors import SpaceError

_FILE = Path(__file__).with_name("hardware.yaml")


@dataclass(frozen=True)
class HardwareProfile:
    """One device. Memory in GiB as its driver reports it, bandwidth in GB/s; None where unknown or meaningless."""

    name: str
    key: str
    vendor: Literal["nvidia", "cpu"]
    compute_capability: tuple[int, int] | None
    memory_gib: float | None
    bandwidth_gbs: float | None


@cache
def _profiles() -> dict[str, HardwareProfile]:
    raw = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {
        key: HardwareProfile(
            name=facts["name"],
            key=key,
            vendor=facts["vendor"],
            compute_capability=None if facts["compute_capability"] is None else tuple(facts["compute_capability"]),
            memory_gib=facts["memory_gib"],
            bandwidth_gbs=facts["bandwidth_gbs"],
        )
        for key, facts in raw.items()
    }


def known_hardware() -> dict[str, HardwareProfile]:
    """Return the known devices by key."""
    return dict(_profiles())


def hardware_named(name: str) -> HardwareProfile:
    """Return the known device that a key (`t4`), a product name (`Tesla T4`) or a driver's name means.

    A driver's name matches the key that stands in it as a word: `NVIDIA A100-PCIE-40GB` is found as `a100`; what
    differs between such models (memory) should then be taken from the driver.

    Raises:
        SpaceError: if it is none of them; the message lists them.
    """
    wanted = name.strip().lower()
    profiles: Mapping[str, HardwareProfile] = _profiles()
    for key, profile in profiles.items():
        if wanted in (key, profile.name.lower()):
            return profile
    words = re.split(r"[^a-z0-9]+", wanted)
    compact = "".join(words)
    for key, profile in profiles.items():
        if key in words or (key == "rtx6000ada" and "rtx6000ada" in compact):
            return profile
    raise SpaceError(f"no known hardware is called {name!r}; known: {', '.join(profiles)}")
