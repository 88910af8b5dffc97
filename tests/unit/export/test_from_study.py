"""A script verifies with the workload that its trial was measured with."""

from datetime import UTC, datetime
from typing import Any

import pytest

from storage.records import Provenance, Repeat, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from tuner.export.from_study import serve_script_of
from tuner.workloads.spec import ClosedLoop

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKLOAD = ClosedLoop(max_concurrency=50, num_prompts=200)


def study(**more: Any) -> StudyRecord:
    premise = {
        "model": {"name": "m", "tokenizer": "m"},
        "workload": WORKLOAD.model_dump(mode="json"),
        "objectives": ["output_throughput"],
        "slos": ["success_rate>=1"],
        "engine": {"name": "vllm", "version": "0.25.1", "devices": ["H200"]},
        **more,
    }
    return StudyRecord("s", NOW, Provenance.MEASURED, premise, {})


def record(number: int, round_: int, *values: float) -> TrialRecord:
    repeats = tuple(Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": value}) for i, value in enumerate(values))
    argv = ("vllm", "serve", "m", "--port", "1")
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "d", {}, "", argv=argv, repeats=repeats)
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH
    return TrialRecord("s", number, round_, kind, None, {}, {}, 1, NOW, outcome)


RECORDS = [record(1, 0, 100.0), record(2, 0, 500.0), record(1, 1, 210.0, 190.0, 200.0), record(1, 2, 200.0, 200.0)]


def prompts_of(argv: tuple[str, ...]) -> str:
    return argv[argv.index("--num-prompts") + 1]


def test_only_rounds_count_for_a_finalist_if_the_search_sent_fewer_requests() -> None:
    script = serve_script_of(study(search={"num_prompts": 100}), 1, RECORDS)
    assert prompts_of(script.verification.bench_argv) == "200"
    assert script.verification.repeats == 3
    assert script.verification.reference["output_throughput"].value == 200.0


def test_a_trial_without_rounds_is_verified_with_the_workload_of_the_search() -> None:
    script = serve_script_of(study(search={"num_prompts": 100}), 2, RECORDS)
    assert prompts_of(script.verification.bench_argv) == "100"
    assert script.verification.repeats == 1
    assert script.verification.reference["output_throughput"].value == 500.0


def test_all_measurements_count_if_search_and_rounds_sent_the_same() -> None:
    script = serve_script_of(study(), 1, [record(1, 0, 100.0), record(1, 1, 200.0)])
    assert prompts_of(script.verification.bench_argv) == "200"
    assert script.verification.reference["output_throughput"].value == pytest.approx(150.0)
