"""Sample records with recognisable values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from records.trials import (
    Cut,
    Failure,
    FailureKind,
    JsonScalar,
    Phase,
    Provenance,
    Repeat,
    ServerFacts,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)

START = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
BERLIN = timezone(timedelta(hours=1))


def study(name: str = "s", provenance: Provenance = Provenance.MEASURED) -> StudyRecord:
    """A study with a nested premise."""
    premise = {"model": "Qwen/Qwen2.5-0.5B", "slos": [{"metric": "p99_tpot_ms", "limit": 50.0}], "seed": None}
    return StudyRecord(name, START, provenance, premise, {"engine": "0.32.0"})


def pending(number: int, round: int = 0, study: str = "s", kind: TrialKind = TrialKind.SEARCH) -> TrialRecord:
    config: dict[str, JsonScalar] = {
        "max-num-seqs": 64,
        "gpu-memory-utilization": 0.9,
        "enforce-eager": True,
        "dtype": "half",
        "x": None,
    }
    return TrialRecord(study, number, round, kind, None, {"a": 1}, config, 0, START)


def repeat(index: int, throughput: float | None = 3332.25) -> Repeat:
    """One run of the benchmark; p99_tpot_ms is 40 + index."""
    metrics = {"output_throughput": throughput, "p99_tpot_ms": 40.0 + index, "p99_ttft_ms": None}
    return Repeat(index, 2**40 + index, 200, 199, 1, 30.5, metrics)


def success(
    *repeats: Repeat, provenance: Provenance = Provenance.MEASURED, server: ServerFacts | None = None
) -> TrialOutcome:
    """A successful outcome of 90 s, by default with two repeats."""
    return TrialOutcome(
        started_at=START,
        ended_at=START + timedelta(seconds=90),
        provenance=provenance,
        worker="host:gpu0",
        device="Tesla T4",
        timings={"launch": 1.5, "benchmark": 61.25, "own": 0.125},
        artifacts="trials/0",
        argv=("vllm", "serve", "a model"),
        environment={"VLLM_CACHE_ROOT": "c"},
        repeats=repeats or (repeat(0), repeat(1)),
        server=server,
    )


def failed(kind: FailureKind = FailureKind.OUT_OF_MEMORY_STARTUP, message: str = "no memory") -> TrialOutcome:
    """An outcome of 10 s that ended in a failure."""
    return TrialOutcome(
        started_at=START,
        ended_at=START + timedelta(seconds=10),
        provenance=Provenance.MEASURED,
        worker="host:gpu1",
        device="Tesla T4",
        timings={"launch": 9.0},
        artifacts="trials/1",
        failure=Failure(kind, Phase.READY, message, "line 1\nline 2", -9),
    )


def cut() -> TrialOutcome:
    """An outcome of 90 s that was cut short after 20 s of its benchmark."""
    known = Cut("score at most 0.7, 0.9 needed", 20.5, 40, 400, 0.7, {"p99_tpot_ms<50": 0.25})
    return replace(success(), repeats=(), cut=known)


def verdict(score: float | None = 1.25, constraint: float = -10.0) -> Verdict:
    """A verdict whose objectives' order is not alphabetical."""
    return Verdict({"output_throughput": 3332.25, "p99_tpot_ms": 40.5}, {"p99_tpot_ms<50": constraint}, score)
