"""Clients that run trials themselves, over HTTP in one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.service.http.optimizations.api import LOSS, Api


def numbers(trials: list[dict[str, Any]]) -> list[int]:
    return [trial["number"] for trial in trials]


def test_a_client_runs_trials_until_an_optimization_is_complete(api: Api) -> None:
    created = api.create(trials=2)
    assert (created["state"], created["trials"], created["sampler"]) == ("ACTIVE", 2, "random")
    first, second = api.suggest(count=3)
    assert (first["number"], first["attempts"], first["state"]) == (0, 1, "ACTIVE")
    assert api.complete(0, metrics={"loss": 2.5, "seconds": 3})["state"] == "SUCCEEDED"
    assert api.complete(1, reason="out of memory")["state"] == "INFEASIBLE"
    found = api.get("/o")
    assert [found[name] for name in ("state", "active", "succeeded", "infeasible")] == ["COMPLETED", 0, 1, 1]
    assert api.post("/o:suggest", {"client_id": "c"}) == {"state": "COMPLETED", "trials": []}
    one, two = api.get("/o/trials")
    assert (one["params"], one["metrics"], one["client_id"]) == (first["params"], {"loss": 2.5, "seconds": 3}, "c")
    assert (two["params"], two["metrics"], two["reason"]) == (second["params"], {}, "out of memory")
    assert numbers(api.get("/o/trials?after=0&limit=1")) == [1]


def test_a_space_as_json_needs_no_descriptions(api: Api) -> None:
    space = {"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.25}}}
    api.create(space=space)
    assert {trial["params"]["x"] for trial in api.suggest(count=20)} == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_others_read_only_what_is_shared_and_change_nothing(api: Api) -> None:
    api.create()
    ask = {"client_id": "c"}
    for who in ("bob", "eve"):
        assert api.call("GET", "/o", who=who).status_code == 404
        assert api.call("GET", "/o:best", who=who).status_code == 404
        assert api.call("GET", "/o/trials", who=who).status_code == 404
    assert api.problem("/o:suggest", ask, "bob")["status"] == 404
    assert api.call("PATCH", "/o", {"shared": True}).status_code == 200
    assert api.get("/o", "eve")["shared"]
    assert [each["id"] for each in api.get("", "bob")["optimizations"]] == ["o"]
    assert api.problem("/o:suggest", ask, "bob")["status"] == 403
    assert api.problem("/o:suggest", ask, "eve")["status"] == 403
    assert api.problem("/o/trials/0:complete", {**ask, "metrics": {"loss": 1}}, "bob")["status"] == 403
    assert api.call("DELETE", "/o", who="bob").status_code == 403
    assert api.problem("", {"id": "o", "space": "x", "objectives": LOSS}, "eve")["status"] == 403
    assert api.post("/o:suggest", ask, "root")["trials"][0]["number"] == 0
    api.tokens["nobody"] = f"tnr_{'0' * 64}"
    for call in ("/o:suggest", "/o/trials/0:complete"):
        assert api.problem(call, ask, "nobody")["status"] == 401
    assert api.call("DELETE", "/o").status_code == 204
    assert api.call("GET", "/o").status_code == 404
    entries = api.client.app.state.context.service.audit_log()  # type: ignore[attr-defined]
    actions = [entry.action for entry in entries if entry.action.endswith(" optimization")]
    assert actions == ["delete optimization", "change optimization", "create optimization"]


@pytest.mark.parametrize(
    ("change", "field", "part"),
    [
        ({"id": "A b"}, "id", "lower-case letters"),
        ({"space": "parameters: [1"}, "space", "space:1: not valid YAML"),
        ({"space": {"parameters": {}}}, "space", "the space has no parameters"),
        ({"space": {"include": ["/etc/passwd"]}}, "space", "a text can include no file; write all in one"),
        ({"space": {"parameters": {"x": {"type": "int", "low": 3, "high": 1}}}}, "space", "low 3 is above high 1"),
        ({"space": 3}, "space.str", "valid string"),
        ({"objectives": []}, "objectives", "at least 1 item"),
        ({"objectives": LOSS * 2}, "objectives", "the metric is there twice"),
        ({"objectives": [{"metric": "a", "direction": "up"}]}, "objectives.0.direction", "'maximize' or 'minimize'"),
        ({"objectives": [{**LOSS[0], "weight": 0}]}, "objectives.0.weight", "greater than 0"),
        ({"sampler": "gp"}, "sampler", "'random', 'tpe' or 'residual'"),
        ({"trials": 10_001}, "trials", "less than or equal to 10000"),
        ({"space": "x" * 65_537}, "space", "a space has at most 65,536 bytes"),
        ({"trials": 0}, "trials", "greater than or equal to 1"),
        ({"lost_after_s": 1}, "lost_after_s", "greater than or equal to 10"),
        ({"secret": 1}, "secret", "extra inputs"),
    ],
)
def test_a_bad_optimization_is_refused_with_its_field(api: Api, change: dict[str, Any], field: str, part: str) -> None:
    new = {"id": "o", "space": {"parameters": {"x": {"type": "int", "low": 1, "high": 3}}}, "objectives": LOSS}
    found = api.problem("", {**new, **change})
    assert (found["status"], found["field"]) == (422, field)
    assert part in found["rule"]
    assert api.get("")["optimizations"] == []


def test_rules_that_exclude_everything_are_refused(api: Api) -> None:
    space = {
        "parameters": {"x": {"type": "int", "low": 1, "high": 3}},
        "rules": [{"name": "all", "forbid": "x > 0", "why": "no"}],
    }
    found = api.problem("", {"space": space, "objectives": LOSS})
    assert (found["status"], found["field"]) == (422, "space")
    assert "the rules exclude 500 of 500 configurations" in found["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/o:suggest", {}, 422, "client_id"),
        ("/o:suggest", {"client_id": ""}, 422, "client_id"),
        ("/o:suggest", {"client_id": "c", "count": 0}, 422, "count"),
        ("/o:suggest", {"client_id": "c", "count": 51}, 422, "count"),
        ("/unknown:suggest", {"client_id": "c"}, 404, None),
        ("/o/trials/9:complete", {"client_id": "c", "metrics": {"loss": 1}}, 404, None),
        ("/o/trials/x:complete", {"client_id": "c", "metrics": {"loss": 1}}, 422, "number"),
        ("/o/trials/99999999999:complete", {"client_id": "c", "metrics": {"loss": 1}}, 422, "number"),
        ("/o/trials/0:complete", {"client_id": "c"}, 422, "body"),
        ("/o/trials/0:complete", {"client_id": "c", "metrics": {"other": 1}}, 422, "metrics.loss"),
        ("/o/trials/0:complete", {"client_id": "c", "metrics": {"loss": "low"}}, 422, "metrics.loss"),
        ("/o/trials/0:complete", {"client_id": "c", "constraints": {"memory": 0}}, 422, "body"),
        ("/o/trials/0:complete", {"client_id": "c", "reason": ""}, 422, "reason"),
    ],
)
def test_a_bad_request_of_a_client_is_refused(api: Api, path: str, body: Any, status: int, field: str | None) -> None:
    api.create()
    api.suggest()
    found = api.problem(path, body)
    assert (found["status"], found.get("field")) == (status, field)
    assert [trial["state"] for trial in api.get("/o/trials")] == ["ACTIVE"]


def test_a_space_that_no_answer_can_contain_is_refused(api: Api) -> None:
    for value in (r'"\udc80"', "NaN"):
        content = (
            f'{{"id": "o", "objectives": [{{"metric": "a", "direction": "maximize"}}], "space": {{"x": {value}}}}}'
        )
        headers = {"Authorization": f"Bearer {api.tokens['ada']}", "Content-Type": "application/json"}
        answer = api.client.post("/v1/optimizations", content=content, headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (422, "space")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(api: Api, text: str) -> None:
    api.create()
    api.suggest()
    answer = api.client.post(
        "/v1/optimizations/o/trials/0:complete",
        content=f'{{"client_id": "c", "metrics": {{"loss": {text}}}}}',
        headers={"Authorization": f"Bearer {api.tokens['ada']}", "Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["field"]) == (422, "metrics.loss")
