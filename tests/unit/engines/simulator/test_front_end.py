"""The front end: requests that are in work at the same time share it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.unit.engines.simulator.helpers import config
from tuner.engines.simulator.clients.client import SimulatedRequest
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.scheduling.sequence import Prompt
from tuner.engines.simulator.timing.front_end import FrontEnd

KNOWN = replace(parameters_of("h200"), request_us=4e6, connect_us=2e6, prompt_token_us=1e4, token_us=1e5, chunk_us=4e5)
"""A request takes 4 s, its connection 2 s, each of its tokens 10 ms; a token sent 0.1 s, a piece 0.4 s."""


def front_end(*words: str) -> FrontEnd:
    return FrontEnd(config(*words, card="h200", version=(0, 25, 1)), KNOWN)


def job(number: int, tokens: int = 0) -> SimulatedRequest:
    return SimulatedRequest(Prompt(number, tokens, 1), "", None, None)


def left(front: FrontEnd) -> list[tuple[int, float]]:
    found = []
    while front.next_s < math.inf:
        at = front.next_s
        found.append((front.pop().prompt.index, pytest.approx(at)))
    return found


def test_requests_in_work_share_the_time() -> None:
    front = front_end()
    front.receive(job(0), 0.0, connects=False)
    assert front.next_s == pytest.approx(4.0)
    # at 2 s the first has had 2 of its 4 s: from then on each gets half
    front.receive(job(1), 2.0, connects=False)
    assert left(front) == [(0, 6.0), (1, 8.0)]


def test_a_burst_reaches_the_engine_at_once_and_late() -> None:
    front = front_end()
    for number in range(5):
        front.receive(job(number), 0.0, connects=False)
    assert left(front) == [(number, 20.0) for number in range(5)]


def test_a_connection_and_every_token_take_their_time() -> None:
    front = front_end()
    front.receive(job(0, tokens=100), 10.0, connects=True)
    assert left(front) == [(0, 10.0 + 4.0 + 2.0 + 1.0)]


def test_who_comes_when_nobody_is_in_work_waits_for_nobody() -> None:
    front = front_end()
    front.receive(job(0), 0.0, connects=False)
    assert left(front) == [(0, 4.0)]
    front.receive(job(1), 100.0, connects=False)
    assert left(front) == [(1, 104.0)]


def test_two_servers_take_half_as_long() -> None:
    front = front_end("--api-server-count", "2")
    front.receive(job(0), 0.0, connects=False)
    assert left(front) == [(0, 2.0)]
    assert front.send(0.0, 4) == pytest.approx(1.0)


def test_the_tokens_of_a_step_are_sent_after_those_of_the_step_before() -> None:
    front = front_end()
    assert front.send(1.0, 2) == pytest.approx(2.0)
    assert front.send(1.5, 2) == pytest.approx(3.0)
    # four tokens a piece: 0.1 + 0.4 / 4
    assert front_end("--stream-interval", "4").send(0.0, 5) == pytest.approx(1.0)
