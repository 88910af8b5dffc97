"""Every metric is defined once, and the documentation repeats its meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from records.metrics import METRICS, Direction, Metric, metric

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
