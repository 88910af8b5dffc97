"""Traffic against the fake vLLM: records, metrics, failures, and invalid runs."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from records.trials import FailureKind, Phase, TrialKind, TrialOutcome
from tests.fakes import install_fake_vllm
from tests.unit.engines.vllm.conftest import child_ended_by
from tuner.engines.base import EngineSettings
from tuner.engines.server import traffic
from tuner.engines.server.traffic import TrafficFiles, lateness_problem
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.toolbox import Toolbox
from tuner.errors import TrialFailed, trial_failed
from tuner.loadgen.result import GeneratorDelays, read_records, write_delays, write_records
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.trial.pipeline import run_trial
from tuner.workloads.traffic import Traffic

TRAFFIC = Traffic.model_validate(
    {
        "arrivals": {"process": "poisson", "rate": 60},
        "requests": 30,
        "timeout_s": 5,
        "system_prompt": 2,
        "classes": {"a": {"input": 3, "output": 4}, "b": {"input": 5, "output": 2, "prefix": {"tokens": 3}}},
        "slo": {"a": {"p95_ttft_ms": 4000}, "b": {"e2el_ms": 4000}},
        "warmup_requests": 0,
    }
)

Run = Callable[..., TrialOutcome]


def words(_: Toolbox, plan: Path, log: Path) -> list[tuple[str, int, int | None]]:
    """Make the prompts without a tokenizer: as many words as there are tokens."""
    requests = json.loads(plan.read_text())["requests"]
    lengths = [request["tokens"] + sum(tokens for _, tokens in request["shared"]) for request in requests]
    return [(" ".join(["word"] * length), length, None) for length in lengths]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(Toolbox, "prompts", words)
    monkeypatch.setattr(traffic, "TOLERABLE_DELAY_S", 60.0)  # a busy machine must not fail these tests
    engine = VllmEngine(EngineSettings("vllm", str(install_fake_vllm(tmp_path / "bin")), tmp_path / "home"))

    def go(traffic: Traffic = TRAFFIC, limits: Limits | None = None, **behaviour: Any) -> TrialOutcome:
        launch = LaunchSpec(ModelRef("/model", "/tokenizer", "m"), (), (), {"FAKE_VLLM": json.dumps(behaviour)})
        spec = TrialSpec(
            "s", 3, 0, 1, TrialKind.SEARCH, {}, launch, traffic, 1, tmp_path / "artifacts", limits or Limits()
        )
        return run_trial(engine, spec, threading.Event(), worker="w0", device="cpu")

    yield go
    engine.close()


def test_every_request_is_recorded_and_compared_with_the_slo_of_its_class(run: Run, tmp_path: Path) -> None:
    outcome = run()
    assert outcome.failure is None
    (repeat,) = outcome.repeats
    assert (repeat.offered, repeat.completed, repeat.failed, repeat.seed) == (30, 30, 0, 1000)
    assert [outcome.metric(f"{name}.goodput_share") for name in ("a", "b", "worst")] == [1.0, 1.0, 1.0]
    records = read_records(tmp_path / "artifacts" / "requests-0.jsonl.gz")
    # system prompt 2; class a 3 of its own, class b 3 of its document and 5 of its own
    assert {(r.name, r.planned_input, r.input_tokens, r.output_tokens) for r in records} == {
        ("a", 5, 5, 4),
        ("b", 10, 10, 2),
    }
    assert not list((tmp_path / "artifacts").glob("*plan*"))
    assert (tmp_path / "artifacts" / "server-0.csv").exists()


def test_failed_requests_lower_the_share_of_their_class_and_the_trial_continues(run: Run) -> None:
    outcome = run(fail_every=3)
    assert outcome.failure is None
    (repeat,) = outcome.repeats
    assert (repeat.completed, repeat.failed) == (20, 10)
    assert outcome.metric("goodput_share") == pytest.approx(20 / 30)


def test_requests_that_stall_end_at_their_deadline(run: Run) -> None:
    outcome = run(TRAFFIC.model_copy(update={"timeout_s": 0.5, "requests": 10}), token_s=30)
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.REQUESTS_FAILED
    assert outcome.failure.message == "none of 10 requests succeeded"


def test_a_warm_up_ends_early_if_its_first_requests_all_fail(run: Run) -> None:
    """The eight users of the whole warm-up would send fifty requests each."""
    hopeless = TRAFFIC.model_copy(update={"timeout_s": 0.5, "warmup_requests": 400})
    outcome = run(hopeless, token_s=30)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.REQUESTS_FAILED, Phase.WARMUP)
    found = re.fullmatch(r"none of the first (\d+) warm-up requests succeeded: timed_out .+", outcome.failure.message)
    assert found is not None
    assert 16 <= int(found[1]) < 400


def test_a_server_that_dies_under_traffic_is_typed(run: Run) -> None:
    outcome = run(crash_after=10)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.ENGINE_CRASH, Phase.BENCHMARK)


def test_traffic_that_exceeds_its_limit_is_cut_off_with_all_its_records(run: Run, tmp_path: Path) -> None:
    slow = TRAFFIC.model_copy(update={"arrivals": TRAFFIC.at_rate(5).arrivals})
    outcome = run(slow, Limits(benchmark_s=1.0))
    assert outcome.failure is None
    (repeat,) = outcome.repeats
    assert repeat.offered == 30
    assert 0 < repeat.completed < 30
    records = read_records(tmp_path / "artifacts" / "requests-0.jsonl.gz")
    assert {str(record.status) for record in records} <= {"completed", "timed_out", "not_sent"}


def test_a_late_generator_fails_the_trial(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "TOLERABLE_DELAY_S", 0.0)
    monkeypatch.setattr(traffic, "TOLERABLE_SHARE", 0.0)
    outcome = run()
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.LOAD_GENERATOR_LATE, Phase.BENCHMARK)


def test_prompts_that_cannot_be_made_fail_the_trial(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[tuple[str, int, int | None]]:
        raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, "no helper")

    monkeypatch.setattr(Toolbox, "prompts", refuse)
    outcome = run()
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.ENVIRONMENT_BROKEN


def test_a_generator_that_a_signal_ends_is_a_failure_of_the_infrastructure(run: Run) -> None:
    slow = TRAFFIC.model_copy(update={"arrivals": TRAFFIC.at_rate(0.1).arrivals})
    with child_ended_by(signal.SIGKILL, "tuner.loadgen"):
        outcome = run(slow)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.exit_code) == (FailureKind.CLIENT_KILLED, -signal.SIGKILL)


@pytest.mark.parametrize("suffix", ["jsonl.gz", "json"])
def test_records_that_cannot_be_read_are_a_benchmark_failure(tmp_path: Path, suffix: str) -> None:
    files = TrafficFiles(tmp_path, "requests-0")
    write_records(files.records, [])
    write_delays(files.delays, delays(None, None))
    (tmp_path / f"requests-0.{suffix}").write_bytes(b"\xff[")
    with pytest.raises(TrialFailed) as caught:
        traffic.read_traffic(TRAFFIC, 0, files)
    assert caught.value.failure.kind is FailureKind.BENCHMARK_FAILED
    assert f"requests-0.{suffix} is not readable" in caught.value.failure.message


def delays(late: float | None, lag: float | None) -> GeneratorDelays:
    return GeneratorDelays(late, late, late, lag, lag, lag, 1.0, 2.0)


@pytest.mark.parametrize(
    ("late", "lag", "ttft_ms", "why"),
    [
        (0.004, 0.004, 10.0, None),
        (None, None, None, None),
        (0.006, 0.001, 10.0, "sent requests 6.0 ms late (p99; 5.0 ms are tolerable)"),
        (0.001, 0.006, None, "read answers 6.0 ms late"),
        # a tenth of 500 ms is tolerable
        (0.049, 0.049, 500.0, None),
        (0.051, 0.001, 500.0, "sent requests 51.0 ms late (p99; 50.0 ms are tolerable)"),
    ],
)
def test_a_run_with_a_late_generator_is_invalid(
    late: float | None, lag: float | None, ttft_ms: float | None, why: str | None
) -> None:
    problem = lateness_problem(delays(late, lag), ttft_ms)
    assert problem is None if why is None else why in (problem or "")
