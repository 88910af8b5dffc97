"""What crosses a boundary: frozen records of trials, repeats, server facts, failures and studies.

These are the project's shared vocabulary. They know nothing of SQL, Optuna, MLflow or vLLM.
Absent values are `None`, never 0 or infinity. Times are seconds, datetimes are timezone-aware UTC.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

JsonScalar = str | int | float | bool | None

Config = Mapping[str, JsonScalar]
"""Parameter name to value; a parameter that is missing is left to the engine's own default."""


class Provenance(StrEnum):
    """Where a number comes from. The two never mix."""

    MEASURED = "measured"
    SIMULATED = "simulated"


class Culprit(StrEnum):
    """Who is to blame for a failure."""

    CONFIGURATION = "configuration"
    INFRASTRUCTURE = "infrastructure"
    TUNER = "tuner"


class FailureKind(StrEnum):
    """The closed vocabulary of failures; `culprit` says who is to blame."""

    INVALID_CONFIGURATION = "invalid_configuration"
    OUT_OF_MEMORY_STARTUP = "out_of_memory_startup"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    ENGINE_CRASH = "engine_crash"
    STARTUP_TIMEOUT = "startup_timeout"
    OUT_OF_MEMORY_LOAD = "out_of_memory_load"
    BENCHMARK_FAILED = "benchmark_failed"
    REQUESTS_FAILED = "requests_failed"

    LOAD_GENERATOR_LATE = "load_generator_late"
    PORT_TAKEN = "port_taken"
    GPU_BUSY = "gpu_busy"
    SERVER_KILLED = "server_killed"
    WORKER_LOST = "worker_lost"
    DISK_FULL = "disk_full"
    ENVIRONMENT_BROKEN = "environment_broken"
    CANCELLED = "cancelled"

    TUNER_ERROR = "tuner_error"

    @property
    def culprit(self) -> Culprit:
        """Who is to blame: a configuration's failure teaches the sampler, infrastructure's is retried."""
        if self is FailureKind.TUNER_ERROR:
            return Culprit.TUNER
        return Culprit.INFRASTRUCTURE if self in _INFRASTRUCTURE else Culprit.CONFIGURATION


_INFRASTRUCTURE = frozenset(
    {
        FailureKind.LOAD_GENERATOR_LATE,
        FailureKind.PORT_TAKEN,
        FailureKind.GPU_BUSY,
        FailureKind.SERVER_KILLED,
        FailureKind.WORKER_LOST,
        FailureKind.DISK_FULL,
        FailureKind.ENVIRONMENT_BROKEN,
        FailureKind.CANCELLED,
    }
)


class Phase(StrEnum):
    """The steps of a trial, in order; each has its seconds in `TrialOutcome.timings`."""

    CHECK = "check"
    LAUNCH = "launch"
    READY = "ready"
    WARMUP = "warmup"
    BENCHMARK = "benchmark"
    COLLECT = "collect"
    STOP = "stop"
    SCORE = "score"


class TrialKind(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    ENQUEUED = "enqueued"
    SEARCH = "search"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Failure:
    """Why a trial has no score.

    `message` is one line for people, `evidence` the causal lines of the log (at most a few), `exit_code` the server's
    or the client's (negative: ended by that signal) if there was one.
    """

    kind: FailureKind
    phase: Phase
    message: str
    evidence: str | None = None
    exit_code: int | None = None

    @property
    def culprit(self) -> Culprit:
        """Who is to blame."""
        return self.kind.culprit


@dataclass(frozen=True)
class Repeat:
    """One run of the benchmark against one server.

    `metrics` holds names of `storage.metrics.METRICS` (absent: None); `offered` counts every request that the workload
    wanted to send, `completed` and `failed` what the client says of them.
    """

    index: int
    seed: int
    offered: int
    completed: int
    failed: int
    duration_s: float | None
    metrics: Mapping[str, float | None]


@dataclass(frozen=True)
class ServerFacts:
    """What the server says of itself, from its log and from `/metrics`; None where it says nothing.

    `preemptions`, `queue_time_mean_s`, `prefix_hit_rate` and the speculation figures cover the scored benchmark only:
    they are differences of counters between its start and its end. Shares are in [0, 1].
    """

    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    max_concurrency: float | None = None
    weights_gib: float | None = None
    graph_gib: float | None = None
    graph_capture_s: float | None = None
    compile_s: float | None = None
    engine_init_s: float | None = None
    attention_backend: str | None = None
    preemptions: float | None = None
    prefix_hit_rate: float | None = None
    queue_time_mean_s: float | None = None
    kv_usage_max: float | None = None
    kv_usage_mean: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_draft: float | None = None


@dataclass(frozen=True)
class TrialOutcome:
    """What a worker brings back from one attempt at a trial: repeats or a failure, and where the time went.

    `timings` maps a `Phase` to seconds, plus `own` (the tuner's own work on the worker). `argv` is the server's exact
    command, `environment` what was set beyond the inherited variables, `artifacts` the folder of logs and JSON files.
    """

    started_at: datetime
    ended_at: datetime
    provenance: Provenance
    worker: str
    device: str
    timings: Mapping[str, float]
    artifacts: str
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    repeats: tuple[Repeat, ...] = ()
    server: ServerFacts | None = None
    failure: Failure | None = None

    @property
    def succeeded(self) -> bool:
        """True if the benchmark ran to its end and nothing failed."""
        return self.failure is None and bool(self.repeats)

    def metric(self, name: str) -> float | None:
        """Return the median of a metric over the repeats; None if any repeat lacks it or there is none.

        The success rate is that of all their requests together, and shares of a class or within SLOs are means: a
        median would drop the repeat in which some failed.
        """
        if name == "success_rate" and self.repeats:
            return sum(repeat.completed for repeat in self.repeats) / sum(repeat.offered for repeat in self.repeats)
        values = [repeat.metrics.get(name) for repeat in self.repeats]
        present = [value for value in values if value is not None]
        if not values or len(present) != len(values):
            return None
        if name.rpartition(".")[2] in ("success_rate", "goodput_share"):
            return statistics.fmean(present)
        return statistics.median(present)


@dataclass(frozen=True)
class Verdict:
    """How an outcome is judged: objective values in the study's order, constraints (<= 0 is met), the scalar score."""

    values: Mapping[str, float | None]
    constraints: Mapping[str, float]
    score: float | None

    @property
    def feasible(self) -> bool:
        """True if every constraint is met and every objective was measured."""
        measured = bool(self.values) and all(value is not None for value in self.values.values())
        return measured and all(value <= 0 for value in self.constraints.values())


@dataclass(frozen=True)
class TrialRecord:
    """A trial as it stands in the database.

    `number` is the Optuna trial's number. `round` is 0 for the trial itself; a finalist measured again has the number
    of the trial that it repeats and rounds 1, 2, … `attempts` counts launches, retries included. `config` is what was
    rendered to flags, `params` what the sampler chose (a superset only where conditional parameters are unused).
    """

    study: str
    number: int
    round: int
    kind: TrialKind
    label: str | None
    params: Config
    config: Config
    attempts: int
    created_at: datetime
    outcome: TrialOutcome | None = None
    verdict: Verdict | None = None

    @property
    def name(self) -> str:
        """The trial's short name: `#12`, or `#12 r2` for the second round of a finalist."""
        return f"#{self.number}" + (f" r{self.round}" if self.round else "")

    @property
    def state(self) -> str:
        """`pending`, `failed`, `infeasible` or `ok`, derived from the outcome and the verdict."""
        if self.outcome is None:
            return "pending"
        if not self.outcome.succeeded:
            return "failed"
        return "ok" if self.verdict is not None and self.verdict.feasible else "infeasible"


@dataclass(frozen=True)
class StudyRecord:
    """A study: its name, its premise (what must not change when it goes on) and what it ran on.

    `premise` is plain JSON: model, workload, space, objectives, SLOs, engine. `facts` is what was found when it
    started: engine version, devices, host; it may grow.
    """

    name: str
    created_at: datetime
    provenance: Provenance
    premise: Mapping[str, Any]
    facts: Mapping[str, Any]
    conclusion: Mapping[str, Any] | None = None

    @property
    def flag_effects(self) -> Sequence[Mapping[str, Any]]:
        """The flag effects of the winner, largest first, as the conclusion holds them; empty before they exist.

        Conclusions of earlier versions have them under the key `earned`.
        """
        conclusion = self.conclusion or {}
        effects: Sequence[Mapping[str, Any]] = conclusion.get("flag_effects", conclusion.get("earned", ()))
        return effects
