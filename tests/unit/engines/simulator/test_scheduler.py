"""The scheduler: what each step computes, worked out by hand for small workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.engines.simulator.helpers import SUFFIX, config
from tuner.engines.simulator.block_pool import Chain
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.scheduler import Scheduler, SpeculativeScheduler
from tuner.engines.simulator.sequence import AnswerText, Prompt, Sequence


def scheduler(*arguments: str, blocks: int = 1000) -> Scheduler:
    return Scheduler(config(*arguments), blocks)


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


def test_a_step_holds_prompts_up_to_the_token_budget() -> None:
    made = scheduler("--max-num-batched-tokens", "100", "--max-num-seqs", "8")
    add(made, (60, 3), (60, 3), (30, 3))
    # first all 60 tokens and 40 of the second prompt; then 1 decode, the second's other 20 tokens and the third's 30
    assert step(made) == (0, 100, 1, 0)
    assert step(made) == (1, 50, 3, 61)
    # contexts of the next tokens: 62, 61 and 31
    assert step(made) == (3, 0, 3, 154)
    # the first sequence has its 3 tokens
    assert step(made) == (2, 0, 2, 62 + 32)
    assert not made.busy
    assert made.pool.used == 0


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it_whole() -> None:
    made = scheduler("--max-num-batched-tokens", "128", "--max-model-len", "128", "--no-enable-chunked-prefill")
    add(made, (100, 2), (60, 2))
    assert step(made) == (0, 100, 1, 0)
    assert step(made) == (1, 60, 2, 101)


def test_long_prompts_are_split_at_the_threshold() -> None:
    made = scheduler("--long-prefill-token-threshold", "40")
    add(made, (100, 2), (30, 2))
    assert [step(made)[:3] for _ in range(3)] == [(0, 70, 1), (1, 40, 1), (0, 20, 1)]


def test_at_most_max_num_seqs_sequences_run() -> None:
    made = scheduler("--max-num-seqs", "2")
    add(made, (10, 4), (10, 2), (10, 2))
    assert step(made)[1] == 20
    assert (len(made.running), len(made.waiting)) == (2, 1)
    step(made)
    assert step(made)[:2] == (1, 10)


def test_the_last_admitted_request_is_preempted_and_resumes_its_answer() -> None:
    made = scheduler("--no-enable-prefix-caching", blocks=4)
    first, second = add(made, (30, 10), (31, 10))
    assert step(made)[1] == 61
    # both need a third block at once, and none is free: the second sequence gives up its two
    step(made)
    assert step(made)[0] == 1
    assert (made.counts.preemptions, list(made.waiting), second.generated) == (1, [second], 2)
    for _ in range(7):
        step(made)
    assert first.generated == 10
    # 31 tokens of the prompt and 2 of the answer are computed again; the step samples the third token
    assert step(made) == (0, 33, 1, 0)
    assert second.generated == 3


def test_a_prompt_reuses_cached_blocks() -> None:
    made = scheduler()
    document = Chain()
    for index in range(2):
        made.add(Sequence(Prompt(index, 100, 2, ((document, 64),)), 16, 0.0))
    planned = made.plan(0.0)
    # the second request reuses the document's 4 blocks, which are cached once the first one gets them
    assert planned.prefill == 100 + 36
    assert (made.counts.queried_tokens, made.counts.hit_tokens) == (200, 64)


def test_admission_control_refuses_a_request_at_a_full_queue() -> None:
    made = Scheduler(replace(config(), max_queued_requests=1), 100)
    first, second = (Sequence(Prompt(index, 10, 2), 16, 0.0) for index in range(2))
    assert made.accepts(first)
    made.add(first)
    assert not made.accepts(second)


def test_a_late_request_misses_one_step() -> None:
    made = Scheduler(replace(config(), max_queued_requests=2), 100)
    first, second, third = (Sequence(Prompt(index, 10, 3), 16, 0.0) for index in range(3))
    made.add(first)
    made.add(second, late=True)
    assert not made.accepts(third)
    assert [step(made)[:2] for _ in range(2)] == [(0, 10), (1, 10)]


def test_a_late_request_can_be_aborted() -> None:
    made = scheduler()
    (only,) = add(made, (10, 2))
    gone = Sequence(Prompt(1, 10, 2), 16, 0.0)
    made.add(gone, late=True)
    made.abort(gone)
    assert [step(made)[:2] for _ in range(2)] == [(0, 10), (1, 0)]
    assert only.generated == 2
    assert not made.busy


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_decode_that_a_prompt_preempts_gets_no_token_in_that_step(fast_forward: bool) -> None:
    serve_config = config(*SUFFIX, "--long-prefill-token-threshold", "16", "--max-num-batched-tokens", "64")
    assert serve_config.speculation is not None
    text = AnswerText(serve_config.speculation, 1.0, parameters_of("t4"), 0)
    made = SpeculativeScheduler(serve_config, 11, text, fast_forward)
    _, short = add(made, (160, 2), (26, 60))
    # each step computes a block of the long prompt and a token or two of the short answer, which was admitted last.
    # After the eighth step the prompt has 8 of the 11 blocks and the answer 7 tokens; its next token needs a third
    # block
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
    # 26 + 7 - 1 tokens were computed: two whole blocks stay cached
    assert short.cached_blocks(16) == 2


@pytest.mark.parametrize(("arguments", "order"), [((), [0, 1, 2]), (("--scheduling-policy", "priority"), [2, 0, 1])])
def test_with_priority_scheduling_a_lower_priority_is_first(arguments: tuple[str, ...], order: list[int]) -> None:
    made = scheduler("--max-num-seqs", "1", *arguments)
    for index, priority in enumerate((5, 5, -1)):
        made.add(Sequence(Prompt(index, 10, 1, priority=priority), made.config.block_size, float(index)))
    admitted = []
    while made.busy:
        made.plan(0.0)
        admitted += [sequence.index for sequence, _ in made.prefilling.values()]
        made.finish()
    assert admitted == order


def test_with_priority_scheduling_the_highest_priority_is_preempted() -> None:
    made = scheduler("--scheduling-policy", "priority", "--block-size", "16", blocks=5)
    urgent = Sequence(Prompt(0, 32, 40, priority=0), 16, 1.0)
    patient = Sequence(Prompt(1, 32, 40, priority=3), 16, 0.0)
    for each in (urgent, patient):
        made.add(each)
    while not made.counts.preemptions:  # 4 of 5 blocks hold the prompts; the first tokens need a block each
        made.plan(0.0)
        made.finish()
    assert list(made.waiting) == [patient]
    assert urgent.order in made.running
