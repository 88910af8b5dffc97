"""Every reader of what others wrote, on arbitrary input: it returns, or it raises the exception that it documents."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.engines.vllm.clients.bench_serve import ResultError, read_result
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
