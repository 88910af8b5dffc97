"""A study before its engine and hardware are known, and what several engines of one study have together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from search_spaces import ENGINE, JoinedSpace, ModelShape, ResolvedSpace, Space, join
from search_spaces.schema import VLLM
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import sampling_arguments
from tuner.processes.secrets import NO_SECRETS, Secrets
from tuner.scoring.goals import Goals
from tuner.settings.study import StudySettings
from tuner.specs import ModelRef
from tuner.study.source_studies import SourceStudy
from tuner.study.specification.configurations import BASELINE_LABEL, read_baseline, read_enqueued
from tuner.study.specification.settings import ServerSettings
from tuner.study.specification.spec import EnginePart, Enqueued, StudySpec
from tuner.workloads.presets import Preset
from tuner.workloads.spec import Workload


@dataclass(frozen=True)
class StudyPlan:
    """A study before its engine and hardware are known; its settings are checked as far as possible.

    `given_server` has the given flags and variables, with references for secrets. `others` are the plans of further
    engines of the study; name, workload, goals and search are those of the first.
    """

    settings: StudySettings
    preset: Preset
    name: str
    model: ModelRef
    shape: ModelShape | None
    space: Space
    workload: Workload
    goals: Goals
    given_server: ServerSettings
    secrets: Secrets = NO_SECRETS
    engine: str = VLLM
    others: tuple[StudyPlan, ...] = ()

    @property
    def every(self) -> tuple[StudyPlan, ...]:
        """The plan of each engine, the default engine first."""
        return (self, *self.others)

    @property
    def server(self) -> ServerSettings:
        """Flags and environment of every server, the sampling temperature included."""
        given = self.given_server
        return replace(given, arguments=(*sampling_arguments(self.workload.temperature, self.engine), *given.arguments))

    @property
    def enqueue(self) -> tuple[str, ...]:
        """Texts of the configurations to enqueue: the preset's, which are vLLM's, then the user's."""
        return (*(self.preset.enqueue if self.engine == VLLM else ()), *self.settings.enqueue)


@dataclass(frozen=True)
class PreparedStudy:
    """A study that is ready to run: its spec, the engine that runs it, and its source studies."""

    spec: StudySpec
    engine: EngineInfo
    sources: tuple[SourceStudy, ...] = ()


def join_parts(parts: Mapping[str, ResolvedSpace]) -> JoinedSpace:
    """Return the space of a study of several engines, the default engine first."""
    return join(parts)


def without_prefix(engine: str, names: Collection[str]) -> list[str]:
    """Return the names of an engine's parameters in its own space, of names in the joined one."""
    return [name.removeprefix(f"{engine}.") for name in names if name.startswith(f"{engine}.")]


def defaults_label(engine: str) -> str:
    """Return the label of the trial of another engine's defaults."""
    return f"{engine} defaults"


def given_configurations(plan: StudyPlan, space: ResolvedSpace) -> tuple[Enqueued, ...]:
    """Return what is measured before the search: the defaults of other engines, and the configurations that are named.

    Raises:
        SettingError: for a configuration that is not in its engine's space.
    """
    if not isinstance(space, JoinedSpace):
        return tuple(read_enqueued(space, "enqueue", text) for text in plan.enqueue)
    found = [Enqueued(defaults_label(each.engine), {ENGINE: each.engine}) for each in plan.others]
    for each in plan.every:
        for text in each.enqueue:
            own = read_enqueued(space.parts[each.engine], "enqueue", text)
            label = own.label if each is plan else f"{each.engine}={own.label}"
            found.append(Enqueued(label, space.lift(each.engine, own.config)))
    return tuple(found)


def given_baseline(plan: StudyPlan, space: ResolvedSpace) -> Enqueued | None:
    """Return what the user runs today; None if it is not given.

    Raises:
        SettingError: for a configuration that is not in its engine's space.
    """
    for each in plan.every:
        text = each.settings.baseline
        if text is not None and isinstance(space, JoinedSpace):
            own = read_baseline(space.parts[each.engine], text)
            return Enqueued(BASELINE_LABEL, space.lift(each.engine, own.config))
        if text is not None:
            return read_baseline(space, text)
    return None


def engine_parts(plan: StudyPlan) -> dict[str, EnginePart]:
    """Return what each engine has of its own; empty for a study of one engine."""
    if not plan.others:
        return {}
    return {each.engine: EnginePart(each.model, each.server, each.space.to_dict()) for each in plan.every}


def facts_of_engines(plan: StudyPlan, engine: EngineInfo) -> dict[str, Any]:
    """Return the facts of the engines that are stored with a study of several: program, and format of the weights."""
    if not plan.others:
        return {}
    return {
        "engines": {
            each.engine: {
                "executable": engine.named(each.engine).executable,
                "weights": None if each.shape is None else each.shape.quantization or each.shape.dtype,
            }
            for each in plan.every
        }
    }
