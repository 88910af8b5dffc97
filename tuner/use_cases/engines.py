"""The engines of a study: find them, refuse settings that do not fit them, and the devices that they run on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from search_spaces import hardware_named
from search_spaces.schema import VLLM
from tuner.engines.base import EngineSettings
from tuner.engines.kind import EngineKind, Feature
from tuner.engines.kinds import kind_of, kinds, with_feature
from tuner.engines.openai.engine import find_tools
from tuner.engines.openai.kind import OPENAI
from tuner.engines.user_command import read_command
from tuner.engines.vllm.toolbox import find_executable
from tuner.errors import SettingError
from tuner.processes.family import own_identity
from tuner.processes.records import ProcessRecords
from tuner.scoring.goals import Slo
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import StudyPlan
from tuner.study.specification.given import gpus_of_engines
from tuner.study.specification.settings import gpus_of_trial
from tuner.use_cases.devices import (
    Devices,
    find_cluster_devices,
    find_devices,
    grouped,
    refuse_gpus_on_cpu,
    refuse_nodes,
)
from tuner.use_cases.places import home
from tuner.use_cases.simulate import refuse_simulation_options, simulated_engine, wants_simulation


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


def chosen_engine(choice: StudySettings) -> tuple[EngineSettings, Devices]:
    """Return the engine of a study, or its default engine with the others, and the devices.

    Raises:
        UserError: for one that is not installed, and for settings that do not fit it.
    """
    if choice.ray_address is None or choice.other_engines or choice.engine not in ("auto", VLLM):
        refuse_nodes(choice.nodes_per_trial)
    if not choice.other_engines:
        return _engine(choice, gpus_of_trial(choice))
    _check_several(choice)
    gpus = gpus_of_engines(choice, choice.engines)
    found = [_engine(_choice_of(each, choice), gpus) for each in choice.engines]
    first, devices = found[0]
    _check_devices(choice.engines, [each for _, each in found])
    return replace(first, others=tuple(each for each, _ in found[1:])), devices


def with_plan(settings: EngineSettings, plan: StudyPlan) -> EngineSettings:
    """Return the settings of the workers' engines with what the plan has found: secrets, and tokenizers of several."""
    tokenizers = tuple(each.model.tokenizer for each in plan.every) if plan.others else ()
    others = tuple(replace(each, secrets=plan.secrets, tokenizers=tokenizers) for each in settings.others)
    return replace(settings, secrets=plan.secrets, tokenizers=tokenizers, others=others)


def _check_several(choice: StudySettings) -> None:
    """Refuse engines that a study cannot have several of, and settings of an engine that it does not run."""
    for engine in choice.engines:
        if engine not in with_feature(Feature.BESIDE_OTHERS):
            rule = f"a study of several engines measures {', '.join(with_feature(Feature.BESIDE_OTHERS))}"
            raise SettingError("engine", engine, rule, "leave it out, or give it alone")
    twice = next((each for each in choice.engines if choice.engines.count(each) > 1), None)
    if twice is not None:
        raise SettingError("engine", twice, "this engine is given twice", "give each engine once")
    if choice.ray_address is not None:
        rule = "a study of several engines runs on this machine only"
        raise SettingError("ray_address", choice.ray_address, rule, "leave it out")
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    refuse_other_programs(choice)


def _choice_of(engine: str, choice: StudySettings) -> StudySettings:
    """Return the choice of one engine of several, without the programs of the others."""
    others: dict[str, Any] = {
        kind.setting: None for name, kind in kinds().items() if kind.setting is not None and name != engine
    }
    return replace(choice, engine=engine, other_engines=(), **others)


def _check_devices(engines: Sequence[str], found: Sequence[Devices]) -> None:
    """Refuse engines that would be measured on different devices."""
    for engine, devices in zip(engines, found, strict=True):
        if devices.names != found[0].names:
            rule = f"it would run on {devices.names[0]}, and {engines[0]} on {found[0].names[0]}"
            raise SettingError("engine", engine, rule, "install a build for that device, or give each its own study")


def _engine(choice: StudySettings, gpus: int) -> tuple[EngineSettings, Devices]:
    """Return the engine and its devices: the named one, vLLM with a GPU or an executable, else a simulated one."""
    named = named_engine(choice, gpus, choice.gpus_per_trial)
    if named is not None:
        refuse_gpus_on_cpu(choice.gpus_per_trial, named[1])
        return named
    if choice.ray_address is not None:
        return _engine_of_cluster(choice, choice.ray_address, gpus, choice.nodes_per_trial)
    if wants_simulation(choice.engine, choice.vllm, choice.gpu):
        simulated, devices = simulated_engine(choice.gpu, choice.vllm_version, choice.preset, choice.workers)
        return replace(simulated, warm_start=choice.warm_start, gpus=gpus), grouped(devices, gpus)
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    devices = find_devices(choice.workers, gpus)
    refuse_gpus_on_cpu(choice.gpus_per_trial, devices)
    executable = os.fspath(find_executable(choice.vllm))
    own, warm = own_identity(), choice.warm_start
    return EngineSettings("vllm", executable, home(), warm_start=warm, driver=own, gpus=devices.each), devices


def _engine_of_cluster(choice: StudySettings, address: str, gpus: int, nodes: int) -> tuple[EngineSettings, Devices]:
    """Return vLLM and its devices on a cluster, which measures: a simulation needs no worker."""
    if choice.engine == "simulated":
        rule = "a simulated study runs in this process, not on a cluster"
        raise SettingError("ray_address", address, rule, "leave it out, or leave out {engine}")
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    found = find_cluster_devices(address, choice.workers, choice.vllm, home(), gpus, nodes)
    # Workers run on other hosts, where this process cannot be the owner of a server.
    warm, devices = choice.warm_start, found.devices
    return EngineSettings("vllm", found.vllm, home(), warm_start=warm, driver=None, gpus=devices.on_node), devices


def check_command(choice: StudySettings) -> None:
    """Refuse an engine without its command, and a command without its engine.

    Raises:
        SettingError: for a text that is no command, none for the engine `openai`, and one for another engine.
    """
    text = choice.server_command
    refuse_other_programs(choice)
    if choice.engine != OPENAI.name:
        return
    if text is None:
        remedy = "give {server_command} 'PROGRAM ARGUMENTS', with {{port}} for the port"
        raise SettingError("server_command", None, "this engine starts a command, and none is given", remedy)
    else:
        read_command(text)


def check_tokenizer(plan: StudyPlan) -> None:
    """Refuse a tokenizer that makes no prompts, before a server is started.

    Raises:
        SettingError: with the tokenizer.
    """
    if plan.engine == OPENAI.name:
        find_tools(plan.model.tokenizer, "", ProcessRecords(home() / "processes"), None)
