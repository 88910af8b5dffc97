"""The stream of llama.cpp's server: its last event has the usage beside a choice without text; and its connections."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.loadgen.client import StreamedAnswer, read_answer
from tuner.loadgen.plan import PlannedRequest, RequestPlan, read_plan, write_plan

TEXT = b'data: {"choices": [{"text": " ba", "finish_reason": null}]}\n\n'
END = (
    b'data: {"choices": [{"text": "", "finish_reason": "length"}], '
    b'"usage": {"prompt_tokens": 7, "completion_tokens": 2}, "timings": {}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def test_the_last_event_is_no_token() -> None:
    answer = read_answer([(1.0, TEXT), (2.0, TEXT), (3.0, END + DONE)])
    assert answer == StreamedAnswer((1.0, 2.0), 7, 2, True, cut=True)


def test_an_answer_of_bytes_that_are_no_text_ends_with_its_last_event() -> None:
    assert read_answer([(3.0, END + DONE)]) == StreamedAnswer((3.0,), 7, 2, True, cut=True)


def test_an_empty_text_without_usage_is_a_token() -> None:
    empty = b'data: {"choices": [{"text": ""}]}\n\n'
    assert read_answer([(1.0, empty), (2.0, empty)]).times_s == (1.0, 2.0)


def test_a_prompt_of_tokens_is_sent_as_it_is(tmp_path: Path) -> None:
    plan = RequestPlan("http://127.0.0.1:1/v1/completions", "m", 2, None, 9.0, 9.0, reuse_connections=False)
    request = PlannedRequest(0, "all", None, [5, 6, 7], 3, 4)
    write_plan(tmp_path / "plan", plan, [request])
    assert read_plan(tmp_path / "plan") == (plan, [request])
    body = json.loads(plan.body(request))
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([5, 6, 7], 4, True)
