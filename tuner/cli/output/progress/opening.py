"""What is written before the first trial of a study."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from search_spaces import JoinedSpace, ResolvedSpace
from search_spaces.parameter import ParameterValue
from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.results import text
from tuner.results.cost_lines import price_lines
from tuner.scoring.goals import Goals
from tuner.study.protocols import StudyStart
from tuner.workloads.file_notes import file_notes


def opening_lines(start: StudyStart, done: int) -> list[str]:
    """Return what is simulated, the study's size, what it reads and sends, its goals, and a price.

    Args:
        start: the study.
        done: finished trials of earlier runs.
    """
    spec, engine = start.spec, start.engine
    lines = []
    if engine.provenance is Provenance.SIMULATED:
        hardware = spec.facts["hardware"]
        lines.append(simulation_line(engine, hardware if spec.gpus == 1 else f"{spec.gpus} × {hardware}"))
    parts = [
        text.count(start.budget.trials, "trial") + (f" ({done} finished before)" if done else ""),
        text.count(start.workers, "worker"),
        " and ".join(f"{each.name} {each.version}" for each in engine.every),
        text.count(len(spec.space.parameters), "parameter"),
    ]
    lines.append(f"study {spec.name}: {', '.join(parts)}")
    if spec.space.dropped:
        dropped, hardware = text.count(len(spec.space.dropped), "choice"), spec.space.context.hardware
        several = f" --gpus-per-trial {spec.gpus}" if spec.gpus > 1 else ""
        command = f"tuner space --gpu {hardware.key} {_engine_words(engine)}{several}"
        lines.append(f"{dropped} ruled out on this hardware; `{command}` lists them with the reasons")
    lines += [*file_notes(spec.workload), *unused_models(spec.space)]
    if spec.search_prompts:
        rounds = "; the rounds of the confirmation send all" if spec.confirmation.confirm_rounds else ""
        lines.append(f"each trial of the search sends {spec.search_prompts} requests{rounds}")
    lines += goal_lines(spec.goals, spec.facts.get("goals_from", {}))
    goals = [*(each.metric for each in spec.goals.objectives), *(each.metric for each in spec.goals.slos)]
    return [*lines, *price_lines(goals, [spec.price])]


def goal_lines(goals: Goals, sources: Mapping[str, str]) -> list[str]:
    """Return the SLOs, and the score weights, with where they come from if the user did not give them.

    Args:
        goals: of the study.
        sources: see `goal_sources`; empty in a study that does not know them.
    """
    weights = [f"{each.metric} {each.weight:g}" for each in goals.scored]
    found = (
        ("SLOs", "slos", "--slo", [str(slo) for slo in goals.slos]),
        ("score weights", "objectives", "--objective", weights),
    )
    lines = []
    for name, key, option, shown in found:
        source = sources.get(key)
        origin = f" ({source}; {option} replaces them)" if source else ""
        lines += [f"{name}{origin}: {', '.join(shown)}"] if shown else []
    return lines


def unused_models(space: ResolvedSpace) -> Iterator[str]:
    """Yield a line for each given checkpoint, and for the draft model, that no configuration of the study can use."""
    if isinstance(space, JoinedSpace):
        space = space.parts[space.default]
    offered = [choice for parameter in space.parameters for choice in parameter.choices]
    declared = [(name, choice) for name, spec in space.specs.items() for choice in spec.choices]
    for method in space.context.checkpoints:
        if all(choice.checkpoint != method for choice in offered):
            wanted = {(name, choice.value) for name, choice in declared if choice.checkpoint == method}
            yield f"--checkpoint {method} is not used: {_why(space, wanted)}"
    if space.context.draft_model is not None and not any(choice.draft_model for choice in offered):
        wanted = {(name, choice.value) for name, choice in declared if choice.draft_model}
        yield f"--draft-model is not used: {_why(space, wanted)}"


def _why(space: ResolvedSpace, wanted: Collection[tuple[str, ParameterValue]]) -> str:
    """Return why a space offers none of some choices, which are pairs of parameter and value."""
    names = {name for name, _ in wanted}
    for each in space.dropped:
        if (each.parameter, each.value) in wanted or (each.parameter in names and each.value is None):
            return each.reason
    return f"the study does not search the parameter {' or '.join(sorted(names))}"


def _engine_words(engine: EngineInfo) -> str:
    """Return the options of `tuner space` that show the engine's space."""
    kind = kind_of(engine.name)
    if kind.can(Feature.PREDICTED):
        return f"--vllm-version {engine.version}"
    return f"--engine {engine.name}" if kind.program is not None else f"--engine {engine.name} --space FILE"


def simulation_line(engine: EngineInfo, hardware: str) -> str:
    """Return what is simulated, and how to measure instead; `hardware` is a card, or such as `2 × NVIDIA H200`."""
    place = hardware if " × " in hardware else f"one {hardware}"
    return f"{text.BANNER}: vLLM {engine.version} on {place}; use --engine vllm without --gpu to measure"
