"""What a study is: everything that the command line, a preset and the defaults decide, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from search_spaces import ResolvedSpace
from storage.records import Config, Provenance, TrialKind
from tuner.engines.base import EngineInfo
from tuner.scoring.judge import Judge
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop, Workload
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

AUTO, RESIDUAL, TPE = "auto", "residual", "tpe"
SAMPLERS = (AUTO, RESIDUAL, TPE)
"""`auto` is `residual` where trials are measured, whose minutes outweigh its tenth of a second, or where it is to learn
from earlier studies, and else `tpe`."""


@dataclass(frozen=True)
class Enqueued:
    """A configuration to measure whatever the sampler thinks, under a name."""

    label: str
    config: Config


@dataclass(frozen=True)
class Budget:
    """What a run of a study may spend.

    `trials` counts every trial of the study (the defaults are one), whichever run made it. `timeout_s` is this run's
    wall clock, the finalists' re-measurement included. `attempts` bounds launches of one trial that infrastructure
    failed. The search ends earlier once the sampler expects less than `min_gain`, a share of the score, of another
    trial. `ablate` adds a trial for each flag of the best configuration, without that flag.
    """

    trials: int = 60
    timeout_s: float | None = None
    attempts: int = 3
    min_gain: float = 0.0
    ablate: bool = False


@dataclass(frozen=True)
class StudySpec:
    """One study. Its `premise` must not change when the study goes on under the same name.

    `search_prompts` are the requests that a closed loop's search sends at a time; None: all, as in the rounds.
    `learn_from` are earlier studies of the same database, whose trials the sampler learns from.
    """

    name: str
    model: ModelRef
    workload: Workload
    space: ResolvedSpace
    space_source: Mapping[str, Any]
    judge: Judge
    base_argv: tuple[str, ...]
    base_environment: Mapping[str, str]
    artifacts: Path
    enqueue: tuple[Enqueued, ...] = ()
    repeats: int = 1
    baseline_repeats: int = 3
    finalists: int = 3
    confirm_rounds: int = 3
    search_prompts: int | None = None
    seed: int = 0
    sampler: str = AUTO
    learn_from: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def premise(self, engine: EngineInfo, devices: list[str]) -> dict[str, Any]:
        """Return, as plain JSON, all that makes two trials of this study comparable; files by what is in them."""
        files = self.workload.files() if isinstance(self.workload, Traffic | Suite) else []
        return {
            "model": {"name": self.model.name, "tokenizer": self.model.tokenizer},
            "workload": self.workload.model_dump(mode="json"),
            **({"files": {str(file): sha256(file.read_bytes()).hexdigest() for file in files}} if files else {}),
            "space": {
                "source": dict(self.space_source),
                "parameters": [parameter.name for parameter in self.space.parameters],
            },
            "objectives": [str(objective) for objective in self.judge.objectives],
            "slos": [str(slo) for slo in self.judge.slos],
            "engine": {"name": engine.name, "version": engine.version, "devices": sorted(set(devices))},
            "server": {"arguments": list(self.base_argv), "environment": dict(self.base_environment)},
            **({} if self.search_prompts is None else {"search": {"num_prompts": self.search_prompts}}),
        }

    @property
    def searched_workload(self) -> Workload:
        """What is sent to all but the finalists."""
        shorter = {} if self.search_prompts is None else {"num_prompts": self.search_prompts}
        return self.workload.model_copy(update=shorter)

    @property
    def times_the_search(self) -> float:
        """How much more a finalist is sent in a round than a trial of the search."""
        load, searched = self.workload, self.search_prompts
        longer = load.num_prompts / searched if isinstance(load, ClosedLoop) and searched else 1.0
        return longer * self._repeats(TrialKind.CONFIRM) / self.repeats

    def sampler_for(self, engine: EngineInfo) -> str:
        """Return the sampler that `auto` stands for with this engine."""
        if self.sampler != AUTO:
            return self.sampler
        return RESIDUAL if engine.provenance is Provenance.MEASURED or self.learn_from else TPE

    def trial(self, number: int, round_: int, attempt: int, kind: TrialKind, config: Config) -> TrialSpec:
        """Return what a worker needs for one attempt at a trial."""
        rendered = self.space.render(config)
        model = self.model
        if rendered.model is not None:
            model = ModelRef(rendered.model, self.model.tokenizer, self.model.served_name)
        launch = LaunchSpec(
            model=model,
            argv=rendered.argv,
            base_argv=self.base_argv,
            environment={**self.base_environment, **rendered.environment},
        )
        spec = TrialSpec(
            study=self.name,
            number=number,
            round=round_,
            attempt=attempt,
            kind=kind,
            config=config,
            launch=launch,
            workload=self._load(kind, round_),
            repeats=self._repeats(kind),
            artifacts=self.artifacts,
            limits=self.limits,
            capacity_slos=self.judge.slos if self.judge.wants("capacity") else None,
        )
        return replace(spec, artifacts=self.artifacts / spec.uid)

    def _repeats(self, kind: TrialKind) -> int:
        """What decides is measured as often as the defaults: a benchmark is cheap beside the start of its server."""
        decides = kind in (TrialKind.BASELINE, TrialKind.CONFIRM)
        return max(self.repeats, self.baseline_repeats) if decides else self.repeats

    def _load(self, kind: TrialKind, round_: int) -> Workload:
        """Each round of the finalists sends other prompts, the same to every finalist of the round."""
        load = self.workload if kind is TrialKind.CONFIRM else self.searched_workload
        return load.model_copy(update={"seed": load.seed + 1000 * round_})


def difference(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """Return one line for each leaf in which two premises differ: `workload.num_prompts: 200 -> 100`."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        where = f"{path}.{key}" if path else key
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += difference(before, after, where)
        elif before != after:
            lines.append(f"{where}: {_short(before)} -> {_short(after)}")
    return lines


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
