"""Generated requests over the OpenAPI description: no server error, and every answer as described."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.http.conftest import Api
from tests.unit.service.http.fuzzing import app_of, attack, client_of, described, make_world, operations

EXAMPLES = 2
"""Requests of each operation."""

SEED = 20261125


def test_no_generated_request_is_a_server_error_or_answered_otherwise_than_described(tmp_path: Path) -> None:
    secrets, sent = make_world(tmp_path), 0
    with client_of(tmp_path) as client:
        schema, labels = described(client), operations(tmp_path)
        assert len(labels) > 45
        for index, label in enumerate(labels):
            sent += attack(client, schema, label, secrets["root" if index % 2 else "ada"], EXAMPLES, SEED)
    assert sent >= len(labels)


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"{", b'{"settings": ' + b"[" * 100_000, b'{"settings": ' + b'{"a":' * 500 + b"1" + b"}" * 501],
    ids=["not UTF-8", "half", "nested without an end", "nested"],
)
def test_a_body_that_is_no_request_is_refused(api: Api, body: bytes) -> None:
    answer = api.call("POST", "/v1/studies", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.parametrize(
    "settings",
    [
        '{"model": "\\ud800/x"}',
        '{"seed": 1e999}',
        '{"price": NaN}',
        '{"seed": 1' + "0" * 400 + "}",
        '{"gpu": "\\u0000"}',
    ],
    ids=["surrogate", "infinite", "not a number", "a long number", "NUL"],
)
def test_a_value_that_no_database_stores_is_refused(api: Api, settings: str) -> None:
    body = f'{{"id": "odd", "settings": {settings[:-1]}, "engine": "simulated"}}}}'
    answer = api.call("POST", "/v1/studies", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert api.call("GET", "/v1/studies/odd").status_code == 404


def test_every_operation_describes_its_problems_and_none_fastapis_own(api: Api) -> None:
    document: dict[str, Any] = app_of(api.client).openapi()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    submit = document["paths"]["/v1/studies"]["post"]
    assert sorted(submit["responses"]) == ["200", "201", "default"]
    assert [*submit["responses"]["default"]["content"]] == ["application/problem+json"]
    assert submit["security"] == [{"token": []}, {"cookie": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]
