"""The plan: it is read back unchanged, and the bodies of its requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.unit.loadgen.loads import due, plan
from tuner.loadgen.plan import PlannedRequest, RequestPlan, read_plan, write_plan

REQUEST = PlannedRequest(3, "chat", 0.1 + 0.2, 'a "b"\nc é \u2028 \U0001f600 \ud800', 12, 34)


def test_a_plan_is_read_back_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "plan.jsonl"
    answered = PlannedRequest(5, "rag", None, "", 0, 1, adapter="sql", json_schema={"type": "object"})
    requests = [REQUEST, PlannedRequest(4, "rag", None, "", 0, 1), answered]
    for known in (
        plan("http://h:1/v1"),
        RequestPlan("u", "m", 5, None, 1.5, 1e9),
        RequestPlan("u", "m", None, 7, 0.1, 2.0),
    ):
        write_plan(file, known, iter(requests))
        assert read_plan(file) == (known, requests)


def test_a_plan_may_be_without_requests(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan", plan("u"), [])
    assert read_plan(tmp_path / "plan") == (plan("u"), [])


def test_a_plan_has_a_line_for_itself_and_one_a_request(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan", plan("u"), [REQUEST, *due(0.0, 1.0)])
    assert len((tmp_path / "plan").read_bytes().splitlines()) == 4


def test_the_body_requests_a_stream_of_exactly_max_tokens_with_usage() -> None:
    assert json.loads(plan("u", model="the model").body(REQUEST)) == {
        "model": "the model",
        "prompt": REQUEST.prompt,
        "max_tokens": 34,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_a_priority_is_sent_unless_it_is_0() -> None:
    plan = RequestPlan("http://server", "m", None, None, 1.0, 2.0)
    assert "priority" not in json.loads(plan.body(replace(REQUEST, prompt="a")))
    assert json.loads(plan.body(replace(REQUEST, prompt="a", priority=-2)))["priority"] == -2


def test_an_adapter_answers_in_the_place_of_the_model() -> None:
    assert json.loads(plan("u", model="base").body(replace(REQUEST, prompt="a", adapter="sql")))["model"] == "sql"


def test_an_answer_that_fits_a_schema_may_end_before_its_length() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    body = json.loads(plan("u").body(replace(REQUEST, prompt="a", json_schema=schema)))
    assert "ignore_eos" not in body
    assert body["max_tokens"] == 34
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "chat", "schema": schema}}
