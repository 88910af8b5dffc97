"""Refused requests and log-ins in the audit log."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from storage.errors import StorageError
from storage.service.records import AuditEntry, Role
from tests.unit.service.http.conftest import Api
from tuner.service.http.access import Caller
from tuner.service.http.edge.rates import Rates
from tuner.service.http.edge.refusals import LINES, LINES_OF_STRANGERS, Refusals
from tuner.service.http.problems import Problem

NOW = datetime(2026, 11, 27, tzinfo=UTC)
ADA = Caller("laptop", "ada", Role.USER)


class Written:
    """A store that keeps the entries of the audit log."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.fails = False

    def audit(self, entry: AuditEntry) -> None:
        if self.fails:
            raise StorageError("the disk is full")
        self.entries.append(entry)


class Edge:
    """Refusals with a clock, and requests for them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = Written()
        self.refusals = Refusals(self.store, lambda: NOW, Rates(clock=lambda: self.now))  # type: ignore[arg-type]

    def answer(self, status: int, address: str = "10.0.0.1", path: str = "/v1/x", **state: Any) -> None:
        scope = {"method": "POST", "path": path, "client": (address, 1), "state": state, "path_params": {"id": "first"}}
        asyncio.run(self.refusals.note(scope, status))

    def flush(self) -> None:
        asyncio.run(self.refusals.flush())

    @property
    def entries(self) -> list[AuditEntry]:
        return self.store.entries


def test_a_line_has_who_what_and_why_but_no_value() -> None:
    edge = Edge()
    edge.answer(422, problem=Problem(422, "env=LD_PRELOAD: no", "env", "LD_PRELOAD", "not allowed"), caller=ADA)
    (entry,) = edge.entries
    assert (entry.token, entry.owner, entry.action, entry.resource, entry.result) == (
        *("laptop", "ada", "POST /v1/x", "first", "refused"),
    )
    assert entry.detail == {"address": "10.0.0.1", "status": 422, "field": "env", "rule": "not allowed"}


def test_good_answers_and_mistakes_of_form_have_no_line() -> None:
    edge = Edge()
    edge.answer(200)
    edge.answer(404, problem=Problem(404, "there is none"))
    edge.answer(422)  # the body has another form
    edge.answer(401, path="/healthz")
    assert edge.entries == []


def test_a_stranger_gets_few_lines_and_the_next_one_counts_the_others() -> None:
    edge = Edge()
    for _ in range(LINES.burst + 30):
        edge.answer(401)
    assert len(edge.entries) == LINES.burst
    edge.now += 1 / LINES.rate
    edge.answer(401)
    assert edge.entries[-1].detail["left_out"] == 30


def test_what_has_no_line_gets_one_later() -> None:
    edge = Edge()
    for _ in range(LINES.burst + 3):
        edge.answer(401)
    edge.flush()
    assert len(edge.entries) == LINES.burst
    edge.now += 1 / LINES.rate
    edge.flush()
    edge.flush()
    assert [each.detail for each in edge.entries[LINES.burst :]] == [{"address": "10.0.0.1", "left_out": 3}]


def test_many_addresses_have_a_limit_together_and_owners_have_their_own() -> None:
    edge = Edge()
    for index in range(LINES_OF_STRANGERS.burst + 100):
        edge.answer(401, address=f"10.1.{index // 250}.{index % 250}")
    assert len(edge.entries) == LINES_OF_STRANGERS.burst
    edge.answer(403, caller=ADA)
    assert edge.entries[-1].owner == "ada"


def test_an_answer_does_not_need_the_database() -> None:
    edge = Edge()
    edge.store.fails = True
    edge.answer(401)
    assert edge.entries == []


def test_refused_requests_and_log_ins_of_a_server(api: Api) -> None:
    api.submit("secret", "ada")
    asked = [
        api.call("GET", "/v1/studies", None),
        api.call("GET", "/v1/audit", "ben"),
        api.call("GET", "/v1/studies/secret", "ben"),
        api.call("GET", "/v1/studies/unknown", "ben"),
        api.call("POST", "/v1/session", None, json={"token": f"tnr_{'0' * 64}"}),
        api.call("POST", "/v1/session", None, json={"token": api.tokens["ben"]}),
        api.submit("s", "ben", settings={"engine": "simulated", "trials": 10**12}),
    ]
    assert [each.status_code for each in asked] == [401, 403, 404, 404, 401, 204, 422]
    names = ("owner", "action", "resource", "result", "status", "address")
    assert [tuple(each[name] for name in names) for each in api.call("GET", "/v1/audit", "root").json()[::-1]] == [
        ("ada", "submit", "secret", "created", None, "testclient"),
        (None, "GET /v1/studies", "", "refused", 401, "testclient"),
        ("ben", "GET /v1/audit", "", "refused", 403, "testclient"),
        ("ben", "GET /v1/studies/{id}", "secret", "refused", 404, "testclient"),
        (None, "log in", "session", "refused", 401, "testclient"),
        ("ben", "log in", "session", "done", 204, "testclient"),
        ("ben", "POST /v1/studies", "", "refused", 422, "testclient"),
    ]
