"""Every recorded log has the type of the failure that was provoked; see tests/data/logs/sglang/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from records.trials import FailureKind, Phase, ServerFacts
from tuner.engines.server.failures import read_log
from tuner.engines.server.metrics import parse_metrics, with_benchmark_metrics
from tuner.engines.sglang.engine import METRICS, TOO_LONG, classify, facts_from_log, with_acceptance

LOGS = Path(__file__).parents[3] / "data" / "logs" / "sglang"
K = FailureKind

RECORDED = [
    ("unknown_flag", 2, K.INVALID_CONFIGURATION, "unrecognized arguments: --no-such-flag"),
    ("bad_choice", 2, K.INVALID_CONFIGURATION, "argument --attention-backend: invalid choice: 'nonsense'"),
    ("context_too_long", 1, K.INVALID_CONFIGURATION, "is greater than the derived context_length (32768)"),
    ("model_missing", 1, K.ENVIRONMENT_BROKEN, "HFValidationError: Repo id must use"),
    ("checkpoint_not_quantized", -9, K.INVALID_CONFIGURATION, "Cannot find the config file for awq"),
    ("memory_too_low", -9, K.KV_CACHE_TOO_SMALL, "leave no GPU memory for the KV cache under --mem-fraction-static"),
    ("memory_too_high", -9, K.OUT_OF_MEMORY_STARTUP, "CUBLAS_STATUS_ALLOC_FAILED"),
    ("port_taken", -9, K.PORT_TAKEN, "another program took the port"),
]


@pytest.mark.parametrize(("name", "code", "kind", "message"), RECORDED, ids=[name for name, *_ in RECORDED])
def test_a_recorded_log_has_its_type(name: str, code: int, kind: FailureKind, message: str) -> None:
    failure = classify(read_log(LOGS / f"{name}.log"), code, Phase.READY)
    assert failure.kind is kind
    assert message in failure.message
    assert failure.exit_code == code


def test_every_log_is_tested_and_described() -> None:
    logs = {path.stem for path in LOGS.glob("*.log")}
    assert logs == {name for name, *_ in RECORDED} | {"healthy_start", "two_gpus"}
    described = (LOGS / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(logs) if f"| `{name}` |" not in described] == []


def test_a_server_that_started_and_was_killed_was_killed_from_outside() -> None:
    assert classify(read_log(LOGS / "healthy_start.log"), -9, Phase.BENCHMARK).kind is K.SERVER_KILLED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", K.KV_CACHE_TOO_SMALL),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2 GiB", K.OUT_OF_MEMORY_STARTUP),
        ("Exception: Capture cuda graph failed: invalid argument", K.ENGINE_CRASH),
        ("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).", K.SERVER_KILLED),
        ("RuntimeError: ninja exited with status 1", K.ENVIRONMENT_BROKEN),
        ("AssertionError: page size must be 1", K.INVALID_CONFIGURATION),
    ],
)
def test_a_traceback_of_the_start_has_its_type(error: str, kind: FailureKind) -> None:
    log = f"[2026-11-26 07:40:47 TP0] Scheduler hit an exception: Traceback (most recent call last):\n{error}\n\n"
    assert classify(log, -9, Phase.READY).kind is kind


def test_a_lack_of_memory_under_load_is_of_another_kind() -> None:
    log = "[2026-11-26 07:40:47] Scheduler hit an exception: Traceback (most recent call last):\n"
    error = f"{log}RuntimeError: Decode out of memory. Try to lower your batch size.\n"
    assert classify(error, -9, Phase.BENCHMARK).kind is K.OUT_OF_MEMORY_LOAD


@pytest.mark.parametrize(
    ("name", "tokens", "kv", "weights", "graphs", "seconds"),
    [
        ("healthy_start", 10887379, 62.30 + 62.30, 0.98, 0.68 + 0.20, 4.61 + 4.16),
        (
            "two_gpus",
            952093,
            25.42 + 25.42,
            14.30,
            1.62 + 0.23,
            11.53 + 5.48,
        ),  # of one; the lines of both are mixed
    ],
)
def test_the_facts_of_a_start_are_those_of_its_log(
    name: str, tokens: int, kv: float, weights: float, graphs: float, seconds: float
) -> None:
    assert facts_from_log(read_log(LOGS / f"{name}.log")) == ServerFacts(
        kv_cache_tokens=tokens,
        kv_cache_gib=kv,
        max_concurrency=tokens / 32768,
        weights_gib=weights,
        graph_gib=graphs,
        graph_capture_s=seconds,
        attention_backend="fa3",
    )


def test_gpus_of_unequal_free_memory_are_busy() -> None:
    error = "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
    log = f"[2026-11-27 08:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n{error}\n"
    assert classify(log, -9, Phase.READY).kind is K.GPU_BUSY


def test_the_metrics_of_a_page_are_found_by_their_names() -> None:
    values = parse_metrics((LOGS / "metrics.txt").read_text(encoding="utf-8"), METRICS)
    assert (values[METRICS.running], values[METRICS.waiting], values["sglang:token_usage"]) == (0.0, 0.0, 0.0)
    assert values["sglang:prompt_tokens_total"] == 18 + 6
    facts = with_benchmark_metrics(
        with_acceptance(ServerFacts(), values), {"sglang:prompt_tokens_total": 18.0}, values, [0.1, 0.3], METRICS
    )
    assert (facts.prefix_hit_rate, facts.preemptions) == (0.0, 0.0)
    assert facts.queue_time_mean_s == pytest.approx(0.0021911909999516865 / 3)
    assert (facts.kv_usage_max, facts.kv_usage_mean) == (0.3, 0.2)
    assert (facts.spec_acceptance_rate, facts.spec_tokens_per_draft) == (None, None)


def test_the_acceptance_of_drafts_is_the_present_value() -> None:
    after = {"sglang:spec_accept_rate": 0.25, "sglang:spec_accept_length": 4.0}
    facts = with_acceptance(ServerFacts(), after)
    assert (facts.spec_acceptance_rate, facts.spec_tokens_per_draft) == (0.25, 3.0)


def test_a_refusal_for_the_length_is_told_from_others() -> None:
    refused = "Requested token count exceeds the model's maximum context length of 20 tokens. You requested 32"
    found = TOO_LONG.search(f"HTTP 400: {refused}")
    assert found is not None
    assert found[0] == refused.partition(".")[0]
    assert TOO_LONG.search("HTTP 400: bad") is None
