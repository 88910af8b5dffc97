"""The engines that a study names, beside vLLM and its simulation."""

from __future__ import annotations

from tuner.engines.base import EngineSettings
from tuner.engines.command_line import LLAMA_CPP, OPENAI, SGLANG, TENSORRT_LLM
from tuner.study.specification.settings import EngineChoice
from tuner.use_cases.devices import Devices
from tuner.use_cases.engines.llama_cpp import llama_cpp_engine, refuse_llama_server
from tuner.use_cases.engines.openai import openai_engine
from tuner.use_cases.engines.sglang import refuse_sglang, sglang_engine
from tuner.use_cases.engines.tensorrt_llm import refuse_trtllm_serve, tensorrt_llm_engine
from tuner.use_cases.simulated_engine import refuse_simulation_options

_ENGINES = {
    LLAMA_CPP: llama_cpp_engine,
    OPENAI: openai_engine,
    SGLANG: sglang_engine,
    TENSORRT_LLM: tensorrt_llm_engine,
}


def named_engine(
    choice: EngineChoice, gpus: int = 1, given: int | None = None
) -> tuple[EngineSettings, Devices] | None:
    """Return the engine and its devices; None for vLLM and its simulation.

    Args:
        choice: the settings.
        gpus: of each trial, those that the server's flags need included.
        given: GPUs of each trial that the user asks for; only they count for an engine without such flags.

    Raises:
        UserError: if it is not installed, and for the settings of other engines.
    """
    refuse_llama_server(choice)
    refuse_sglang(choice)
    refuse_trtllm_serve(choice)
    find = _ENGINES.get(choice.engine)
    if find is None:
        return None
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    return find(choice, gpus if choice.engine in (OPENAI, SGLANG) else given or 1)
