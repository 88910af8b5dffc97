"""The engines that a study names, beside vLLM and its simulation, and the settings that only some engines have."""

from __future__ import annotations

import os

from search_spaces import hardware_named
from search_spaces.schema import VLLM
from tuner.engines.base import EngineSettings
from tuner.engines.kind import EngineKind, Feature
from tuner.engines.kinds import kind_of, kinds
from tuner.errors import SettingError
from tuner.processes.identity import own_identity
from tuner.scoring.slo import Slo
from tuner.settings.study import StudySettings
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.places import home
from tuner.use_cases.simulated_engine import refuse_simulation_options


def named_engine(
    choice: StudySettings, gpus: int = 1, given: int | None = None
) -> tuple[EngineSettings, Devices] | None:
    """Return the engine and its devices: this machine's GPUs where it uses them, else the CPU; None for vLLM.

    Args:
        choice: the settings.
        gpus: of each trial, those that the server's flags need included.
        given: GPUs of each trial that the user asks for; only they count for an engine without such flags.

    Raises:
        UserError: if it is not installed, and for the settings of other engines.
    """
    refuse_other_programs(choice)
    kind = kind_of(choice.engine)
    if kind.name == VLLM:
        return None
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    _refuse(kind, choice, given or 1)
    found = kind.find(program_in(choice, kind))
    several = kind.can(Feature.SEVERAL_GPUS)
    devices = find_devices(choice.workers, gpus if several else 1) if found.gpus else _cpus(choice.workers)
    each = devices.each if several else 1
    return EngineSettings(kind.name, os.fspath(found.executable), home(), driver=own_identity(), gpus=each), devices


def program_in(choice: StudySettings, kind: EngineKind) -> str | None:
    """Return the program that the settings name for an engine; None if they name none."""
    return None if kind.setting is None else getattr(choice, kind.setting)


def refuse_other_programs(choice: StudySettings) -> None:
    """Refuse the program of an engine that the study does not run; vLLM's goes with `auto` and a simulation.

    Raises:
        SettingError: with the setting.
    """
    running = [kind_of(each).name for each in choice.engines]
    for name, kind in kinds().items():
        value = program_in(choice, kind)
        if kind.setting is None or value is None or name in running:
            continue
        study = " and ".join(kind_of(each).title for each in running)
        rule = f"this setting is for {kind.title}, and this study runs {study}"
        raise SettingError(kind.setting, value, rule, f"add {{engine}} {name}, or leave it out")


def _refuse(kind: EngineKind, choice: StudySettings, gpus: int) -> None:
    """Refuse a cluster, and GPUs that a trial of the engine cannot have."""
    if choice.ray_address is not None:
        rule = f"{kind.title} runs on this machine only"
        raise SettingError("ray_address", choice.ray_address, rule, "leave it out")
    if gpus > 1 and not kind.can(Feature.SEVERAL_GPUS):
        raise SettingError("gpus_per_trial", gpus, f"{kind.title} has one GPU for a trial", "leave it out")


def study_engine(settings: EngineSettings) -> str:
    """Return the engine whose flags a study has; those of a simulated one are vLLM's."""
    return kind_of(settings.name).name


def refuse_quality(slos: tuple[Slo, ...], task: str | None, engine: str) -> None:
    """Refuse an SLO on quality, which needs vLLM's prompt log-probabilities and checkpoints.

    Raises:
        SettingError: with the SLO or the questions.
    """
    bound = next((str(slo) for slo in slos if slo.metric.rpartition(".")[2] == "quality"), None)
    if bound is not None or task is not None:
        field, value = ("slo", bound) if bound is not None else ("quality_task", task)
        raise SettingError(field, value, f"quality is measured with vLLM only, not with {engine}", "leave it out")


def _cpus(workers: int | None) -> Devices:
    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "at least 1 is needed")
    return Devices(("cpu",) * (workers or 1), hardware_named("cpu"), gpus=False)
