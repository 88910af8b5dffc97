"""docs/examples/metric.md: the metric that it adds can be an objective, an SLO and a column, and its value is right."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from dashboards.frames import trials_frame
from records.metrics import METRICS
from tests import store_samples as samples
from tuner.scoring.goals import parse_objective, parse_slo
from tuner.workloads.results import RequestRecord, RequestStatus

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the example, with its metric defined."""
    names = runpy.run_path(str(EXAMPLES / "metric.py"))
    monkeypatch.setitem(METRICS, "input_throughput", names["INPUT_THROUGHPUT"])
    return names


def record(index: int, tokens: int | None, status: RequestStatus = RequestStatus.COMPLETED) -> RequestRecord:
    return RequestRecord(index, "chat", status, input_tokens=tokens)


def test_the_page_shows_the_code_of_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLES / "metric.md").read_text(encoding="utf-8"), re.DOTALL)
    code = (EXAMPLES / "metric.py").read_text(encoding="utf-8")
    assert len(blocks) == 2
    assert all(block in code for block in blocks)


@pytest.mark.usefixtures("example")
def test_a_defined_metric_is_an_objective_an_slo_and_a_column() -> None:
    assert parse_objective("input_throughput").metric == "input_throughput"
    assert parse_slo("input_throughput>=1000").metric == "input_throughput"
    repeat = dataclasses.replace(samples.repeat(0), metrics={"input_throughput": 1200.0})
    frame = trials_frame([dataclasses.replace(samples.pending(0), outcome=samples.success(repeat))])
    assert frame["input_throughput"].tolist() == [1200.0]


def test_the_value_counts_completed_requests_only(example: dict[str, Any]) -> None:
    records = [record(0, 100), record(1, 140), record(2, 1000, RequestStatus.TIMED_OUT)]
    assert example["input_throughput"](records, 2.0) == 120.0


@pytest.mark.parametrize(("records", "duration_s"), [([], 2.0), ([record(0, None)], 2.0), ([record(0, 1)], None)])
def test_an_absent_value_is_none(
    example: dict[str, Any], records: list[RequestRecord], duration_s: float | None
) -> None:
    assert example["input_throughput"](records, duration_s) is None
