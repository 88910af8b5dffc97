"""What a configuration runs on: `HardwareProfile` and the profiles of known cards (`hardware.yaml`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from search_spaces.errors import SpaceError

_FILE = Path(__file__).with_name("hardware.yaml")


@dataclass(frozen=True)
class HardwareProfile:
    """One device. Memory in GiB as its driver reports it, bandwidth in GB/s; None where unknown or meaningless.

    What only a simulation asks for: `tflops`, dense tensor arithmetic by number format (`float16`, `bfloat16`, `int8`,
    `fp8`; a format that is not there has no arithmetic of its own); `launch_us`, the host's time to launch one kernel
    without a graph; `host_speed`, single-thread speed of the hosts that such cards are rented with, 1 being an H200's.
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


@cache
def _profiles() -> dict[str, HardwareProfile]:
    raw = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {key: _profile(key, facts) for key, facts in raw.items()}


def _profile(key: str, facts: Mapping[str, Any]) -> HardwareProfile:
    capability = facts["compute_capability"]
    return HardwareProfile(
        name=facts["name"],
        key=key,
        vendor=facts["vendor"],
        compute_capability=None if capability is None else (capability[0], capability[1]),
        memory_gib=facts["memory_gib"],
        bandwidth_gbs=facts["bandwidth_gbs"],
        tflops=facts.get("tflops", {}),
        launch_us=facts.get("launch_us"),
        host_speed=facts.get("host_speed"),
    )


def hardware_from_file(path: Path) -> HardwareProfile:
    """Return the card that a YAML file describes, with the keys of `hardware.yaml`; its key is the file's name.

    Raises:
        SpaceError: naming the file and what is wrong with it.
    """
    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpaceError(f"{path}: no hardware can be read from it ({' '.join(str(error).split())})") from None
    if not isinstance(facts, dict):
        raise SpaceError(f"{path}: a card is a mapping of {', '.join(_NEEDED)}")
    return _profile(path.stem, {"vendor": "nvidia", **_checked(path, facts)})


_NEEDED = ("name", "compute_capability", "memory_gib", "bandwidth_gbs", "tflops", "launch_us", "host_speed")


def _checked(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    missing, extra = [key for key in _NEEDED if key not in facts], sorted({*facts} - {*_NEEDED})
    if missing or extra:
        wrong = f"{missing[0]!r} is missing" if missing else f"{extra[0]!r} is not known"
        raise SpaceError(f"{path}: {wrong}; a card has {', '.join(_NEEDED)}")
    capability, tflops = facts["compute_capability"], facts["tflops"]
    if not (isinstance(capability, list) and len(capability) == 2 and all(isinstance(n, int) for n in capability)):
        raise SpaceError(f"{path}: compute_capability {capability!r} is not of the form [8, 9]")
    if not isinstance(tflops, dict) or "float16" not in tflops:
        raise SpaceError(f"{path}: tflops {tflops!r} has no float16; give {{float16: 121, fp8: 242}}")
    numbers = {key: facts[key] for key in ("memory_gib", "bandwidth_gbs", "launch_us", "host_speed")}
    for key, value in {**numbers, **{f"tflops.{key}": value for key, value in tflops.items()}}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise SpaceError(f"{path}: {key} {value!r} is not a number above 0")
    return facts


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
