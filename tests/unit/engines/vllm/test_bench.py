"""The exact arguments of the client, and its result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.metrics import METRICS, TRAFFIC_ONLY
from tuner.engines.vllm.clients.bench_serve import ResultError, bench_arguments, read_result
from tuner.specs import ModelRef
from tuner.workloads.spec import ClosedLoop

URL = "http://127.0.0.1:20001/v1"
LOAD = ClosedLoop(max_concurrency=10, num_prompts=40, input_len=128, output_len=64)


def test_the_default_study_sends_the_published_command() -> None:
    model = ModelRef("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B")
    words = bench_arguments(model, ClosedLoop(), URL, 1000, "/results", "bench-0.json")
    assert " ".join(words) == (
        "bench serve --backend openai --base-url http://127.0.0.1:20001/v1 --endpoint /completions "
        "--model Qwen/Qwen2.5-0.5B --tokenizer Qwen/Qwen2.5-0.5B --max-concurrency 50 --num-prompts 200 --ignore-eos "
        "--random-input-len 512 --random-output-len 512 --save-result --result-dir /results "
        "--result-filename bench-0.json --seed 1000 --percentile-metrics ttft,tpot,itl,e2el "
        "--metric-percentiles 50,90,95,99"
    )


def test_the_client_sends_no_sampling_temperature() -> None:
    model = ModelRef("m", "m", "m")
    assert bench_arguments(model, ClosedLoop(temperature=0.0), URL, 1, "r", "f") == bench_arguments(
        model, ClosedLoop(), URL, 1, "r", "f"
    )


def test_a_served_name_that_differs_from_the_model_is_an_argument() -> None:
    words = bench_arguments(ModelRef("/model", "/tokenizer", "mine"), LOAD, URL, 1, "r", "f")
    place = words.index("--served-model-name")
    assert words[place - 2 : place + 4] == [
        "--model",
        "/model",
        "--served-model-name",
        "mine",
        "--tokenizer",
        "/tokenizer",
    ]


def result(tmp_path: Path, **changes: Any) -> Path:
    """Write a result file as vLLM 0.32.0 does."""
    data: dict[str, Any] = {
        "completed": 40,
        "failed": 0,
        "duration": 1.6,
        "request_throughput": 25.0,
        "output_throughput": 1600.0,
        "total_token_throughput": 4800.0,
        "request_goodput": None,
        "mean_ttft_ms": 100.0,
        "median_ttft_ms": 90.0,
        "std_ttft_ms": 10.0,
        "p90_ttft_ms": 110.0,
        "p99_ttft_ms": 120.0,
        "p99_tpot_ms": 5.0,
        "p99_itl_ms": float("nan"),
    }
    path = tmp_path / "bench-0.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_a_result_becomes_a_repeat(tmp_path: Path) -> None:
    repeat = read_result(result(tmp_path), LOAD, 2, 1002)
    assert (repeat.index, repeat.seed, repeat.offered, repeat.completed, repeat.failed) == (2, 1002, 40, 40, 0)
    assert repeat.duration_s == 1.6
    assert set(repeat.metrics) == set(METRICS) - TRAFFIC_ONLY
    assert repeat.metrics["output_throughput"] == 1600.0
    assert repeat.metrics["success_rate"] == 1.0
    assert repeat.metrics["p50_ttft_ms"] == 90.0
    assert repeat.metrics["p95_ttft_ms"] is None
    assert repeat.metrics["p99_itl_ms"] is None


def test_the_success_rate_is_a_share_of_the_offered_requests(tmp_path: Path) -> None:
    repeat = read_result(result(tmp_path, completed=30, failed=9), LOAD, 0, 1000)
    assert (repeat.completed, repeat.failed) == (30, 10)
    assert repeat.metrics["success_rate"] == 0.75


def test_without_a_completed_request_all_other_metrics_are_none(tmp_path: Path) -> None:
    repeat = read_result(result(tmp_path, completed=0, failed=40, p99_ttft_ms=0.0), LOAD, 0, 1000)
    present = {name: value for name, value in repeat.metrics.items() if value is not None}
    assert present == {"success_rate": 0.0}
    assert repeat.duration_s is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "wrote no result"),
        ("{", "is not JSON"),
        ("[]", "has no number of completed requests"),
        ('{"completed": null}', "has no number of completed"),
    ],
)
def test_an_invalid_result_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "bench-0.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ResultError, match=message):
        read_result(path, LOAD, 0, 1000)
