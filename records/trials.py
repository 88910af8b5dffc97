"""Frozen records of studies, trials, repeats, server facts and failures, which all packages exchange.

They depend on the standard library only, not on SQL, Optuna, MLflow or vLLM. An absent value is None, never 0 or
infinity. Durations are in seconds; datetimes are timezone-aware and in UTC.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

RATES_FILE = "capacity.csv"
"""The file in a trial's folder with the request rates that a capacity search measured."""


class Culprit(StrEnum):
    """The cause of a failure."""

    CONFIGURATION = "configuration"
    INFRASTRUCTURE = "infrastructure"
    TUNER = "tuner"


class FailureKind(StrEnum):
    """All kinds of failure, by culprit: the configuration first, then the infrastructure, last the tuner itself."""

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
    CLIENT_KILLED = "client_killed"
    WORKER_LOST = "worker_lost"
    DISK_FULL = "disk_full"
    ENVIRONMENT_BROKEN = "environment_broken"
    CANCELLED = "cancelled"

    TUNER_ERROR = "tuner_error"

    @property
    def culprit(self) -> Culprit:
        """The cause. The sampler reads failures of a configuration; failures of infrastructure are retried."""
        if self is FailureKind.TUNER_ERROR:
            return Culprit.TUNER
        return Culprit.INFRASTRUCTURE if self in _INFRASTRUCTURE else Culprit.CONFIGURATION

    @property
    def lacks_memory(self) -> bool:
        """Whether the server found too little memory at its start, so that it needs more GPUs, or larger ones."""
        return self in (FailureKind.OUT_OF_MEMORY_STARTUP, FailureKind.KV_CACHE_TOO_SMALL)


_INFRASTRUCTURE = frozenset(
    {
        FailureKind.LOAD_GENERATOR_LATE,
        FailureKind.PORT_TAKEN,
        FailureKind.GPU_BUSY,
        FailureKind.SERVER_KILLED,
        FailureKind.CLIENT_KILLED,
        FailureKind.WORKER_LOST,
        FailureKind.DISK_FULL,
        FailureKind.ENVIRONMENT_BROKEN,
        FailureKind.CANCELLED,
    }
)


class Phase(StrEnum):
    """The steps of a trial, in order; `TrialOutcome.timings` has their durations."""

    CHECK = "check"
    LAUNCH = "launch"
    READY = "ready"
    WARMUP = "warmup"
    BENCHMARK = "benchmark"
    COLLECT = "collect"
    STOP = "stop"


@dataclass(frozen=True)
class Failure:
    """Why a trial failed.

    Attributes:
        kind: the type of failure.
        phase: the step of the trial in which it occurred.
        message: one line for people.
        evidence: the few lines of a log that show the cause; None without any.
        exit_code: of the server or the benchmark client, negative if a signal ended it; None without an exit.
    """

    kind: FailureKind
    phase: Phase
    message: str
    evidence: str | None = None
    exit_code: int | None = None

    @property
    def culprit(self) -> Culprit:
        """What caused the failure."""
        return self.kind.culprit


JsonScalar = str | int | float | bool | None

Config = Mapping[str, JsonScalar]
"""Parameter name to value. A parameter that is missing or None keeps the engine's default."""

DEFAULTS = "defaults"
"""Label of the trial with the engine's defaults, and what a conclusion keeps where nothing is better than them."""
BASELINE = "baseline"
"""What a conclusion keeps where nothing is better than the user's own configuration, a trial of the kind `CURRENT`."""


def configuration_changes(config: Config, defaults: Config) -> dict[str, JsonScalar]:
    """Return the values that differ from the engine's defaults; a parameter without a known default counts as changed.

    Args:
        config: values by parameter; None stands for the engine's default.
        defaults: the engine's defaults by parameter, as far as they are known.
    """
    return {
        name: value
        for name, value in config.items()
        if value is not None and not (name in defaults and _same(defaults[name], value))
    }


def _same(one: JsonScalar, other: JsonScalar) -> bool:
    """Return whether two values are one; True is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


class Provenance(StrEnum):
    """Where a number comes from. A study holds numbers of one provenance only."""

    MEASURED = "measured"
    SIMULATED = "simulated"


class TrialKind(StrEnum):
    """The purpose of a trial.

    Finalists are the best trials of the search, which are measured again, beside the reference, in several rounds.

    Attributes:
        BASELINE: measures the engine's defaults.
        CURRENT: measures the user's own configuration; it is the reference if there is one, else the defaults are.
        ENQUEUED: measures another configuration that the user gave.
        RECIPE: measures what the search space's recipes say to try first, or several of them together.
        SEARCH: measures a configuration that the sampler proposed.
        REDUCED: measures a finalist with fewer flags, or the finalist itself again beside that form.
        CAPACITY: searches the highest request rate that a configuration sustains within the SLOs.
        CONFIRM: measures a finalist or the reference in a round.
    """

    BASELINE = "baseline"
    CURRENT = "current"
    ENQUEUED = "enqueued"
    RECIPE = "recipe"
    SEARCH = "search"
    REDUCED = "reduced"
    CAPACITY = "capacity"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Repeat:
    """One benchmark: one scored run of the workload against one server.

    Attributes:
        index: position among the benchmarks of the trial, from 0.
        seed: seed of the prompts and arrivals.
        offered: requests of the workload, whether or not they could be sent.
        completed: requests that the client counts as completed.
        failed: requests that the client counts as failed.
        duration_s: duration of the benchmark; None if the client reports none.
        metrics: values by metric name, see `records.metrics.metric`; None where a metric was not measured.
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
    """What the server reports in its log and at `/metrics`, and how its warm-up went; None for an unknown fact.

    `preemptions`, `queue_time_mean_s`, `prefix_hit_rate`, `kv_usage_*` and `spec_*` cover the scored benchmarks only.
    Rates and usages are shares in [0, 1].

    Attributes:
        kv_cache_tokens: capacity of the KV cache in tokens.
        kv_cache_gib: size of the KV cache in GiB.
        max_concurrency: requests of maximum length that fit in the KV cache at once.
        weights_gib: memory of the model's weights in GiB.
        graph_gib: memory of CUDA graphs in GiB.
        graph_capture_s: time to capture CUDA graphs.
        compile_s: time of torch.compile.
        engine_init_s: time to initialise the engine, from profiling to warm-up.
        attention_backend: name of the attention kernels.
        untuned_kernels: names of files with tuned settings of kernels that the server looked for and did not find, with
            "; " between them.
        preemptions: requests that were preempted.
        prefix_hit_rate: share of prompt tokens that were found in the prefix cache, on the GPU or offloaded.
        queue_time_mean_s: mean time of a request in the server's queue.
        kv_usage_max: highest share of the KV cache in use.
        kv_usage_mean: mean share of the KV cache in use.
        spec_acceptance_rate: share of speculative tokens that were accepted.
        spec_tokens_per_draft: accepted tokens for each draft.
        warmup_windows: number of unscored runs of the load in the warm-up.
        warmup_settled: whether the last two of these runs agreed and the server compiled no kernels during the scored
            benchmarks.
        benchmarks_again: number of benchmarks that were discarded and repeated, because the server compiled kernels
            during them.
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
    untuned_kernels: str | None = None
    preemptions: float | None = None
    prefix_hit_rate: float | None = None
    queue_time_mean_s: float | None = None
    kv_usage_max: float | None = None
    kv_usage_mean: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_draft: float | None = None
    warmup_windows: int | None = None
    warmup_settled: bool | None = None
    benchmarks_again: int | None = None


@dataclass(frozen=True)
class Cut:
    """Why a trial of the search was cut short while its requests ran, and what is known of it.

    Attributes:
        reason: one line for people.
        after_s: seconds of the benchmark until then.
        requests: requests that were due by then.
        offered: requests of the whole workload.
        score_at_most: bound on the score; None if only an SLO was lost.
        violations: lower bounds on the violations of the SLOs that were lost.
    """

    reason: str
    after_s: float
    requests: int
    offered: int
    score_at_most: float | None = None
    violations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialOutcome:
    """The result of one attempt at a trial on a worker: repeats or a failure, and how long each phase took.

    Attributes:
        started_at: start of the attempt.
        ended_at: end of the attempt: `started_at` plus the duration by the monotonic clock.
        provenance: measured or simulated.
        worker: name of the worker.
        device: name of its GPU or CPU.
        timings: `Phase` to seconds; `own` is the tuner's own work on the worker.
        artifacts: folder of logs and result files, on the worker's machine.
        argv: the command of the server.
        environment: variables that were set for the server beyond the inherited ones.
        repeats: one for each benchmark that was completed.
        server: facts that the server reported; None if there was no server.
        failure: None if the attempt succeeded.
        cut: what is known of a trial that was cut short, which has neither repeats nor a failure; None for others.
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
    cut: Cut | None = None

    @property
    def succeeded(self) -> bool:
        """True if there is a repeat and no failure."""
        return self.failure is None and bool(self.repeats)

    @property
    def served(self) -> tuple[str, tuple[str, ...]] | None:
        """The model and the arguments after it of a command with `serve`; None for another command."""
        if "serve" not in self.argv:
            return None
        model, *arguments = self.argv[self.argv.index("serve") + 1 :]
        return model, tuple(arguments)

    def metric(self, name: str) -> float | None:
        """Return the value of a metric over all repeats, in the metric's unit; None if any repeat lacks it.

        It is the median over the repeats, with two exceptions. `success_rate` pools the requests of all repeats. The
        success rate of a request class and each share of goodput are means over the repeats, because a median would
        drop a single repeat in which requests failed.

        Args:
            name: see `records.metrics.metric`.
        """
        if name == "success_rate" and self.repeats:
            return sum(repeat.completed for repeat in self.repeats) / sum(repeat.offered for repeat in self.repeats)
        values = [repeat.metrics.get(name) for repeat in self.repeats]
        present = [value for value in values if value is not None]
        if not values or len(present) != len(values):
            return None
        if name.rpartition(".")[2] in ("success_rate", "goodput_share", "session_goodput_share"):
            return statistics.fmean(present)
        return statistics.median(present)


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt at a trial that was retried, or that will be.

    Attributes:
        number: number of the trial.
        round: of a finalist, see `TrialRecord.round`; 0 for the trial itself.
        attempt: position among the attempts at the trial, as `TrialRecord.attempts` counts them.
        failure: why it failed.
        started_at: start of the attempt.
        ended_at: end of the attempt.
        worker: name of the worker.
        device: name of its GPU or CPU.
        artifacts: folder of logs, on the worker's machine.
        timings: `Phase` to seconds, as in `TrialOutcome`.
    """

    number: int
    round: int
    attempt: int
    failure: Failure
    started_at: datetime
    ended_at: datetime
    worker: str
    device: str
    artifacts: str
    timings: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """The evaluation of an outcome by the objectives and SLOs of its study.

    Attributes:
        values: objective to its value in the metric's unit, in the order of the study; None where it was not measured.
        constraints: constraint to its violation; a constraint is satisfied at or below 0.
        score: weighted geometric mean of the improvements over the reference, which scores 1; None without a
            reference.
    """

    values: Mapping[str, float | None]
    constraints: Mapping[str, float]
    score: float | None

    @property
    def feasible(self) -> bool:
        """True if every constraint is satisfied and every objective was measured."""
        measured = bool(self.values) and all(value is not None for value in self.values.values())
        return measured and all(value <= 0 for value in self.constraints.values())


@dataclass(frozen=True)
class TrialRecord:
    """A trial as the database has it.

    Attributes:
        study: name of its study.
        number: number of the Optuna trial.
        round: 0 for the trial itself; 1, 2, … for the rounds of a finalist, which keep the trial's number.
        kind: its purpose.
        label: name of a given configuration; None without one.
        params: parameters that the sampler chose, including conditional ones whose condition is not met.
        config: parameters that were rendered to flags.
        attempts: attempts so far, retries included.
        created_at: when it was added.
        outcome: result of the last attempt; None while the trial is pending.
        verdict: evaluation of the outcome; None for a failure.
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
    def score(self) -> float | None:
        """The verdict's score; None without a verdict, or before the reference was measured."""
        return None if self.verdict is None else self.verdict.score

    @property
    def failure(self) -> Failure | None:
        """Why the last attempt failed; None if it did not, or while the trial is pending."""
        return None if self.outcome is None else self.outcome.failure

    @property
    def succeeded(self) -> bool:
        """Whether the outcome has measurements and no failure."""
        return self.outcome is not None and self.outcome.succeeded

    @property
    def state(self) -> str:
        """`pending`, `cut`, `failed`, `infeasible` or `ok`; it follows from the outcome and the verdict."""
        if self.outcome is None:
            return "pending"
        if self.outcome.cut is not None:
            return "cut"
        if not self.outcome.succeeded:
            return "failed"
        if self.kind is TrialKind.CAPACITY:  # a search for the capacity has no verdict
            return "ok"
        return "ok" if self.verdict is not None and self.verdict.feasible else "infeasible"


@dataclass(frozen=True)
class StudyRecord:
    """A study: all trials for one model, workload, search space and set of objectives.

    Attributes:
        name: unique in its database.
        created_at: when it was created.
        provenance: of all its trials.
        premise: settings that must be the same when the study is resumed, as JSON: model, workload, search space,
            objectives, SLOs, engine.
        facts: its environment, as JSON: engine version, devices, host. Later runs of the study may add facts.
        conclusion: winner, finalists and reason, as JSON; None before the study has concluded.
    """

    name: str
    created_at: datetime
    provenance: Provenance
    premise: Mapping[str, Any]
    facts: Mapping[str, Any]
    conclusion: Mapping[str, Any] | None = None

    @property
    def flag_effects(self) -> Sequence[Mapping[str, Any]]:
        """The flag effects of the winner, the largest first; empty before the conclusion."""
        effects: Sequence[Mapping[str, Any]] = (self.conclusion or {}).get("flag_effects", ())
        return effects
