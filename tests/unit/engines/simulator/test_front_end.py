"""The API servers: processor sharing of requests, and the sending of tokens, which comes first."""

import math
from dataclasses import replace

import pytest

from tests.unit.engines.simulator.helpers import config
from tuner.engines.simulator.client import SimulatedRequest
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.sequence import Prompt
from tuner.engines.simulator.startup import FrontEnd

PARAMETERS = replace(
    parameters_of("h200"), request_us=4e6, connect_us=2e6, prompt_token_us=1e4, token_us=1e5, chunk_us=4e5
)
"""A request takes 4 s, a connection 2 s, a prompt token 10 ms, an answer token 0.1 s and a chunk 0.4 s."""


def front_end(*arguments: str) -> FrontEnd:
    made = config(*arguments, card="h200", version=(0, 25, 1))
    return FrontEnd(replace(made, card=replace(made.card, host_speed=1.0)), PARAMETERS)


def request(number: int, tokens: int = 0) -> SimulatedRequest:
    return SimulatedRequest(Prompt(number, tokens, 1), "", None, None)


def departures(front: FrontEnd) -> list[tuple[int, float | pytest.Approx[float]]]:
    departed: list[tuple[int, float | pytest.Approx[float]]] = []
    while front.next_s < math.inf:
        at = front.next_s
        departed.append((front.pop().prompt.index, pytest.approx(at)))
    return departed


def test_requests_in_work_share_the_processor() -> None:
    front = front_end()
    front.receive(request(0), 0.0, connects=False)
    assert front.next_s == pytest.approx(4.0)
    # at 2 s the first request has had 2 of its 4 s; from then on each gets half of the time
    front.receive(request(1), 2.0, connects=False)
    assert departures(front) == [(0, 6.0), (1, 8.0)]


def test_a_burst_reaches_the_engine_late_and_at_once() -> None:
    front = front_end()
    for number in range(5):
        front.receive(request(number), 0.0, connects=False)
    assert departures(front) == [(number, 20.0) for number in range(5)]


def test_a_short_prompt_of_a_burst_does_not_overtake_a_long_one() -> None:
    front = front_end()
    # 4 + 3 s and 4 s of work: both share until each has had 4 s; 3 s of the longer one are left then
    front.receive(request(0, tokens=300), 0.0, connects=False)
    front.receive(request(1), 0.0, connects=False)
    assert departures(front) == [(0, 8.0), (1, 11.0)]


def test_a_connection_and_each_prompt_token_take_time() -> None:
    front = front_end()
    front.receive(request(0, tokens=100), 10.0, connects=True)
    assert departures(front) == [(0, 10.0 + 4.0 + 2.0 + 1.0)]


def test_a_request_without_others_in_work_does_not_wait() -> None:
    front = front_end()
    front.receive(request(0), 0.0, connects=False)
    assert departures(front) == [(0, 4.0)]
    front.receive(request(1), 100.0, connects=False)
    assert departures(front) == [(1, 104.0)]


def test_two_api_servers_take_half_as_long() -> None:
    front = front_end("--api-server-count", "2")
    front.receive(request(0), 0.0, connects=False)
    assert departures(front) == [(0, 2.0)]
    assert front.send([0.0], 4) == pytest.approx([1.0])


def test_the_tokens_of_a_step_are_sent_after_those_of_the_step_before() -> None:
    front = front_end()
    assert front.send([1.0, 1.5], 2) == pytest.approx([2.0, 3.0])
    # four tokens a chunk: 0.1 + 0.4 / 4 s each
    assert front_end("--stream-interval", "4").send([0.0], 5) == pytest.approx([1.0])


def test_requests_are_read_while_no_tokens_are_sent() -> None:
    front = front_end()
    front.receive(request(0), 0.0, connects=False)
    assert front.send([1.0], 2) == pytest.approx([2.0])
    assert front.next_s == pytest.approx(5.0)
    # another second of sending follows without a gap, and one begins only when the request has left
    assert front.send([1.5, 6.5], 2) == pytest.approx([3.0, 7.5])
    assert departures(front) == [(0, 6.0)]


def test_a_request_that_comes_while_tokens_are_sent_waits_for_their_end() -> None:
    front = front_end()
    assert front.send([0.0, 1.0, 2.0, 3.0], 4) == pytest.approx([2.0, 4.0, 6.0, 8.0])
    front.receive(request(0), 3.0, connects=False)
    front.receive(request(1), 3.5, connects=False)
    assert departures(front) == [(0, 16.0), (1, 16.0)]


def test_what_was_sent_before_delays_no_request() -> None:
    front = front_end()
    assert front.send([0.0, 1.0, 2.0, 3.0], 1)[-1] == pytest.approx(3.5)
    front.receive(request(0), 10.0, connects=False)
    assert departures(front) == [(0, 14.0)]
