"""TensorRT-LLM as the engine of a study: find its program, and refuse what it cannot do."""

from __future__ import annotations

import os

from tuner.engines.base import EngineSettings
from tuner.engines.command_line import TENSORRT_LLM
from tuner.engines.tensorrt_llm.installation import find_server, installation
from tuner.errors import SettingError
from tuner.processes.identity import own_identity
from tuner.study.specification.settings import EngineChoice
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.places import home


def tensorrt_llm_engine(choice: EngineChoice, gpus: int = 1) -> tuple[EngineSettings, Devices]:
    """Return TensorRT-LLM and its devices, the GPUs of this machine.

    Without a GPU the first trial fails: TensorRT-LLM has no build for a CPU.

    Args:
        choice: the settings.
        gpus: of each trial.

    Raises:
        UserError: without a `trtllm-serve`, for a cluster, and for the settings of other engines.
    """
    if choice.vllm is not None:
        rule = "this setting is for vLLM, and this study runs TensorRT-LLM"
        raise SettingError("vllm", choice.vllm, rule, "give {trtllm_serve}, or leave it out")
    if choice.ray_address is not None:
        rule = "TensorRT-LLM runs on this machine only"
        raise SettingError("ray_address", choice.ray_address, rule, "leave it out")
    if gpus > 1:
        raise SettingError("gpus_per_trial", gpus, "TensorRT-LLM has one GPU for a trial", "leave it out")
    found = installation(find_server(choice.trtllm_serve))
    devices = find_devices(choice.workers)
    return EngineSettings(TENSORRT_LLM, os.fspath(found.executable), home(), driver=own_identity()), devices


def refuse_trtllm_serve(choice: EngineChoice) -> None:
    """Refuse the program of TensorRT-LLM in a study of another engine.

    Raises:
        SettingError: when it was given.
    """
    if choice.trtllm_serve is not None and choice.engine != TENSORRT_LLM:
        rule = "this setting is for TensorRT-LLM, and this study runs another engine"
        raise SettingError("trtllm_serve", choice.trtllm_serve, rule, "add {engine} tensorrt-llm, or leave it out")
