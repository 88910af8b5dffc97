"""Decide whether a study is simulated, and find the card and the vLLM version of a simulation."""

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
from search_spaces.schema import VLLM
from tuner.engines.base import EngineSettings
from tuner.engines.kinds import names
from tuner.engines.simulator.clients.from_workload import refuse_unmodelled
from tuner.engines.simulator.config.precision import NotSimulated, require_read
from tuner.engines.simulator.config.serve_config import refusal_of_every_trial
from tuner.engines.simulator.config.vllm_release import SIMULATED_PACKAGES
from tuner.errors import SettingError
from tuner.study.specification.builder import StudyPlan
from tuner.study.specification.context import longest_context, too_long
from tuner.study.specification.resolve_workload import request_classes
from tuner.use_cases.devices import Devices
from tuner.use_cases.places import home
from tuner.workloads.presets import load_preset

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_OLDEST, _NEWEST = (0, 15), (0, 32)


def check_engine_name(*engines: str) -> None:
    """Refuse names that no engine has.

    Raises:
        SettingError: with the names.
    """
    engine = next((each for each in engines if each not in names()), None)
    if engine is not None:
        raise SettingError("engine", engine, f"no engine has this name; engines: {', '.join(names())}")


def wants_simulation(engine: str, vllm: str | None, gpu: str | None) -> bool:
    """Return whether the engine is simulated: by its name, or by `auto` without a GPU and without a given vLLM."""
    if engine != "auto":
        return engine == "simulated"
    if vllm is not None or os.environ.get("TUNER_VLLM"):
        return False
    from tuner import gpu as devices

    return gpu is not None or not devices.devices()


def refuse_simulation_options(gpu: str | None, version: str | None) -> None:
    """Refuse settings that only apply to a simulation.

    Raises:
        SettingError: when one was given.
    """
    if gpu is not None or version is not None:
        field, value = ("gpu", gpu) if gpu is not None else ("vllm_version", version)
        rule = "this setting is for a simulation, and this study is measured"
        raise SettingError(field, value, rule, "add {engine} simulated, or leave it out")


def refuse_unsimulated_arguments(plan: StudyPlan, settings: EngineSettings) -> None:
    """Refuse server arguments and requests with which no trial can be simulated.

    Raises:
        SettingError: with the argument and its value.
    """
    card, version, shape = settings.card, settings.version, plan.shape
    assert card is not None
    assert version is not None
    assert shape is not None  # `find_simulated_model` returns no model without a shape
    server, release = plan.server, version_tuple(version)
    try:
        require_read(shape)
    except NotSimulated as error:
        raise SettingError("model", plan.model.name, str(error)) from None
    longest = longest_context(shape, VLLM, server.arguments, release)
    if longest is not None and plan.workload.longest_request > longest:
        raise too_long(plan.workload, longest)
    refusal = refusal_of_every_trial(
        server.arguments, server.environment, shape, card, release, SIMULATED_PACKAGES, settings.gpus
    )
    if refusal is not None:
        raise SettingError("server_arguments", None, refusal, "change the flags after `--`")
    for request_class in request_classes(plan.workload):
        refuse_unmodelled(request_class)


def simulated_engine(
    gpu: str | None, version: str | None, preset: str, workers: int | None
) -> tuple[EngineSettings, Devices]:
    """Return the settings of a simulated engine and its devices: the given card or the preset's.

    Raises:
        SettingError: for an unknown card or version, or less than one worker.
    """
    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "at least 1 is needed")
    card = find_card(gpu or load_preset(preset).hardware)
    settings = EngineSettings("simulated", None, home(), card=card, version=find_version(version, card))
    return settings, Devices((card.name,) * (workers or 1), card, gpus=False)


def find_card(name: str) -> HardwareProfile:
    """Return the card of a name or a YAML file.

    Raises:
        SettingError: when there is no such card, or the file does not describe one.
    """
    try:
        if name.endswith((".yaml", ".yml")):
            return hardware_from_file(Path(name))
        card = hardware_named(name)
    except SpaceError as error:
        raise SettingError("gpu", name, str(error).removeprefix(f"{name}: ")) from None
    if card.vendor != "nvidia":
        cards = ", ".join(key for key, each in known_hardware().items() if each.vendor == "nvidia")
        raise SettingError("gpu", name, f"this is no GPU, and only GPUs are simulated; known: {cards}, or a YAML file")
    return card


def find_version(version: str | None, card: HardwareProfile) -> str:
    """Return the vLLM to simulate.

    Raises:
        SettingError: for a version that is not simulated.
    """
    from tuner.engines.simulator.config.vllm_release import default_version

    if version is None:
        return default_version(card)
    if not _VERSION.fullmatch(version) or not _OLDEST <= version_tuple(version)[:2] <= _NEWEST:
        raise SettingError("vllm_version", version, "0.15 to 0.32 are simulated", "give for example 0.25.1")
    return version
