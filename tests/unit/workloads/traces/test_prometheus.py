"""Requests that are drawn from counters of Prometheus, whose values a person worked out."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import UserError
from tuner.workloads.traces.formats import read_as, read_recording
from tuner.workloads.traces.prometheus import ANSWER, FINISHED, HITS, PROMPT, QUERIES
from tuner.workloads.traces.source import ReadOptions
from tuner.workloads.traces.summary import Timeline

AT = 1_795_000_000
"""The first step; the others follow after 60 s each."""


def series(name: str, *values: float | None, **labels: str) -> dict[str, Any]:
    """Return a series; None for a step without a value."""
    found = [[AT + 60 * step, str(value)] for step, value in enumerate(values) if value is not None]
    return {"metric": {"__name__": name, **labels}, "values": found}


def histogram(name: str, edges: dict[str, tuple[float, ...]], total: tuple[float, ...] | None = None) -> list[Any]:
    found = [series(f"{name}_bucket", *values, le=edge) for edge, values in edges.items()]
    return found + ([] if total is None else [series(f"{name}_sum", *total)])


def answer(folder: Path, *found: Any) -> Path:
    path = folder / "counters.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [*found]}}))
    return path


# 30 requests in the first minute, 10 in the second; of all, 20 have at most 100 tokens, 20 have 101 to 1000
PROMPTS = histogram(PROMPT, {"100": (5, 20, 25), "1000": (5, 35, 45), "+Inf": (5, 35, 45)}, (0, 15_000, 18_000))
# every answer has 11 to 20 tokens
ANSWERS = histogram(ANSWER, {"10": (0, 0, 0), "20": (7, 37, 47), "+Inf": (7, 37, 47)})


def test_rates_and_shares_are_those_of_the_counters(tmp_path: Path) -> None:
    found = read_recording(answer(tmp_path, *PROMPTS, *ANSWERS, series(FINISHED, 7, 37, 47)))
    times = found.times_s(None)
    assert Counter(int((at - AT) // 60) for at in times) == {0: 30, 1: 10}
    prompts = [each.input_tokens for each in found.requests]
    assert sum(length <= 100 for length in prompts) == 20
    assert max(prompts) <= 1000
    assert sum(prompts) / 40 == pytest.approx(450, rel=0.02)  # 18,000 tokens of 40 prompts
    assert all(10 < each.output_tokens <= 20 for each in found.requests)
    assert found.block_tokens is None
    assert (
        found.remarks[0] == "drawn from counters in steps of 60 s: bursts within a step are not known, and are Poisson"
    )
    assert "prefix sharing is not known, and none is made: the caches were not counted" in found.remarks
    assert not any(FINISHED in remark for remark in found.remarks)


def test_the_same_counters_are_the_same_requests(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = (answer(folder, *PROMPTS, *ANSWERS) for folder in (tmp_path, tmp_path / "other"))
    assert read_recording(one).requests == read_recording(other).requests


def test_a_restart_counts_from_zero_and_servers_are_added(tmp_path: Path) -> None:
    # 10, then 4 after a restart; a second server has 6 in the second minute, and no value before
    first = [series(f"{PROMPT}_bucket", 0, 10, 4, le="+Inf"), series(f"{ANSWER}_bucket", 0, 10, 4, le="+Inf")]
    second = [series(f"{name}_bucket", None, 1, 7, le="+Inf", instance="b") for name in (PROMPT, ANSWER)]
    times = read_recording(answer(tmp_path, *first, *second)).times_s(None)
    assert Counter(int((at - AT) // 60) for at in times) == {0: 10, 1: 10}


def test_the_share_of_the_caches_is_kept(tmp_path: Path) -> None:
    cache = (series(HITS, 0, 5_000, 7_200), series(QUERIES, 0, 15_000, 18_000))
    found = read_recording(answer(tmp_path, *PROMPTS, *ANSWERS, *cache))
    timeline = Timeline(found.requests, found.times_s(None), found.block_tokens)
    assert timeline.hit_rate() == pytest.approx(0.4, abs=0.03)  # the first of them finds nothing
    assert any("the caches had 40.0% of the prompt tokens" in remark for remark in found.remarks)


def test_lengths_above_the_highest_edge_and_requests_without_lengths_are_told(tmp_path: Path) -> None:
    long = histogram(PROMPT, {"100": (0, 10, 10), "+Inf": (0, 30, 40)})
    found = read_recording(answer(tmp_path, *long, *ANSWERS, series(FINISHED, 0, 30, 60)))
    assert max(each.input_tokens for each in found.requests) == 100
    assert "30 prompts longer than 100 tokens are drawn with that length" in found.remarks
    assert f"40 requests are drawn, as their lengths counted; {FINISHED} counted 60" in found.remarks


NO_COUNTERS = "its series are not counters with times and values"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"status": "error", "errorType": "bad_data", "error": "parse error"}, "Prometheus answered: parse error"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "no request was counted"),
        ({"status": "success"}, NO_COUNTERS),
        ({"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}}]}}, NO_COUNTERS),
        (
            {"status": "success", "data": {"resultType": "matrix", "result": [series("a", 1, float("nan"))]}},
            NO_COUNTERS,
        ),
        ({"status": "success", "data": {"resultType": "matrix", "result": [series("a_bucket", 1, 2)]}}, NO_COUNTERS),
    ],
)
def test_an_answer_without_counters_is_one_line(tmp_path: Path, content: Any, line: str) -> None:
    path = tmp_path / "counters.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        read_as(path, "prometheus", ReadOptions())
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_many_requests_are_refused(tmp_path: Path) -> None:
    many = [series(f"{name}_bucket", 0, 2_000_000, le="+Inf") for name in (PROMPT, ANSWER)]
    with pytest.raises(UserError, match="2,000,000 requests were counted, and 1,000,000 are the most; ask for a sh"):
        read_recording(answer(tmp_path, *many))
