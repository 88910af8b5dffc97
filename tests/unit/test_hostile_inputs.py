"""Every reader of external input, on arbitrary input: it returns, or it raises the exception that it documents."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records.trials import Phase, ServerFacts
from tests.fakes.raw_server import answering
from tuner.engines.server.failures import read_log
from tuner.engines.server.metrics import parse_metrics, with_benchmark_metrics
from tuner.engines.server.traffic import ResultError
from tuner.engines.vllm.bench_serve import read_result
from tuner.engines.vllm.texts import METRICS, classify, facts_from_log
from tuner.http import JSON, get_local
from tuner.workloads.spec import ClosedLoop

LOAD = ClosedLoop(max_concurrency=10, num_prompts=40, input_len=128, output_len=64)
RESULT_FIELDS = ("completed", "duration", "output_throughput", "p99_ttft_ms", "median_itl_ms", "std_e2el_ms")

few = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
) | st.sampled_from([10**400, -(10**400), 1e308, 5e-324])


@few
@given(content=st.binary())
def test_a_result_of_any_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with contextlib.suppress(ResultError):
        read_result(path, LOAD, 0, 1)


@few
@given(fields=st.dictionaries(st.sampled_from(RESULT_FIELDS), json_values | st.integers(0, 40)))
def test_a_result_with_any_fields(fields: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(fields))
    try:
        repeat = read_result(path, LOAD, 0, 1)
    except ResultError:
        return
    assert 0 <= repeat.completed <= repeat.offered == 40
    assert all(value is None or (math.isfinite(value) and value >= 0) for value in repeat.metrics.values())


LOG_PARTS = (
    *("\n", "\r", ": ", "(EngineCore pid=1) ", "ERROR 01-01 00:00:00 [core.py:1] ", "EngineCore failed to start.\n"),
    *(
        "Traceback (most recent call last):\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ",
        "9" * 400,
    ),
    *("ValidationError: 1 validation error for Config\n", "  Value error, no [type=value_error, input_value=1]"),
    *("GPU KV cache size: ", " tokens, Maximum concurrency for ", " tokens per request: ", "x", " GiB", ","),
    *("Model loading took ", "Graph capturing finished in ", " secs, took ", "init engine ", " took ", " s", "1.5"),
    *("During handling of the above exception, another exception occurred:\n", "vllm serve: error: ", "No space left"),
)
log_texts = st.lists(st.sampled_from(LOG_PARTS) | st.text(max_size=20), max_size=30).map("".join)
exit_codes = st.none() | st.integers(-70, 255)


@few
@given(text=log_texts, exit_code=exit_codes, phase=st.sampled_from(list(Phase)))
def test_an_engine_log(text: str, exit_code: int | None, phase: Phase, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(text.encode("utf-8", "surrogatepass"))
    failure = classify(read_log(log), exit_code, phase)
    assert failure.phase is phase
    assert "\n" not in failure.message
    numbers = [value for value in asdict(facts_from_log(text)).values() if isinstance(value, int | float)]
    assert all(math.isfinite(value) and value >= 0 for value in numbers)


page_lines = st.builds(
    "{}{} {}{}".format,
    st.sampled_from(METRICS.read) | st.text(max_size=8),
    st.sampled_from(["", "{", '{engine="0"}', '{engine="0",}', '{a="\\', '{a="b"', "{}", "{=}", '{a="1" b="2"}'])
    | st.text(max_size=8),
    st.floats().map(repr)
    | st.sampled_from(["NaN", "+Inf", "1e999", "9" * 5000, "0x1", "1_0", ""])
    | st.text(max_size=8),
    st.sampled_from(["", " 1395066363000", " # {} 1", " x", "\t1"]),
)


@few
@given(lines=st.lists(page_lines, max_size=6))
def test_a_metrics_page(lines: list[str]) -> None:
    values = parse_metrics("\n".join(lines), METRICS)
    facts = with_benchmark_metrics(ServerFacts(), values, values, [], METRICS)
    assert all(math.isfinite(value) for value in values.values())
    assert facts.prefix_hit_rate is None


@few
@given(
    body=st.binary() | json_values.map(json.dumps).map(str.encode),
    head=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]),
)
def test_an_http_answer(body: bytes, head: bytes) -> None:
    with answering(head + body, close=True) as port:
        reply = get_local("127.0.0.1", port, "/", 30.0, types=JSON)
    assert reply is not None
