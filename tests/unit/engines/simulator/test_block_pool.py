"""The paged cache: whose blocks are whose, what is found again, and what is evicted first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuner.engines.simulator.memory.block_pool import BlockPool, Chain
from tuner.engines.simulator.scheduling.sequence import Prompt, Sequence

SIZE = 4


def sequence(tokens: int, *shared: tuple[Chain, int], index: int = 0, output: int = 8) -> Sequence:
    return Sequence(Prompt(index, tokens, output, shared), SIZE, 0.0)


def compute(pool: BlockPool, item: Sequence) -> None:
    """Let a sequence find what is known, and take blocks for the rest of its prompt."""
    item.start(pool, item.known_blocks(SIZE), SIZE)
    item.grow(pool, -(-item.tokens // SIZE))
    item.computed = item.tokens


def test_a_document_is_found_again_by_whole_blocks() -> None:
    pool, document = BlockPool(20, caching=True), Chain()
    first, second = sequence(14, (document, 10)), sequence(13, (document, 10), index=1)
    compute(pool, first)
    # 14 tokens are 4 blocks; 2 of them lie within the document's 10 tokens
    assert (pool.used, document.cached, first.held) == (4, 2, [2])
    assert second.known_blocks(SIZE) == 2
    compute(pool, second)
    # 13 tokens are 4 blocks, 2 of them shared
    assert (pool.used, document.held) == (6, 2)
    first.free(pool)
    assert (pool.used, pool.idle) == (4, 2)
    second.free(pool)
    assert (pool.used, pool.idle, document.cached, document.held) == (0, 6, 2, 0)


def test_the_last_token_is_computed_even_if_all_of_a_prompt_is_known() -> None:
    pool, document = BlockPool(20, caching=True), Chain()
    first = sequence(8, (document, 8))
    compute(pool, first)
    assert document.cached == 2
    assert sequence(8, (document, 8), index=1).known_blocks(SIZE) == 1


def test_what_was_unused_the_longest_is_evicted_first_and_a_chain_from_its_end() -> None:
    pool, document = BlockPool(6, caching=True), Chain()
    compute(pool, first := sequence(12, (document, 12)))
    first.free(pool)
    assert (pool.idle, pool.blank, document.cached) == (3, 3, 3)
    compute(pool, second := sequence(16, index=1))
    # 4 blocks: the 3 blank ones, then the document's last
    assert (pool.used, pool.idle, document.cached) == (4, 2, 2)
    assert sequence(12, (document, 12), index=2).known_blocks(SIZE) == 2
    second.free(pool)


def test_what_is_in_use_cannot_be_evicted() -> None:
    pool, document = BlockPool(4, caching=True), Chain()
    compute(pool, sequence(8, (document, 8)))
    with pytest.raises(ValueError, match="3 blocks wanted, 2 are free"):
        pool.take(3)


def test_one_that_was_preempted_finds_its_own_blocks_again() -> None:
    pool = BlockPool(8, caching=True)
    item = sequence(10)
    compute(pool, item)
    item.preempt(pool, SIZE)
    # 10 tokens are 3 blocks, 2 of them full
    assert (pool.used, pool.idle, item.computed) == (0, 3, 0)
    assert item.known_blocks(SIZE) == 2
    compute(pool, item)
    assert pool.used == 3
    item.free(pool)
    assert pool.used == 0


def test_without_caching_nothing_is_kept() -> None:
    pool = BlockPool(8, caching=False)
    compute(pool, item := sequence(10))
    item.preempt(pool, SIZE)
    assert (pool.idle, pool.blank) == (0, 8)
    assert item.known_blocks(SIZE) == 0


def test_a_copy_of_ones_own_is_not_taken_twice() -> None:
    pool, document = BlockPool(6, caching=True), Chain()
    compute(pool, first := sequence(8, (document, 8)))
    # the second computes its last token, and with it the second block, again
    compute(pool, second := sequence(8, (document, 8), index=1))
    assert (pool.used, second.held) == (3, [1])
    first.free(pool)
    # the document's second block is evicted; the second sequence still has its copy
    pool.take(4)
    assert (document.cached, pool.free) == (1, 0)
    second.grow(pool, 2)
    assert (second.held, pool.used) == ([1], 6)


class Cache(RuleBasedStateMachine):
    """Any order of arrivals, growth, preemption and ends: no block is lost, none is given twice."""

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
        known = item.known_blocks(SIZE)
        idle = sum(max(0, min(known, span) - chain.held) for chain, span in item.chains)
        own = max(0, known - sum(span for _, span in item.chains))
        if -(-item.tokens // SIZE) - known + idle + own <= self.pool.free:
            compute(self.pool, item)
            self.running.append(item)
            if item in self.preempted:
                self.preempted.remove(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(1, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        item = data.draw(st.sampled_from(self.running))
        wanted = -(-(item.tokens + more) // SIZE)
        if wanted - item.blocks <= self.pool.free:
            item.generated += more
            item.computed = item.tokens
            item.grow(self.pool, wanted)

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
    def every_block_is_somebodys(self) -> None:
        pool = self.pool
        assert pool.blank >= 0
        assert pool.idle == sum(run.count for run in pool._runs) >= 0
        own = sum(item.blocks - sum(item.held) for item in self.running)
        assert pool.used == own + sum(chain.held for chain in self.chains)

    @invariant()
    def a_chain_is_held_as_deep_as_its_deepest_reader(self) -> None:
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
