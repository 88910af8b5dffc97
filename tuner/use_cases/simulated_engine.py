"""What a simulation is told on the command line: whether, on which card, and which vLLM."""

from __future__ import annotations

import os
import re
from pathlib import Path

from search_spaces import (
    HardwareProfile,
    SpaceError,
    hardware_from_file,
    hardware_named,
    known_hardware,
    version_tuple,
)
from tuner.engines.base import EngineSettings
from tuner.errors import UserError
from tuner.use_cases.devices import Devices
from tuner.use_cases.places import home
from tuner.workloads.presets import load_preset

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_OLDEST, _NEWEST = (0, 15), (0, 32)
DEFAULT_CARD = "t4"


def wants_simulation(engine: str, vllm: str | None, gpu: str | None) -> bool:
    """Return whether to simulate: asked for, or `auto` without a GPU where no vLLM was named to measure with."""
    if engine != "auto":
        return engine == "simulated"
    if vllm is not None or os.environ.get("TUNER_VLLM"):
        return False
    from tuner import gpu as devices

    return gpu is not None or not devices.devices()


def refuse_simulation_options(gpu: str | None, version: str | None) -> None:
    """Refuse what only a simulation can be told.

    Raises:
        UserError: when something was told.
    """
    if gpu is not None or version is not None:
        name, value = ("--gpu", gpu) if gpu is not None else ("--vllm-version", version)
        raise UserError(f"{name} {value!r} is for a simulation, and this measures; add --engine simulated or drop it")


def simulated_engine(
    gpu: str | None, version: str | None, preset: str, workers: int | None
) -> tuple[EngineSettings, Devices]:
    """Return the settings of a simulated engine and its devices: the named card, else the preset's.

    Raises:
        UserError: for a card, a version or a number of workers that cannot be.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: at least 1 is needed")
    card = find_card(gpu or load_preset(preset).hardware)
    settings = EngineSettings("simulated", None, home(), card=card, version=find_version(version, card))
    return settings, Devices((card.name,) * (workers or 1), card, gpus=False)


def find_card(name: str) -> HardwareProfile:
    """Return the card of a name or a YAML file.

    Raises:
        UserError: when there is none, or the file does not describe one.
    """
    try:
        if name.endswith((".yaml", ".yml")):
            return hardware_from_file(Path(name))
        card = hardware_named(name)
    except SpaceError as error:
        raise UserError(f"--gpu {name!r}: {error}") from None
    if card.vendor != "nvidia":
        cards = ", ".join(key for key, each in known_hardware().items() if each.vendor == "nvidia")
        raise UserError(f"--gpu {name!r}: cards are simulated, and that is none; known: {cards}, or a YAML file")
    return card


def find_version(version: str | None, card: HardwareProfile) -> str:
    """Return the vLLM to simulate.

    Raises:
        UserError: for a version that is not known.
    """
    from tuner.engines.simulator.config.vllm_release import default_version

    if version is None:
        return default_version(card)
    if not _VERSION.fullmatch(version) or not _OLDEST <= version_tuple(version)[:2] <= _NEWEST:
        raise UserError(f"--vllm-version {version!r}: 0.15 to 0.32 are simulated; give one such as 0.25.1")
    return version
