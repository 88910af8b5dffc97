"""The exact arguments of the client, and its result file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from records.metrics import METRICS, OF_WHOLE_GPU, TRAFFIC_ONLY
from tuner.engines.server.traffic import ResultError
from tuner.engines.vllm.bench_serve import RESULT_LIMIT, bench_arguments, read_result
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
    expected = "--model /model --served-model-name mine --tokenizer /tokenizer"
    assert words[place - 2 : place + 4] == expected.split()


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
    assert set(repeat.metrics) == set(METRICS) - TRAFFIC_ONLY - OF_WHOLE_GPU
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
        ("[" * 100_000, "is not JSON"),
        ('{"completed": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"completed": 40, "label": "caf\udce9"}', "is not UTF-8"),
    ],
)
def test_an_invalid_result_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "bench-0.json"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    with pytest.raises(ResultError, match=message):
        read_result(path, LOAD, 0, 1000)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("completed", 40_000_000, "completed=40000000: more than the 40 requests that were sent"),
        ("completed", -1, "completed=-1: a count is not negative"),
        ("completed", 39.5, "completed=39.5: not a whole number"),
        ("completed", True, "completed=True: not a whole number"),
        ("completed", 10**400, f"completed={'1' + 29 * '0'}…: more than"),
        ("p99_ttft_ms", 0.0, "p99_ttft_ms=0.0: not a number from 1e-09 to 1e+15"),
        ("p99_ttft_ms", -3.5, "p99_ttft_ms=-3.5: not a number"),
        ("p99_tpot_ms", 1e-320, "p99_tpot_ms=1e-320: not a number"),
        ("p99_tpot_ms", 0, "p99_tpot_ms=0: not a number"),
        ("median_ttft_ms", -1, "median_ttft_ms=-1: not a number"),
        ("p99_itl_ms", 10**400, f"p99_itl_ms={'1' + 29 * '0'}…: not a number"),
        ("mean_ttft_ms", float("inf"), "mean_ttft_ms=inf: not a number"),
        ("mean_ttft_ms", "fast", "mean_ttft_ms='fast': not a number"),
        ("std_ttft_ms", -0.1, "std_ttft_ms=-0.1: not 0, and not a number"),
        ("output_throughput", -1.0, "output_throughput=-1.0: not 0, and not a number"),
        ("output_throughput", 1e300, "output_throughput=1e+300: not 0, and not a number"),
        ("duration", 0, "duration=0: not a number"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_field(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    with pytest.raises(ResultError) as caught:
        read_result(result(tmp_path, **{field: value}), LOAD, 0, 1000)
    assert f"bench-0.json: {message}" in str(caught.value)


def test_an_answer_of_one_token_has_neither_tpot_nor_itl(tmp_path: Path) -> None:
    # vLLM writes the mean of an empty list as 0.
    one = LOAD.model_copy(update={"output_len": 1})
    repeat = read_result(result(tmp_path, p99_tpot_ms=0.0, p99_itl_ms=0.0, std_ttft_ms=0.0), one, 0, 1000)
    assert (repeat.metrics["p99_tpot_ms"], repeat.metrics["p99_itl_ms"]) == (None, None)
    assert repeat.metrics["std_ttft_ms"] == 0.0


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "huge"])
def test_what_is_not_a_file_of_a_result_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bench-0.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(RESULT_LIMIT + 1)
    with pytest.raises(ResultError, match=r"bench-0\.json cannot be read: (not a regular file|larger than 64 MiB)"):
        read_result(path, LOAD, 0, 1000)
