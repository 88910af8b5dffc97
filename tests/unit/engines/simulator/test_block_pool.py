"""The paged KV cache: which sequence uses which blocks, which blocks are reused, and which are evicted first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuner.engines.simulator.block_pool import BlockPool, Chain
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
    with pytest.raises(ValueError, match="3 blocks requested, 2 are free"):
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


class Cache(RuleBasedStateMachine):
    """Any order of arrivals, growth, preemptions and ends: no block is lost or given out twice."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(40, caching=True)
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
        if -(-item.tokens // SIZE) - cached + idle + own <= self.pool.free:
            compute(self.pool, item)
            self.running.append(item)
            if item in self.preempted:
                self.preempted.remove(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(1, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        item = data.draw(st.sampled_from(self.running))
        blocks = -(-(item.tokens + more) // SIZE)
        if blocks - item.blocks <= self.pool.free:
            item.generated += more
            item.computed = item.tokens
            item.grow(self.pool, blocks)

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
        pool = self.pool
        assert pool.blank >= 0
        assert pool.idle == sum(run.count for run in pool._runs) >= 0
        own = sum(item.blocks - sum(item.held) for item in self.running)
        assert pool.used == own + sum(chain.held for chain in self.chains)

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


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
