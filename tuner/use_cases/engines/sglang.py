"""SGLang as the engine of a study: find its Python, and refuse what it cannot do."""

from __future__ import annotations

import os

from tuner.engines.base import EngineSettings
from tuner.engines.command_line import SGLANG
from tuner.engines.sglang.installation import find_python, installation
from tuner.errors import SettingError
from tuner.processes.identity import own_identity
from tuner.study.specification.settings import EngineChoice
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.places import home


def sglang_engine(choice: EngineChoice, gpus: int = 1) -> tuple[EngineSettings, Devices]:
    """Return SGLang and its devices: the GPUs of this machine, else the CPU.

    Args:
        choice: the settings.
        gpus: of each trial.

    Raises:
        UserError: without an SGLang or so many GPUs, for a cluster, and for the settings of other engines.
    """
    if choice.vllm is not None:
        rule = "this setting is for vLLM, and this study runs SGLang"
        raise SettingError("vllm", choice.vllm, rule, "give {sglang}, or leave it out")
    if choice.ray_address is not None:
        raise SettingError("ray_address", choice.ray_address, "SGLang runs on this machine only", "leave it out")
    found = installation(find_python(choice.sglang))
    devices = find_devices(choice.workers, gpus)
    return EngineSettings(SGLANG, os.fspath(found.python), home(), driver=own_identity(), gpus=devices.each), devices


def refuse_sglang(choice: EngineChoice) -> None:
    """Refuse the Python of SGLang in a study of another engine.

    Raises:
        SettingError: when it was given.
    """
    if choice.sglang is not None and choice.engine != SGLANG:
        rule = "this setting is for SGLang, and this study runs another engine"
        raise SettingError("sglang", choice.sglang, rule, "add {engine} sglang, or leave it out")
