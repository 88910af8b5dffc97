"""Metrics: names, units, and one of another package."""

import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from dashboards.frames import trials_frame
from records.metrics import METRICS, Direction, Metric, metric
from tests import store_samples as samples
from tuner.scoring.goals import parse_objective, parse_slo
from tuner.workloads.results import RequestRecord, RequestStatus

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
UNITS = {
    "tok/s": "tokens per second",
    "req/s": "requests per second",
    "ms": "milliseconds",
    "share": "from 0 to 1",
    "per Mtok": "currency units per million tokens",
    "J/tok": "joules per token",
}


@pytest.mark.parametrize("each", METRICS.values(), ids=METRICS)
def test_a_meaning_is_a_sentence_with_the_unit(each: Metric) -> None:

    assert each.meaning[0].isupper() or each.meaning[0].isdigit()
    assert each.meaning.endswith(".")
    assert UNITS[each.unit] in each.meaning


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("chat.p99_ttft_ms", "For chat: 99th percentile of the time to first token"),
        ("worst.goodput_share", "For the worst request class: Requests that met"),
        ("day.worst.goodput_share", "For the worst request class of day: Requests that met"),
        ("client.p99_ttft_ms", "For all request classes, with latencies from when a request was sent: 99th"),
    ],
)
def test_a_prefix_narrows_the_meaning(name: str, meaning: str) -> None:
    found, base = metric(name), metric(name.rpartition(".")[2])
    assert (found.name, found.unit, found.direction) == (name, base.unit, base.direction)
    assert found.meaning.startswith(meaning)


def test_an_unknown_metric_lists_similar_names() -> None:
    with pytest.raises(KeyError, match="no metric is called 'p99_tftt_ms'; did you mean p99_ttft_ms"):
        metric("p99_tftt_ms")
    for word, meant in (("ttft", "p99_ttft_ms"), ("P90-TPOT-ms", "p90_tpot_ms"), ("p99_latency_ms", "p99_e2el_ms")):
        with pytest.raises(KeyError, match=f"'{word}'; did you mean {meant}"):
            metric(word)


def test_the_page_lists_every_metric_once() -> None:
    """A row has one metric, or every statistic of one latency: its meaning ends that of each."""
    better = {Direction.MAXIMIZE: "higher", Direction.MINIMIZE: "lower"}
    shown = []
    for names, unit, direction, meaning in re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \| (\w+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    ):
        for name in re.findall(r"\w+", names):
            each = METRICS[name]
            row = f"| `{name}` | {each.unit} | {better[each.direction]} | {each.meaning} |"
            assert (unit, direction) == (each.unit, better[each.direction]), f"docs/metrics.md should have {row}"
            assert each.meaning.lower().endswith(meaning.lower()), f"docs/metrics.md should have {row}"
            shown.append(name)
    assert shown == list(METRICS), "docs/metrics.md should have a row for each metric, in the order of the code"


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
