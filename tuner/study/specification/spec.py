"""The frozen specification of a study, the trials that follow from it, and what its first run fixes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.trials import Config, TrialKind
from search_spaces import Price, ResolvedSpace
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError
from tuner.scoring.goals import Goals
from tuner.settings.declared import seconds_of
from tuner.settings.study import AUTO, RESIDUAL, AskedSettings, ConfirmationSettings, SearchSettings
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop, Suite, Workload
from tuner.workloads.traffic import Traffic

if TYPE_CHECKING:
    from tuner.engines.simulator.learning import HostPosterior


@dataclass(frozen=True)
class ServerSettings:
    """Flags and environment variables of every server.

    `${NAME}` in a flag or a value refers to a variable of the command's environment. `secrets` names variables and
    flags that are secrets, beside those whose names say so. `command` has the words of the user's own command, for the
    engine `openai`; it runs in `folder`.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    folder: str | None = None


@dataclass(frozen=True)
class Budget:
    """What a run of a study may spend.

    `trials` counts every trial of the study, the defaults and trials of earlier runs included. `timeout_s` is the
    wall-clock time of this run in seconds, the confirmation included. `attempts` bounds the launches of a trial
    that fails for reasons of infrastructure. The search ends once the maximum expected improvement stays below
    `min_gain`, a share of the score. `ablate` adds one trial for each flag of the best configuration.
    """

    trials: int
    timeout_s: float | None = None
    attempts: int = 3
    min_gain: float = 0.0
    ablate: bool = False

    @classmethod
    def of(cls, settings: AskedSettings) -> Budget:
        """Return the budget of a run.

        Raises:
            SettingError: for less than one trial, or a time limit that is no duration.
        """
        if settings.trials < 1:
            raise SettingError("trials", settings.trials, "at least 1 is needed", "the defaults are the first trial")
        timeout = None if settings.timeout is None else seconds_of("timeout", settings.timeout)
        return cls(settings.trials, timeout, min_gain=settings.min_gain / 100, ablate=settings.ablate)


@dataclass(frozen=True)
class Enqueued:
    """A configuration that is measured before the search, and its label."""

    label: str
    config: Config


@dataclass(frozen=True)
class EnginePart:
    """What one engine of a study of several has of its own."""

    model: ModelRef
    server: ServerSettings

    def premise(self, engine: EngineInfo) -> dict[str, Any]:
        """Return, as plain JSON, what makes trials of this engine comparable."""
        return {
            "version": engine.version,
            "model": {"name": self.model.name, "tokenizer": self.model.tokenizer},
            "arguments": list(self.server.arguments),
        }


@dataclass(frozen=True)
class StudySpec:
    """One study. Its `premise` must be the same when the study is resumed.

    `baseline` is what the user runs today, with which the winner is compared; None: the defaults. `search_prompts` is
    the number of requests of a closed loop in the search; None: all of them, as in a round.
    `facts` are stored with the study and may change. `quality_task` is the digest of the questions of an SLO on
    quality. `price` is that of a GPU-hour; None: unknown, and no trial has a cost. `engines` are those of a study of
    several, by their names, the default engine first, which `model` and `server` belong to. `learned` is what measured
    trials told about the predictor of the study's hosts before; None: nothing, or the study is simulated.
    """

    name: str
    model: ModelRef
    workload: Workload
    space: ResolvedSpace
    goals: Goals
    server: ServerSettings
    artifacts: Path
    enqueue: tuple[Enqueued, ...] = ()
    recipes: tuple[Enqueued, ...] = ()
    baseline: Enqueued | None = None
    search_prompts: int | None = None
    search: SearchSettings = field(default_factory=SearchSettings)
    confirmation: ConfirmationSettings = field(default_factory=ConfirmationSettings)
    limits: Limits = field(default_factory=Limits)
    facts: Mapping[str, Any] = field(default_factory=dict)
    quality_task: str | None = None
    price: Price | None = None
    engines: Mapping[str, EnginePart] = field(default_factory=dict)
    learned: HostPosterior | None = None

    def premise(self, engine: EngineInfo, devices: list[str]) -> dict[str, Any]:
        """Return, as plain JSON, everything that makes trials of this study comparable; files by their digests."""
        files = self.workload.files() if isinstance(self.workload, Traffic | Suite) else []
        return {
            "model": {"name": self.model.name, "tokenizer": self.model.tokenizer},
            "workload": self.workload.model_dump(mode="json"),
            **({"files": {str(file): sha256(file.read_bytes()).hexdigest() for file in files}} if files else {}),
            "space": self.space.to_dict(),
            "objectives": [str(objective) for objective in self.goals.objectives],
            "slos": [str(slo) for slo in self.goals.slos],
            "engine": {"name": engine.name, "version": engine.version, "devices": sorted(set(devices))},
            "server": {
                "arguments": list(self.server.arguments),
                "environment": dict(self.server.environment),
                **({"command": list(self.server.command)} if self.server.command else {}),
            },
            **(self._premise_of_engines(engine) if self.engines else {}),
            **({} if self.baseline is None else {"baseline": dict(self.baseline.config)}),
            **({} if self.quality_task is None else {"quality": {"task": self.quality_task}}),
            **({} if self.search_prompts is None else {"search": {"num_prompts": self.search_prompts}}),
        }

    def _premise_of_engines(self, engine: EngineInfo) -> dict[str, Any]:
        return {"engines": {name: own.premise(engine.named(name)) for name, own in self.engines.items()}}

    @property
    def searched_workload(self) -> Workload:
        """The workload of every trial of the search."""
        shorter = {} if self.search_prompts is None else {"num_prompts": self.search_prompts}
        return self.workload.model_copy(update=shorter)

    @property
    def gpus(self) -> int:
        """The GPUs of a trial."""
        return self.space.context.gpus

    @property
    def round_cost(self) -> float:
        """The requests of one measurement in a round, relative to those of a trial of the search."""
        return self.cost_of(TrialKind.CONFIRM)

    def cost_of(self, kind: TrialKind) -> float:
        """Return the requests of a measurement of a kind, relative to those of a trial of the search."""
        workload, searched, in_rounds = self.workload, self.search_prompts, kind is TrialKind.CONFIRM
        longer = workload.num_prompts / searched if in_rounds and isinstance(workload, ClosedLoop) and searched else 1.0
        return longer * self._repeats(kind) / self.search.repeats

    @property
    def sampler(self) -> str:
        """The sampler of the search; `auto` stands for `residual`."""
        return RESIDUAL if self.search.sampler == AUTO else self.search.sampler

    def trial(self, number: int, round_: int, attempt: int, kind: TrialKind, config: Config) -> TrialSpec:
        """Return the specification of one attempt at a trial."""
        rendered = self.space.render(config)
        own = None if rendered.engine is None else self.engines[rendered.engine]
        model, server = (self.model, self.server) if own is None else (own.model, own.server)
        launch = LaunchSpec(
            model=model if rendered.model is None else replace(model, name=rendered.model),
            argv=rendered.argv,
            base_argv=server.arguments,
            environment={**server.environment, **rendered.environment},
            command=server.command,
            folder=server.folder,
            engine=rendered.engine,
        )
        searches_capacity = kind is TrialKind.CAPACITY or self.goals.has_objective("capacity")
        spec = TrialSpec(
            study=self.name,
            number=number,
            round=round_,
            attempt=attempt,
            kind=kind,
            config=config,
            launch=launch,
            workload=self._workload(kind, round_),
            repeats=self._repeats(kind),
            artifacts=self.artifacts,
            limits=self.limits,
            capacity_slos=self.goals.slos if searches_capacity else None,
            price_per_hour=None if self.price is None else self.price.per_gpu_hour * launch.gpus(self.gpus),
            gpus=self.gpus,
        )
        return replace(spec, artifacts=self.artifacts / spec.uid)

    def _repeats(self, kind: TrialKind) -> int:
        """Return the benchmarks of a trial; the defaults and rounds have more, because the comparison uses them."""
        compared = kind in (TrialKind.BASELINE, TrialKind.CURRENT, TrialKind.CONFIRM)
        repeats = 1 if kind is TrialKind.CAPACITY else self.search.repeats
        return max(repeats, self.confirmation.baseline_repeats) if compared else repeats

    def _workload(self, kind: TrialKind, round_: int) -> Workload:
        """Return the workload of a trial; each round has its own prompts, the same for all its measurements."""
        workload = self.workload if kind is TrialKind.CONFIRM else self.searched_workload
        return workload.model_copy(update={"seed": workload.seed + 1000 * round_})


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


_MATTERS = {
    "model.name": "model",
    "provenance": "provenance",
    "engine.devices": "device",
    "workload": "workload",
    "files": "workload file",
    "slos": "SLOs",
    "objectives": "objectives",
    "server": "server setting",
    "engine": "engine",
    "engines": "engine",
    "space": "search space",
    "baseline": "baseline",
    "quality": "quality task",
    "search": "number of prompts in the search",
    "model.tokenizer": "tokenizer",
}
"""The parts of a premise, the one that matters most first, and how messages name them."""

_SHOWN_DIFFERENCES = 3


def summary_of(differences: Sequence[str]) -> str:
    """Return the differences that matter most on one short line: `model (A -> B), workload (users: 8 -> 32)`."""
    shown: list[str] = []
    rest = 0
    for part, name in _MATTERS.items():
        mine = [line for line in differences if _part_of(line) == part]
        if not mine:
            continue
        if len(shown) == _SHOWN_DIFFERENCES:
            rest += 1
            continue
        path, _, values = mine[0].partition(": ")
        key = path.removeprefix(part).removeprefix(".")
        value = "" if part == "space" else f" ({key + ': ' if key else ''}{values})"
        shown.append(f"{name}{value}")
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _part_of(line: str) -> str:
    """Return the most specific part of a premise to which a difference belongs."""
    path = line.partition(":")[0]
    parts = [part for part in _MATTERS if path == part or path.startswith(f"{part}.")]
    return max(parts, key=len, default="")


def _short(value: object) -> str:
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        text = ", ".join(value) or "none"
    else:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


_SAME = 1e-9
"""The relative difference up to which two prices are the same."""


def with_stored_settings(spec: StudySpec, store: Store) -> StudySpec:
    """Return the study with the settings that are fixed by its first run, if there was one.

    These are the search's number of prompts and the price, since trials of two workloads or costs at two prices cannot
    be compared, and the source studies where none are given. A list price gives way to the stored price.

    Raises:
        SettingError: for a given price that is not the stored one.
    """
    stored = store.study(spec.name)
    if stored is None:
        return spec
    price = Price.from_dict(stored.facts.get("price"))
    given = None if spec.price is None or spec.price.list_price is not None else spec.price.per_gpu_hour
    if given is not None and (price is None or not math.isclose(price.per_gpu_hour, given, rel_tol=_SAME)):
        rule = f"the study {spec.name!r} has {'no price' if price is None else price}"
        raise SettingError("price", given, rule, "leave it out, or give another {study}")
    search = replace(spec.search, learn_from=spec.search.learn_from or tuple(stored.facts.get("learn_from", ())))
    prompts = stored.premise.get("search", {}).get("num_prompts")
    return replace(spec, search_prompts=prompts, search=search, price=price)
