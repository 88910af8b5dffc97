"""Rates of requests: token buckets, and answers of 429."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.http.conftest import Api, serving_with
from tuner.service.http.edge import rates
from tuner.service.http.edge.rates import LOG_INS, REQUESTS, STRANGERS, Rate, Rates


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(rates, "REQUESTS", Rate(10, 100))
    monkeypatch.setattr(rates, "STRANGERS", Rate(5, 50))
    with serving_with(tmp_path, Rates(clock=clock)) as api:
        yield api


def test_a_bucket_has_its_burst_and_is_filled_at_its_rate(clock: Clock) -> None:
    found, key = Rates(clock=clock), ("x", Rate(2, 3))
    assert [found.wait(key) for _ in range(4)] == [None, None, None, 1]
    clock.now += 0.5  # one request is due after half a second
    assert [found.wait(key) for _ in range(2)] == [None, 1]
    clock.now += 100
    assert [found.wait(key) for _ in range(4)] == [None, None, None, 1]
    assert found.wait(("y", Rate(2, 3))) is None


def test_the_wait_is_as_long_as_the_rate_makes_it(clock: Clock) -> None:
    found, key = Rates(clock=clock), ("x", Rate(0.1, 1))
    assert found.wait(key) is None
    assert found.wait(key) == 10
    clock.now += 7.5
    assert found.wait(key) == 3  # 2.5 s, in whole seconds


def test_what_a_request_counts_for(clock: Clock) -> None:
    found = Rates(clock=clock)
    found.answered("known", "/v1/queue", 200)
    assert found.key("GET", "/v1/studies", "known", "a") == ("known", REQUESTS)
    assert found.key("GET", "/v1/studies", "invented", "a") == ("a", STRANGERS)
    assert found.key("GET", "/page/main.js", None, "a") == ("a", STRANGERS)
    assert found.key("POST", "/v1/session", "known", "a") == ("a", LOG_INS)
    assert found.key("GET", "/healthz", None, "a") is None
    assert Rates(limited=False).key("GET", "/v1/studies", "known", "a") is None


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/v1/session", 204), ("/v1/nothing", 404)])
def test_an_answer_that_needs_no_token_proves_none(clock: Clock, path: str, status: int) -> None:
    found = Rates(clock=clock)
    found.answered("invented", path, status)
    assert found.key("GET", "/v1/studies", "invented", "a") == ("a", STRANGERS)


def test_a_token_that_is_refused_counts_for_its_address_again(clock: Clock) -> None:
    found = Rates(clock=clock)
    found.answered("gone", "/v1/queue", 200)
    found.answered("gone", "/v1/queue", 401)
    assert found.key("GET", "/v1/studies", "gone", "a") == ("a", STRANGERS)


def test_invented_tokens_and_addresses_fill_no_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_BUCKETS", 3)
    found = Rates(clock=clock)
    for address in "abcdef":
        assert found.wait((address, STRANGERS)) is None
    assert [address for address, _ in found._buckets] == ["d", "e", "f"]


def test_a_token_that_asks_too_often_gets_429_and_others_do_not(limited: Api, clock: Clock) -> None:
    def ask(name: str = "ada") -> Any:
        return limited.call("GET", "/v1/scores?study=none", name)

    answers = [ask().status_code for _ in range(102)]
    assert answers.count(200) == 101  # the first one counts for the address
    answer = ask()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["rule"] == "10 requests a second, and 100 at once, are the most"
    assert ask("ben").status_code == 200
    assert limited.call("GET", "/healthz", None).status_code == 200
    clock.now += 1
    assert [ask().status_code for _ in range(11)] == [200] * 10 + [429]


def test_invented_tokens_are_limited_by_their_address(limited: Api) -> None:
    def invented(number: int) -> Any:
        return limited.client.get("/v1/studies", headers={"Authorization": f"Bearer tnr_{number:064x}"})

    answers = [invented(number).status_code for number in range(51)]
    assert answers == [401] * 50 + [429]


def test_attempts_to_log_in_are_few_and_the_audit_log_has_no_more_lines(limited: Api) -> None:
    body = {"token": f"tnr_{'0' * 64}"}
    answers = [limited.call("POST", "/v1/session", None, json=body).status_code for _ in range(25)]
    assert answers == [401] * 20 + [429] * 5
    assert len(limited.call("GET", "/v1/audit?limit=500", "root").json()) == 20
