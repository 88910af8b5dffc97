"""Studies, trials and events for the tests of the terminal, written by hand."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from records.trials import (
    Config,
    Failure,
    FailureKind,
    Phase,
    Provenance,
    Repeat,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from search_spaces import Context, hardware_named, load_space
from tuner.engines.base import EngineInfo
from tuner.settings.study import ConfirmationSettings
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.study.protocols import StudyStart
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import Budget, ServerSettings, StudySpec
from tuner.workloads.spec import ClosedLoop

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOALS = make_goals(["output_throughput", "p99_tpot_ms"], ["p99_tpot_ms<50"])
WORKLOAD = ClosedLoop(max_concurrency=10, num_prompts=100, input_len=8, output_len=8)
SPACE = """
description: two parameters for tests
parameters:
  max_num_seqs: {description: d, type: int, low: 1, high: 64, log: true, flag: --max-num-seqs, engine_default: 32}
  block_size: {description: d, type: categorical, choices: [16, 32, 64], flag: --block-size, engine_default: 16}
"""


def study_start(
    folder: Path,
    *,
    trials: int = 10,
    workers: int = 1,
    provenance: Provenance = Provenance.MEASURED,
    records: tuple[TrialRecord, ...] = (),
    **changes: Any,
) -> StudyStart:
    """Return the start of a study of ten trials, three finalists and two rounds."""
    file = folder / "two.yaml"
    file.write_text(SPACE)
    space = load_space(file)
    context = Context(hardware_named("t4"), None, None, None, None, 10, 8, 8)
    values: dict[str, Any] = {
        "name": "small",
        "model": ModelRef("org/model", "org/model", "org/model"),
        "workload": WORKLOAD,
        "space": space.resolve(context),
        "goals": GOALS,
        "server": ServerSettings(),
        "artifacts": folder / "artifacts",
        "confirmation": ConfirmationSettings(finalists=3, confirm_rounds=2, baseline_repeats=1),
        "facts": {"hardware": "Tesla T4"},
    }
    spec = StudySpec(**{**values, **changes})
    engine = EngineInfo("vllm", "0.25.1", executable=None, flags=None, provenance=provenance)
    return StudyStart(spec, Budget(trials), engine, workers, records)


def trial(
    number: int,
    throughput: float | None = 1000.0,
    *,
    score: float | None = 1.0,
    tpot: float = 10.0,
    round_: int = 0,
    config: Config | None = None,
    failure: Failure | None = None,
    provenance: Provenance = Provenance.MEASURED,
    label: str | None = None,
    **metrics: float,
) -> TrialRecord:
    """Return a finished trial; number 0 is the defaults. It took 60 s to start and 40 s to benchmark."""
    values = {"output_throughput": throughput, "p99_tpot_ms": tpot, **metrics}
    repeats = () if failure else (Repeat(0, 0, 100, 100, 0, 40.0, values),)
    outcome = TrialOutcome(
        NOW,
        NOW,
        provenance,
        "w0",
        "Tesla T4",
        {Phase.READY: 60.0, Phase.BENCHMARK: 40.0},
        "artifacts/1",
        argv=("vllm", "serve", "org/model"),
        repeats=repeats,
        failure=failure,
    )
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH if number else TrialKind.BASELINE
    verdict = Verdict(dict(values), {"p99_tpot_ms<50": tpot / 50 - 1}, score)
    found = None if failure else verdict
    return TrialRecord("small", number, round_, kind, label, {}, config or {}, 1, NOW, outcome, found)


def out_of_memory(message: str = "CUDA out of memory") -> Failure:
    return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, message)


def trial_spec(number: int, round_: int = 0, attempt: int = 1) -> TrialSpec:
    model = ModelRef("org/model", "org/model", "org/model")
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH
    launch = LaunchSpec(model, ())
    return TrialSpec("small", number, round_, attempt, kind, {}, launch, WORKLOAD, 1, Path("artifacts"))


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now
