"""Sessions in the simulator: the prefix cache has the conversation so far, by hand."""

import itertools
from typing import Any

import pytest

from tests.unit.engines.simulator.helpers import SUFFIX, server
from tuner.engines.simulator.client import workload_client
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.metrics import SimulatedRun
from tuner.workloads.results import SESSION_ENDED, RequestStatus
from tuner.workloads.traffic import Traffic


def traffic(**changes: Any) -> Traffic:
    session = {"turns": 3, "pause_ms": 1500, **changes.pop("session", {})}
    kind = {"input": 40, "output": 24, "session": session, **changes.pop("kind", {})}
    known = {"arrivals": {"process": "constant", "rate": 0.1}, "requests": 1, "classes": {"a": kind}}
    return Traffic.model_validate({**known, **changes})


def run(made: ConfiguredServer, load: Traffic, fast_forward: bool = True) -> SimulatedRun:
    client = workload_client(load, 1, made.config.prefix_caching, 0.0)
    return made.run(client, 1, noise=False, fast_forward=fast_forward)


def test_a_turn_is_due_after_the_answer_and_the_pause() -> None:
    requests = run(server(), traffic()).requests
    assert [request.status for request in requests] == [RequestStatus.COMPLETED] * 3
    for before, after in itertools.pairwise(requests):
        assert before.end_s is not None
        assert (after.due_s, after.sent_s) == (before.end_s + 1.5, before.end_s + 1.5)


@pytest.mark.parametrize("arguments", [(), SUFFIX, ("--no-async-scheduling",)])
def test_the_cache_has_the_prompt_and_the_answer_of_the_turn_before(arguments: tuple[str, ...]) -> None:
    counts = run(server(*arguments), traffic()).counts
    # Blocks of 16. After turn 1, 40 + 24 - 1 tokens are computed: 3 blocks. Turn 2 asks for 104 tokens and has 127 of
    # 128 computed at its end: 7 blocks. Turn 3 asks for 168.
    assert (counts.queried_tokens, counts.hit_tokens) == (40 + 104 + 168, 48 + 112)


def test_requests_of_a_fan_out_share_the_conversation() -> None:
    counts = run(server(), traffic(session={"fan_out": 2})).counts
    # The first request of a turn computes the block with the answer's last token, which the second one then finds.
    assert (counts.queried_tokens, counts.hit_tokens) == (2 * (40 + 104 + 168), 48 + 64 + 112 + 128)


def test_the_conversation_begins_with_system_prompt_and_document() -> None:
    load = traffic(system_prompt=16, kind={"prefix": {"tokens": 32}}, requests=6)
    counts = run(server(), load).counts
    # The first session finds nothing, and its turns 48 more than without; the second one finds the 48 at once.
    assert counts.queried_tokens == 2 * (88 + 152 + 216)
    assert counts.hit_tokens == (0 + 96 + 160) + (48 + 96 + 160)


def test_a_small_cache_has_lost_the_conversation_of_others() -> None:
    # Two sessions take turns in 14 blocks: a turn of one, up to 12 blocks, evicts the other's conversation.
    load = traffic(arrivals={"process": "constant", "rate": 1}, requests=6)
    roomy, tight = (run(server(blocks=blocks), load) for blocks in (200, 14))
    assert roomy.counts.hit_tokens == 2 * (48 + 112)
    assert tight.counts.hit_tokens < roomy.counts.hit_tokens
    assert {each.status for each in tight.requests} == {RequestStatus.COMPLETED}


def test_without_prefix_caching_nothing_is_found() -> None:
    counts = run(server("--no-enable-prefix-caching"), traffic()).counts
    assert counts.hit_tokens == 0


def test_fast_forward_changes_nothing() -> None:
    load = traffic(
        arrivals={"process": "poisson", "rate": 20},
        requests=60,
        session={"turns": {"uniform": [1, 5]}, "pause_ms": {"uniform": [1, 400]}, "fan_out": {"uniform": [1, 3]}},
    )
    one, other = (run(server(blocks=80), load, each) for each in (True, False))
    assert [(r.due_s, r.sent_s, r.first_s, r.end_s) for r in one.requests] == [
        (r.due_s, r.sent_s, r.first_s, r.end_s) for r in other.requests
    ]
    assert one.counts == other.counts


def test_a_turn_that_is_given_up_ends_its_session_and_the_rest_counts() -> None:
    made = server()
    result = run(made, traffic(timeout_s=0.001))
    records = result.records()
    assert [record.status for record in records] == [RequestStatus.TIMED_OUT, *[RequestStatus.NOT_SENT] * 2]
    assert [record.error for record in records[1:]] == [SESSION_ENDED] * 2
    assert [(record.session, record.turn, record.due_s) for record in records] == [
        (0, 0, 0.0),
        (0, 1, None),
        (0, 2, None),
    ]


def test_replicas_have_caches_of_their_own() -> None:
    # One session alone: each turn goes to the first idle replica, which has the conversation.
    made = ConfiguredServer(server().config, server().parameters, instances=2)
    assert run(made, traffic()).counts.hit_tokens == 48 + 112
