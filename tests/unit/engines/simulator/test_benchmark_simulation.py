"""Whole workloads against a simulated server: invariants of any workload, and event order in small ones."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.bench_serve import BenchServeWorkload
from search_spaces.catalogue.layers import Attention, Recurrent
from tests.some import some
from tests.unit.engines.simulator.helpers import ARGUMENTS, GREEDY, SUFFIX, config_of, run, server, shape
from tuner.engines.simulator.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.metrics import SimulatedRun
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.sequence import Prompt
from tuner.workloads.results import RequestStatus

WORKLOADS = st.builds(
    BenchServeWorkload,
    num_prompts=st.integers(1, 40),
    max_concurrency=st.one_of(st.none(), st.integers(1, 20)),
    input_len=st.integers(1, 400),
    output_len=st.integers(1, 80),
    range_ratio=st.sampled_from([0.0, 0.5]),
    rate=st.one_of(st.none(), st.floats(0.5, 200)),
    seed=st.integers(0, 5),
)

LAYERS = (
    Attention(8, 2, 64, window=65),
    Attention(8, 2, 64, window=65, chunked=True),
    Recurrent("gated delta net", 1, 16384, 0),
)


@settings(max_examples=60, deadline=None)
@given(workload=WORKLOADS, arguments=ARGUMENTS, blocks=st.integers(60, 400))
def test_every_request_of_any_workload_completes_with_all_its_tokens(
    workload: BenchServeWorkload, arguments: tuple[str, ...], blocks: int
) -> None:
    made = server(*arguments, blocks=blocks)
    result = run(made, workload)
    for request in result.requests:
        assert request.status is RequestStatus.COMPLETED
        given_tokens = (
            sum(n for _, n in request.segments) if made.config.speculation else sum(b - a for a, b in request.segments)
        )
        assert given_tokens == request.prompt.output
        assert some(request.sent_s) < some(request.first_s) <= some(request.end_s)
    assert all(later >= earlier for earlier, later in itertools.pairwise(result.received_s))
    assert all(0 <= state[3] <= 1 for state in result.trace.states)
    assert result.trace.busy_s <= max(request.end_s or 0.0 for request in result.requests) + 1e-9


@settings(max_examples=40, deadline=None)
@given(workload=WORKLOADS, arguments=ARGUMENTS, blocks=st.integers(60, 400))
def test_fast_forward_gives_identical_results(
    workload: BenchServeWorkload, arguments: tuple[str, ...], blocks: int
) -> None:
    first, second = (run(server(*arguments, blocks=blocks), workload, each) for each in (True, False))
    assert everything(first) == everything(second)


def everything(result: SimulatedRun) -> tuple[object, ...]:
    """Return all results, whose numbers have to be equal to the last bit."""
    return (
        [(request.sent_s, request.first_s, request.end_s, request.segments) for request in result.requests],
        result.received_s.tolist(),
        result.counts,
        result.trace.states,
        (result.seconds, result.flops, result.bytes),
    )


@settings(max_examples=20, deadline=None)
@given(workload=WORKLOADS, arguments=ARGUMENTS, pages=st.integers(60, 400), layer=st.sampled_from(LAYERS))
def test_fast_forward_gives_identical_results_for_windows_and_states(
    workload: BenchServeWorkload, arguments: tuple[str, ...], pages: int, layer: Attention | Recurrent
) -> None:
    model = shape((2, Attention(8, 2, 64)), (6, layer))
    made = ConfiguredServer(config_of(model, "--max-model-len", "512", *arguments), parameters_of("h200"))
    made.budget = replace(made.budget, blocks=pages)
    first, second = (run(made, workload, each) for each in (True, False))
    assert everything(first) == everything(second)


def test_a_request_that_times_out_frees_its_place_in_flight() -> None:
    made = server("--max-num-seqs", "1")
    requests = [
        SimulatedRequest(Prompt(index, 100, 400), "a", float(index) / 10, index / 10 + 1.0) for index in range(6)
    ]
    result = made.run(SimulatedClient(requests, None, 2, 1.0, 0.0), 1, noise=False)
    assert {request.status for request in result.requests} == {RequestStatus.TIMED_OUT}
    assert all(request.end_s == pytest.approx(request.deadline_s) for request in result.requests)
    assert [request.sent_s is not None for request in result.requests][:2] == [True, True]


def test_a_request_that_is_too_long_is_refused() -> None:
    made = server("--max-model-len", "128")
    requests = [
        SimulatedRequest(Prompt(0, 100, 29), "a", 0.0, None),
        SimulatedRequest(Prompt(1, 100, 28), "a", 0.0, None),
    ]
    result = made.run(SimulatedClient(requests, None, None, None, 0.0), 1, noise=False)
    assert [request.status for request in result.requests] == [RequestStatus.REFUSED, RequestStatus.COMPLETED]


@pytest.mark.parametrize(("arguments", "first_step"), [(("--no-async-scheduling",), 2), (("--async-scheduling",), 3)])
def test_a_request_that_arrives_during_a_step_misses_the_step_already_planned(
    arguments: tuple[str, ...], first_step: int
) -> None:
    # the second request is sent while the first one's prompt is computed alone
    requests = [
        SimulatedRequest(Prompt(0, 400, 50), "a", 0.0, None),
        SimulatedRequest(Prompt(1, 100, 50), "a", 0.001, None),
    ]
    result = server(*arguments).run(SimulatedClient(requests, None, None, None, 0.0), 1, noise=False)
    assert [request.first_s for request in result.requests] == [result.received_s[0], result.received_s[first_step - 1]]


def test_a_request_that_arrives_after_the_last_plan_runs_when_nothing_else_does() -> None:
    # the first request ends in a step that was planned before the second one arrived
    requests = [
        SimulatedRequest(Prompt(0, 400, 2), "a", 0.0, None),
        SimulatedRequest(Prompt(1, 100, 2), "a", 0.001, None),
    ]
    result = server("--async-scheduling").run(SimulatedClient(requests, None, None, None, 0.0), 1, noise=False)
    assert [request.end_s for request in result.requests] == [result.received_s[1], result.received_s[3]]


def test_drafts_are_long_and_accepted_in_greedy_answers_only() -> None:
    workload = BenchServeWorkload(50, 25, 128, 256, seed=3)
    greedy = run(server(*GREEDY, *SUFFIX), workload).counts
    sampled = run(server(*SUFFIX), workload).counts
    assert greedy.accepted_tokens / greedy.drafted_tokens > 0.8
    assert sampled.accepted_tokens / sampled.drafted_tokens < 0.15
    assert greedy.drafted_tokens / greedy.drafts > 5 > sampled.drafted_tokens / sampled.drafts
