"""The scheduler: what each step computes, worked out by hand for small workloads."""

from dataclasses import replace
from random import Random

import pytest

from search_spaces import ModelShape
from search_spaces.catalogue.layers import Attention, Recurrent
from tests.unit.engines.simulator.helpers import SUFFIX, config, config_of, shape
from tuner.engines.simulator.block_pool import Chain
from tuner.engines.simulator.deployment import ConfiguredServer
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
    return planned.decode, planned.prefill, planned.sampled, int(planned.context)


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


WINDOWED = shape((2, Attention(8, 2, 64)), (6, Attention(8, 2, 64, window=33)))
# the state of a layer has 32 KiB, an attention layer's token 512 bytes: blocks of 64 tokens
HYBRID = shape((2, Attention(8, 2, 64)), (4, Recurrent("gated delta net", 1, 16384, 0)))


def test_windows_give_up_what_no_token_sees_any_more() -> None:
    # one table of 2 full layers, 3 of 2 windowed ones; a window reaches into 2 blocks before the newest one
    made = Scheduler(config_of(WINDOWED, "--max-num-batched-tokens", "64", "--max-model-len", "256"), 1000)
    add(made, (100, 40))
    used = []
    for _ in range(3):
        step(made)
        used.append(made.pool.used)
    # 64 tokens: 4 blocks; 100 tokens: 7 blocks, of which the windows of the second step left 2, and of decodes 4
    assert used == [4 + 3 * 4, 7 + 3 * 3, 7 + 3 * 3]
    for _ in range(11):
        step(made)
    # 112 tokens are computed; the next one needs an 8th block, for which the windows leave one
    assert made.pool.used == 7 + 3 * 3
    step(made)
    assert made.pool.used == 8 + 3 * 3
    while made.busy:
        step(made)
    assert made.pool.used == 0


@pytest.mark.parametrize(
    ("full", "windowed", "prefill", "decode"),
    [
        ((10, Attention(32, 16, 128)), (52, Attention(32, 16, 128, window=1024)), [896, 1408, 1039], {703: 8, 704: 16}),
        ((12, Attention(64, 8, 64)), (12, Attention(64, 8, 64, window=128)), [256, 392, 378], {322: 8, 323: 16}),
    ],
)
def test_pages_are_those_of_vllms_manager(
    full: tuple[int, Attention], windowed: tuple[int, Attention], prefill: list[int], decode: dict[int, int]
) -> None:
    # used blocks as vLLM 0.25.1's and 0.32.0's KVCacheManager count them for a prompt of 5000 tokens in steps of 2048,
    # with the shapes of Gemma 3 27B and gpt-oss-20b; in the last step before a block, vLLM's windows have left one more
    made = Scheduler(config_of(shape(full, windowed), "--max-num-batched-tokens", "2048", "--max-num-seqs", "8"), 16383)
    add(made, (5000, 200))
    used = []
    for _ in range(3 + 24):
        made.plan(0.0)
        used.append(made.pool.used)
        made.finish()
    assert used[:3] == prefill
    assert used[3:] == [pages for pages, steps in decode.items() for _ in range(steps)]


def test_a_sequence_of_a_hybrid_model_holds_its_states() -> None:
    made = Scheduler(config_of(HYBRID, "--max-model-len", "512"), 1000)
    add(made, (100, 40), (20, 40))
    step(made)
    # blocks of 64 tokens: 2 and 1; and 2 tables of states for each sequence
    assert (made.pool.used, made.decoding.pages_taken()) == (2 + 1 + 2 * 2, 0)


def test_states_take_pages_before_a_sequence_is_admitted() -> None:
    made = Scheduler(config_of(HYBRID, "--max-model-len", "64"), 5)
    add(made, (20, 4), (20, 4))
    step(made)
    assert (len(made.running), len(made.waiting)) == (1, 1)


def test_a_shared_prefix_of_a_hybrid_model_is_reused_from_the_third_time_on() -> None:
    made = Scheduler(config_of(HYBRID, "--max-model-len", "512", version=(0, 32, 0)), 1000)
    document = Chain()
    computed: list[list[int]] = []
    for index in range(3):
        made.add(Sequence(Prompt(index, 300, 2, ((document, 128),)), 64, 0.0))
        chunks = []
        while not made.idle:
            chunks.append(made.plan(0.0).prefill)
            made.finish()
        computed.append([chunk for chunk in chunks if chunk])
    # A prompt is divided where a state is kept: after its last whole block of 64 tokens, 256, and where the second
    # request leaves what is cached. That request computes the document again and keeps the state at its end.
    assert computed == [[256, 44], [128, 128, 44], [128, 44]]
    assert (made.counts.queried_tokens, made.counts.hit_tokens) == (900, 128)


def test_chunks_of_a_hybrid_models_prompt_end_with_a_block() -> None:
    for words, version, expected in (
        # the rest of the budget of 200 tokens: three blocks of 64, until the last whole block of 300, or of 320
        ((), (0, 32, 0), [192, 64, 44]),
        (("--no-enable-prefix-caching",), (0, 32, 0), [200, 100]),
        (("--enable-prefix-caching", "--mamba-cache-mode", "align"), (0, 25, 1), [192, 64, 44]),
    ):
        made = Scheduler(
            config_of(HYBRID, "--max-model-len", "512", "--max-num-batched-tokens", "200", *words, version=version),
            1000,
        )
        add(made, (300, 1))
        chunks = []
        while not made.idle:
            chunks.append(made.plan(0.0).prefill)
            made.finish()
        assert chunks == expected


def held_pages(by: Scheduler, document: Chain) -> int:
    """Return the pages that all running sequences hold by their tokens, between two steps."""
    rule, pages = by.pool.rule, by.pool.rule.full * document.held
    for each in by.running.values():
        blocks, passed = each.blocks, each.passed
        if each.order in by.decoding.members:
            computed = each.tokens + by.decoding.clock - each.joined - 1
            blocks = max(blocks, -(-computed // rule.block_size))
            passed = max(passed, blocks - rule.window - 1) if rule.windowed else passed
        pages += rule.full * (blocks - sum(each.held)) + rule.windowed * (blocks - passed) + rule.states
    return pages


@pytest.mark.parametrize("arguments", [(), ("--no-enable-prefix-caching",), SUFFIX])
@pytest.mark.parametrize(("model", "pages"), [(WINDOWED, 90), (HYBRID, 9)])
def test_no_page_is_lost_under_preemptions(model: ModelShape, pages: int, arguments: tuple[str, ...]) -> None:
    given = ("--max-num-batched-tokens", "96", "--max-model-len", "384", "--enable-prefix-caching", *arguments)
    made = ConfiguredServer(config_of(model, *given), parameters_of("h200"))
    text = AnswerText(made.config.speculation, 0.0, made.parameters, 1) if made.config.speculation else None
    pages += 3 * made.config.kv_cache.rule.states
    by = Scheduler(made.config, pages) if text is None else SpeculativeScheduler(made.config, pages, text)
    random, document = Random(1), Chain()
    for index in range(60):
        shared = ((document, random.choice((0, 64, 150))),)
        prompt = Prompt(index, random.randint(1, 250), random.randint(1, 130), shared)
        by.add(Sequence(prompt, made.config.kv_cache.block_size, 0.0))
    while by.busy:
        if by.can_fast_forward and random.random() < 0.7 and (ahead := by.steps_ahead(random.randint(1, 50))):
            by.skip(ahead, random.randint(1, len(ahead.taken)))
        elif not (by.can_fast_forward and random.random() < 0.7 and by.fast_forward()):
            by.plan(0.0)
            by.finish()
        assert by.pool.used == held_pages(by, document)
        assert min(by.pool.blank, by.pool.idle) >= 0
    assert (by.pool.used, by.counts.preemptions > 0) == (0, True)
