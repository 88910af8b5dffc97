"""The windows of a warm-up: which requests they send, and when two of them agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from records.trials import Repeat
from tuner.workloads.request_class import Length
from tuner.workloads.schedule import make_schedule
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic
from tuner.workloads.windows import TOLERANCES, agree, window_of

CHAT = {"input": 100, "output": 200}


def window(**fields: Any) -> Traffic:
    found = window_of(Traffic.model_validate({"classes": {"chat": CHAT}, **fields}))
    assert isinstance(found, Traffic)
    return found


def poisson(rate: float) -> dict[str, Any]:
    return {"process": "poisson", "rate": rate}


def test_a_closed_loop_sends_one_short_request_for_each_user() -> None:
    load = ClosedLoop(max_concurrency=50, num_prompts=200)
    assert window_of(load) == load.warmup()


def test_a_load_without_a_warm_up_has_no_windows() -> None:
    fields = {"arrivals": poisson(1), "requests": 9, "classes": {"chat": CHAT}, "warmup_requests": 0}
    assert window_of(ClosedLoop(warmup_prompts=0)) is None
    assert window_of(Traffic.model_validate(fields)) is None


def test_an_open_loop_keeps_its_rate_and_has_short_answers() -> None:
    found = window(arrivals=poisson(32), requests=1024, max_in_flight=64)
    assert (found.rate, found.requests, found.max_in_flight) == (32, 52, 64)  # 5 % of 1,024
    assert found.classes["chat"].output == Length(fixed=32)
    assert found.seed == 501_000


def test_a_low_rate_is_raised_so_that_a_window_is_due_within_ten_seconds() -> None:
    found = window(arrivals=poisson(0.1), requests=60)
    assert found.rate == pytest.approx(1.6)
    assert found.requests == 16


def test_a_ramp_becomes_arrivals_at_its_highest_rate() -> None:
    found = window(arrivals={"process": "ramp", "start_rate": 0, "end_rate": 20}, duration_s=60)
    assert (found.rate, found.requests, found.duration_s) == (20, 16, None)


def test_a_trace_is_cut_after_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("\n".join(str(5 * k) for k in range(100)))
    found = window(arrivals={"process": "trace", "file": str(tmp_path / "times")})
    assert [each.at_s for each in make_schedule(found, 1)] == [0, 5]


def test_a_closed_loop_of_traffic_has_all_its_users() -> None:
    found = window(arrivals={"process": "closed", "users": 250}, requests=500)
    assert (found.users, found.requests, found.duration_s) == (250, 250, None)


@pytest.mark.parametrize("more", [{"output": 8}, {"json_schema": {"type": "object"}}])
def test_answers_that_are_short_or_must_end_with_their_json_keep_their_length(more: dict[str, Any]) -> None:
    kind = {**CHAT, **more}
    assert (
        window(arrivals=poisson(10), requests=100, classes={"a": kind}).classes["a"].longest_output() == kind["output"]
    )


def test_a_rare_class_comes_three_times_on_average_and_an_unused_one_never() -> None:
    rare, never = {**CHAT, "weight": 0.001}, {**CHAT, "weight": 0}
    found = window(arrivals=poisson(10), requests=100, classes={"chat": CHAT, "rare": rare, "never": never})
    assert set(found.classes) == {"chat", "rare"}
    # 3 / 16 of the weight of all classes, 1.001
    assert found.classes["rare"].weight == pytest.approx(0.1877, abs=1e-4)


def test_windows_have_the_same_schedule_with_other_texts() -> None:
    lengths = {"input": {"uniform": [1, 1000]}, "output": {"uniform": [1, 50]}}
    found = window(arrivals=poisson(10), requests=100, classes={"a": lengths, "b": lengths})
    first, second = make_schedule(found, found.seed, 1), make_schedule(found, found.seed, 2)
    assert [(e.at_s, e.name, e.input_tokens, e.output_tokens) for e in first] == [
        (e.at_s, e.name, e.input_tokens, e.output_tokens) for e in second
    ]
    assert not {each.text_seed for each in first} & {each.text_seed for each in second}


@pytest.mark.parametrize(
    ("e2el", "ttft", "expected"),
    [
        (119, 149, True),
        (84, 67, True),
        (121, 100, False),  # 20 % is the most for the mean latency
        (100, 151, False),  # 50 % for the p99 of the TTFT
        (82, 100, False),
        (None, 100, False),
        (100, 0.0, False),
        (95, 2.0, False),
    ],
)
def test_two_windows_agree_within_the_tolerances(e2el: float | None, ttft: float, expected: bool) -> None:
    def of(mean_e2el: float | None, p99_ttft: float) -> Repeat:
        return Repeat(0, 0, 16, 16, 0, 1.0, {"mean_e2el_ms": mean_e2el, "p99_ttft_ms": p99_ttft})

    assert agree(of(100, 100), of(e2el, ttft)) is expected


@pytest.mark.parametrize(("latency", "expected"), [(6.9, True), (7.1, False)])
def test_a_difference_of_five_milliseconds_is_noise(latency: float, expected: bool) -> None:
    short, longer = (Repeat(0, 0, 16, 16, 0, 1.0, dict.fromkeys(TOLERANCES, ms)) for ms in (2.0, latency))
    assert agree(short, longer) is expected
