"""A study before its engine and hardware are known, and one that is ready to run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from search_spaces import ModelShape, Space
from search_spaces.schema import VLLM
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import sampling_arguments
from tuner.processes.secrets import NO_SECRETS, Secrets
from tuner.scoring.goals import Goals
from tuner.settings.study import StudySettings
from tuner.specs import ModelRef
from tuner.study.prior.source_studies import SourceStudy
from tuner.study.specification.settings import ServerSettings
from tuner.study.specification.spec import StudySpec
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
