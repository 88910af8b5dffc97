"""Whole loads: what a person works out for small ones, and what holds for any."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engines.simulator.helpers import SMALL, config, machine, run
from tuner.engines.simulator.clients.bench_serve import BenchServeWorkload, bench_serve_client
from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.clients.metrics import bench_metrics, chunk_times, token_gaps
from tuner.engines.simulator.config.cuda_graphs import LaunchMode
from tuner.engines.simulator.configured_server import ConfiguredServer, SimulatedRun
from tuner.engines.simulator.memory.block_pool import Chain
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.scheduling.answer_text import AnswerText
from tuner.engines.simulator.scheduling.scheduler import Scheduler, SchedulerCounts
from tuner.engines.simulator.scheduling.sequence import Prompt, Sequence
from tuner.engines.simulator.scheduling.speculative_scheduler import SpeculativeScheduler
from tuner.engines.simulator.timing.step_time import Step, StepTime
from tuner.workloads.requests import RequestStatus

GREEDY = ("--override-generation-config", '{"temperature": 0}')
SUFFIX = ("--speculative-config", '{"method": "suffix"}')


def scheduler(*words: str, blocks: int = 1000) -> Scheduler:
    return Scheduler(config(*words), blocks)


def add(to: Scheduler, *prompts: tuple[int, int]) -> list[Sequence]:
    made = [Sequence(Prompt(index, *each), to.config.block_size, 0.0) for index, each in enumerate(prompts)]
    for each in made:
        to.add(each)
    return made


def step(of: Scheduler) -> tuple[int, int, int, int]:
    """Take one step; return its decodes, prefill tokens, sampled positions and context."""
    planned = of.plan(0.0)
    of.finish()
    return planned.decode, planned.prefill, planned.sampled, planned.context


def test_prompts_share_a_step_as_far_as_the_budget_goes() -> None:
    made = scheduler("--max-num-batched-tokens", "100", "--max-num-seqs", "8")
    add(made, (60, 3), (60, 3), (30, 3))
    # 60 and the first 40 of the second; then 1 decode, its other 20 and the third's 30
    assert step(made) == (0, 100, 1, 0)
    assert step(made) == (1, 50, 3, 61)
    # contexts of the next tokens: 62, 61 and 31
    assert step(made) == (3, 0, 3, 154)
    # the first has its 3 tokens
    assert step(made) == (2, 0, 2, 62 + 32)
    assert not made.busy
    assert made.pool.used == 0


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    made = scheduler("--max-num-batched-tokens", "128", "--max-model-len", "128", "--no-enable-chunked-prefill")
    add(made, (100, 2), (60, 2))
    assert step(made) == (0, 100, 1, 0)
    assert step(made) == (1, 60, 2, 101)


def test_long_prompts_are_cut_at_the_threshold() -> None:
    made = scheduler("--long-prefill-token-threshold", "40")
    add(made, (100, 2), (30, 2))
    assert [step(made)[:3] for _ in range(3)] == [(0, 70, 1), (1, 40, 1), (0, 20, 1)]


def test_no_more_than_max_num_seqs_run() -> None:
    made = scheduler("--max-num-seqs", "2")
    add(made, (10, 4), (10, 2), (10, 2))
    assert step(made)[1] == 20
    assert (len(made.running), len(made.waiting)) == (2, 1)
    step(made)
    assert step(made)[:2] == (1, 10)


def test_who_came_last_is_preempted_and_goes_on_where_it_was() -> None:
    made = scheduler("--no-enable-prefix-caching", blocks=4)
    first, second = add(made, (30, 10), (31, 10))
    assert step(made)[1] == 61
    # both grow into their third block at once; there are none: the second gives up its two
    step(made)
    assert step(made)[0] == 1
    assert (made.counts.preemptions, list(made.waiting), second.generated) == (1, [second], 2)
    for _ in range(7):
        step(made)
    assert first.generated == 10
    # 31 of the prompt and 2 of the answer are computed again, and give its third token
    assert step(made) == (0, 33, 1, 0)
    assert second.generated == 3


def test_the_cache_is_asked_before_a_prompt_is_computed() -> None:
    made = scheduler()
    document = Chain()
    for index in range(2):
        made.add(Sequence(Prompt(index, 100, 2, ((document, 64),)), 16, 0.0))
    planned = made.plan(0.0)
    # the second finds the document's 4 blocks, registered when the first was given them
    assert planned.prefill == 100 + 36
    assert (made.counts.queried_tokens, made.counts.hit_tokens) == (200, 64)


def test_admission_control_refuses_what_is_too_much() -> None:
    made = Scheduler(replace(config(), max_queued_requests=1), 100)
    first, second = (Sequence(Prompt(index, 10, 2), 16, 0.0) for index in range(2))
    assert made.admits(first)
    made.add(first)
    assert not made.admits(second)


def test_what_came_late_is_queued_and_misses_a_step() -> None:
    made = Scheduler(replace(config(), max_queued_requests=2), 100)
    first, second, third = (Sequence(Prompt(index, 10, 3), 16, 0.0) for index in range(3))
    made.add(first)
    made.add(second, late=True)
    assert not made.admits(third)
    assert [step(made)[:2] for _ in range(2)] == [(0, 10), (1, 10)]


def test_what_came_late_can_be_given_up() -> None:
    made = scheduler()
    (only,) = add(made, (10, 2))
    gone = Sequence(Prompt(1, 10, 2), 16, 0.0)
    made.add(gone, late=True)
    made.abort(gone)
    assert [step(made)[:2] for _ in range(2)] == [(0, 10), (1, 0)]
    assert only.generated == 2
    assert not made.busy


def test_gaps_and_chunks_of_an_answer() -> None:
    job = SimulatedRequest(Prompt(0, 5, 6), "", None, None)
    job.segments = [(1, 4), (6, 9)]
    seen = np.array([1.0, 2, 3, 5, 8, 13, 21, 34, 55])
    # tokens at steps 1 2 3, and after a preemption at 6 7 8
    assert chunk_times(job, seen, 1, False).tolist() == [2, 3, 5, 21, 34, 55]
    assert sorted(np.repeat(*token_gaps([job], seen, 1, False)).tolist()) == [1, 2, 13, 16, 21]
    # the first at once, then two at a time, and what is left
    assert chunk_times(job, seen, 2, False).tolist() == [2, 3, 21, 55]
    job.segments = [(1, 1), (2, 3), (4, 2)]
    assert chunk_times(job, seen, 1, True).tolist() == [2, 3, 8]


LOADS = st.builds(
    BenchServeWorkload,
    num_prompts=st.integers(1, 40),
    max_concurrency=st.one_of(st.none(), st.integers(1, 20)),
    input_len=st.integers(1, 400),
    output_len=st.integers(1, 80),
    range_ratio=st.sampled_from([0.0, 0.5]),
    rate=st.one_of(st.none(), st.floats(0.5, 200)),
    seed=st.integers(0, 5),
)
WORDS = st.sampled_from(
    [
        (),
        ("--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
        ("--no-enable-prefix-caching", "--enforce-eager"),
        ("--no-async-scheduling", "--block-size", "32"),
        ("--long-prefill-token-threshold", "50"),
        (*GREEDY, *SUFFIX),
        (*SUFFIX, "--max-num-batched-tokens", "64", "--long-prefill-token-threshold", "40"),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}'),
    ]
)


@settings(max_examples=60, deadline=None)
@given(load=LOADS, words=WORDS, blocks=st.integers(60, 400))
def test_whatever_the_load_tokens_are_conserved_and_nobody_starves(
    load: BenchServeWorkload, words: tuple[str, ...], blocks: int
) -> None:
    made = machine(*words, blocks=blocks)
    found = run(made, load)
    for job in found.jobs:
        assert job.status is RequestStatus.COMPLETED
        given_tokens = sum(n for _, n in job.segments) if made.speculative else sum(b - a for a, b in job.segments)
        assert given_tokens == job.prompt.output
        assert job.sent_s is not None
        assert job.first_s is not None
        assert job.end_s is not None
        assert job.sent_s < job.first_s <= job.end_s
    assert all(later >= earlier for earlier, later in itertools.pairwise(found.seen))
    assert all(0 <= state[3] <= 1 for state in found.trace.states)
    assert found.trace.busy_s <= max(job.end_s or 0.0 for job in found.jobs) + 1e-9


@settings(max_examples=40, deadline=None)
@given(load=LOADS, words=WORDS, blocks=st.integers(60, 400))
def test_steps_that_are_advanced_together_give_the_same_to_the_last_bit(
    load: BenchServeWorkload, words: tuple[str, ...], blocks: int
) -> None:
    def figures(together: bool) -> tuple[list[tuple[float | None, ...]], list[float], SchedulerCounts]:
        found: SimulatedRun = run(machine(*words, blocks=blocks), load, together)
        return [(job.sent_s, job.first_s, job.end_s) for job in found.jobs], found.seen.tolist(), found.counts

    assert figures(True) == figures(False)


@pytest.mark.parametrize("together", [True, False])
def test_a_decode_that_gives_way_to_a_prompt_gets_nothing_in_that_step(together: bool) -> None:
    known = config(*SUFFIX, "--long-prefill-token-threshold", "16", "--max-num-batched-tokens", "64")
    assert known.speculation is not None
    text = AnswerText(known.speculation, 1.0, parameters_of("t4"), 0)
    made = SpeculativeScheduler(known, 11, text, together)
    _, short = add(made, (160, 2), (26, 60))
    # each step a block of the long prompt and a token or two of the short answer, which was let in last: after the
    # eighth step the prompt has 8 of the 11 blocks, the answer 7 tokens, and its next needs the third block of its own
    for _ in range(8):
        made.plan(0.0)
        made.finish()
    before = short.generated
    assert before == 7
    planned = made.plan(0.0)
    assert (planned.decode, planned.prefill, planned.context, planned.drafting) == (0, 16, 0, 0)
    made.finish()
    assert made.counts.preemptions == 1
    assert short.generated == before
    # 26 + 7 - 1 tokens were computed: two whole blocks may be found again
    assert short.known_blocks(16) == 2


@settings(max_examples=100, deadline=None)
@given(
    decode=st.integers(0, 300),
    prefill=st.integers(0, 2048),
    context=st.integers(0, 10**6),
    factor=st.floats(1.0, 4.0),
    words=WORDS,
)
def test_more_bandwidth_or_arithmetic_is_never_slower(
    decode: int, prefill: int, context: int, factor: float, words: tuple[str, ...]
) -> None:
    known = config(*words)
    card = known.card
    more = replace(card, bandwidth_gbs=(card.bandwidth_gbs or 0) * factor)
    stronger = replace(card, tflops={name: value * factor for name, value in card.tflops.items()})
    what = Step(decode, prefill, decode + 1, decode + 1, context, 50.0 * prefill, decodes_only=not prefill)
    slow, wide, strong = (
        StepTime(replace(known, card=each), parameters_of("t4")).take(what) for each in (card, more, stronger)
    )
    assert wide <= slow
    assert strong <= slow


def test_a_larger_step_never_takes_less() -> None:
    time = StepTime(config("--enforce-eager"), parameters_of("t4"))
    taken = [time.take(Step(n, 0, n, n, 600 * n, 0.0)) for n in range(1, 257)]
    assert taken == sorted(taken)


def test_where_a_step_goes_adds_up() -> None:
    time = StepTime(config("--no-async-scheduling"), parameters_of("t4"))
    whole = sum(time.take(Step(50, 0, 50, 50, 40_000, 0.0)) for _ in range(3))
    assert sum(time.seconds.values()) == pytest.approx(whole)
    assert time.config.graphs.launch(50, decodes_only=True) is LaunchMode.FULL


def test_a_request_that_is_given_up_leaves_its_place_to_the_next() -> None:
    made = machine("--max-num-seqs", "1")
    jobs = [SimulatedRequest(Prompt(index, 100, 400), "a", float(index) / 10, index / 10 + 1.0) for index in range(6)]
    found = made.run(SimulatedClient(jobs, None, 2, 1.0, 0.0), 1, noise=False)
    assert {job.status for job in found.jobs} == {RequestStatus.TIMED_OUT}
    assert all(job.end_s == pytest.approx(job.deadline_s) for job in found.jobs)
    assert [job.sent_s is not None for job in found.jobs][:2] == [True, True]


def test_a_request_that_is_too_long_is_refused() -> None:
    made = machine("--max-model-len", "128")
    jobs = [SimulatedRequest(Prompt(0, 100, 29), "a", 0.0, None), SimulatedRequest(Prompt(1, 100, 28), "a", 0.0, None)]
    found = made.run(SimulatedClient(jobs, None, None, None, 0.0), 1, noise=False)
    assert [job.status for job in found.jobs] == [RequestStatus.REFUSED, RequestStatus.COMPLETED]


@pytest.mark.parametrize(("words", "first_step"), [(("--no-async-scheduling",), 2), (("--async-scheduling",), 3)])
def test_what_comes_during_a_step_misses_the_one_that_is_planned_already(
    words: tuple[str, ...], first_step: int
) -> None:
    # the second request is sent while the first's prompt is computed, alone
    jobs = [
        SimulatedRequest(Prompt(0, 400, 50), "a", 0.0, None),
        SimulatedRequest(Prompt(1, 100, 50), "a", 0.001, None),
    ]
    found = machine(*words).run(SimulatedClient(jobs, None, None, None, 0.0), 1, noise=False)
    assert [job.first_s for job in found.jobs] == [found.seen[0], found.seen[first_step - 1]]


def test_what_comes_after_the_last_plan_runs_although_nothing_else_does() -> None:
    # the first ends with its second token, in a step that was planned when the second request came
    jobs = [SimulatedRequest(Prompt(0, 400, 2), "a", 0.0, None), SimulatedRequest(Prompt(1, 100, 2), "a", 0.001, None)]
    found = machine("--async-scheduling").run(SimulatedClient(jobs, None, None, None, 0.0), 1, noise=False)
    assert [job.end_s for job in found.jobs] == [found.seen[1], found.seen[3]]


def test_greedy_answers_are_drafted_and_sampled_ones_are_not() -> None:
    load = BenchServeWorkload(50, 25, 128, 256, seed=3)
    greedy = run(machine(*GREEDY, *SUFFIX), load).counts
    sampled = run(machine(*SUFFIX), load).counts
    assert greedy.accepted_tokens / greedy.drafted_tokens > 0.8
    assert sampled.accepted_tokens / sampled.drafted_tokens < 0.15
    assert greedy.drafted_tokens / greedy.drafts > 5 > sampled.drafted_tokens / sampled.drafts


def test_metrics_have_the_names_of_vllms_client() -> None:
    made = machine()
    found = run(made, BenchServeWorkload(20, 5, 64, 16, seed=1))
    metrics = bench_metrics(found.jobs, found.seen, 1, False, (50, 99))
    duration = max(job.end_s or 0.0 for job in found.jobs)
    assert metrics["output_throughput"] == pytest.approx(20 * 16 / duration)
    assert metrics["success_rate"] == 1.0
    assert {"mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "p99_e2el_ms"} <= {*metrics}
    # of one answer: end to end is TTFT and 15 times TPOT
    mean = {name: metrics[f"mean_{name}_ms"] or 0.0 for name in ("e2el", "ttft", "tpot")}
    assert mean["e2el"] == pytest.approx(mean["ttft"] + 15 * mean["tpot"])


def test_statistics_are_numpys() -> None:
    made = machine()
    found = run(made, BenchServeWorkload(30, 7, 64, 20, range_ratio=0.5, seed=2))
    metrics = bench_metrics(found.jobs, found.seen, 1, False, (50, 90, 99))
    gaps = 1000 * np.concatenate([np.diff(chunk_times(job, found.seen, 1, False)) for job in found.jobs])
    for percentile in (50, 90, 99):
        assert metrics[f"p{percentile}_itl_ms"] == pytest.approx(float(np.percentile(gaps, percentile)))
    assert metrics["std_itl_ms"] == pytest.approx(float(gaps.std()))
    assert metrics["median_itl_ms"] == pytest.approx(float(np.median(gaps)))


def test_the_clients_own_lengths_and_times_are_drawn() -> None:
    # totals of a published run of `vllm bench serve` with 500 prompts of 365 tokens, range ratio 0.4 and seed 0
    made = bench_serve_client(BenchServeWorkload(500, 250, 365, 365, range_ratio=0.4, rate=50.0), 0.0)
    assert sum(job.prompt.tokens for job in made.jobs) == 185_881
    assert sum(job.prompt.output for job in made.jobs) == 183_806
    # the last request is due at n / rate
    assert made.jobs[-1].due_s == pytest.approx(10.0)


def test_memory_is_what_was_measured() -> None:
    def tokens(*words: str, card: str, model: str = SMALL, version: tuple[int, ...] = (0, 15, 1)) -> int:
        known = config(*words, card=card, model=model, version=version)
        return ConfiguredServer(known, parameters_of(card)).budget.tokens

    # published server log of the default on a T4; the H200 tables; the published study on an RTX 6000 Ada
    assert tokens(card="t4") == pytest.approx(940_384, rel=0.05)
    half = ("--gpu-memory-utilization", "0.5")
    assert tokens(*half, card="h200", version=(0, 25, 1)) == pytest.approx(5_926_960, rel=0.02)
    ada = ("--max-model-len", "8192", "--no-enable-chunked-prefill", "--gpu-memory-utilization", "0.9")
    assert tokens(*ada, card="rtx6000ada", model="Qwen/Qwen2.5-14B-Instruct") == pytest.approx(57_000, rel=0.15)
    awq = "Qwen/Qwen2.5-14B-Instruct-AWQ"
    assert tokens(*ada, card="rtx6000ada", model=awq) == pytest.approx(171_000, rel=0.15)
