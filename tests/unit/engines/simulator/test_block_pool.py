"""The paged KV cache: which sequence uses which blocks, which blocks are reused, and which are evicted first."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuner.engines.simulator.block_pool import BlockPool, Chain, PageRule
from tuner.engines.simulator.sequence import Prompt, Sequence

SIZE = 4


def sequence(tokens: int, *shared: tuple[Chain, int], index: int = 0, output: int = 8) -> Sequence:
    return Sequence(Prompt(index, tokens, output, shared), SIZE, 0.0)


def compute(pool: BlockPool, item: Sequence) -> None:
    """Let a sequence reuse cached blocks and take blocks for the rest of its prompt."""
    item.start(pool, item.cached_blocks(SIZE), SIZE)
    item.grow(pool, -(-item.tokens // SIZE))
    item.computed = item.tokens


def test_a_document_is_reused_in_whole_blocks() -> None:
    pool, document = BlockPool(20, caching=True), Chain()
    first, second = sequence(14, (document, 10)), sequence(13, (document, 10), index=1)
    compute(pool, first)
    # 14 tokens are 4 blocks; 2 of them lie within the document's 10 tokens
    assert (pool.used, document.cached, first.held) == (4, 2, [2])
    assert second.cached_blocks(SIZE) == 2
    compute(pool, second)
    # 13 tokens are 4 blocks, 2 of them shared
    assert (pool.used, document.held) == (6, 2)
    first.free(pool)
    assert (pool.used, pool.idle) == (4, 2)
    second.free(pool)
    assert (pool.used, pool.idle, document.cached, document.held) == (0, 6, 2, 0)


def test_the_last_token_is_computed_even_if_the_whole_prompt_is_cached() -> None:
    pool, document = BlockPool(20, caching=True), Chain()
    first = sequence(8, (document, 8))
    compute(pool, first)
    assert document.cached == 2
    assert sequence(8, (document, 8), index=1).cached_blocks(SIZE) == 1


def test_a_pool_knows_with_how_many_pages_it_would_have_gone_the_same_way() -> None:
    pool = BlockPool(20, caching=False)
    compute(pool, first := sequence(14))  # 4 blocks
    assert not pool.lacks(6)
    first.free(pool)
    compute(pool, sequence(20, index=1))  # 5 blocks
    assert pool.sufficient == 10
    assert pool.lacks(16)
    assert pool.sufficient is None


def test_with_caching_a_pool_of_the_same_way_has_every_page_that_was_not_blank() -> None:
    pool = BlockPool(20, caching=True)
    for index in range(3):
        compute(pool, item := sequence(14, index=index))  # 4 blocks, which stay idle
        item.free(pool)
    assert pool.sufficient == 12


def test_an_evicted_block_of_a_chain_depends_on_the_size_and_a_single_page_does_not() -> None:
    pool, document = BlockPool(6, caching=True), Chain()
    compute(pool, single := sequence(12))
    single.free(pool)
    compute(pool, first := sequence(16, (document, 16), index=1))
    first.free(pool)
    assert pool.sufficient == 6  # the single pages were evicted, which a smaller pool would do earlier
    compute(pool, sequence(24, index=2))
    assert pool.sufficient is None


def test_eviction_is_least_recently_used_first_and_from_the_end_of_a_chain() -> None:
    pool, document = BlockPool(6, caching=True), Chain()
    compute(pool, first := sequence(12, (document, 12)))
    first.free(pool)
    assert (pool.idle, pool.blank, document.cached) == (3, 3, 3)
    compute(pool, second := sequence(16, index=1))
    # 4 blocks: the 3 blank ones, then the document's last one
    assert (pool.used, pool.idle, document.cached) == (4, 2, 2)
    assert sequence(12, (document, 12), index=2).cached_blocks(SIZE) == 2
    second.free(pool)


def test_used_blocks_are_not_evicted() -> None:
    pool, document = BlockPool(4, caching=True), Chain()
    compute(pool, sequence(8, (document, 8)))
    with pytest.raises(ValueError, match="3 pages requested, 2 are free"):
        pool.take(3)


def test_a_preempted_sequence_reuses_its_own_blocks() -> None:
    pool = BlockPool(8, caching=True)
    item = sequence(10)
    compute(pool, item)
    item.preempt(pool, SIZE)
    # 10 tokens are 3 blocks, 2 of them full
    assert (pool.used, pool.idle, item.computed) == (0, 3, 0)
    assert item.cached_blocks(SIZE) == 2
    compute(pool, item)
    assert pool.used == 3
    item.free(pool)
    assert pool.used == 0


def test_without_caching_no_block_stays_cached() -> None:
    pool = BlockPool(8, caching=False)
    compute(pool, item := sequence(10))
    item.preempt(pool, SIZE)
    assert (pool.idle, pool.blank) == (0, 8)
    assert item.cached_blocks(SIZE) == 0


def test_a_private_copy_of_a_shared_block_is_counted_once() -> None:
    pool, document = BlockPool(6, caching=True), Chain()
    compute(pool, first := sequence(8, (document, 8)))
    # the second sequence computes its last token again, and with it the second block
    compute(pool, second := sequence(8, (document, 8), index=1))
    assert (pool.used, second.held) == (3, [1])
    first.free(pool)
    # the document's second block is evicted; the second sequence still has its copy
    pool.take(4)
    assert (document.cached, pool.free) == (1, 0)
    second.grow(pool, 2)
    assert (second.held, pool.used) == ([1], 6)


def test_a_block_of_a_chain_has_a_page_in_each_table_that_holds_every_token() -> None:
    pool, document = BlockPool(9, True, PageRule(SIZE, full=2)), Chain()
    compute(pool, first := sequence(12, (document, 12)))
    first.free(pool)
    assert (pool.idle, pool.blank) == (6, 3)
    # 3 blank pages and one of the document's last block, whose other page is blank afterwards
    pool.take(4)
    assert (document.cached, pool.idle, pool.blank, pool.used) == (2, 4, 1, 4)


def test_a_sequence_gives_up_the_pages_that_its_window_leaves() -> None:
    # a window of 9 tokens reaches into 2 blocks before the newest one
    pool = BlockPool(100, False, PageRule(SIZE, full=1, windowed=3, window=2, states=5))
    item = sequence(23)
    item.start(pool, 0, SIZE)
    assert pool.used == 5
    item.grow(pool, 4)
    assert pool.used == 5 + 4 + 3 * 4
    item.computed = 16
    # blocks 0 and 1 have left; two blocks are added
    assert item.missing_pages(pool.rule, 6) == 2 + 3 * 2 - 3 * 2
    item.grow(pool, 6)
    assert (pool.used, item.passed) == (5 + 6 + 3 * 4, 2)
    item.preempt(pool, SIZE)
    assert pool.used == 0


def test_a_reused_prefix_needs_the_pages_of_its_last_window() -> None:
    pool, document = BlockPool(100, True, PageRule(SIZE, full=1, windowed=3, window=2)), Chain()
    compute(pool, sequence(24, (document, 24)))
    assert pool.used == 6 + 3 * 6
    second = sequence(24, (document, 24), index=1)
    second.start(pool, second.cached_blocks(SIZE), SIZE)
    # the document's 5 blocks are shared; the window holds the last 2 of them
    assert pool.used == 6 + 3 * 6 + 3 * 2


def test_a_prefix_is_reused_where_a_state_is_kept() -> None:
    system, document = Chain(), Chain()
    chains = ((system, 12), (document, 8))
    system.cached, document.cached = 3, 2
    item = sequence(30, *chains)
    # nobody kept a state: the prefix is computed again, and its state is kept where it stops to be shared
    assert item.blocks_with_state(5) == 0
    item.keep_states(5, SIZE)
    assert (system.states, document.states) == (set(), {2})
    assert sequence(30, *chains, index=1).blocks_with_state(5) == 5
    # of another document, only the system prompt is cached, and its end has no state yet
    other = sequence(30, (system, 12), (Chain(), 8), index=2)
    assert other.blocks_with_state(3) == 0
    other.keep_states(3, SIZE)
    assert system.states == {3}
    # the state of an evicted block is lost
    document.cached = 1
    item.keep_states(4, SIZE)
    assert document.states == {1}


class Cache(RuleBasedStateMachine):
    """Any order of arrivals, growth, preemptions and ends: no page is lost or given out twice."""

    page_rule = PageRule(SIZE)

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(40 * self.page_rule.of_sequence(1), True, self.page_rule)
        self.chains = [Chain() for _ in range(3)]
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.count = 0

    @rule(tokens=st.integers(1, 60), document=st.integers(0, 2), shared=st.integers(0, 60))
    def arrive(self, tokens: int, document: int, shared: int) -> None:
        self.count += 1
        self._start(sequence(tokens, (self.chains[document], min(shared, tokens)), index=self.count))

    def _start(self, item: Sequence) -> None:
        cached = item.cached_blocks(SIZE)
        idle = sum(max(0, min(cached, span) - chain.held) for chain, span in item.chains)
        own = max(0, cached - sum(span for _, span in item.chains))
        rule = self.page_rule
        whole = -(-item.tokens // SIZE)
        windows = rule.windowed * (whole - rule.passed(cached * SIZE)) + rule.states
        if rule.full * (whole - cached + idle + own) + windows <= self.pool.free:
            compute(self.pool, item)
            self.running.append(item)
            if item in self.preempted:
                self.preempted.remove(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(1, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        item = data.draw(st.sampled_from(self.running))
        blocks = -(-(item.tokens + more) // SIZE)
        if item.missing_pages(self.page_rule, blocks) <= self.pool.free:
            item.grow(self.pool, blocks)
            item.generated += more
            item.computed = item.tokens

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.running))
        self.running.remove(item)
        item.free(self.pool)

    @precondition(lambda self: self.running)
    @rule()
    def preempt(self) -> None:
        item = self.running.pop()
        item.preempt(self.pool, SIZE)
        self.preempted.append(item)

    @precondition(lambda self: self.preempted)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self._start(data.draw(st.sampled_from(self.preempted)))

    @invariant()
    def every_block_is_used_idle_or_blank(self) -> None:
        pool, rule = self.pool, self.page_rule
        assert pool.blank >= 0
        assert pool.idle == sum(run.count * (rule.full if run.chain else 1) for run in pool._runs) >= 0
        own = sum(item.blocks - sum(item.held) for item in self.running)
        windows = sum(rule.windowed * (item.blocks - item.passed) + rule.states for item in self.running)
        assert pool.used == rule.full * (own + sum(chain.held for chain in self.chains)) + windows

    @invariant()
    def a_chain_is_held_to_the_depth_of_its_deepest_user(self) -> None:
        for chain in self.chains:
            held = [
                depth
                for item in self.running
                for (each, _), depth in zip(item.chains, item.held, strict=True)
                if each is chain
            ]
            assert chain.held == max(held, default=0) <= chain.cached
            assert chain.cached - chain.held == sum(run.count for run in chain.runs)


class TablesCache(Cache):
    """The same with several tables, of which some hold a window or a state."""

    page_rule = PageRule(SIZE, full=2, windowed=3, window=2, states=1)


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestTablesCache = TablesCache.TestCase
TestTablesCache.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
