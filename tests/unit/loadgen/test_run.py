"""The open and the closed loop, against servers without faults."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable

import pytest

from tests.unit.loadgen.loads import GOOD, Fake, asked, due, load_against, plan, replying, statuses
from tuner.loadgen import run
from tuner.loadgen.plan import PlannedRequest
from tuner.loadgen.run import PlanResult, run_plan
from tuner.workloads.results import RequestStatus

StartFake = Callable[..., Fake]

COMPLETED = RequestStatus.COMPLETED
TIMED_OUT = RequestStatus.TIMED_OUT
NOT_SENT = RequestStatus.NOT_SENT
LATE_S = 0.25
"""Seconds that a busy machine may add to a time."""


def test_an_open_loop_sends_each_request_when_it_is_due(start_fake: StartFake) -> None:
    fake = start_fake()
    times = [0.0, 0.0, 0.1, 0.15, 0.3, 0.6]
    result = run_plan(plan(fake.url), due(*times))
    assert statuses(result.records) == {COMPLETED: 6}
    assert [record.index for record in result.records] == [0, 1, 2, 3, 4, 5]
    for record in result.records:
        assert record.due_s == times[record.index]
        assert record.lateness_s is not None
        assert 0.0 <= record.lateness_s < LATE_S
    # The server's own clock shows the same.
    arrivals = fake.arrivals()
    assert [at - arrivals[0] for at in arrivals] == pytest.approx(times, abs=LATE_S)
    assert len(result.late_s) == 6
    assert 0.0 <= min(result.late_s) <= statistics.median(result.late_s) < LATE_S
    assert 0.6 < result.wall_s < 5.0
    assert result.cpu_s > 0.0
    assert result.lags_s


def test_a_slow_server_does_not_hold_up_an_open_loop() -> None:
    # No answer begins before all five requests have arrived: a loop that waits for answers would time out.
    waiting: list[int] = []
    all_here = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        waiting.append(1)
        if len(waiting) == 5:
            all_here.set()
        await all_here.wait()
        writer.write(GOOD)

    result = load_against(handle, due(0.0, 0.01, 0.02, 0.03, 0.04, tokens=1), timeout_s=5.0)
    assert statuses(result.records) == {COMPLETED: 5}


def test_a_record_has_tokens_and_times(start_fake: StartFake) -> None:
    fake = start_fake(first_ms=100, token_ms=40)
    (record,) = run_plan(plan(fake.url), due(0.2, tokens=5)).records
    assert (record.status, record.error, record.name) == (COMPLETED, None, "a")
    assert (record.planned_input, record.planned_output) == (3, 5)
    assert (record.input_tokens, record.output_tokens) == (3, 5)
    assert record.sent_s is not None
    assert record.first_token_s is not None
    assert record.end_s is not None
    assert 0.1 - 0.01 <= record.first_token_s - record.sent_s < 0.1 + LATE_S
    assert len(record.gaps_s) == 4
    assert sum(record.gaps_s) == pytest.approx(4 * 0.04, abs=LATE_S)
    assert record.end_s - record.first_token_s == pytest.approx(sum(record.gaps_s))


def test_an_answer_of_many_tokens_is_whole(start_fake: StartFake) -> None:
    fake = start_fake(first_ms=0, token_ms=0)
    (record,) = run_plan(plan(fake.url, users=1), due(None, tokens=5000)).records
    assert (record.status, record.output_tokens, len(record.gaps_s)) == (COMPLETED, 5000, 4999)
    assert min(record.gaps_s) >= 0.0


def test_a_request_that_waited_for_a_place_counts_from_when_it_was_due(start_fake: StartFake) -> None:
    fake = start_fake(first_ms=300, token_ms=0)
    result = run_plan(plan(fake.url, max_in_flight=1), due(0.0, 0.0, 0.05))
    assert statuses(result.records) == {COMPLETED: 3}
    _, second, third = result.records
    assert second.lateness_s is not None
    assert second.lateness_s > 0.29
    assert second.latencies_ms()["ttft"] > 590
    assert third.lateness_s is not None
    assert third.lateness_s > 0.54
    # The server caused the delay: the generator sent each request as soon as there was a place.
    assert len(result.late_s) == 3
    assert max(result.late_s) < LATE_S
    # One after another, so that no two of the server's arrivals are nearer than an answer takes.
    first, middle, last = fake.arrivals()
    assert min(middle - first, last - middle) > 0.29


@pytest.mark.parametrize("places", [1, 3])
def test_requests_in_flight_never_exceed_the_limit(places: int) -> None:
    result, peak = _peak(due(*[0.0] * 9, tokens=1), places, max_in_flight=places)
    assert statuses(result.records) == {COMPLETED: 9}
    assert peak == places


@pytest.mark.parametrize("users", [1, 3])
def test_a_closed_loop_has_as_many_in_flight_as_users(users: int) -> None:
    result, peak = _peak(due(*[None] * 10, tokens=1), users, users=users)
    assert statuses(result.records) == {COMPLETED: 10}
    assert peak == users


def _peak(requests: list[PlannedRequest], full: int, **changes: int) -> tuple[PlanResult, int]:
    """Run a plan on a server that sends no answer before it is full; return the most requests in flight."""
    now = Counter[str]()
    has_been_full = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await asked(reader)
            now["in flight"] += 1
            now["peak"] = max(now["peak"], now["in flight"])
            if now["in flight"] >= full:
                has_been_full.set()
            await has_been_full.wait()
            for _ in range(20):  # time for one request too many to arrive
                await asyncio.sleep(0)
            now["in flight"] -= 1
            writer.write(GOOD)

    return load_against(handle, requests, **changes), now["peak"]


def test_a_closed_loop_sends_each_request_once_and_nothing_is_late(start_fake: StartFake) -> None:
    fake = start_fake()
    result = run_plan(plan(fake.url, users=3), due(*[None] * 20))
    assert [record.index for record in result.records] == list(range(20))
    assert statuses(result.records) == {COMPLETED: 20}
    assert len(fake.arrivals()) == 20
    assert {record.due_s for record in result.records} == {None}
    assert result.late_s == []
    for record in result.records:
        assert record.sent_s is not None
        assert record.sent_s >= 0.0


def test_more_users_than_requests(start_fake: StartFake) -> None:
    fake = start_fake()
    assert statuses(run_plan(plan(fake.url, users=9), due(None, None)).records) == {COMPLETED: 2}


@pytest.mark.parametrize("users", [None, 3])
def test_a_plan_without_requests(users: int | None, nowhere: str) -> None:
    assert run_plan(plan(nowhere, users=users, max_in_flight=users), []).records == []


def test_an_open_loop_is_cut_off_at_its_limit(start_fake: StartFake) -> None:
    fake = start_fake(faults={"1": "stall", "2": "stall"})
    result = run_plan(plan(fake.url, limit_s=0.8), due(0.0, 0.3, 0.4, 50.0, 51.0))
    assert [record.status for record in result.records] == [COMPLETED, *[TIMED_OUT] * 2, *[NOT_SENT] * 2]
    _, stalled, _, unsent, _ = result.records
    assert stalled.error == "the run was ended before its last token"
    assert stalled.first_token_s is not None
    assert stalled.sent_s is not None
    assert stalled.end_s == pytest.approx(0.8, abs=LATE_S)
    assert (unsent.due_s, unsent.sent_s, unsent.end_s) == (50.0, None, None)
    assert unsent.error == "the run ended before it was sent"
    assert 0.8 <= result.wall_s < 0.8 + LATE_S
    # Requests that were cut off had been sent, and their lateness is recorded.
    assert len(result.late_s) == 3


def test_a_request_that_waits_for_a_place_at_the_limit_was_not_sent(start_fake: StartFake) -> None:
    fake = start_fake(faults={"0": "stall"})
    result = run_plan(plan(fake.url, limit_s=0.4, max_in_flight=1), due(0.0, 0.0, 0.0))
    assert [record.status for record in result.records] == [TIMED_OUT, NOT_SENT, NOT_SENT]
    assert len(fake.arrivals()) == 1


def test_a_closed_loop_is_cut_off_at_its_limit(start_fake: StartFake) -> None:
    fake = start_fake(faults={"2": "stall", "3": "stall"})
    result = run_plan(plan(fake.url, limit_s=0.8, users=2), due(*[None] * 7))
    assert statuses(result.records) == {COMPLETED: 2, TIMED_OUT: 2, NOT_SENT: 3}
    assert [record.status for record in result.records[4:]] == [NOT_SENT] * 3
    assert 0.8 <= result.wall_s < 0.8 + LATE_S
    assert len(fake.arrivals()) == 4


@pytest.mark.parametrize(("keep_alive_s", "connections"), [(60.0, 1), (0.1, 3)])
def test_an_idle_connection_is_used_again_only_for_so_long(
    keep_alive_s: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "KEEP_ALIVE_S", keep_alive_s)
    made: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(1)
        while True:
            await asked(reader)
            writer.write(GOOD)

    result = load_against(handle, due(0.0, 0.25, 0.5, tokens=1))
    assert statuses(result.records) == {COMPLETED: 3}
    assert len(made) == connections


def test_an_idle_connection_is_closed_before_the_server_closes_it() -> None:
    # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE is 5 s; a request that meets the end of a connection would be lost.
    assert 0.0 < run.KEEP_ALIVE_S < 5.0


def test_a_connection_that_the_server_closed_between_two_requests_fails_neither() -> None:
    result = load_against(replying(GOOD), due(0.0, 0.25, 0.5, tokens=1))
    assert statuses(result.records) == {COMPLETED: 3}
