"""Build engines by their names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.engines.base import Engine, EngineSettings
from tuner.errors import SettingError

ENGINES = ("auto", "vllm", "llama.cpp", "openai", "sglang", "tensorrt-llm", "simulated")


@dataclass(frozen=True)
class EngineFactory:
    """Builds a worker's engine from its slot; picklable, so that it can be sent to another host.

    `device_per_slot` gives each slot the device of its number, for executors that do not hide the others from a worker.
    """

    settings: EngineSettings
    device_per_slot: bool = False

    def __call__(self, slot: int) -> Engine:
        """Return the engine of the worker in `slot`.

        Raises:
            SettingError: if there is no such engine, or it is not installed.
        """
        settings = replace(self.settings, device_index=slot) if self.device_per_slot else self.settings
        if settings.name == "vllm":
            from tuner.engines.vllm.engine import VllmEngine
            from tuner.processes.records import reap_orphans

            reap_orphans(settings.home / "processes")
            engine: Engine = VllmEngine(settings)
            return engine
        if settings.name == "llama.cpp":
            from tuner.engines.llama_cpp.engine import LlamaCppEngine
            from tuner.processes.records import reap_orphans

            reap_orphans(settings.home / "processes")
            return LlamaCppEngine(settings)
        if settings.name == "openai":
            from tuner.engines.openai.engine import OpenAiEngine
            from tuner.processes.records import reap_orphans

            reap_orphans(settings.home / "processes")
            return OpenAiEngine(settings)
        if settings.name == "sglang":
            from tuner.engines.sglang.engine import SglangEngine
            from tuner.processes.records import reap_orphans

            reap_orphans(settings.home / "processes")
            return SglangEngine(settings)
        if settings.name == "tensorrt-llm":
            from tuner.engines.tensorrt_llm.engine import TensorRtLlmEngine
            from tuner.processes.records import reap_orphans

            reap_orphans(settings.home / "processes")
            return TensorRtLlmEngine(settings)
        if settings.name == "simulated" and settings.card is not None and settings.version is not None:
            from tuner.engines.simulator.config.vllm_release import SIMULATED_PACKAGES
            from tuner.engines.simulator.engine import SimulatedEngine

            return SimulatedEngine(
                settings.card, settings.version, SIMULATED_PACKAGES, settings.warm_start, settings.gpus
            )
        raise SettingError("engine", settings.name, f"no engine has this name; engines: {', '.join(ENGINES)}")
