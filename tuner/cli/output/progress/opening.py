"""What is written before the first trial of a study."""

from __future__ import annotations

from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import OPENAI, OTHER_ENGINES
from tuner.results import text
from tuner.results.cost_lines import price_lines
from tuner.study.protocols import StudyStart


def opening_lines(start: StudyStart, done: int) -> list[str]:
    """Return what is simulated, the study's size, what its search and rounds send, and the price if a goal is a cost.

    Args:
        start: the study.
        done: finished trials of earlier runs.
    """
    spec, engine = start.spec, start.engine
    lines = []
    if engine.provenance is Provenance.SIMULATED:
        lines.append(simulation_line(engine, spec.facts["hardware"]))
    parts = [
        text.count(start.budget.trials, "trial") + (f" ({done} finished before)" if done else ""),
        text.count(start.workers, "worker"),
        " and ".join(f"{each.name} {each.version}" for each in engine.every),
        text.count(len(spec.space.parameters), "parameter"),
    ]
    lines.append(f"study {spec.name}: {', '.join(parts)}")
    if spec.space.dropped:
        dropped, hardware = text.count(len(spec.space.dropped), "choice"), spec.space.context.hardware
        command = f"tuner space --gpu {hardware.key} {_engine_words(engine)}"
        lines.append(f"{dropped} ruled out on this hardware; `{command}` lists them with the reasons")
    if spec.search_prompts:
        rounds = "; the rounds of the confirmation send all" if spec.confirmation.rounds else ""
        lines.append(f"each trial of the search sends {spec.search_prompts} requests{rounds}")
    goals = [*(each.metric for each in spec.goals.objectives), *(each.metric for each in spec.goals.slos)]
    return [*lines, *price_lines(goals, [spec.price])]


def _engine_words(engine: EngineInfo) -> str:
    """Return the options of `tuner space` that show the engine's space."""
    if engine.name == OPENAI:
        return f"--engine {OPENAI} --space FILE"
    return f"--engine {engine.name}" if engine.name in OTHER_ENGINES else f"--vllm-version {engine.version}"


def simulation_line(engine: EngineInfo, hardware: str) -> str:
    """Return what is simulated, and how to measure instead."""
    return f"{text.BANNER}: vLLM {engine.version} on one {hardware}; use --engine vllm to measure"
