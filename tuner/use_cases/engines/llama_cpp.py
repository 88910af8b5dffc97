"""llama.cpp as the engine of a study: find its server, and refuse what it cannot do."""

from __future__ import annotations

import os

from search_spaces import hardware_named
from search_spaces.schema import VLLM
from tuner.engines.base import EngineSettings
from tuner.engines.command_line import LLAMA_CPP, OTHER_ENGINES
from tuner.engines.llama_cpp.installation import find_server, installation
from tuner.errors import SettingError
from tuner.processes.identity import own_identity
from tuner.scoring.slo import Slo
from tuner.study.specification.settings import EngineChoice
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.places import home


def llama_cpp_engine(choice: EngineChoice, gpus: int = 1) -> tuple[EngineSettings, Devices]:
    """Return llama.cpp and its devices: the GPUs if its build has a backend for them, else the CPU.

    Args:
        choice: the settings.
        gpus: of each trial.

    Raises:
        UserError: without a server, for a cluster, and for the settings of other engines.
    """
    if choice.vllm is not None:
        rule = "this setting is for vLLM, and this study runs llama.cpp"
        raise SettingError("vllm", choice.vllm, rule, "give {llama_server}, or leave it out")
    if choice.ray_address is not None:
        rule = "llama.cpp runs on this machine only"
        raise SettingError("ray_address", choice.ray_address, rule, "leave it out")
    if gpus > 1:
        raise SettingError("gpus_per_trial", gpus, "llama.cpp has one GPU for a trial", "leave it out")
    found = installation(find_server(choice.llama_server))
    devices = find_devices(choice.workers) if found.gpus else _cpus(choice.workers)
    return EngineSettings(LLAMA_CPP, os.fspath(found.executable), home(), driver=own_identity()), devices


def study_engine(settings: EngineSettings) -> str:
    """Return the engine whose flags a study has; those of a simulated one are vLLM's."""
    return settings.name if settings.name in OTHER_ENGINES else VLLM


def _cpus(workers: int | None) -> Devices:
    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "at least 1 is needed")
    return Devices(("cpu",) * (workers or 1), hardware_named("cpu"), gpus=False)


def refuse_llama_server(choice: EngineChoice) -> None:
    """Refuse the executable of llama.cpp in a study of another engine.

    Raises:
        SettingError: when it was given.
    """
    if choice.llama_server is not None and choice.engine != LLAMA_CPP:
        rule = "this setting is for llama.cpp, and this study runs another engine"
        raise SettingError("llama_server", choice.llama_server, rule, "add {engine} llama.cpp, or leave it out")


def refuse_quality(slos: tuple[Slo, ...], task: str | None, engine: str = LLAMA_CPP) -> None:
    """Refuse an SLO on quality, which needs vLLM's prompt log-probabilities and checkpoints.

    Raises:
        SettingError: with the SLO or the questions.
    """
    bound = next((str(slo) for slo in slos if slo.metric.rpartition(".")[2] == "quality"), None)
    if bound is not None or task is not None:
        field, value = ("slo", bound) if bound is not None else ("quality_task", task)
        raise SettingError(field, value, f"quality is measured with vLLM only, not with {engine}", "leave it out")
