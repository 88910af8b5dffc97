"""The engines of a study, measured or simulated: find them and their devices, and refuse settings that do not fit."""

from __future__ import annotations

import os
import re
from dataclasses import replace
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
from tuner.engines.kind import EngineKind, Feature, ModelForm
from tuner.engines.kinds import kind_of, kinds, with_feature
from tuner.engines.openai.engine import find_tools
from tuner.engines.openai.kind import OPENAI
from tuner.engines.simulator.client import refuse_unmodelled
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, default_version
from tuner.engines.simulator.precision import NotSimulated, require_simulated
from tuner.engines.simulator.serve_config import CommandLine
from tuner.engines.user_command import read_command
from tuner.engines.vllm.toolbox import check_prompts
from tuner.errors import SettingError
from tuner.files import home
from tuner.processes.family import own_identity
from tuner.processes.records import ProcessRecords
from tuner.settings.study import StudySettings
from tuner.study.specification.find_model import longest_context, too_long
from tuner.study.specification.model_files import check_model_files
from tuner.study.specification.plan import StudyPlan, gpus_of_engines
from tuner.study.specification.resolve_workload import request_classes
from tuner.use_cases.devices import (
    Devices,
    find_cluster_devices,
    find_devices,
    grouped,
    refuse_gpus_on_cpu,
    refuse_nodes,
)
from tuner.workloads.presets import load_preset

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_OLDEST, _NEWEST = (0, 15), (0, 32)


def chosen_engine(choice: StudySettings) -> tuple[EngineSettings, Devices]:
    """Return the engine of a study, or its default engine with the others, and the devices.

    Raises:
        UserError: for one that is not installed, and for settings that do not fit it.
    """
    _refuse_other_programs(choice)
    _check_command(choice)
    if choice.ray_address is None or choice.other_engines or choice.engine not in ("auto", VLLM):
        refuse_nodes(choice.nodes_per_trial)
    if choice.other_engines:
        _check_several(choice)
    gpus = gpus_of_engines(choice, names_of(choice))
    found = [_engine(choice, each, gpus) for each in choice.engines]
    first, devices = found[0]
    for engine, (_, other) in zip(choice.engines, found, strict=True):
        if other.names != devices.names:
            rule = f"it would run on {other.names[0]}, and {choice.engine} on {devices.names[0]}"
            raise SettingError("engine", engine, rule, "install a build for that device, or give each its own study")
    return replace(first, others=tuple(each for each, _ in found[1:])), devices


def names_of(choice: StudySettings) -> tuple[str, ...]:
    """Return the engines whose flags a study has; those of a simulated one are vLLM's."""
    return tuple(kind_of(each).name for each in choice.engines)


def _engine(choice: StudySettings, engine: str, gpus: int) -> tuple[EngineSettings, Devices]:
    """Return one engine of a study and its devices: this machine's GPUs where it uses them, else the CPU.

    vLLM runs on a cluster, too, and is simulated where there is neither a GPU nor an executable.
    """
    kind, warm = kind_of(engine), choice.warm_start
    if kind.name == VLLM and choice.ray_address is not None:
        return _engine_of_cluster(choice, choice.ray_address, gpus)
    if kind.name == VLLM and wants_simulation(engine, choice.vllm, choice.gpu):
        simulated, devices = simulated_engine(choice.gpu, choice.vllm_version, choice.preset, choice.workers)
        return replace(simulated, warm_start=warm, gpus=gpus), grouped(devices, gpus)
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    _refuse(kind, choice)
    found = kind.find(_program_in(choice, kind))
    if found.gpus:
        devices = find_devices(choice.workers, gpus if kind.can(Feature.SEVERAL_GPUS) else 1)
    else:
        devices = Devices(("cpu",) * (choice.workers or 1), hardware_named("cpu"), gpus=False)
    refuse_gpus_on_cpu(choice.gpus_per_trial, devices)
    own, executable = own_identity(), os.fspath(found.executable)
    return EngineSettings(kind.name, executable, home(), warm_start=warm, driver=own, gpus=devices.each), devices


def _engine_of_cluster(choice: StudySettings, address: str, gpus: int) -> tuple[EngineSettings, Devices]:
    """Return vLLM and its devices on a cluster, which measures: a simulation needs no worker."""
    if choice.engine == "simulated":
        rule = "a simulated study runs in this process, not on a cluster"
        raise SettingError("ray_address", address, rule, "leave it out, or leave out {engine}")
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    found = find_cluster_devices(address, choice.workers, choice.vllm, home(), gpus, choice.nodes_per_trial)
    # Workers run on other hosts, where this process cannot be the owner of a server.
    warm = choice.warm_start
    return EngineSettings("vllm", found.vllm, home(), warm_start=warm, driver=None, gpus=found.on_node), found


def _check_several(choice: StudySettings) -> None:
    """Refuse engines that a study cannot have several of."""
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


def _refuse_other_programs(choice: StudySettings) -> None:
    """Refuse the program of an engine that the study does not run; vLLM's goes with `auto` and a simulation."""
    running = [kind_of(each) for each in choice.engines]
    for name, kind in kinds().items():
        value = _program_in(choice, kind)
        if kind.setting is not None and value is not None and kind not in running:
            rule = (
                f"this setting is for {kind.title}, and this study runs {' and '.join(each.title for each in running)}"
            )
            raise SettingError(kind.setting, value, rule, f"add {{engine}} {name}, or leave it out")


def _program_in(choice: StudySettings, kind: EngineKind) -> str | None:
    """Return the program that the settings name for an engine; None if they name none."""
    return None if kind.setting is None else getattr(choice, kind.setting)


def _check_command(choice: StudySettings) -> None:
    """Refuse the engine `openai` without a command, and a text that is no command."""
    if choice.engine != OPENAI.name:
        return
    if choice.server_command is None:
        remedy = "give {server_command} 'PROGRAM ARGUMENTS', with {{port}} for the port"
        raise SettingError("server_command", None, "this engine starts a command, and none is given", remedy)
    read_command(choice.server_command)


def _refuse(kind: EngineKind, choice: StudySettings) -> None:
    """Refuse a cluster, and GPUs that a trial of the engine cannot have."""
    if choice.ray_address is not None:
        rule = f"{kind.title} runs on this machine only"
        raise SettingError("ray_address", choice.ray_address, rule, "leave it out")
    given = choice.gpus_per_trial or 1
    if given > 1 and not kind.can(Feature.SEVERAL_GPUS):
        raise SettingError("gpus_per_trial", given, f"{kind.title} has one GPU for a trial", "leave it out")


def wants_simulation(engine: str, vllm: str | None, gpu: str | None) -> bool:
    """Return whether the engine is simulated: by its name, or by `auto` without a GPU and without a given vLLM."""
    if engine != "auto":
        return engine == "simulated"
    if vllm is not None or os.environ.get("TUNER_VLLM"):
        return False
    from tuner import gpu as devices

    return gpu is not None or not devices.devices()


def refuse_simulation_options(gpu: str | None, version: str | None) -> None:
    """Refuse settings that only apply to a simulation."""
    if gpu is not None or version is not None:
        field, value = ("gpu", gpu) if gpu is not None else ("vllm_version", version)
        rule = "this setting is for a simulation, and this study is measured"
        raise SettingError(field, value, rule, "add {engine} simulated, or leave it out")


def refuse_unsimulated_arguments(plan: StudyPlan, settings: EngineSettings) -> None:
    """Refuse server arguments and requests with which no trial can be simulated."""
    card, version, shape = settings.card, settings.version, plan.shape
    assert card is not None
    assert version is not None
    assert shape is not None  # `find_simulated_model` returns no model without a shape
    server, release = plan.server, version_tuple(version)
    try:
        require_simulated(shape)
    except NotSimulated as error:
        raise SettingError("model", plan.model.name, str(error)) from None
    longest = longest_context(shape, VLLM, server.arguments, release)
    if longest is not None and plan.workload.longest_request > longest:
        raise too_long(plan.workload, longest)
    given = (server.arguments, server.environment, shape, card, release, SIMULATED_PACKAGES, settings.gpus)
    if (refusal := CommandLine(*given).refusal_of_every_trial()) is not None:
        raise SettingError("server_arguments", None, refusal, "change the flags after `--`")
    for request_class in request_classes(plan.workload):
        refuse_unmodelled(request_class)


def simulated_engine(
    gpu: str | None, version: str | None, preset: str, workers: int | None
) -> tuple[EngineSettings, Devices]:
    """Return the settings of a simulated engine and its devices: the given card or the preset's.

    Raises:
        SettingError: for an unknown card or version.
    """
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
    if version is None:
        return default_version(card)
    if not _VERSION.fullmatch(version) or not _OLDEST <= version_tuple(version)[:2] <= _NEWEST:
        raise SettingError("vllm_version", version, "0.15 to 0.32 are simulated", "give for example 0.25.1")
    return version


def with_plan(settings: EngineSettings, plan: StudyPlan) -> EngineSettings:
    """Return the settings of the workers' engines with what the plan has found: variables, secrets, tokenizers."""
    tokenizers = tuple(each.model.tokenizer for each in plan.every) if plan.others else ()
    first, *others = (
        replace(each, environment=found.server.environment, secrets=plan.secrets, tokenizers=tokenizers)
        for each, found in zip((settings, *settings.others), plan.every, strict=True)
    )
    return replace(first, others=tuple(others))


def check_models(plan: StudyPlan, engine: EngineSettings) -> None:
    """Refuse models whose files no server can load, and a tokenizer that makes none of the workload's prompts.

    A simulation loads none, and the files of a cluster are those of its nodes.
    """
    if engine.card is None and plan.settings.ray_address is None:
        for each in plan.every:
            _check_files(each)
    if plan.engine == OPENAI.name:
        find_tools(plan.model.tokenizer, "", ProcessRecords(home() / "processes"), None)
    if plan.engine == VLLM and engine.executable is not None and plan.settings.ray_address is None:
        check_prompts(plan.workload, Path(engine.executable), plan.model.tokenizer)


def _check_files(plan: StudyPlan) -> None:
    """Check the files of the models that an engine loads; a user's command may load another."""
    if kind_of(plan.engine).model_form is not ModelForm.CHECKPOINT:
        return
    arguments, settings = plan.server.arguments, plan.settings
    check_model_files("model", plan.model.name, arguments)
    for name in settings.checkpoint.values():
        check_model_files("checkpoint", name, arguments)
    if settings.draft_model is not None:
        check_model_files("draft_model", settings.draft_model, arguments, tokenizer=False)
