"""Failures of trials: their kinds, the culprit of each kind, and the phases in which they occur."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Culprit(StrEnum):
    """The cause of a failure."""

    CONFIGURATION = "configuration"
    INFRASTRUCTURE = "infrastructure"
    TUNER = "tuner"


class FailureKind(StrEnum):
    """All kinds of failure; `culprit` classifies them."""

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
    SCORE = "score"


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
