"""Sessions: the generator against a server whose answers take a known time, and the simulated client beside it.

Both clients get the same sessions. They have to agree on when a turn is due, and on the requests that a failure leaves
unsent. The times are worked out by hand.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.loadgen.loads import DONE, TOKEN, USAGE, Handler, asked, load_against, stream
from tuner.engines.simulator.client import ScheduledSend, SimulatedClient, SimulatedRequest
from tuner.engines.simulator.sequence import Prompt
from tuner.loadgen.plan import PlannedRequest
from tuner.loadgen.run import NO_TOKEN_IDS
from tuner.workloads.results import SESSION_ENDED, RequestStatus

LATE_S = 0.25
"""Seconds that a busy machine may add to a time."""

COMPLETED, REFUSED, NOT_SENT = RequestStatus.COMPLETED, RequestStatus.REFUSED, RequestStatus.NOT_SENT

Planned = tuple[int | None, int, float, float]
"""Session, turn, pause, and the seconds that the answer takes; a negative time is a refusal after as many seconds."""

TWO_TURNS: Sequence[Planned] = [(0, 0, 0.0, 0.3), (0, 1, 0.5, 0.2), (None, 0, 0.0, 0.1)]
FAN_OUT: Sequence[Planned] = [(0, 0, 0.0, 0.1), (0, 0, 0.0, 0.4), (0, 0, 0.0, 0.2), (0, 1, 0.3, 0.1)]
FAILS: Sequence[Planned] = [(0, 0, 0.0, 0.1), (0, 1, 0.2, -0.1), (0, 1, 0.2, 0.3), (0, 2, 0.1, 0.1), (0, 3, 0.1, 0.1)]
CASES: Mapping[str, tuple[Sequence[Planned], Sequence[tuple[float, float] | None]]] = {
    # turn 2 is due 0.3 s + 0.5 s after the start
    "two turns": (TWO_TURNS, [(0.0, 0.3), (0.8, 1.0), (0.0, 0.1)]),
    # turn 2 waits for the slowest of three: 0.4 s + 0.3 s
    "fan-out": (FAN_OUT, [(0.0, 0.1), (0.0, 0.4), (0.0, 0.2), (0.7, 0.8)]),
    # one of two requests of turn 2 is refused: turns 3 and 4 are not sent, and count
    "failure": (FAILS, [(0.0, 0.1), (0.3, 0.4), (0.3, 0.6), None, None]),
}


def plan_of(planned: Sequence[Planned], start: float | None) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            index,
            "a",
            start if turn == 0 else None,
            [100 + index],
            3,
            2,
            session=session,
            turn=turn,
            pause_s=pause,
            continues=session is not None,
        )
        for index, (session, turn, pause, _) in enumerate(planned)
    ]


def answering(planned: Sequence[Planned], bodies: dict[int, dict[str, Any]]) -> Handler:
    """Return a handler whose answers take the planned time, and have as their tokens 2 × the request's own token."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await asked(reader)
            index = body["prompt"][-1] - 100
            bodies[index] = body
            seconds = planned[index][3]
            await asyncio.sleep(abs(seconds))
            if seconds < 0:
                writer.write(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n")
            else:
                tokens = [{"index": 0, "text": "a", "token_ids": [2 * (100 + index)]}] * 2
                usage = {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": 2}}
                events = [b"data: %s\n\n" % json.dumps({"choices": [each]}).encode() for each in tokens]
                writer.write(stream(*events, b"data: %s\n\n" % json.dumps(usage).encode(), DONE))
            await writer.drain()

    return handle


def simulated(planned: Sequence[Planned], users: int | None) -> list[SimulatedRequest]:
    """Run the simulated client on a clock of its own, with a server whose answers take the planned time."""
    requests = [
        SimulatedRequest(
            Prompt(index, 3, 2), "a", None if turn or users else 0.0, None, session=session, turn=turn, pause_s=pause
        )
        for index, (session, turn, pause, _) in enumerate(planned)
    ]
    client = SimulatedClient(requests, users, None, None, 0.0)
    events: list[tuple[float, int, SimulatedRequest]] = []

    def send(each: ScheduledSend) -> None:
        events.append((each.at_s, len(planned), each.request))

    for each in client.initial_sends():
        send(each)
    while events:
        events.sort(key=lambda event: event[:2])
        at, _, request = events.pop(0)
        seconds = planned[request.prompt.index][3]
        if request.sent_s is None:
            assert client.try_send(request, at)
            events.append((at + abs(seconds), request.prompt.index, request))
            continue
        request.status, request.end_s = (REFUSED if seconds < 0 else COMPLETED), at
        waiting = client.end(request, at)
        for each in (*([waiting] if waiting else []), *client.next_sends(request, at)):
            send(each)
    return requests


@pytest.mark.parametrize("case", CASES)
def test_generator_and_simulator_send_each_turn_when_it_is_due(case: str) -> None:
    planned, times = CASES[case]
    bodies: dict[int, dict[str, Any]] = {}
    measured = load_against(answering(planned, bodies), plan_of(planned, 0.0)).records
    predicted = simulated(planned, None)
    for record, request, at in zip(measured, predicted, times, strict=True):
        assert (record.session, record.turn) == (request.session, request.turn)
        assert record.status is request.status
        if at is None:
            assert (record.status, record.error, record.due_s) == (NOT_SENT, SESSION_ENDED, None)
            assert (request.status, request.error, request.due_s) == (NOT_SENT, SESSION_ENDED, None)
            continue
        assert (request.due_s, request.sent_s, request.end_s) == pytest.approx((at[0], at[0], at[1]))
        assert record.due_s == pytest.approx(at[0], abs=LATE_S)
        assert record.sent_s is not None
        assert record.due_s is not None
        assert 0.0 <= record.sent_s - record.due_s < LATE_S
        assert record.end_s == pytest.approx(at[1], abs=LATE_S)


def test_a_turn_begins_with_the_first_prompt_and_answer_of_each_turn_before() -> None:
    bodies: dict[int, dict[str, Any]] = {}
    load_against(answering(FAN_OUT, bodies), plan_of(FAN_OUT, 0.0))
    assert [bodies[index]["prompt"] for index in range(4)] == [[100], [101], [102], [100, 200, 200, 103]]
    assert bodies[0]["return_token_ids"] is True


def test_a_user_of_a_closed_loop_ends_a_session_before_the_next_one() -> None:
    planned: Sequence[Planned] = [(0, 0, 0.0, 0.1), (0, 1, 0.2, 0.1), (1, 0, 0.0, 0.1), (1, 1, 0.2, 0.1)]
    measured = load_against(answering(planned, {}), plan_of(planned, None), users=1).records
    predicted = simulated(planned, 1)
    starts = [0.0, 0.3, 0.4, 0.7]
    assert [request.sent_s for request in predicted] == pytest.approx(starts)
    assert [record.sent_s for record in measured] == pytest.approx(starts, abs=LATE_S)
    assert [record.due_s for record in measured] == [None] * 4
    assert all(b.sent_s >= a.end_s for a, b in itertools.pairwise(measured) if b.sent_s and a.end_s)


def test_texts_go_on_with_the_text_of_the_answer() -> None:
    prompts: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            prompts.append((await asked(reader))["prompt"])
            writer.write(stream(b'data: {"choices": [{"index": 0, "text": " yes"}]}\n\n', USAGE, DONE))
            await writer.drain()

    requests = [
        PlannedRequest(0, "a", 0.0, "is it", 2, 1, session=0, continues=True),
        PlannedRequest(1, "a", None, " and now", 5, 1, session=0, turn=1),
    ]
    assert [record.status for record in load_against(handle, requests).records] == [COMPLETED, COMPLETED]
    assert prompts == ["is it", "is it yes and now"]


def test_without_token_ids_of_the_answer_a_session_of_tokens_ends() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(stream(TOKEN, USAGE.replace(b'"completion_tokens": 1', b'"completion_tokens": 2'), DONE))
        await writer.drain()

    records = load_against(handle, plan_of(TWO_TURNS[:2], 0.0)).records
    assert [(record.status, record.error) for record in records] == [(COMPLETED, None), (NOT_SENT, NO_TOKEN_IDS)]


def test_a_run_that_ends_in_a_pause_counts_the_turns_after_it() -> None:
    planned: Sequence[Planned] = [(0, 0, 0.0, 0.1), (0, 1, 50.0, 0.1)]
    records = load_against(answering(planned, {}), plan_of(planned, 0.0), limit_s=0.6).records
    assert [record.status for record in records] == [COMPLETED, NOT_SENT]
    assert records[1].error == "the run ended before it was sent"
